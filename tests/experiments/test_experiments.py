"""Experiments: declared, made once, resumed, and rows that can be checked against their runs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest

import ipdlam
from forked import Forked, call
from ipdlam.baselines import OPTIMIZERS
from ipdlam.checkpoint.files import LOCK, exclusive
from ipdlam.errors import FileError
from ipdlam.experiments import EXPERIMENTS
from ipdlam.experiments import store as runner
from ipdlam.experiments.make import (
    all_runs,
    averaged,
    check,
    chosen_runs,
    comparable,
    draw,
    drawn_panels,
    make,
    save,
    stored,
    summarise,
)
from ipdlam.experiments.spec import SCALES, START, RunSpec, reweighed
from ipdlam.experiments.store import Store
from ipdlam.experiments.tables import markdown, result_table
from ipdlam.runs.config import ConfigError
from programs import ROOT
from shell import quick_pictures

TINY = RunSpec("digits", "ipdlam", (6,), 3, (("inertia", 0.5),), limit=100)


WARMED = dataclasses.replace(
    TINY, then=dataclasses.replace(TINY, method="adamax", settings=(("batch_size", 20),), iterations=7)
)


def ignore(spec, place, count):
    return lambda record: None


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs", tmp_path / "unfinished")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    store = Store(folder / "runs", folder / "unfinished")
    with quick_pictures():
        contents = {name: make(EXPERIMENTS[name], "smoke", 1, store, folder, ignore) for name in EXPERIMENTS}
    return folder, store, contents


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_leaves_rows_a_verdict_and_a_picture(made, name):
    folder, store, contents = made
    content = json.loads((folder / f"{name}-smoke.json").read_text())
    assert content == json.loads(json.dumps(contents[name]))
    assert list(content["digests"]) == [row["run"] for row in content["rows"]]
    assert content["claims"] or name == "bcd"  # whose authors have another network
    assert {claim["verdict"] for claim in content["claims"]} <= {"not judged"}  # digits say nothing of the paper
    assert (folder / f"{name}-smoke.png").read_bytes().startswith(b"\x89PNG")
    runs = all_runs(EXPERIMENTS[name], "smoke", 1)
    assert [row["run"] for row in content["rows"]] == [spec.key for spec in runs]
    for row in content["rows"]:
        assert row["environment"]["torch"]
        assert row["seconds"] > 0
        assert row["passes"] >= row["iterations"]
        if row["diverged"]:  # so it does not at this scale but for Table 1
            assert row["test_accuracy"] is None
        else:
            assert 0.0 <= row["test_accuracy"] <= row["best_test_accuracy"] <= 1.0
    check(EXPERIMENTS[name], content, store)


DRAWN = ("table1", "fig3", "deep")  # by iteration, by seconds, and the best of several runs by a setting
SLOWLY = [pytest.param(name, marks=pytest.mark.slow) for name in EXPERIMENTS if name not in DRAWN]


@pytest.mark.parametrize("name", [*DRAWN, *SLOWLY])
def test_the_picture_of_an_experiment(made, tmp_path, name):
    experiment, store = EXPERIMENTS[name], made[1]
    results = stored(all_runs(experiment, "smoke", 1), store)
    picture = save(draw(drawn_panels(experiment, results), results, experiment.title), tmp_path / "picture.png")
    image = picture.read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) > 10_000


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_is_declared(name, scale):
    runs = EXPERIMENTS[name].runs(scale)
    assert len({spec.key for spec in runs}) == len(runs) > (scale != "paper")
    if scale == "paper" and name not in ("deep", "warmup", "bcd"):
        iterations = 50 if name == "weights" else 200  # what a user makes, and what the paper does
        assert all(spec.hidden == (1500, 1500) and spec.iterations == iterations for spec in runs)
    lines = [line for panel in EXPERIMENTS[name].panels(runs) for line in panel.lines.values()]
    shown = {spec.key for line in lines for spec in (line if isinstance(line, tuple) else (line,))}
    assert shown <= {spec.key for spec in runs}


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["rows"][0].update(test_accuracy=0.99),
        lambda content: content["rows"].pop(),
        lambda content: content["claims"][0].update(verdict="holds"),
        lambda content: content["claims"][0].update(ours="more"),
        lambda content: content["means"][0].update(test_accuracy=0.99),
        lambda content: content.update(runs=9),
    ],
)
def test_a_row_that_was_tampered_with_is_noticed(made, change):
    _, store, contents = made
    content = json.loads(json.dumps(contents["fig1"]))
    change(content)
    with pytest.raises(FileError, match=r"fig1-smoke: (runs|rows|means|claims) is not what its runs give"):
        check(EXPERIMENTS["fig1"], content, store)


def test_a_run_that_was_tampered_with_is_noticed(made, tmp_path):
    _, store, contents = made
    spec = all_runs(EXPERIMENTS["fig1"], "smoke", 1)[0]
    path = store.path(spec)
    kept = path.read_bytes()
    changed = json.loads(kept)
    changed["columns"]["validation_accuracy"][-1] = 0.999
    path.write_text(json.dumps(changed))
    try:
        with pytest.raises(FileError, match="is not the file that it was made of"):
            check(EXPERIMENTS["fig1"], json.loads(json.dumps(contents["fig1"])), store)
        changed["spec"]["seed"] = 5
        path.write_text(json.dumps(changed))
        with pytest.raises(FileError, match="holds another run than its name says"):
            store.read(spec)
        path.write_text("{")
        with pytest.raises(FileError, match="is damaged"):
            store.read(spec)
        path.unlink()
        with pytest.raises(FileError, match="is missing"):
            check(EXPERIMENTS["fig1"], json.loads(json.dumps(contents["fig1"])), store)
    finally:
        path.write_bytes(kept)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda columns: columns["objective"].pop(), "its columns have different lengths"),
        (lambda columns: columns.update(loss=["much"] * 3), "loss holds something else than numbers"),
        (
            lambda columns: columns.update(objective=[1.0, 0.5, float("nan")]),
            "objective holds numbers that are not finite",
        ),
        (lambda columns: columns.update(objective=[1.0, 0.5, 10**400]), "objective holds numbers that no float has"),
        (lambda columns: columns.update(loss=[1.0, 0.5, -float("inf")]), "loss holds numbers that are not finite"),
        (lambda columns: columns.update(seconds=[1.0, 2.0, -3.0]), "seconds holds negative numbers"),
        (lambda columns: columns.update(train_accuracy=[7.5] * 3), "train_accuracy is not between 0 and 1"),
    ],
)
def test_what_no_run_leaves_is_refused(store, change, words):
    store.make(TINY, lambda record: None)
    content = json.loads(store.path(TINY).read_text())
    change(content["columns"])
    store.path(TINY).write_text(json.dumps(content))
    with pytest.raises(FileError, match=rf"is damaged \(ValueError: {words}\); remove that file"):
        store.read(TINY)


def cut(content, rows):
    content["columns"] = {name: values[:rows] for name, values in content["columns"].items()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.update(stop_reason=None), "stop_reason must be one of iterations, diverged, got None"),
        (lambda content: content.update(stop_reason="interrupted"), "stop_reason must be .*, got 'interrupted'"),
        (lambda content: content.update(stop_reason=["iterations"]), "stop_reason must be "),
        (lambda content: content.update(passes=-7), "passes must be a whole number from 1 on, got -7"),
        (lambda content: content.update(environment={}), "environment must say where it was made, got {}"),
        (lambda content: content.update(environment="here"), "environment must say where it was made, got 'here'"),
        (lambda content: content.update(environment=None), "environment must say where it was made, got None"),
        (lambda content: cut(content, 0), "its columns have 0 rows, but the run has 3 iterations"),
        (lambda content: cut(content, 2), "its columns have 2 rows, but the run has 3 iterations"),
        (lambda content: content["columns"].update(iteration=[1, 2, 4]), "iteration does not count from 1 on"),
    ],
)
def test_what_no_finished_run_leaves_is_refused(store, change, words):
    store.make(TINY, lambda record: None)
    content = json.loads(store.path(TINY).read_text())
    change(content)
    store.path(TINY).write_text(json.dumps(content))
    with pytest.raises(FileError, match=rf"is damaged \(ValueError: {words}.*\); remove that file"):
        store.read(TINY)


def test_the_forward_pass_of_a_finished_run_may_overflow(store):
    result = store.make(TINY, lambda record: None)
    columns = {**result.columns, "validation_loss": [1.0, 1e30, float("inf")]}
    store.write(dataclasses.replace(result, columns=columns))
    assert store.read(TINY).columns["validation_loss"][-1] == float("inf")


def test_a_run_has_no_more_rows_than_iterations(store):
    longer = store.make(TINY.changed(iterations=4), lambda record: None)
    store.write(dataclasses.replace(longer, spec=TINY, stop_reason="diverged"))
    with pytest.raises(FileError, match="its columns have 4 rows, but the run has 3 iterations"):
        store.read(TINY)


def test_the_rows_of_both_methods_count(store):
    whole = store.make(WARMED, lambda record: None)
    store.write(dataclasses.replace(whole, columns={name: values[:3] for name, values in whole.columns.items()}))
    with pytest.raises(FileError, match="its columns have 3 rows, but the run has 10 iterations"):
        store.read(WARMED)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_run_that_diverged_has_fewer_rows(store, rows):
    """None where it did so in the first iteration."""
    whole = store.make(TINY, lambda record: None)
    columns = {name: values[:rows] for name, values in whole.columns.items()}
    store.write(dataclasses.replace(whole, columns=columns, stop_reason="diverged"))
    assert store.read(TINY).columns == columns


def test_divergence_at_once_is_a_result(store):
    """As :func:`execute` leaves it, without a row."""
    settings = (("learning_rate", 1e30), ("batch_size", 1))
    spec = TINY.without("inertia").changed(method="sgd", settings=settings, iterations=9)
    result = store.make(spec, lambda record: None)
    assert result.diverged
    assert result.columns["iteration"] == []
    assert store.read(spec) == result


def test_a_file_of_a_run_that_cannot_be_read_is_named(store):
    store.path(TINY).mkdir(parents=True)
    with pytest.raises(FileError, match=rf"{TINY.key}.json cannot be read: Is a directory; .* make it again"):
        store.read(TINY)


def test_all_committed_runs_are_read():
    store = Store(ROOT / "results" / "runs", ROOT / "results" / "unfinished")
    declared = {
        spec.key: spec
        for experiment in EXPERIMENTS.values()
        for scale in SCALES
        for spec in all_runs(experiment, scale, 3)
    }
    keys = {path.stem for path in store.folder.glob("*.json")}
    assert keys
    assert keys <= declared.keys()
    for key in keys:
        assert store.read(declared[key]) is not None


def test_a_label_says_what_a_user_would_type():
    assert TINY.changed(settings=(("ridge", 1e-5),)).label == (
        "ipdlam on digits (inertia 0.5, ridge 1e-5), 1 hidden layer, relu, paper initialisation"
    )
    deep = EXPERIMENTS["deep"].runs("small")
    assert len({spec.label for spec in deep}) == len(deep)
    assert EXPERIMENTS["fig1"].runs("paper")[0].label == "dlam on mnist (penalty 1e-6)"
    assert EXPERIMENTS["fig1-letter"].runs("paper")[0].label == "dlam on mnist"


def test_few_runs_are_all_drawn():
    specs = EXPERIMENTS["table1"].runs("smoke")
    assert list(EXPERIMENTS["table1"].panels(specs[2:4])[0].lines) == ["inertia 0.2", "inertia 0.3"]
    assert len(EXPERIMENTS["table1"].panels(specs)[0].lines) == 7


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"spec": {}}', '{"spec": {}, "columns": {}, "stop_reason": null, "passes": 1}', "1"]
)
def test_what_is_no_result_is_refused(store, content):
    store.folder.mkdir()
    store.path(TINY).write_text(content)
    with pytest.raises(FileError, match=r"is damaged.*remove that file"):
        store.make(TINY, lambda record: None)


def make_sixty(folder):
    """What each of two processes does."""
    runner.CHECKPOINT_EVERY = 2
    seen = []
    Store(Path(folder) / "runs", Path(folder) / "unfinished").make(TINY.changed(iterations=60), seen.append)
    print(len(seen))


def test_two_processes_make_a_run_once(tmp_path):
    """The second waits for the first and takes its result."""
    both = [Forked(call, __file__, "make_sixty", str(tmp_path)) for _ in range(2)]
    answers = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert sorted(int(out) for out, _ in answers) == [0, 60]


def test_waiting_for_another_process_can_be_left(store):
    looks = []

    def impatient():
        looks.append(len(looks))
        if len(looks) == 2:
            raise KeyboardInterrupt

    store.work.mkdir()
    store.waiting = impatient
    with exclusive(store.work / f"{TINY.key}{LOCK}"), pytest.raises(KeyboardInterrupt):
        store.make(TINY, lambda record: None)
    assert len(looks) == 2
    assert len(store.make(TINY, lambda record: None).columns["objective"]) == 3


def test_checkpoints_of_a_run_that_is_stored_are_removed(store, monkeypatch):
    """A process may die after it has written the result and before it has removed them."""
    with monkeypatch.context() as patch:
        patch.setattr(runner.shutil, "rmtree", lambda path, ignore_errors: path.mkdir(exist_ok=True))
        first = store.make(TINY, lambda record: None)
    assert (store.work / TINY.key).exists()
    monkeypatch.setattr(runner, "execute", None)
    assert store.make(TINY, lambda record: None) == first
    assert not (store.work / TINY.key).exists()


def test_a_run_is_made_once(store, monkeypatch):
    first = store.make(TINY, lambda record: None)
    monkeypatch.setattr(runner, "execute", None)
    assert store.make(TINY, lambda record: None) == first
    assert len(first.columns["objective"]) == 3


def test_the_run_is_that_of_the_library(store):
    data = ipdlam.datasets.load("digits")
    result = store.make(TINY, lambda record: None)
    model = runner.problem_of(runner.config_of(TINY)).make_model()
    trainer = ipdlam.IPDLAM(model, inertia=0.5, regularizer=None)
    history = trainer.fit(data.X[:100], data.y[:100], iterations=3, validation_data=(data.X_test, data.y_test))
    assert result.columns["objective"] == pytest.approx(history.column("objective"), rel=1e-6)
    assert result.columns["validation_accuracy"] == pytest.approx(history.column("validation_accuracy"), rel=1e-6)


def test_an_interrupted_run_goes_on_where_it_was(store, monkeypatch):
    monkeypatch.setattr(runner, "CHECKPOINT_EVERY", 2)
    spec = TINY.changed(iterations=7)
    undisturbed = Store(store.folder.parent / "other", store.work.parent / "elsewhere").make(spec, lambda record: None)
    seen = []

    def interrupt(record):
        seen.append(record.iteration)
        if record.iteration == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make(spec, interrupt)
    assert store.read(spec) is None
    result = store.make(spec, lambda record: seen.append(record.iteration))
    assert seen == [1, 2, 3, 4, 5, 6, 7]  # nothing is done twice
    assert result.columns["objective"] == undisturbed.columns["objective"]
    assert not (store.work / spec.key).exists()


def made_elsewhere(store, spec):
    """The result of a run that nothing disturbs."""
    return Store(store.folder.parent / "other", store.work.parent / "elsewhere").make(spec, lambda record: None)


def stop_at(number, seen):
    """A callback that interrupts after so many records."""

    def interrupt(record):
        seen.append(record.iteration)
        if len(seen) == number:
            raise KeyboardInterrupt

    return interrupt


def without_time(result):
    return {name: values for name, values in result.columns.items() if name != "seconds"}


@pytest.mark.parametrize("method", [*OPTIMIZERS, "bcd", "dladmm", "dlam"])
def test_every_method_goes_on_where_it_was(store, monkeypatch, method):
    monkeypatch.setattr(runner, "CHECKPOINT_EVERY", 2)
    spec = TINY.without("inertia").changed(method=method, iterations=7)
    undisturbed, seen = made_elsewhere(store, spec), []
    with pytest.raises(KeyboardInterrupt):
        store.make(spec, stop_at(5, seen))
    assert [path.name for path in (store.work / spec.key).iterdir()] == ["iteration-00000005"]
    result = store.make(spec, lambda record: seen.append(record.iteration))
    assert seen == [1, 2, 3, 4, 5, 6, 7]  # nothing is done twice
    assert without_time(result) == without_time(undisturbed)
    assert result.passes == undisturbed.passes
    assert result.columns["seconds"] == sorted(result.columns["seconds"])


@pytest.mark.parametrize("stopped", [2, 4, 9])
def test_a_second_method_goes_on_without_the_first_again(store, monkeypatch, stopped):
    """Interrupted in the first, in the second before its first checkpoint, and after it."""
    monkeypatch.setattr(runner, "CHECKPOINT_EVERY", 4)
    then = dataclasses.replace(TINY, method="adam", settings=(("batch_size", 20),), iterations=7)
    spec = dataclasses.replace(TINY, then=then)
    undisturbed, seen = made_elsewhere(store, spec), []
    with pytest.raises(KeyboardInterrupt):
        store.make(spec, stop_at(stopped, seen))
    assert store.read(spec) is None
    result = store.make(spec, lambda record: seen.append(record.iteration))
    assert seen == list(range(1, 11))  # nothing is done twice
    assert without_time(result) == without_time(undisturbed)
    assert result.columns["iteration"] == list(range(1, 11))
    assert result.columns["seconds"] == sorted(result.columns["seconds"])
    assert not (store.work / spec.key).exists()


def make_and_die(folder):
    """What the process does that is killed."""
    runner.CHECKPOINT_EVERY = 4
    seen = []

    def kill(record):
        seen.append(record)
        if len(seen) == 10:
            os.kill(os.getpid(), signal.SIGKILL)

    Store(Path(folder) / "runs", Path(folder) / "unfinished").make(WARMED, kill)


def test_a_killed_second_method_goes_on(store, monkeypatch, tmp_path):
    """The same with SIGKILL, in another process."""
    process = Forked(call, __file__, "make_and_die", str(tmp_path))
    said, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    monkeypatch.setattr(runner, "CHECKPOINT_EVERY", 4)
    seen = []
    result = store.make(WARMED, lambda record: seen.append(record.iteration))
    assert seen == [9, 10]
    assert without_time(result) == without_time(made_elsewhere(store, WARMED))


def test_a_second_method_goes_on_from_the_weights(store):
    then = dataclasses.replace(TINY, method="adam", settings=(("batch_size", 20),), iterations=2)
    result = store.make(dataclasses.replace(TINY, then=then), lambda record: None)
    assert result.columns["iteration"] == [1, 2, 3, 4, 5]
    alone = store.make(TINY, lambda record: None)
    assert result.columns["objective"][:3] == alone.columns["objective"]
    assert result.columns["seconds"][3] > result.columns["seconds"][2]


@pytest.mark.parametrize("method", ["bcd", "dladmm", "dlam", "sgd", "adamax"])
def test_every_method_can_be_run(store, method):
    spec = TINY.without("inertia").changed(method=method, iterations=2)
    assert len(store.make(spec, lambda record: None).columns["objective"]) == 2


def test_divergence_is_a_result(store):
    spec = TINY.without("inertia").changed(method="sgd", settings=(("learning_rate", 1e6),), iterations=9)
    result = store.make(spec, lambda record: None)
    assert result.diverged
    assert len(result.columns["iteration"]) < 9


def test_seeds_give_means_and_ranges(tmp_path, store):
    content = make(EXPERIMENTS["order"], "smoke", 2, store, tmp_path, ignore)
    assert [row["seed"] for row in content["rows"]] == [0, 0, 0, 1, 1, 1]
    assert content["rows"][0]["objective"] != content["rows"][3]["objective"]
    mean = content["means"][0]
    low, high = mean["best_test_accuracy_range"]
    assert low <= mean["best_test_accuracy"] <= high
    assert mean["objective"] == pytest.approx((content["rows"][0]["objective"] + content["rows"][3]["objective"]) / 2)
    check(EXPERIMENTS["order"], json.loads(json.dumps(content)), store)


def test_a_mean_is_of_what_was_measured():
    fields = {"run": "k", "diverged": False, "test_accuracy": None, "data": "mnist", "iterations": 9}
    rows = [{**fields, "seed": k, "objective": float(k), "train_accuracy": k / 10.0} for k in (1, 2, 6)]
    mean = averaged(rows)
    assert (mean["objective"], mean["test_accuracy"], mean["data"], mean["seeds"]) == (3.0, None, "mnist", 3)
    assert mean["train_accuracy_range"] == [0.1, 0.6]
    assert (mean["iterations"], mean["seed"]) == (9, 1)
    assert averaged([rows[0], {**rows[1], "diverged": True}])["diverged"]
    assert "train_accuracy_range" not in averaged(rows[:1])


def test_claims_compare_as_many_seeds_of_each():
    def group(data, *values):
        return [
            {"run": "k", "data": data, "seed": seed, "x": value, "diverged": False} for seed, value in enumerate(values)
        ]

    low, high, other = group("mnist", 1.0, 3.0, 8.0), group("mnist", 5.0, 7.0), group("digits", 4.0)
    found = [(row["x"], row["seeds"]) for row in comparable([low, high, other])]
    assert found == [(2.0, 2), (6.0, 2), (4.0, 1)]  # other data have seeds of their own
    assert comparable([low[2:], high]) == []  # no seed was made with both
    assert comparable([]) == []
    table = result_table(EXPERIMENTS["fig2"], {"means": [averaged(low), averaged(high)]})
    assert table.headings == ("seeds",)
    assert table.rows == (("3",), ("2",))
    assert "seeds" not in result_table(EXPERIMENTS["fig2"], {"means": [averaged(low)]}).headings


def test_what_a_seed_does_not_have_has_no_mean():
    rows = [{"run": "k", "diverged": False, "gain": gain} for gain in (0.01, None, 0.02)]
    assert (averaged(rows)["gain"], averaged(rows)["gain_known"]) == (None, 2)
    assert "gain_range" not in averaged(rows)
    assert averaged([*rows[:1], {"run": "k", "diverged": False}])["gain"] is None
    assert "gain_known" not in averaged(rows[1:2])


def test_what_is_true_of_all_seeds_is_true():
    rows = [{"run": "k", "diverged": each, "same_as_reverse": each} for each in (True, False, True)]
    mean = averaged(rows)
    assert (mean["diverged"], mean["diverged_seeds"], mean["same_as_reverse"]) == (True, 2, False)
    assert averaged(rows[::2])["same_as_reverse"] is True


@pytest.mark.parametrize(
    ("name", "only", "labels"),
    [
        ("fig1", "DLAM", ["dlam on mnist", "dlam on fashion-mnist"]),  # not the other method called so
        ("fig1", "zeng et al.", ["bcd on mnist", "bcd on fashion-mnist"]),
        ("penalty", "growing to 1", ["ipdlam on mnist (inertia 0.7, proximity 1.0, penalty_max 1.0)"]),
        ("warmup", "adam alone", ["adam on mnist (learning_rate 0.001, batch_size 512), 2 hidden layers, relu, torch"]),
        ("fig1", "growing to 1", []),
        ("order-letter", "reverse", ["ipdlam on mnist (inertia 0.7, proximity 1.0)"]),  # the nested one is another
        ("table1", "inertia 1", []),  # 1.0 and 1.2 are other numbers
        ("table1", "inertia 0", []),
        ("table1", "inertia 1.1", [f"ipdlam on {data} (inertia 1.1," for data in ("mnist", "fashion-mnist")]),
    ],
)
def test_runs_are_chosen_by_label_or_else_by_the_name_in_the_picture(name, only, labels):
    for seeds in (1, 2):
        found = chosen_runs(EXPERIMENTS[name], "small", seeds, only)
        assert len(found) == seeds * len(labels)
        assert all(spec.label.startswith(label) for spec, label in zip(found, labels, strict=False))


def test_a_part_of_an_experiment_is_a_result(tmp_path, store):
    content = make(EXPERIMENTS["fig1"], "smoke", 1, store, tmp_path, ignore, only="inertia 0.7")
    assert (content["runs"], content["runs_declared"]) == (1, 6)
    assert content["command"] == "ipdlam reproduce fig1 --scale smoke --seeds 1"
    compared = [claim for claim in content["claims"] if "than DLAM" in claim["claim"]]
    assert {claim["ours"] for claim in compared} == {"not run"}  # without DLAM there is nothing to hold it against
    more = make(EXPERIMENTS["fig1"], "smoke", 1, store, tmp_path, ignore, only="dlam on")
    assert more["runs"] == 2
    assert more["claims"]
    check(EXPERIMENTS["fig1"], json.loads(json.dumps(more)), store)
    check(
        EXPERIMENTS["fig1"], json.loads(json.dumps(content)), store
    )  # runs made since for another reason do not count
    with pytest.raises(ConfigError, match=r"only 'inertia 7' is in no label of fig1; they are: dlam on digits"):
        make(EXPERIMENTS["fig1"], "smoke", 1, store, tmp_path, ignore, only="inertia 7")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_any_part_of_an_experiment_can_be_summed_up(made, name):
    _, store, _ = made
    declared = all_runs(EXPERIMENTS[name], "smoke", 1)
    results = {spec.key: store.read(spec) for spec in declared}
    for spec in declared[:12]:
        content = summarise(EXPERIMENTS[name], declared, {spec.key: results[spec.key]}, "small")
        assert [row["run"] for row in content["rows"]] == [spec.key]
        table = result_table(EXPERIMENTS[name], content)
        assert len(table.rows) == 1
        assert markdown(table).count("\n") == 3
        draw(EXPERIMENTS[name].panels([spec]), results, "t")


@pytest.mark.parametrize("evaluated", [0, 1])
@pytest.mark.parametrize("iterations", [0, 1, 3])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_runs_that_diverge_early_are_rows_all_the_same(made, name, iterations, evaluated):
    _, store, _ = made
    declared = all_runs(EXPERIMENTS[name], "smoke", 1)
    results = {spec.key: store.read(spec) for spec in declared}
    for broken in (declared[:1], declared[1:2], declared[-1:], declared):
        cut = dict(results)
        for spec in broken:
            columns = {key: list(values[:iterations]) for key, values in results[spec.key].columns.items()}
            if not evaluated:
                for key in ("train_accuracy", "validation_accuracy", "train_loss", "validation_loss"):
                    columns[key] = [None] * iterations
            cut[spec.key] = dataclasses.replace(results[spec.key], columns=columns, stop_reason="diverged")
        content = summarise(EXPERIMENTS[name], declared, cut, "small")
        assert [row["diverged"] for row in content["rows"]].count(True) >= len(broken)
        lines = {row["reading"] for row in content["rows"]} if name == "readings" else declared
        assert len(result_table(EXPERIMENTS[name], content).rows) == len(lines)


def test_a_second_method_has_the_seed_of_the_first(store, monkeypatch):
    specs = all_runs(EXPERIMENTS["warmup"], "smoke", 2)
    assert [spec.then.seed for spec in specs if spec.then is not None] == [0, 0, 1, 1]
    then = dataclasses.replace(TINY, method="adam", settings=(("batch_size", 20),), iterations=2)
    runs = [dataclasses.replace(TINY, then=then).changed(seed=seed) for seed in (0, 1)]
    first, second = (store.make(spec, lambda record: None) for spec in runs)
    assert first.columns["objective"] != second.columns["objective"]


def test_parts_of_the_warm_up_are_paired_by_their_optimizer(made):
    _, store, _ = made
    specs = EXPERIMENTS["warmup"].runs("smoke")
    results = {spec.key: store.read(spec) for spec in specs}
    whole = {row["name"]: row for row in EXPERIMENTS["warmup"].rows(specs, results)}
    part = [spec for spec in specs if spec.then is not None or spec.method == "adam"]
    rows = {row["name"]: row for row in EXPERIMENTS["warmup"].rows(part, results)}
    assert rows["iPDLAM, then adam"] == whole["iPDLAM, then adam"]
    assert "gain" not in rows["iPDLAM, then sgd"]
    assert "then sgd" in specs[1].label


def test_without_reverse_nothing_is_said_to_be_the_same(made):
    _, store, _ = made
    specs = EXPERIMENTS["order"].runs("smoke")
    results = {spec.key: store.read(spec) for spec in specs}
    assert [row["same_as_reverse"] for row in EXPERIMENTS["order"].rows(specs, results)] == [True, True, False]
    assert [row["same_as_reverse"] for row in EXPERIMENTS["order"].rows(specs[1:], results)] == [None, None]


def test_a_name_has_one_look_in_all_panels(made):
    _, store, _ = made
    specs = EXPERIMENTS["fig1"].runs("smoke")
    results = {spec.key: store.read(spec) for spec in specs}
    one, two = EXPERIMENTS["fig1"].panels(specs[1:2])[:1], EXPERIMENTS["fig1"].panels(specs)[:1]
    figure = draw([*one, *two], results, "t")
    looks = [{line.get_label(): line.get_color() for line in axes.get_lines()} for axes in figure.axes]
    assert looks[0].items() <= looks[1].items()
    assert {text.get_text() for text in figure.legends[0].get_texts()} == set(looks[1])


def test_phi_at_another_penalty_is_what_the_library_would_say(store):
    result = store.make(TINY.changed(settings=(("penalty_growth", 1.0),)), lambda record: None)
    assert reweighed(result, START) == pytest.approx(result.last("objective"), rel=1e-6)
    grown = store.make(TINY, lambda record: None)
    gaps = grown.last("objective") - grown.last("loss")
    assert reweighed(grown, START) == pytest.approx(grown.last("loss") + gaps / 1.1**2, rel=1e-6)


def test_the_picture_shows_the_runs(made):
    _, store, _ = made
    specs = EXPERIMENTS["fig1"].runs("smoke")
    results = {spec.key: store.read(spec) for spec in specs}
    figure = draw(EXPERIMENTS["fig1"].panels(specs), results, "t")
    line = figure.axes[2].get_lines()[0]
    assert list(line.get_ydata()) == pytest.approx(
        [100 * v for v in results[specs[0].key].columns["validation_accuracy"]]
    )
    assert figure.axes[0].get_yscale() == "log"


COMMITTED = sorted(path for path in (ROOT / "results").glob("*-*.json") if path.stem.rsplit("-", 1)[1] in SCALES)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_rows_are_those_of_their_runs(path):
    store = Store(ROOT / "results" / "runs", ROOT / "results" / "unfinished")
    check(EXPERIMENTS[path.stem.rsplit("-", 1)[0]], json.loads(path.read_text()), store)
    assert path.with_suffix(".png").is_file()
