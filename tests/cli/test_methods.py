"""Every method by its name; mini-batches where none is named."""

from __future__ import annotations

import json
from unittest import mock

import pytest

from ipdlam.runs.compare import run_method
from ipdlam.runs.config import METHODS, TrainConfig
from shell import ipdlam_run, refused, same_model

FAST = ("--hidden", "6", "--threads", "1", "--limit", "120")


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_every_method_is_stopped_and_resumed_to_the_bit(method, tmp_path):
    rounds = "--epochs" if "epochs" in TrainConfig(method=method).suited() else "--iterations"
    common = ("train", "digits", "--method", method, *FAST, "--checkpoint-every", "1")
    ipdlam_run(*common, rounds, "4", "--output", tmp_path / "whole", "--quiet")
    ipdlam_run(*common, rounds, "2", "--output", tmp_path / "part", "--quiet")
    ipdlam_run("train", "--resume", tmp_path / "part", rounds, "4", "--quiet")
    if method == "minibatch":  # its steps descend over the epochs that were planned, so a longer plan is another run
        assert len((tmp_path / "part" / "history.jsonl").read_text().splitlines()) == 4
    else:
        assert same_model(tmp_path / "whole", tmp_path / "part")


def test_mini_batches_are_the_default_and_the_run_says_so(tmp_path):
    out, _ = ipdlam_run("train", "digits", *FAST, "--epochs", "1", "--output", tmp_path / "run")
    assert "minibatch on digits" in out
    assert "--method ipdlam" in out
    assert 'method = "minibatch"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({}, "minibatch"),
        ({"iterations": 3}, "ipdlam"),
        ({"order": "increase"}, "ipdlam"),
        ({"storage": "z"}, "ipdlam"),
        ({"epochs": 3}, "minibatch"),
        ({"batch_size": 3}, "minibatch"),
        ({"inertia": (0.5,)}, "minibatch"),
        ({"method": "dlam"}, "dlam"),
    ],
)
def test_what_chooses_a_method(given, method):
    assert TrainConfig(**given).chosen == method


def test_a_run_from_before_methods_had_names_goes_on_with_its_own(tmp_path):
    ipdlam_run(
        "train", "digits", *FAST, "--method", "ipdlam", "--iterations", "2", "--output", tmp_path / "run", "--quiet"
    )
    config = tmp_path / "run" / "config.toml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith(("method", "learning_rate"))))
    ipdlam_run("train", "--resume", tmp_path / "run", "--iterations", "3", "--quiet")
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ("--iterations", "2", "--batch-size", "8"),
            "iterations means nothing to minibatch, which --batch-size selects",
        ),
        (("--method", "adam", "--step", "1"), "step means nothing to adam"),
        (("--method", "adam", "--then", "adam"), "then is adam, which is the method itself"),
        (("--learning-rate", "0.1"), "learning_rate means nothing to minibatch"),
        (("--method", "adam", "--learning-rate", "0"), "learning_rate must be"),
    ],
)
def test_settings_of_other_methods_are_refused(given, says, tmp_path):
    assert says in refused("train", "digits", *given, "--output", tmp_path / "run")


def test_an_optimizer_after_another(tmp_path):
    given = ("--method", "sgd", "--epochs", "2", "--then", "adam", "--then-epochs", "2")
    out, _ = ipdlam_run("train", "digits", *FAST, *given, "--output", tmp_path / "run")
    assert "2 epochs and 2 epochs of adam" in out
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["optimizer"] for line in lines]
    assert kinds == ["sgd", "sgd", "adam", "adam"]


def test_a_comparison_with_seeds_fits_eighty_columns(tmp_path):
    given = ("--methods", "ipdlam,minibatch,amsgrad", "--iterations", "2", "--seeds", "2", *FAST)
    out, _ = ipdlam_run("compare", "digits", *given, "--output", tmp_path / "c")
    table = out.splitlines()[3:7]
    assert table[0].startswith("method")
    assert max(map(len, table)) <= 80
    assert "…" not in out


def test_the_help_of_train_fits_two_screens_and_all_of_it_is_behind_another_option(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (ipdlam_run("train", option)[0] for option in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 100
    assert "--tensorboard" not in short
    assert "--help-all" in short
    for name in TrainConfig.__dataclass_fields__:
        assert name == "data" or f"--{name.replace('_', '-')}" in whole
    assert ipdlam_run("train", "--help")[0] == short


def test_runs_of_a_comparison_that_runs_out_of_memory_are_not_lost(tmp_path):
    def scarce(problem, model, method, *others):
        if method == "adam":
            raise MemoryError("no room")
        return run_method(problem, model, method, *others)

    given = ("--methods", "dlam,adam", "--iterations", "2", *FAST, "--output", tmp_path / "c")
    with mock.patch("ipdlam.runs.compare.run_method", scarce):
        ipdlam_run("compare", "digits", *given, code=1)
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert [row["method"] for row in content["rows"]] == ["DLAM"]
    assert list(content["histories"]) == ["dlam"]
