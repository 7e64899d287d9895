"""Results are those of the stored runs: whatever was changed or is of another day is refused, and can be collected."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
from unittest import mock

import pytest
import torch

from ipdlam.baselines import OPTIMIZERS
from ipdlam.errors import FileError
from ipdlam.experiments import EXPERIMENTS
from ipdlam.experiments import store as runner
from ipdlam.experiments.contents import load_contents
from ipdlam.experiments.make import all_runs, command, draw, drawn_panels, make, save, stored, summarise
from ipdlam.experiments.paper import setup
from ipdlam.experiments.spec import SCALES, START
from ipdlam.experiments.store import Store, config_of, make_trainer, problem_of
from ipdlam.minibatch.batch import default_batch_size
from shell import ipdlam_run, quick_pictures, refused, snapshot

NAMES = ("fig1", "order")


def store_of(folder):
    return Store(folder / "runs", folder / "unfinished")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Two experiments as they were made."""
    folder = tmp_path_factory.mktemp("honest")
    with quick_pictures():
        for name in NAMES:
            make(EXPERIMENTS[name], "smoke", 1, store_of(folder), folder, lambda *_: lambda record: None)
    return folder


@pytest.fixture
def results(honest, tmp_path):
    """The same, for a test to spoil."""
    return shutil.copytree(honest, tmp_path / "the results")


@pytest.fixture
def no_runs():
    """Nothing is trained."""
    with mock.patch.object(runner, "execute", side_effect=AssertionError("a run was made")):
        yield


def rewrite(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def first_run(results, name):
    spec = EXPERIMENTS[name].runs("smoke")[0]
    return spec, store_of(results).path(spec)


def refusal(results):
    """Why the results are refused."""
    with pytest.raises(FileError) as caught:
        load_contents(results)
    return str(caught.value)


def follow(message):
    """Do what the message says."""
    words = shlex.split(message.rsplit("again: ", 1)[1])
    assert words[:2] == ["ipdlam", "reproduce"]
    ipdlam_run(*words[1:])


def rows(name, results):
    declared = all_runs(EXPERIMENTS[name], "smoke", 1)
    return summarise(EXPERIMENTS[name], declared, stored(declared, store_of(results)), "smoke")["rows"]


# --- runs ---


def middle(content):
    content["columns"]["train_loss"][3] *= 0.5


def spaces(content):
    """Nothing: the file is written with other white space."""


@pytest.mark.parametrize("change", [middle, spaces])
def test_a_run_is_checked_to_the_byte(honest, results, change):
    spec, path = first_run(results, "fig1")
    rewrite(path, change)
    assert rows("fig1", results) == rows("fig1", honest)  # which is why rows alone would not tell
    message = refusal(results)
    assert message.startswith(
        f"{results}/fig1-smoke.json is refused: fig1-smoke: {path} ({spec.label}) is not the file"
    )
    assert "put that one back or, if the run was made again, collect it again: ipdlam reproduce fig1 " in message


def test_a_lost_run_is_made_again_alone(results):
    spec, path = first_run(results, "fig1")
    remedy = f"{command('fig1', 'smoke', 1)} --only {shlex.quote(spec.label)} --output {shlex.quote(str(results))}"
    path.write_text("{")
    assert refusal(results).endswith(
        f"{spec.key}.json is damaged (JSONDecodeError: Expecting property name enclosed "
        f"in double quotes: line 1 column 2 (char 1)); remove that file, then make it again: {remedy}"
    )
    path.unlink()
    message = refusal(results)
    assert message.endswith(f"the run {spec.key} ({spec.label}) is missing; make it again: {remedy}")
    others = snapshot(results / "runs")
    follow(message)
    assert snapshot(results / "runs").items() - others.items() == {(path, path.read_bytes())}
    assert len(load_contents(results)) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.pop("digests"), "it does not hold the digests of its runs"),
        (lambda content: content.update(digests=list(content["digests"])), "it does not hold the digests of its runs"),
        (lambda content: content["digests"].popitem(), "runs is not what its runs give"),
        (lambda content: content["digests"].update(more="0" * 64), "digests is not what its runs give"),
        (lambda content: content["digests"].update(dict.fromkeys(content["digests"], None)), "is not the file"),
        (lambda content: content.update(digests={}), "runs is not what its runs give"),
        (lambda content: content.update(environment={"torch": "9"}), "environment is not what its runs give"),
        (lambda content: content.update(command=command("fig1", "smoke")), "command is not what its runs give"),
    ],
)
def test_the_file_is_checked_as_a_whole(results, change, reason):
    rewrite(results / "fig1-smoke.json", change)
    assert reason in refusal(results)


def test_more_seeds_than_runs_are_refused_at_once(results, no_runs):
    """Not after the runs of all of them have been listed."""
    whole = snapshot(results)
    rewrite(results / "fig1-smoke.json", lambda content: content.update(seeds=10**12))
    message = refusal(results)
    assert "fig1-smoke.json is refused: its seeds, 1000000000000, are more than the 6 runs that it names; " in message
    follow(message)
    assert snapshot(results) == whole
    rewrite(results / "fig1-smoke.json", lambda content: content.update(seeds=10**12))
    ipdlam_run("reproduce", "fig1", "--output", results)
    assert snapshot(results) == whole


@pytest.mark.parametrize("change", [lambda content: None, lambda content: content.pop("digests")])
def test_what_is_collected_has_no_more_seeds_than_runs(results, change, no_runs):
    """Those of later seeds are lost."""
    rewrite(results / "order-smoke.json", lambda content: (content.update(seeds=3), change(content)))
    ipdlam_run("reproduce", "order", "--collect", "--output", results)
    assert json.loads((results / "order-smoke.json").read_text())["seeds"] == 1
    assert len(load_contents(results)) == 2


def test_what_is_refused_can_be_collected(results, no_runs):
    """Each message says how to be rid of it."""
    whole = snapshot(results)
    rewrite(results / "fig1-smoke.json", lambda content: content.pop("digests"))
    (results / "order-smoke.json").write_text("{")
    follow(refusal(results))
    follow(refusal(results))
    assert snapshot(results) == whole  # the same runs give the same bytes
    rewrite(first_run(results, "order")[1], middle)
    follow(refusal(results))
    (results / "order-smoke.png").write_bytes(b"")
    follow(refusal(results))
    assert len(load_contents(results)) == 2


def test_the_command_is_the_one_that_made_it(honest):
    for name in NAMES:
        content = json.loads((honest / f"{name}-smoke.json").read_text())
        assert content["command"] == command(name, "smoke", 1) == f"ipdlam reproduce {name} --scale smoke --seeds 1"


# --- pictures ---


def test_what_is_stopped_before_the_picture_leaves_none(results, no_runs, monkeypatch):
    """So that no report shows a picture of other runs than its rows."""
    rewrite(first_run(results, "fig1")[1], lambda content: content["columns"]["objective"].__setitem__(3, 5.0))
    monkeypatch.setattr("ipdlam.experiments.make.save", mock.Mock(side_effect=KeyboardInterrupt))
    ipdlam_run("reproduce", "fig1", "--collect", "--output", results, code=130)
    monkeypatch.undo()
    message = refusal(results)
    assert "fig1-smoke.png is missing; draw it again: ipdlam reproduce fig1" in message
    follow(message)
    assert len(load_contents(results)) == 2


def test_a_picture_is_drawn_of_the_runs_there_are(results, no_runs):
    """Of changed ones, and of fewer."""
    picture, (_, run) = results / "fig1-smoke.png", first_run(results, "fig1")
    older = picture.read_bytes()
    rewrite(run, lambda content: content["columns"]["objective"].__setitem__(3, 5.0))
    ipdlam_run("reproduce", "fig1", "--collect", "--output", results)
    newer = picture.read_bytes()
    run.unlink()
    ipdlam_run("reproduce", "fig1", "--collect", "--output", results)
    assert len({older, newer, picture.read_bytes()}) == 3
    load_contents(results)


def test_the_same_runs_give_the_same_picture(honest, tmp_path):
    experiment = EXPERIMENTS["order"]
    results = stored(all_runs(experiment, "smoke", 1), store_of(honest))
    for name in ("one", "two"):
        save(draw(drawn_panels(experiment, results), results, experiment.title), tmp_path / f"{name}.png")
    one, two = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one) > 10_000


# --- collecting ---


def test_all_results_are_collected_and_no_run_is_made(results, no_runs):
    before = snapshot(results)
    (results / "order-smoke.png").unlink()
    rewrite(results / "fig1-smoke.json", lambda content: content["rows"].pop())
    out, err = ipdlam_run("reproduce", "all", "--collect", "--output", results)
    assert err == ""
    assert snapshot(results) == before  # also no result that was not there
    lines = out.splitlines()
    assert f"bcd: skipped, none of its runs of the first seed at the smoke scale is in {results}/runs" in lines
    assert "fig3: skipped, it has runs but no result at the smoke scale; name it to collect them" in lines
    assert "Figure 1: iPDLAM against DLAM" in lines
    assert not any(line.startswith(("fig1:", "order:")) for line in lines)


def test_what_is_named_is_collected_from_the_runs_of_others(results, no_runs):
    out = ipdlam_run("reproduce", "fig3", "fig4", "bcd", "--collect", "--output", results)[0]
    assert "Figure 3: iPDLAM against classical optimizers (1 of " in out
    assert f"bcd: skipped, none of its runs of the first seed at the smoke scale is in {results}/runs" in out
    assert [content.experiment.name for content in load_contents(results)] == ["fig1", "fig3", "order"]


def test_collecting_keeps_the_number_of_seeds(results, no_runs):
    store, path = store_of(results), results / "order-smoke.json"
    first = EXPERIMENTS["order"].runs("smoke")[0]
    store.write(dataclasses.replace(store.read(first), spec=first.changed(seed=1)))
    for damage in (lambda: None, lambda: path.write_text("{"), path.unlink):
        ipdlam_run("reproduce", "order", "--collect", "--seeds", "2", "--output", results)
        damage()  # what cannot be read says nothing of seeds, and the runs do
        ipdlam_run("reproduce", "order", "--collect", "--output", results)
        content = json.loads(path.read_text())
        assert (content["seeds"], content["runs"], content["runs_declared"]) == (2, 4, 6)
        assert len(load_contents(results)) == 2
    ipdlam_run("reproduce", "order", "--collect", "--seeds", "1", "--output", results)
    ipdlam_run("reproduce", "order", "--collect", "--output", results)
    assert json.loads(path.read_text())["seeds"] == 1  # as it was asked for the last time
    words = "seeds 9: of order at the smoke scale there are runs of 2 only; give fewer"
    assert words in refused("reproduce", "order", "--collect", "--seeds", "9", "--output", results)


def test_the_scales_that_could_be_collected_are_named(results):
    words = "nothing to collect at the small scale in .*; say --scale smoke, or make it without collect"
    assert re.search(words, refused("reproduce", "all", "--scale", "small", "--collect", "--output", results))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all", "--only", "inertia 0.7"], "collect makes no run, so there is nothing for only to choose; leave one "),
        (["all"], "there is nothing to collect at the smoke scale in "),
        (["fig2", "--scale", "paper"], "there is nothing to collect at the paper scale in "),
        (["fig9"], "unknown experiment 'fig9'"),
    ],
)
def test_what_cannot_be_collected(tmp_path, arguments, words):
    assert words in refused("reproduce", *arguments, "--collect", "--output", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_damaged_run_is_not_collected(results):
    _, path = first_run(results, "fig1")
    path.write_text("{")
    assert f"{path} is damaged" in refused("reproduce", "fig1", "--collect", "--output", results, code=1)


# --- what a run's key does not say ---

ALTERNATING = {
    "loss": {"name": "squared"},
    "regularizers": [None] * 3,
    "weight_proximity": None,
    "penalty": {"initial": 0.1, "growth": 1.1, "maximum": 1e6},
    "order": ["z3", "z2", "z1", "W3", "W2", "W1", "a2", "a1"],
    "chunk_size": 8192,
}
DESCENT = {"loss": {"name": "squared"}, "learning_rate": 0.001, "batch_size": 64, "seed": 0, "chunk_size": 8192}
SPECS = {
    "ipdlam": setup.ipdlam("smoke", "digits", setup.LETTER),
    "ipdlam, deep": EXPERIMENTS["deep"].runs("smoke")[0],  # it leaves inertia and proximity to the defaults
    "dlam": setup.dlam("smoke", "digits", setup.LETTER),
    "minibatch": setup.dlam("smoke", "digits", setup.LETTER).changed(method="minibatch"),
    "bcd": EXPERIMENTS["bcd"].runs("smoke")[0],
    "dladmm": EXPERIMENTS["bcd"].runs("smoke")[0].changed(method="dladmm"),
    "batch-by-batch": setup.dlam("smoke", "digits", setup.LETTER).changed(method="batch-by-batch"),
    "adam": setup.optimizer("smoke", "digits", "adam", 0.001),
    "sgd": setup.optimizer("smoke", "digits", "sgd", 0.001),
}
SETTINGS = {
    "ipdlam": {**ALTERNATING, "inertia": [0.7] * 3, "proximity": 1.0},
    "ipdlam, deep": {
        **ALTERNATING,
        "inertia": [0.7] * 3,
        "proximity": 1.0,
        "order": ["z3", "W3", "a2", "z2", "W2", "a1", "z1", "W1"],
    },
    "dlam": {**ALTERNATING, "inertia": [0.0] * 3, "proximity": 0.0},
    "minibatch": {
        **{"loss": {"name": "squared"}, "step": 0.5, "inertia": 0.7, "proximity": 3.0, "penalty": 0.1, "rank": 64},
        **{"weight_decay": 0.0, "batch_size": None, "seed": 0, "start": "auto", "horizon": None},
        **{"penalty_growth": 1e4},  # came after the runs, which have the squared loss: there it does nothing
        **{"precision": "float32"},  # came after the runs, which had no other
        **{"output_rank": 64},
        **{"bad_batches": "refuse", "chunk_size": 8192},
    },
    "bcd": {"loss": {"name": "squared"}, "proximity": 5.0, "chunk_size": 8192},
    "dladmm": {"loss": {"name": "squared"}, "penalty": 1e-6, "chunk_size": 8192},
    "batch-by-batch": {
        **{"loss": {"name": "squared"}, "batch_size": 512, "fresh": False, "inertia": 0.7, "proximity": 1.0},
        **{"penalty": 0.1, "penalty_growth": 1.1, "penalty_max": 1e6, "chunk_size": 8192},
    },
    "adam": {**DESCENT, "optimizer": "adam"},
    "sgd": {**DESCENT, "optimizer": "sgd"},
}
ADAM = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0}
MOMENTS = {
    "sgd": {"momentum": 0, "dampening": 0, "nesterov": False, "weight_decay": 0},
    "adagrad": {"lr_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10, "weight_decay": 0},
    "adadelta": {"rho": 0.9, "eps": 1e-6, "weight_decay": 0},
    "rmsprop": {"alpha": 0.99, "momentum": 0, "centered": False, "eps": 1e-8, "weight_decay": 0},
    "adam": {**ADAM, "amsgrad": False},
    "amsgrad": {**ADAM, "amsgrad": True},
    "adamax": ADAM,
    "adamw": {**ADAM, "amsgrad": False, "weight_decay": 0.01},
    "nadam": {**ADAM, "momentum_decay": 0.004},
    "radam": ADAM,
}


def stale(what):
    return (
        f"a default of {what} has changed, which the keys of stored runs do not say: those in results/runs are no "
        "longer what the code makes, and would be used all the same. State the old value in the specs of the "
        "experiments, or make these runs again; then change this test"
    )


@pytest.mark.parametrize("name", SPECS)
def test_the_settings_of_stored_runs_are_still_those_of_the_code(name):
    spec = SPECS[name]
    assert spec.method == name.split(",")[0]
    trainer = make_trainer(spec, spec.seed, problem_of(config_of(spec)).make_model())
    assert trainer.settings_dict() == SETTINGS[name], stale(spec.method)
    assert trainer.network.dtype == torch.float32, stale("the network")


@pytest.mark.parametrize("name", MOMENTS)
def test_the_optimizers_of_stored_runs_are_still_those_of_torch(name):
    """What no setting of ours says; torch may add to it."""
    given = OPTIMIZERS[name]([torch.nn.Parameter(torch.zeros(1))], lr=0.5).defaults
    assert {key: given[key] for key in MOMENTS[name]} == MOMENTS[name], stale(name)


def test_the_data_of_stored_runs_are_still_prepared_so():
    config = dataclasses.asdict(config_of(EXPERIMENTS["fig1"].runs("small")[0]))
    expected = {"label": None, "task": "auto", "validation": "auto", "standardize": None, "dtype": "float32"}
    assert {key: config[key] for key in expected} == expected, stale("the data")
    assert [default_batch_size(samples) for samples in (1437, 60000)] == [64, 512], stale("minibatch")


def test_every_method_of_the_experiments_is_guarded():
    specs = [spec for each in EXPERIMENTS.values() for scale in SCALES for spec in each.runs(scale)]
    used = {stage.method for spec in specs for stage in (spec, spec.then) if stage is not None}
    assert used <= set(SPECS) | set(MOMENTS)
    assert set(MOMENTS) == set(OPTIMIZERS)
    assert SETTINGS["ipdlam"]["penalty"]["initial"] == START  # at which Phi is compared
