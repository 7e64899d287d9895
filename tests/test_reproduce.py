"""``ipdlam reproduce``: what it prints, what a signal leaves, and what it refuses."""

from __future__ import annotations

import json
import signal
from unittest import mock

import pytest

import ipdlam
from ipdlam.experiments import make
from shell import ipdlam_run, refused


def test_only_chooses_among_all_before_anything_is_run(tmp_path):
    out, _ = ipdlam_run("reproduce", "order", "fig2", "--only", "Proximity 0.1", "--output", tmp_path / "r")
    assert out.startswith("order: skipped, 'Proximity 0.1' is in none of its labels\nFigure 2")
    assert "only 'x' is in no label of order" in refused("reproduce", "order", "fig2", "--only", "x")


def test_an_experiment_from_the_shell(tmp_path):
    out, err = ipdlam_run("reproduce", "fig4", "--output", tmp_path / "r")
    assert err == ""
    assert out.startswith("Figure 4: the order of the updates\n  not measured: ")
    assert "\n    paper: little impact\n    ours:  best test accuracies are " in out
    assert (tmp_path / "r" / "order-smoke.png").exists()
    assert json.loads((tmp_path / "r" / "order-smoke.json").read_text())["runs"] == 3


def test_a_part_is_said_to_be_one(tmp_path):
    out = ipdlam_run("reproduce", "order", "--only", "order increase", "--output", tmp_path)[0]
    assert out.startswith("Figure 4: the order of the updates (1 of 3 runs)\n")


def test_a_signal_leaves_a_checkpoint_and_the_same_command_goes_on(tmp_path):
    steps, handler = [], signal.getsignal(signal.SIGINT)

    def step(self, *, evaluate=True):
        record = real(self, evaluate=evaluate)
        steps.append(record.iteration)
        if len(steps) == 13:  # iteration 5 of the second run, which has 8
            signal.raise_signal(signal.SIGINT)
        return record

    real = ipdlam.IPDLAM.step
    with mock.patch.object(ipdlam.IPDLAM, "step", step):
        out = ipdlam_run("reproduce", "order", "--output", tmp_path, code=130)[0]
        assert "SIGINT: finishing this iteration" in out
        assert "stopped in order; the same command goes on from there" in out
        assert len(list((tmp_path / "runs").iterdir())) == 1
        ipdlam_run("reproduce", "order", "--output", tmp_path)
    assert steps == [*range(1, 9)] * 3  # nothing is done twice
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_signal_while_nothing_is_trained_ends_it_too(tmp_path):
    def interrupted(*details):
        signal.raise_signal(signal.SIGINT)
        return real(*details)

    real = make.draw
    with mock.patch.object(make, "draw", interrupted):
        out = ipdlam_run("reproduce", "order", "fig2", "--output", tmp_path, code=130)[0]
    assert "stopped in order" in out
    assert (tmp_path / "order-smoke.png").exists()
    assert not (tmp_path / "fig2-smoke.json").exists()


def test_a_result_with_more_seeds_is_not_replaced_by_one_with_fewer(tmp_path):
    def seeds():
        return json.loads((tmp_path / "order-smoke.json").read_text())["seeds"]

    ipdlam_run("reproduce", "order", "--seeds", "2", "--output", tmp_path)
    ipdlam_run("reproduce", "order", "--output", tmp_path)
    assert seeds() == 2
    ipdlam_run("reproduce", "order", "--seeds", "1", "--output", tmp_path)  # unless it is asked for
    assert seeds() == 1
    (tmp_path / "order-smoke.json").write_text("{")
    ipdlam_run("reproduce", "order", "--output", tmp_path)
    assert seeds() == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig9"], "unknown experiment 'fig9'; known are table1, fig1"),
        (["fig1", "--scale", "huge"], "scale must be one of smoke, small, paper, got 'huge'"),
        (["order", "--only", "sideways"], "only 'sideways' is in no label of order; they are: ipdlam on digits"),
    ],
)
def test_mistakes(tmp_path, arguments, words):
    assert words in refused("reproduce", *arguments, "--output", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_the_output_must_be_a_folder(tmp_path):
    (tmp_path / "f").write_text("")
    assert "is a file; choose a folder" in refused("reproduce", "order", "--output", tmp_path / "f")
