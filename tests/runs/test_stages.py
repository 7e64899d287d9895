"""Two stages in one run: the method, then an optimizer; stopped and resumed in either, to the bit."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import sys
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

from ipdlam.baselines import BackPropagation
from ipdlam.checkpoint import format as checkpoints
from ipdlam.cli import app
from ipdlam.cli.display import Screen
from ipdlam.runs import job as jobs
from ipdlam.runs.config import ConfigError, TrainConfig
from ipdlam.runs.folder import RunFolder
from ipdlam.runs.job import check_first_stage, counted, ending, hands_over
from ipdlam.runs.problem import Problem
from ipdlam.training.history import History, Record
from shell import Killed, assert_same_run, fake_curves, ipdlam_run, kill_after, records, refused, snapshot, summary

WARM = ("--hidden", "8", "--iterations", "3", "--then", "adam", "--then-epochs", "4", "--checkpoint-every", "2")
SETTINGS = {"hidden": (8,), "iterations": 3, "then": "adam", "then_epochs": 4, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two classes that a line does not part."""
    generator = np.random.default_rng(3)
    X = generator.normal(size=(200, 4)).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "samples.npz"
    np.savez(path, X=X, y=(X[:, 0] + X[:, 1] ** 2 > 1).astype(np.int64))
    return path


@pytest.fixture(scope="module")
def run(data):
    """An undisturbed run, and what it printed."""
    folder = data.parent / "undisturbed"
    out, err = ipdlam_run("train", data, *WARM, "--output", folder, pictures=True)
    assert err == ""
    return SimpleNamespace(path=folder, out=out)


@pytest.fixture
def again(run, tmp_path):
    """A copy to go on with."""
    return shutil.copytree(run.path, tmp_path / "again")


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


# --- a run with two stages --------------------------------------------------------------------------------------------


def test_it_is_the_method_and_then_the_optimizer(data, run):
    config = TrainConfig(data=str(data), **SETTINGS)
    problem = Problem(config)
    model, split = problem.make_model(), problem.split
    first = problem.make_trainer(model).fit(split.X, split.y, iterations=3, validation_data=split.validation)
    optimizer = BackPropagation(model, "adam", learning_rate=0.001, batch_size=64, seed=0)
    second = optimizer.fit(split.X, split.y, epochs=4, validation_data=split.validation)
    saved = load_file(run.path / "model.safetensors")
    for name, parameter in model.state_dict().items():
        assert torch.equal(saved[name], parameter)
    found = records(run.path)
    for record, expected in zip(found, [*first, *second], strict=True):
        same = {"iteration": record.iteration, "seconds": record.seconds}
        assert dataclasses.replace(expected, **same) == record
    assert [record.iteration for record in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [record.optimizer for record in found] == [None] * 3 + ["adam"] * 4
    seconds = [record.seconds for record in found]
    assert seconds == sorted(seconds)


def test_it_leaves_one_folder(run):
    assert names(run.path) == ["iteration-00000006", "iteration-00000007"]
    assert summary(run.path)["stop_reason"] == "then_epochs"
    assert summary(run.path)["iterations"] == 7
    assert summary(run.path)["last"]["optimizer"] == "adam"
    made = RunFolder(run.path).read_config()
    assert (made.then, made.then_epochs, made.then_learning_rate, made.then_batch_size) == ("adam", 4, None, None)
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_lines_name_the_stage(run):
    lines = run.out.splitlines()
    assert lines[1].startswith("ipdlam, then adam on ")
    assert [line.split("  ")[0] for line in lines if "Phi" in line] == [
        *(f"ipdlam {k}/3" for k in (1, 2, 3)),
        *(f"adam {k}/7" for k in (4, 5, 6, 7)),
    ]
    place = lines.index("adam after iteration 3: 4 epochs, rate 0.001, batches of 64")
    assert lines[place - 1].startswith("ipdlam 3/3")
    assert "gaps - -" in lines[place + 1]
    assert any(line.startswith("3 iterations and 4 epochs of adam, ") for line in lines)


def test_a_program_is_told(data, tmp_path):
    out, _ = ipdlam_run("train", data, *WARM, "--json", "--output", tmp_path / "run")
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == ["note", "begin", *["iteration"] * 3, "stage", *["iteration"] * 4, "end"]
    stage = events[5]
    assert (stage["after"], stage["epochs"]) == (3, 4)
    expected = {"optimizer": "adam", "learning_rate": 0.001, "batch_size": 64, "seed": 0}
    assert {name: stage["settings"][name] for name in expected} == expected
    assert events[6]["optimizer"] == "adam"
    assert events[-1]["stop_reason"] == "then_epochs"


def test_settings_from_a_file_and_options_over_them(data, run, tmp_path):
    (tmp_path / "c.toml").write_text(
        f'data = "{data}"\nhidden = [8]\niterations = 3\nthen = "sgd"\nthen_epochs = 2\nthen_learning_rate = 0.125\n'
        "then_batch_size = 32\n"
    )
    out, _ = ipdlam_run("train", "--config", tmp_path / "c.toml", "--output", tmp_path / "file")
    assert "sgd after iteration 3: 2 epochs, rate 0.125, batches of 32" in out
    options = ("--then", "adam", "--then-epochs", "4", "--then-learning-rate", "0.001", "--then-batch-size", "64")
    ipdlam_run("train", "--config", tmp_path / "c.toml", *options, "--output", tmp_path / "options")
    assert_same_run(tmp_path / "options", run.path)
    ipdlam_run("train", "--config", run.path / "config.toml", "--output", tmp_path / "twin")
    assert_same_run(tmp_path / "twin", run.path)


def test_defaults_suit_the_optimizer_and_the_samples(tmp_path):
    np.savez(tmp_path / "many.npz", X=np.random.default_rng(0).normal(size=(10000, 2)), y=np.arange(10000) % 2)
    options = ("--hidden", "2", "--iterations", "0", "--limit", "10000", "--validation", "none", "--checkpoint", "none")
    out, _ = ipdlam_run(
        "train", tmp_path / "many.npz", *options, "--then", "adadelta", "--then-epochs", "1", "--output", tmp_path / "a"
    )
    assert "adadelta after iteration 0: 1 epochs, rate 1, batches of 512" in out
    fewer = (*options, "--limit", "9999", "--then", "sgd", "--then-epochs", "1")
    out, _ = ipdlam_run("train", tmp_path / "many.npz", *fewer, "--output", tmp_path / "c")
    assert "sgd after iteration 0: 1 epochs, rate 0.05, batches of 64" in out
    out, _ = ipdlam_run(
        "train", tmp_path / "many.npz", *options, "--limit", "300", "--then", "sgd", "--output", tmp_path / "b"
    )
    assert "sgd after iteration 0: 50 epochs, rate 0.05, batches of 64" in out
    assert [record.optimizer for record in records(tmp_path / "b")] == ["sgd"] * 50


# The checkpoints of all of them are tested in baselines/test_resume.py.
SOME = ["sgd", "adadelta", "amsgrad"]
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("adagrad", "rmsprop", "adam", "adamax")]


@pytest.mark.parametrize("optimizer", [*SOME, *OTHERS])
def test_every_optimizer_goes_on_bit_for_bit(data, tmp_path, optimizer):
    options = ("--hidden", "6", "--iterations", "2", "--then", optimizer, "--checkpoint-every", "2", "--quiet")
    ipdlam_run("train", data, *options, "--then-epochs", "7", "--output", tmp_path / "straight")
    kill_after(7, data, *options, "--then-epochs", "7", "--output", tmp_path / "run")
    ipdlam_run("train", "--resume", tmp_path / "run", "--quiet")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_dlam_and_real_targets_and_few_evaluations(tmp_path):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(80, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", X=X, y=X[:, 0] * X[:, 1])
    options = ("--method", "dlam", "--hidden", "5", "--iterations", "3", "--then", "rmsprop", "--then-epochs", "4")
    ipdlam_run("train", tmp_path / "d.npz", *options, "--evaluate-every", "2", "--output", tmp_path / "run")
    found = records(tmp_path / "run")
    assert [record.train_loss is not None for record in found] == [False, True, True, True, False, True, True]
    assert all(record.train_accuracy is None for record in found)


def test_evaluate_and_predict_take_the_last_model(data, run):
    found = json.loads(ipdlam_run("evaluate", run.path, "--json")[0])
    last = records(run.path)[-1]
    assert found["held-out samples"]["accuracy"] == last.validation_accuracy
    assert found["training samples"]["accuracy"] == last.train_accuracy
    assert len(ipdlam_run("predict", run.path, data)[0].splitlines()) == 201


def test_the_variables_of_the_samples_are_let_go(data, tmp_path):
    """The second stage does without z and a, which may be gigabytes."""
    alive = []

    class Watcher:
        def begin(self, job, history):
            self.run = weakref.ref(job.trainer._state)

        def stage(self, job):
            alive.append(self.run() is not None)

        def record(self, record): ...

        def note(self, text): ...

        def warn(self, text): ...

    job = jobs.Job(TrainConfig(data=str(data), **SETTINGS), RunFolder(tmp_path / "run"))
    with mock.patch("ipdlam.runs.job.curves", fake_curves):
        job.run(Watcher(), resume=False, stop=lambda record: None)
    assert alive == [False]


def test_tensorboard_counts_on(data, tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ipdlam_run("train", data, *WARM, "--tensorboard", "--quiet", "--output", tmp_path / "run")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
        events.Reload()
    assert [event.step for event in events.Scalars("method/objective")] == [1, 2, 3, 4, 5, 6, 7]


# --- stopped and resumed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iteration", [1, 2, 3, 4, 5, 6, 7])
def test_killed_after_any_iteration_and_resumed(data, run, tmp_path, iteration):
    kill_after(iteration, data, *WARM, "--output", tmp_path / "run")
    out, _ = ipdlam_run("train", "--resume", tmp_path / "run")
    after, stage = {1: (0, ""), 2: (0, ""), 3: (2, "ipdlam"), 4: (3, "ipdlam")}.get(iteration, (None, "adam"))
    after = 4 + (iteration == 7) * 2 if after is None else after
    told = "starting from the first iteration" if after == 0 else f"resumed after iteration {after}, with {stage}\n"
    assert told in out
    assert_same_run(tmp_path / "run", run.path)
    assert summary(tmp_path / "run")["stop_reason"] == "then_epochs"
    assert names(tmp_path / "run")[-1] == "iteration-00000007"


def test_killed_between_the_stages(data, run, tmp_path):
    """After the last files of the first stage, before the first epoch."""
    arguments = ["train", str(data), *WARM, "--quiet", "--output", str(tmp_path / "run")]
    with mock.patch.object(BackPropagation, "start", side_effect=Killed), pytest.raises(Killed):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert names(tmp_path / "run") == ["iteration-00000002", "iteration-00000003"]
    assert (tmp_path / "run" / "model.safetensors").is_file()  # what the first stage has trained
    ipdlam_run("evaluate", tmp_path / "run")
    ipdlam_run("train", "--resume", tmp_path / "run")
    assert_same_run(tmp_path / "run", run.path)


def test_killed_after_the_last_epoch_and_before_the_last_files(run, again):
    (again / "summary.json").unlink()
    (again / "model.safetensors").unlink()
    ipdlam_run("train", "--resume", again)
    assert_same_run(again, run.path)
    assert summary(again)["stop_reason"] == "then_epochs"


def test_more_epochs_go_on_bit_for_bit(run, again, tmp_path):
    out, _ = ipdlam_run("train", "--resume", again)
    told = f"{again} is finished: 3 iterations and 4 epochs of adam, ended by: then_epochs; to go on, give a larger "
    assert f"{told}--then-epochs: ipdlam train --resume {again} --then-epochs ...\n" == out
    out, _ = ipdlam_run("train", "--resume", again, "--then-epochs", "9")
    assert "resumed after iteration 7, with adam" in out
    assert "adam after iteration 3: 9 epochs" in out
    config = run.path / "config.toml"
    ipdlam_run("train", "--config", config, "--then-epochs", "9", "--output", tmp_path / "straight")
    assert_same_run(again, tmp_path / "straight")
    assert RunFolder(again).read_config().then_epochs == 9
    assert "is finished" in ipdlam_run("train", "--resume", again, "--then-epochs", "2")[0]


def test_a_first_stage_that_is_over_cannot_change(again):
    before = snapshot(again)
    for iterations in ("5", "2"):
        message = refused("train", "--resume", again, "--iterations", iterations)
        assert f"iterations was 3 and is {iterations}, but adam took over after iteration 3: the first" in message
        assert "give a larger --then-epochs" in message
    assert snapshot(again) == before
    # A history that cannot be read does not help.
    (again / "history.jsonl").write_bytes(b"damaged\n")
    assert "adam took over after iteration 3" in refused("train", "--resume", again, "--iterations", "5")


def test_a_first_stage_that_is_not_over_can(data, tmp_path):
    kill_after(3, data, *WARM, "--output", tmp_path / "run")
    ipdlam_run("train", "--resume", tmp_path / "run", "--iterations", "5")
    options = ("--iterations", "5", "--output", tmp_path / "straight")
    ipdlam_run("train", data, *WARM, *options)
    assert_same_run(tmp_path / "run", tmp_path / "straight")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--then", "sgd"], "then was 'adam' and is 'sgd'"),
        (["--then-learning-rate", "0.1"], "then_learning_rate was None and is 0.1"),
        (["--then-batch-size", "5"], "then_batch_size was None and is 5"),
    ],
    ids=" ".join,
)
def test_other_settings_are_refused_by_name(again, options, words):
    before = snapshot(again)
    assert f"cannot go on with other settings: {words}" in refused("train", "--resume", again, *options)
    assert snapshot(again) == before


def test_settings_that_were_changed_in_the_folder_are_refused(again):
    text = (again / "config.toml").read_text()
    (again / "config.toml").write_text(text.replace("then_epochs = 4", "then_epochs = 6\nthen_learning_rate = 0.5"))
    message = refused("train", "--resume", again, code=1)
    assert "have changed: learning_rate was 0.001 and is 0.5" in message


def test_a_run_without_a_second_stage_gets_none_on_the_way(data, tmp_path):
    ipdlam_run("train", data, "--hidden", "3", "--iterations", "2", "--quiet", "--output", tmp_path / "run")
    message = refused("train", "--resume", tmp_path / "run", "--then", "adam")
    assert "then was None and is 'adam'" in message
    message = refused("train", "--resume", tmp_path / "run", "--then-epochs", "5")
    assert "then_epochs is for the optimizer of a second stage, and there is none" in message


def test_other_data_are_refused_in_the_second_stage(again, data, tmp_path):
    content = dict(np.load(data))
    content["X"][7, 1] += 1e-3
    np.savez(tmp_path / "other.npz", **content)
    before = snapshot(again)
    message = refused("train", tmp_path / "other.npz", "--resume", again, "--then-epochs", "6", code=1)
    assert "does not fit: the sha256 of training X was" in message
    assert snapshot(again) == before


def test_a_damaged_checkpoint_of_the_optimizer_leads_back_to_the_method(data, run, tmp_path):
    kill_after(5, data, *WARM, "--output", tmp_path / "run")
    assert names(tmp_path / "run") == ["iteration-00000003", "iteration-00000004"]
    file = tmp_path / "run" / "checkpoints" / "iteration-00000004" / "state-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    out, err = ipdlam_run("train", "--resume", tmp_path / "run")
    assert "iteration-00000004 is damaged" in err
    assert "resumed after iteration 3, with ipdlam" in out
    assert_same_run(tmp_path / "run", run.path)


@pytest.mark.parametrize("kind", ["light", "none"])
def test_runs_without_exact_checkpoints(data, run, tmp_path, kind):
    ipdlam_run("train", data, *WARM, "--checkpoint", kind, "--quiet", "--output", tmp_path / "run")
    assert_same_run(tmp_path / "run", run.path)
    before = snapshot(tmp_path / "run")
    message = refused("train", "--resume", tmp_path / "run", "--then-epochs", "9", code=1)
    assert "start a new run, with --checkpoint exact" in message
    assert snapshot(tmp_path / "run") == before
    # Killed in the second stage, the model of the first is there, and nothing writes over it.
    kill_after(5, data, *WARM, "--checkpoint", kind, "--output", tmp_path / "killed")
    before = snapshot(tmp_path / "killed")
    refused("train", "--resume", tmp_path / "killed", code=1)
    assert snapshot(tmp_path / "killed") == before
    ipdlam_run("evaluate", tmp_path / "killed")


def test_a_run_from_before_there_were_second_stages_goes_on(data, tmp_path):
    options = ("--hidden", "4", "--quiet", "--output")
    ipdlam_run("train", data, "--iterations", "6", *options, tmp_path / "straight")
    run = tmp_path / "run"
    ipdlam_run("train", data, "--iterations", "4", *options, run)
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    (run / "history.jsonl").write_text("".join(f"{json.dumps(without_name(line))}\n" for line in lines))
    file = run / "checkpoints" / "iteration-00000004" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest.pop("sha256")
    manifest["content"].pop("trainer")
    manifest["content"]["run"]["history"] = [without_name(line) for line in manifest["content"]["run"]["history"]]
    file.write_text(checkpoints.seal(manifest))
    assert "is finished" in ipdlam_run("train", "--resume", run)[0]
    ipdlam_run("train", "--resume", run, "--iterations", "6")
    assert_same_run(run, tmp_path / "straight")


def without_name(record):
    return {name: value for name, value in record.items() if name != "optimizer"}


# --- the best iterate, patience, the target ---------------------------------------------------------------------------


def test_the_second_stage_begins_with_the_best_iterate_if_that_is_kept(data, tmp_path):
    """As in Python: fit with restore_best leaves the best weights in the model, and the optimizer begins there."""
    options = ("--hidden", "8", "--iterations", "12", "--regularizer", "none", "--restore-best", "--then-epochs", "3")
    ipdlam_run("train", data, *options, "--then", "adam", "--quiet", "--output", tmp_path / "run")
    found = History(records(tmp_path / "run"))
    first = found[:12].best
    assert first.iteration < 12  # or this test shows nothing
    problem = Problem(TrainConfig(data=str(data), hidden=(8,), regularizer="none"))
    model, split = problem.make_model(), problem.split
    problem.make_trainer(model).fit(
        split.X, split.y, iterations=12, restore_best=True, validation_data=split.validation
    )
    alone = BackPropagation(model, "adam", batch_size=64).fit(split.X, split.y, epochs=3)
    assert found.column("objective")[12:] == alone.column("objective")
    evaluated = json.loads(ipdlam_run("evaluate", tmp_path / "run", "--json")[0])
    assert evaluated["held-out samples"]["accuracy"] == found.best.validation_accuracy


def test_the_best_iterate_may_be_of_the_first_stage(data, tmp_path):
    """An optimizer that spoils everything: what is kept is what the method found, also after a resume."""
    options = ("--hidden", "8", "--iterations", "4", "--then", "sgd", "--then-learning-rate", "1", "--restore-best")
    options = (*options, "--then-epochs", "4", "--checkpoint-every", "1", "--initialisation", "he")
    ipdlam_run("train", data, *options, "--quiet", "--output", tmp_path / "straight")
    best = History(records(tmp_path / "straight")).best
    assert best.optimizer is None  # or this test shows nothing
    evaluated = json.loads(ipdlam_run("evaluate", tmp_path / "straight", "--json")[0])
    assert evaluated["held-out samples"]["accuracy"] == best.validation_accuracy
    kill_after(6, data, *options, "--output", tmp_path / "run")
    ipdlam_run("train", "--resume", tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_patience_hands_over_and_begins_anew(data, tmp_path):
    options = ("--hidden", "8", "--iterations", "60", "--patience", "3", "--then", "sgd", "--then-epochs", "50")
    options = (*options, "--then-learning-rate", "1e-9", "--checkpoint-every", "1")  # nothing gets better any more
    out, _ = ipdlam_run("train", data, *options, "--output", tmp_path / "run")
    found = History(records(tmp_path / "run"))
    handover = found.handover
    assert handover == found.best.iteration + 3 < 60
    assert len(found) == handover + 3
    assert f"sgd after iteration {handover}: 50 epochs" in out
    assert f" {handover + 1}/{handover + 50} " in out
    assert summary(tmp_path / "run")["stop_reason"] == "patience"
    assert "ended by: patience" in ipdlam_run("train", "--resume", tmp_path / "run")[0]
    for iteration in (handover, handover + 1, handover + 2):
        folder = tmp_path / str(iteration)
        kill_after(iteration, data, *options, "--output", folder)
        ipdlam_run("train", "--resume", folder, "--quiet")
        assert_same_run(folder, tmp_path / "run")
    # More patience goes on in the stage where the run is.
    ipdlam_run("train", "--resume", tmp_path / "run", "--patience", "5")
    assert len(records(tmp_path / "run")) == handover + 5


def test_a_target_that_is_reached_ends_the_run(data, tmp_path):
    target = ("--target-score", "0.3")
    ipdlam_run("train", data, *WARM, *target, "--output", tmp_path / "run")
    assert len(records(tmp_path / "run")) == 1
    assert summary(tmp_path / "run")["stop_reason"] == "target_score"
    assert "ended by: target_score" in ipdlam_run("train", "--resume", tmp_path / "run")[0]
    ipdlam_run("train", "--resume", tmp_path / "run", "--target-score", "2")
    assert [record.optimizer for record in records(tmp_path / "run")] == [None] * 3 + ["adam"] * 4


def scored(*scores, optimizer=None):
    terms = (0.0, 0.0, 0.0, 0.0, (), (), 0.0, 0.0)
    return [
        Record(1, *terms, train_loss=None if score is None else 1.0, train_accuracy=score, optimizer=optimizer)
        for score in scores
    ]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([], None, None),
        ([0.1, 0.2], None, None),
        ([0.3, 0.2], None, None),
        ([0.3, 0.2, 0.2], None, "patience"),
        ([0.3, 0.2, None, 0.2], None, "patience"),
        ([0.3, 0.4, 0.5, 0.6], None, "iterations"),
        ([0.3, 0.95], None, "target_score"),
        ([0.3, 0.2, 0.2], [], None),  # patience begins anew
        ([0.3, 0.2, 0.2], [0.1], None),
        ([0.3, 0.2, 0.2], [0.1, 0.3], "patience"),  # no better than the first stage's best
        ([0.3, 0.2, 0.2], [0.1, None], None),
        ([0.3, 0.2, 0.2], [0.4, 0.2], None),
        ([0.3, 0.2, 0.2], [0.1, 0.4, 0.5], "then_epochs"),
        ([0.3, 0.2, 0.2], [0.4, 0.9], "target_score"),
    ],
)
def test_why_a_stage_ends(first, second, reason):
    config = TrainConfig(iterations=4, then="adam", then_epochs=3, patience=2, target_score=0.9)
    history = History([*scored(*first), *scored(*(second or ()), optimizer="adam")])
    handover = None if second is None else len(first)
    assert ending(config, history, handover) == reason
    assert hands_over(config, handover, reason) == (second is None and reason in ("patience", "iterations"))
    assert not hands_over(TrainConfig(), None, reason)


def test_what_is_counted_and_what_may_change():
    made = TrainConfig(method="ipdlam", then="sgd")
    assert counted(made, History(scored(0.1, 0.2))) == "2 iterations"
    both = History([*scored(0.1), *scored(0.2, 0.3, optimizer="sgd")])
    assert counted(made, both) == "1 iterations and 2 epochs of sgd"
    before, now = TrainConfig(then="sgd", iterations=1), TrainConfig(then="sgd", iterations=2)
    check_first_stage(before, now, None)
    check_first_stage(before, dataclasses.replace(before, then_epochs=3), 1)
    with pytest.raises(ConfigError, match="iterations was 1 and is 2, but sgd took over after iteration 1"):
        check_first_stage(before, now, both.handover)


# --- things go wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--then", "lion"],
            "then must be one of sgd, adagrad, adadelta, rmsprop, adam, amsgrad, adamax, adamw, nadam, radam, "
            "got 'lion'",
        ),
        (["--then-epochs", "3"], "then_epochs is for the optimizer of a second stage, and there is none; say which"),
        (["--then-learning-rate", "0.1"], "then_learning_rate is for the optimizer of a second stage"),
        (["--then-batch-size", "3"], "then_batch_size is for the optimizer of a second stage"),
        (["--then", "adam", "--then-epochs", "0"], "then_epochs must be an integer >= 1, got 0"),
        (["--then", "adam", "--then-learning-rate", "-1"], "then_learning_rate must be a finite number > 0"),
        (["--then", "adam", "--then-batch-size", "x"], "then_batch_size must be a whole number, got 'x'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_answered_in_one_line(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused("train", "digits", *options)
    (tmp_path / "c.toml").write_text(
        "".join(f'{name[2:].replace("-", "_")} = "{value}"\n' for name, value in zip(*[iter(options)] * 2, strict=True))
    )
    assert words in refused("train", "digits", "--config", "c.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_an_optimizer_that_diverges(data, tmp_path):
    options = ("--hidden", "8", "--iterations", "2", "--then", "sgd", "--then-learning-rate", "1e6")
    _, err = ipdlam_run("train", data, *options, "--then-epochs", "50", "--output", tmp_path / "run", code=3)
    assert "error: iteration " in err  # one count for both stages
    assert " is not finite; the model holds the weights of iteration " in err
    assert "learning_rate below 1e+06" in err
    found = records(tmp_path / "run")
    assert summary(tmp_path / "run")["stop_reason"] == "diverged"
    assert 2 <= len(found) == summary(tmp_path / "run")["iterations"] < 52
    assert all(torch.isfinite(tensor).all() for tensor in load_file(tmp_path / "run" / "model.safetensors").values())


def test_a_disk_that_is_full_between_the_stages_costs_nothing(data, run, tmp_path):
    def failing(self, path):
        attempts.append(path)
        if len(attempts) == 1:
            raise checkpoints.CheckpointError("model.safetensors was not written: the disk is full")
        real(self, path)

    from ipdlam.runs.model_file import TrainedModel

    attempts, real = [], TrainedModel.save
    with mock.patch.object(TrainedModel, "save", failing):
        _, err = ipdlam_run("train", data, *WARM, "--output", tmp_path / "run")
    assert err == "warning: model.safetensors was not written: the disk is full\n"
    assert_same_run(tmp_path / "run", run.path)


# --- the live display -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_screen_has_a_bar_for_each_stage(data, tmp_path, width):
    out = io.StringIO()

    def screen(**options):
        return Screen(Console(file=out, force_terminal=True, color_system=None, width=width, soft_wrap=True))

    with mock.patch("ipdlam.cli.display.choose", screen):
        ipdlam_run("train", data, *WARM, "--output", tmp_path / "run")
    last = out.getvalue().split("\x1b[2K")[-1].replace("\x1b[?25h", "").splitlines()
    assert last[0].startswith("ipdlam ")
    assert "3/3" in last[0]
    assert last[1].startswith("adam ")
    assert "4/4" in last[1]
    assert max(map(len, last[:5])) <= width
    text = " ".join(" ".join(last).split())
    assert "linear gap -" in text
    assert "adam after iteration 3: 4 epochs, rate 0.001, batches of 64" in text
    assert "3 iterations and 4 epochs of adam" in text


def test_curves_show_the_change(data, run, monkeypatch):
    from ipdlam.training.plots import draw_curves

    history = RunFolder(run.path).read_history()
    figure = draw_curves({"run": history})
    for axes in figure.axes:
        (change,) = [
            line for line in axes.get_lines() if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2
        ]
        assert change.get_xdata()[0] == (3 if axes.get_xlabel() == "iteration" else history[2].seconds)
        assert change.get_linewidth() < 1.0
        assert [text.get_text() for text in axes.texts] == ["adam →"]
        assert axes.get_xlim()[1] >= (7 if axes.get_xlabel() == "iteration" else history[-1].seconds)
    Phi = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 2]
    assert [list(line.get_xdata()) for line in Phi] == [[1, 2, 3], [4, 5, 6, 7]]  # two functions, two lines
    alone = draw_curves({"run": history[:3]})
    assert not any(axes.texts for axes in alone.axes)


def test_nothing_of_this_needs_torch_to_be_refused():
    import subprocess

    code = (
        "import sys; sys.argv = ['ipdlam', 'train', 'digits', '--then', 'x']\n"
        "from ipdlam.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_the_documentation_names_every_setting():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "runs.md").read_text()
    assert all(name in text for name in ("then_epochs", "then_learning_rate", "then_batch_size", "--then adam"))
