"""Mini-batches on the command line: what ``train`` and ``compare`` print, write, resume and refuse."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

from ipdlam import MiniBatchIPDLAM
from ipdlam.baselines import BackPropagation
from ipdlam.cli import app
from ipdlam.cli.display import Screen
from ipdlam.minibatch.step import Stepper
from ipdlam.runs.compare import TIME_IS_UP
from ipdlam.runs.config import ConfigError, TrainConfig
from ipdlam.runs.folder import RunFolder
from ipdlam.runs.job import check_first_stage, counted, ending, hands_over
from ipdlam.runs.problem import Problem
from ipdlam.training.history import History
from shell import assert_same_run, ipdlam_run, kill_after, records, refused, snapshot, summary

SHORT = ("--hidden", "8", "--limit", "200")
TRAIN = ("digits", *SHORT, "--epochs", "5", "--checkpoint-every", "2")
SETTINGS = {"hidden": (8,), "limit": 200, "epochs": 5}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An undisturbed run, and what it printed."""
    folder = tmp_path_factory.mktemp("minibatch") / "run"
    out, err = ipdlam_run("train", *TRAIN, "--output", folder, pictures=True)
    assert err == ""
    return SimpleNamespace(path=folder, out=out)


@pytest.fixture
def again(run, tmp_path):
    """A copy to go on with."""
    return shutil.copytree(run.path, tmp_path / "again")


def saved_settings(run):
    (newest, *_) = sorted((run / "checkpoints").iterdir(), reverse=True)
    return json.loads((newest / "manifest.json").read_text())["content"]["settings"]


def in_python(config, model=None):
    problem = Problem(TrainConfig(**config))
    model = problem.make_model()
    return problem, MiniBatchIPDLAM(model, batch_size=64)


def assert_holds(run, model):
    saved = load_file(run / "model.safetensors")
    assert all(torch.equal(saved[name], parameter) for name, parameter in model.state_dict().items())


# --- train ------------------------------------------------------------------------------------------------------------


def test_it_trains_what_python_trains(run):
    problem, trainer = in_python(SETTINGS)
    split = problem.split
    history = trainer.fit(split.X, split.y, epochs=5, validation_data=split.validation)
    assert_holds(run.path, trainer.model)
    expected = [dataclasses.replace(record, seconds=0.0) for record in history]
    assert [dataclasses.replace(record, seconds=0.0) for record in records(run.path)] == expected


def test_it_leaves_all_of_its_files(run):
    names = {path.name for path in run.path.iterdir()}
    files = {"checkpoints", "config.toml", "curves.png", "environment.json", "history.jsonl", "model.safetensors"}
    assert names == {".lock", "summary.json", *files}
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == [
        "iteration-00000004",
        "iteration-00000005",
    ]
    assert (run.path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert summary(run.path)["stop_reason"] == "epochs"
    assert summary(run.path)["iterations"] == 5
    text = (run.path / "config.toml").read_text().splitlines()
    assert {'method = "minibatch"', "epochs = 5", "proximity = 3.0", "step = 0.5", "rank = 64"} <= set(text)
    assert not any(line.startswith(("iterations", "penalty_growth", "order", "regularizer")) for line in text)


def test_the_lines_speak_of_epochs_and_of_no_gaps(run):
    lines = run.out.splitlines()
    assert lines[1] == "minibatch on digits, 64-8-10, 10 classes: 200 samples, scored on 450 (test set)"
    assert lines[3].startswith("checkpoints: exact, every 2 epochs, ")
    assert lines[4].startswith("5 epochs, batches of 64, step 0.5 (--method ipdlam is the method of the paper")
    last = records(run.path)[-1]
    told = next(line for line in lines if line.startswith("5/5 "))
    assert told.startswith(f"5/5  Phi {last.objective:.4g}  train {100 * last.train_accuracy:.2f} %  validation ")
    best = History(records(run.path)).best
    assert any(line.startswith("best on the test set: ") and f"at epoch {best.epoch};" in line for line in lines)
    assert any(line.startswith("5 epochs, ") and line.endswith("ended by: epochs") for line in lines)
    assert "iteration" not in run.out
    assert "gap" not in run.out


def test_evaluate_and_predict(run, tmp_path):
    found = json.loads(ipdlam_run("evaluate", run.path, "--json")[0])
    assert found["test set"]["accuracy"] == records(run.path)[-1].validation_accuracy
    import numpy as np

    np.savez(tmp_path / "x.npz", X=Problem(TrainConfig()).split.X[:3].numpy())
    assert len(ipdlam_run("predict", run.path, tmp_path / "x.npz")[0].splitlines()) == 4


def test_the_saved_configuration_makes_the_same_run(run, tmp_path):
    ipdlam_run("train", "--config", run.path / "config.toml", "--output", tmp_path / "twin")
    assert_same_run(tmp_path / "twin", run.path)
    assert RunFolder(tmp_path / "twin").read_config() == RunFolder(run.path).read_config()


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--epochs", "1"], {"batch_size": 64, "proximity": 3.0, "inertia": 0.7, "penalty": 0.1, "seed": 0}),
        (["--batch-size", "50", "--epochs", "1"], {"batch_size": 50}),
        (["--method", "minibatch", "--epochs", "1", "--step", "0.25", "--rank", "5"], {"step": 0.25, "rank": 5}),
        (["--epochs", "1", "--weight-decay", "0.01", "--inertia", "0.5"], {"weight_decay": 0.01, "inertia": 0.5}),
        (["--epochs", "1", "--precision", "bfloat16"], {"precision": "bfloat16"}),
        (["--epochs", "1", "--proximity", "1", "--penalty", "0.2"], {"proximity": 1.0, "penalty": 0.2}),
        (["--epochs", "1", "--seed", "7", "--chunk-size", "33"], {"seed": 7, "chunk_size": 33}),
        (["--epochs", "1", "--loss", "cross_entropy"], {"loss": {"name": "cross_entropy"}}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_reach_the_trainer(tmp_path, options, settings):
    ipdlam_run("train", "digits", *SHORT, *options, "--quiet", "--output", tmp_path / "run")
    saved = saved_settings(tmp_path / "run")
    assert {name: saved[name] for name in settings} == settings
    assert len(records(tmp_path / "run")) == 1


def test_ten_epochs_where_only_batches_are_given(tmp_path):
    out, _ = ipdlam_run("train", "digits", *SHORT, "--batch-size", "100", "--output", tmp_path / "run")
    assert "10 epochs, batches of 100, step 0.5" in out
    assert len(records(tmp_path / "run")) == 10


def test_a_program_is_told(tmp_path):
    out, _ = ipdlam_run("train", *TRAIN, "--then", "sgd", "--then-epochs", "2", "--json", "--output", tmp_path / "run")
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == ["note", "begin", *["iteration"] * 5, "stage", *["iteration"] * 2, "end"]
    config = events[1]["config"]
    assert (config["method"], config["epochs"], config["iterations"]) == ("minibatch", 5, None)
    assert events[1]["checkpoint_bytes"] > 1000
    assert events[7]["after"] == 5
    assert ipdlam_run("train", *TRAIN, "--quiet", "--output", tmp_path / "quiet") == ("", "")


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ipdlam_run("train", *TRAIN, "--tensorboard", "--quiet", "--output", tmp_path / "run")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
        events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("scores/validation_accuracy")]
    assert found == [(r.epoch, pytest.approx(r.validation_accuracy)) for r in records(tmp_path / "run")]


def test_stopping_rules(tmp_path):
    options = ("digits", *SHORT, "--epochs", "30", "--target-score", "0.5")
    ipdlam_run("train", *options, "--output", tmp_path / "target")
    assert summary(tmp_path / "target")["stop_reason"] == "target_score"
    assert len(records(tmp_path / "target")) < 30
    options = ("digits", *SHORT, "--epochs", "30", "--patience", "2", "--restore-best")
    out, _ = ipdlam_run("train", *options, "--output", tmp_path / "patience")
    history = History(records(tmp_path / "patience"))
    assert len(history) == history.best.iteration + 2
    assert f"at epoch {history.best.iteration}; the best iterate was kept" in out
    found = json.loads(ipdlam_run("evaluate", tmp_path / "patience", "--json")[0])
    assert found["test set"]["accuracy"] == history.best.validation_accuracy


# --- stopped and resumed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [1, 2, 3, 5])
def test_killed_after_any_epoch_and_resumed(run, tmp_path, epoch):
    kill_after(epoch, *TRAIN, "--output", tmp_path / "run")
    out, _ = ipdlam_run("train", "--resume", tmp_path / "run")
    after = (epoch - 1) // 2 * 2  # the record is written before the checkpoint
    told = f"resumed after epoch {after}\n" if after else "no checkpoint was written yet: starting from the first epoch"
    assert told in out
    assert_same_run(tmp_path / "run", run.path)
    assert summary(tmp_path / "run")["stop_reason"] == "epochs"


@pytest.mark.parametrize(
    "options", [(), ("--restore-best",), ("--loss", "cross_entropy", "--batch-size", "30")], ids=str
)
def test_ctrl_c_finishes_the_epoch_and_the_run_goes_on_bit_for_bit(tmp_path, options):
    def append(self, record):
        real(self, record)
        if record.epoch == 3:
            os.kill(os.getpid(), signal.SIGINT)

    real = RunFolder.append
    ipdlam_run("train", *TRAIN, *options, "--quiet", "--output", tmp_path / "straight")
    with mock.patch.object(RunFolder, "append", append):
        out, _ = ipdlam_run("train", *TRAIN, *options, "--output", tmp_path / "run", code=130)
    assert "SIGINT: finishing this epoch (Ctrl-C again stops at once)" in out
    assert f"to go on: ipdlam train --resume {tmp_path / 'run'}" in out
    assert len(records(tmp_path / "run")) == 3
    assert "resumed after epoch 3" in ipdlam_run("train", "--resume", tmp_path / "run")[0]
    assert_same_run(tmp_path / "run", tmp_path / "straight")


@pytest.mark.parametrize("batch", [2, 14, 18])  # there are four to an epoch
@pytest.mark.parametrize("options", [(), ("--restore-best",)], ids=str)
def test_a_second_ctrl_c_stops_within_an_epoch(tmp_path, options, batch):
    def update(self, *given, **more):
        if self.batches == batch:
            raise KeyboardInterrupt
        return real(self, *given, **more)

    real = Stepper.update
    ipdlam_run("train", *TRAIN, *options, "--quiet", "--output", tmp_path / "straight")
    with mock.patch.object(Stepper, "update", update):
        ipdlam_run("train", *TRAIN, *options, "--output", tmp_path / "run")
    assert summary(tmp_path / "run")["stop_reason"] == "interrupted"
    ipdlam_run("evaluate", tmp_path / "run")
    ipdlam_run("train", "--resume", tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_more_epochs_are_those_of_continue_fit(run, again):
    out, _ = ipdlam_run("train", "--resume", again)
    told = f"{again} is finished: 5 epochs, ended by: epochs; to go on, give a larger --epochs: "
    assert out == f"{told}ipdlam train --resume {again} --epochs ...\n"
    out, _ = ipdlam_run("train", "--resume", again, "--epochs", "8")
    assert "resumed after epoch 5" in out
    problem, trainer = in_python(SETTINGS)
    split = problem.split
    trainer.fit(split.X, split.y, epochs=5, validation_data=split.validation)
    history = trainer.continue_fit(epochs=3)
    assert_holds(again, trainer.model)
    assert [record.objective for record in records(again)] == history.column("objective")
    assert RunFolder(again).read_config().epochs == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--batch-size", "32"],
            "cannot go on with other settings: batch_size was None and is 32; only iterations, ep",
        ),
        (["--step", "0.1"], "cannot go on with other settings: step was 0.5 and is 0.1"),
        (["--proximity", "1"], "cannot go on with other settings: proximity was 3.0 and is 1.0"),
        (["--iterations", "9"], "iterations means nothing to minibatch, got 9; give --epochs instead"),
        (["--method", "ipdlam"], "means nothing to ipdlam"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_other_settings_are_refused_by_name(again, options, words):
    before = snapshot(again)
    assert words in refused("train", "--resume", again, *options)
    assert snapshot(again) == before
    assert "is finished" in ipdlam_run("train", "--resume", again, "--proximity", "3", "--rank", "64")[0]  # as they are


@pytest.mark.parametrize("method", ["ipdlam", "dlam"])
def test_runs_of_earlier_versions_go_on(tmp_path, method):
    """Their files hold a value for every setting, also for those that the method does not have."""
    options = ("train", "digits", *SHORT, "--method", method)
    ipdlam_run(*options, "--iterations", "3", "--quiet", "--output", tmp_path / "run")
    ipdlam_run(*options, "--iterations", "5", "--quiet", "--output", tmp_path / "straight")
    file = tmp_path / "run" / "config.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("inertia", "proximity"))]
    file.write_text("\n".join([*lines, "inertia = [0.7]", "proximity = 1.0", ""]))
    words = f"epochs means nothing to {method}, got 9; give --iterations instead"
    assert words in refused("train", "--resume", tmp_path / "run", "--epochs", "9")
    ipdlam_run("train", "--resume", tmp_path / "run", "--iterations", "5")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


# --- then an optimizer ------------------------------------------------------------------------------------------------

THEN = (*TRAIN, "--then", "adam", "--then-epochs", "4")


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm") / "run"
    out, _ = ipdlam_run("train", *THEN, "--output", folder)
    return SimpleNamespace(path=folder, out=out)


def test_an_optimizer_takes_over(warm):
    problem, trainer = in_python(SETTINGS)
    split = problem.split
    trainer.fit(split.X, split.y, epochs=5)
    adam = BackPropagation(trainer.model, "adam", batch_size=64)
    adam.fit(split.X, split.y, epochs=4)
    assert_holds(warm.path, trainer.model)
    lines = warm.out.splitlines()
    assert lines[1].startswith("minibatch, then adam on digits")
    assert [line.split("  ")[0] for line in lines if "Phi" in line] == [
        *(f"minibatch {k}/5" for k in (1, 2, 3, 4, 5)),
        *(f"adam {k}/9" for k in (6, 7, 8, 9)),
    ]
    assert "adam after epoch 5: 4 epochs, rate 0.001, batches of 64" in lines
    assert any(line.startswith("5 epochs and 4 epochs of adam, ") for line in lines)
    assert "iteration" not in warm.out
    assert "gap" not in warm.out


@pytest.mark.parametrize("epoch", [3, 5, 6, 8])
def test_killed_in_either_stage_and_resumed(warm, tmp_path, epoch):
    kill_after(epoch, *THEN, "--output", tmp_path / "run")
    out, _ = ipdlam_run("train", "--resume", tmp_path / "run")
    assert "resumed after epoch " in out
    assert_same_run(tmp_path / "run", warm.path)


def test_a_first_stage_that_is_over_cannot_change(warm):
    before = snapshot(warm.path)
    message = refused("train", "--resume", warm.path, "--epochs", "7")
    assert "epochs was 5 and is 7, but adam took over after epoch 5: the first stage is over" in message
    assert "give a larger --then-epochs" in ipdlam_run("train", "--resume", warm.path)[0]
    assert snapshot(warm.path) == before


def test_why_a_stage_ends():
    config = TrainConfig(epochs=2, then="adam")
    history = History(records_of(2))
    assert ending(config, history[:1], None) is None
    assert ending(config, history, None) == "epochs"
    assert hands_over(config, None, "epochs")
    assert not hands_over(TrainConfig(epochs=2), None, "epochs")
    assert counted(config, history) == "2 epochs"
    with pytest.raises(ConfigError, match="epochs was 2 and is 3, but adam took over after epoch 2"):
        check_first_stage(config, dataclasses.replace(config, epochs=3), 2)


def records_of(count):
    from ipdlam.training.history import Record

    terms = (0.1, 12.5, 12.5, 0.0, (0.0, 0.0), (0.0,), 12.5, 1.5)
    return [Record(k + 1, *terms, 0.1, 0.9, 0.2, 0.8765) for k in range(count)]


# --- the live display and the picture ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [50, 80, 140])
def test_the_screen_shows_epochs_and_no_constraints(tmp_path, width):
    out = io.StringIO()

    def screen(**options):
        return Screen(Console(file=out, force_terminal=True, color_system=None, width=width, soft_wrap=True))

    with mock.patch("ipdlam.cli.display.choose", screen):
        ipdlam_run("train", *TRAIN, "--output", tmp_path / "run")
    last = out.getvalue().split("\x1b[2K")[-1].replace("\x1b[?25h", "").splitlines()
    assert last[0].startswith("epoch ")
    assert "5/5" in last[0]
    assert max(map(len, last[:4])) <= width
    text = " ".join(" ".join(last).split())
    for label in ("Phi ", "training time ", "peak memory ", "training ", "test ", "best "):
        assert label in text
    assert "gap" not in text
    assert "penalty" not in text


def test_the_picture_counts_epochs():
    from ipdlam.training.plots import draw_curves

    figure = draw_curves({"minibatch": History(records_of(3))}, unit="epoch")
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["epoch", "epoch", "seconds of training (s)", "seconds of training (s)"]
    assert [axes.get_ylabel() for axes in figure.axes[:2]] == ["objective Φ", "accuracy (%)"]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--method", "ipdlam", "--batch-size", "512"],
            "batch_size means nothing to ipdlam, got 512; say --method mini",
        ),
        (["--method", "dlam", "--epochs", "3"], "epochs means nothing to dlam, got 3; give --iterations instead, or"),
        (
            ["--method", "ipdlam", "--step", "0.1"],
            "step means nothing to ipdlam, got 0.1; say --method minibatch, or leave it out",
        ),
        (["--method", "ipdlam", "--rank", "3"], "rank means nothing to ipdlam, got 3; say --method minibatch"),
        (
            ["--method", "ipdlam", "--weight-decay", "0.1"],
            "weight_decay means nothing to ipdlam, got 0.1; say --method minibatch",
        ),
        (
            ["--method", "ipdlam", "--precision", "bfloat16"],
            "precision means nothing to ipdlam, got bfloat16; say --method minibatch",
        ),
        (
            ["--epochs", "3", "--iterations", "3"],
            "iterations means nothing to minibatch, which --epochs selects, got 3",
        ),
        (
            ["--batch-size", "3", "--iterations", "3"],
            "which --batch-size selects, got 3; give --epochs instead, or lea",
        ),
        (["--epochs", "3", "--penalty-growth", "1.1"], "penalty_growth means nothing to minibatch"),
        (["--epochs", "3", "--penalty-max", "9"], "penalty_max means nothing to minibatch"),
        (["--epochs", "3", "--order", "increase"], "order means nothing to minibatch"),
        (["--epochs", "3", "--regularizer", "none"], "regularizer means nothing to minibatch"),
        (["--epochs", "3", "--regularizer-strength", "1"], "regularizer_strength means nothing to minibatch"),
        (["--epochs", "3", "--inertia", "0.1,0.2,0.3"], "inertia of minibatch is one number, that of the weights, got"),
        (["--epochs", "3", "--inertia", "1"], "inertia must be below 1"),
        (["--epochs", "3", "--proximity", "0"], "proximity must be a finite number > 0"),
        (["--epochs", "3", "--step", "0"], "step must be a finite number > 0"),
        (["--epochs", "-1"], "epochs must be an integer >= 0, got -1"),
        (["--batch-size", "0"], "batch_size must be an integer >= 1, got 0"),
        (["--method", "minibatches"], "method must be one of minibatch, ipdlam, dlam, bcd"),
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


def test_a_run_that_diverges(tmp_path):
    options = ("--loss", "squared", "--step", "1e30", "--epochs", "5", "--quiet", "--output", tmp_path / "run")
    _, err = ipdlam_run("train", "digits", *SHORT, *options, code=3)
    assert "is not finite" in err.splitlines()[-1]
    assert summary(tmp_path / "run")["stop_reason"] == "diverged"
    assert all(torch.isfinite(tensor).all() for tensor in load_file(tmp_path / "run" / "model.safetensors").values())


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help(command):
    result = CliRunner().invoke(app, [command, "--help-all"], env={"TERMINAL_WIDTH": "80", "COLUMNS": "80"})
    text = " ".join(result.output.replace("│", " ").split())
    assert "delta in the paper [default: 3; ipdlam 1; bcd 5]" in text
    assert "512, or 64 below 10000 samples" in text
    if command == "train":
        assert "[default: minibatch; ipdlam if --iterations or another setting of its own is given]" in text
        assert "anew over those that a resumed run gets beyond its plan [default: 10]" in text
        assert "iterations in all, of ipdlam, dlam, bcd or dladmm [default: 50]" in text
        assert "--batch-size 512 --epochs 20" in text
    else:
        assert "ipdlam compare mnist --methods minibatch,adam" in text


def test_the_documentation_names_every_setting():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "runs.md").read_text()
    assert all(f"`{name}`" in text for name in ("batch_size", "epochs", "step", "rank", "weight_decay", "minibatch"))


# --- compare ----------------------------------------------------------------------------------------------------------


def compared(folder):
    return json.loads((folder / "comparison.json").read_text())


def test_compare_trains_what_train_trains(run, tmp_path):
    options = ("--iterations", "5", "--methods", "minibatch,ipdlam,adam", "--output", tmp_path / "c")
    out, err = ipdlam_run("compare", "digits", *SHORT, *options, pictures=True)
    assert err == ""
    content = compared(tmp_path / "c")
    history = History.from_json(json.dumps(content["histories"]["minibatch"]))
    assert [record.objective for record in history] == [record.objective for record in records(run.path)]
    assert [row["method"] for row in content["rows"]] == ["mini-batch iPDLAM", "iPDLAM", "Adam"]
    assert "rates adam 0.001, batches of 64" in out
    assert content["minibatch"]["proximity"] == 3.0
    assert content["config"]["proximity"] == 1.0
    assert content["config"]["iterations"] == 5
    assert any(line.startswith("mini-batch iPDLAM ") for line in out.splitlines())


def test_compare_with_settings_and_seeds(tmp_path):
    options = ("--iterations", "2", "--methods", "minibatch,dlam", "--seeds", "2", "--seed", "3", "--proximity", "2")
    own = ("--batch-size", "50", "--step", "0.25", "--rank", "9", "--order", "increase", "--weight-decay", "0.01")
    out, _ = ipdlam_run("compare", "digits", *SHORT, *options, *own, "--output", tmp_path / "c")
    content = compared(tmp_path / "c")
    assert "squared loss, batches of 50" in out
    told = {"step": 0.25, "rank": 9, "weight_decay": 0.01, "proximity": 2.0}
    assert {name: content["minibatch"][name] for name in told} == told
    for seed in (3, 4):
        given = {"seed": seed, "batch_size": 50, **told}
        problem = Problem(TrainConfig(hidden=(8,), limit=200, **given))
        model, split = problem.make_model(), problem.split
        history = problem.make_trainer(model).fit(split.X, split.y, epochs=2)
        found = content["histories"][f"minibatch, seed {seed}"]["records"]
        assert [record["objective"] for record in found] == history.column("objective")


def test_a_comparison_in_equal_time_plans_its_epochs(tmp_path):
    options = ("--methods", "minibatch,adam", "--seconds", "0.5", "--output", tmp_path / "c")
    ipdlam_run("compare", "digits", *SHORT, *options)
    found = compared(tmp_path / "c")["histories"]["minibatch"]
    assert found["stop_reason"] in ("iterations", TIME_IS_UP)
    assert len(found["records"]) > 1
    assert all(record["seconds"] < 0.5 for record in found["records"][:-1])
    ipdlam_run("compare", "digits", *SHORT, *options[:-1], tmp_path / "d", "--iterations", "1")
    assert len(compared(tmp_path / "d")["histories"]["minibatch"]["records"]) == 1


def test_ctrl_c_in_the_trial_ends_a_comparison(tmp_path):
    options = ("--methods", "dlam,minibatch,adam", "--seconds", "0.1", "--output", tmp_path / "c")
    with mock.patch.object(Stepper, "update", side_effect=KeyboardInterrupt):
        out, _ = ipdlam_run("compare", "digits", *SHORT, *options, code=130)
    assert "mini-batch iPDLAM interrupted after 0 iterations" in out
    assert list(compared(tmp_path / "c")["histories"]) == ["dlam", "minibatch"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--methods", "adam", "--step", "0.1"],
            "step is for minibatch, got 0.1, and none of the methods adam reads it; add one that does",
        ),
        (
            ["--methods", "ipdlam", "--rank", "3"],
            "rank is for minibatch, got 3, and none of the methods ipdlam reads it; add one that does",
        ),
        (["--rank", "0"], "rank must be an integer >= 1, got 0"),
        (["--weight-decay", "x"], "weight_decay must be a number, got 'x'"),
        (["--inertia", "0.1,0.2,0.3"], "inertia of minibatch is one number, that of the weights, got 0.1,0.2,0.3"),
        (["--methods", "mini-batch"], "methods holds 'mini-batch'; known are minibatch, ipdlam, dlam, bcd"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_in_a_comparison(tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused("compare", "digits", *SHORT, *options)
    assert list(tmp_path.iterdir()) == []
