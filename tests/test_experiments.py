"""Experiments: declared, made once, resumed, and rows that can be checked against their runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import ipdlam
from ipdlam.errors import CheckpointError
from ipdlam.experiments import EXPERIMENTS, runner
from ipdlam.experiments.base import SCALES, RunSpec, Verdict
from ipdlam.experiments.make import all_runs, check, draw, make, spread
from ipdlam.experiments.runner import Store

ROOT = Path(__file__).parent.parent
TINY = RunSpec("digits", "ipdlam", (6,), 3, (("inertia", 0.5),), limit=100)


def ignore(spec, place, count):
    return lambda record: None


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs", tmp_path / "unfinished")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    store = Store(folder / "runs", folder / "unfinished")
    contents = {name: make(EXPERIMENTS[name], "smoke", 1, store, folder, ignore) for name in EXPERIMENTS}
    return folder, store, contents


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_leaves_rows_a_verdict_and_a_picture(made, name):
    folder, store, contents = made
    content = json.loads((folder / f"{name}-smoke.json").read_text())
    assert content == json.loads(json.dumps(contents[name]))
    assert content["verdict"] == "not measured"  # digits say nothing of the paper
    assert content["environment"]["torch"]
    assert (folder / f"{name}-smoke.png").read_bytes().startswith(b"\x89PNG")
    runs = all_runs(EXPERIMENTS[name], "smoke", 1)
    assert [row["run"] for row in content["rows"]] == [spec.key for spec in runs]
    for row in content["rows"]:
        assert row["seconds"] > 0
        assert row["passes"] >= row["iterations"]
        assert 0.0 <= row["test_accuracy"] <= row["best_test_accuracy"] <= 1.0
    check(EXPERIMENTS[name], content, store)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_is_declared(name, scale):
    runs = EXPERIMENTS[name].runs(scale)
    assert len({spec.key for spec in runs}) == len(runs) > 1
    if scale == "paper" and name not in ("deep", "warmup"):
        assert all(spec.hidden == (1500, 1500) and spec.iterations == 200 for spec in runs)
    lines = [line for panel in EXPERIMENTS[name].panels(runs) for line in panel.lines.values()]
    shown = {spec.key for line in lines for spec in (line if isinstance(line, tuple) else (line,))}
    assert shown <= {spec.key for spec in runs}


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["rows"][0].update(test_accuracy=0.99),
        lambda content: content["rows"].pop(),
        lambda content: content.update(verdict="holds"),
        lambda content: content.update(why="because"),
    ],
)
def test_a_row_that_was_tampered_with_is_noticed(made, change):
    _, store, contents = made
    content = json.loads(json.dumps(contents["fig1"]))
    change(content)
    with pytest.raises(CheckpointError, match=r"fig1: its (rows|verdict|why) are not those of its runs"):
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
        with pytest.raises(CheckpointError, match="are not those of its runs"):
            check(EXPERIMENTS["fig1"], json.loads(json.dumps(contents["fig1"])), store)
        changed["spec"]["seed"] = 5
        path.write_text(json.dumps(changed))
        with pytest.raises(CheckpointError, match="holds another run than its name says"):
            store.read(spec)
        path.write_text("{")
        with pytest.raises(CheckpointError, match="is damaged"):
            store.read(spec)
        path.unlink()
        with pytest.raises(CheckpointError, match="is missing"):
            check(EXPERIMENTS["fig1"], json.loads(json.dumps(contents["fig1"])), store)
    finally:
        path.write_bytes(kept)


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
    assert seen == [1, 2, 3, 4, 5, 5, 6, 7]
    assert result.columns["objective"] == undisturbed.columns["objective"]
    assert not (store.work / spec.key).exists()


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


def test_seeds_give_a_spread(tmp_path, store):
    content = make(EXPERIMENTS["order"], "smoke", 2, store, tmp_path, ignore)
    assert [row["seed"] for row in content["rows"]] == [0, 0, 0, 1, 1, 1]
    assert content["rows"][0]["objective"] != content["rows"][3]["objective"]
    mean, low, high = content["spread"][0]["best_test_accuracy"]
    assert low <= mean <= high
    check(EXPERIMENTS["order"], json.loads(json.dumps(content)), store)


def test_a_spread_is_the_mean_and_the_range():
    fields = dict.fromkeys(("objective", "train_accuracy", "test_accuracy", "best_test_accuracy"))
    rows = [{**fields, "run": str(k), "objective": float(k)} for k in (1, 2, 6)]
    assert spread(rows)["objective"] == [3.0, 1.0, 6.0]
    assert spread(rows)["test_accuracy"] is None


def test_verdicts_follow_the_rows():
    fig1 = EXPERIMENTS["fig1"]
    base = {"data": "mnist", "method": "dlam", "objective": 2.0, "best_test_accuracy": 0.9, "diverged": False}
    better = {**base, "method": "ipdlam", "objective": 1.0, "best_test_accuracy": 0.95}
    assert fig1.verdict([base, better]).word == "holds"
    assert fig1.verdict([base, {**better, "objective": 3.0}]).word == "holds partly"
    assert fig1.verdict([base, {**better, "objective": 3.0, "best_test_accuracy": 0.8}]).word == "does not hold"
    assert isinstance(fig1.verdict([base, better]), Verdict)


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
