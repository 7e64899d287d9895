"""``ipdlam reproduce``: what it prints, what a signal leaves, and what it refuses."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import warnings
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

import ipdlam
from ipdlam.checkpoint import files as storage
from ipdlam.checkpoint.files import LOCK, exclusive
from ipdlam.checkpoint.format import MANIFEST
from ipdlam.cli.reproduce import bar, outcome
from ipdlam.experiments import EXPERIMENTS, make
from ipdlam.experiments import store as runner
from ipdlam.experiments.spec import RunResult
from shell import ipdlam_run, refused


def test_only_chooses_among_all_before_anything_is_run(tmp_path):
    out, _ = ipdlam_run("reproduce", "order", "fig2", "--only", "Proximity 0.1", "--output", tmp_path / "r")
    first, second, third = out.splitlines()[:3]
    assert first == "order: skipped, 'Proximity 0.1' is in none of its labels"
    assert second.startswith("fig2 1/1: ipdlam on digits (inertia 0.7, proximity 0.1, weight_proximity ")
    assert third.startswith("Figure 2")
    assert "only 'x' is in no label of order" in refused("reproduce", "order", "fig2", "--only", "x")


def test_an_experiment_from_the_shell(tmp_path):
    out, err = ipdlam_run("reproduce", "fig4", "--output", tmp_path / "r")
    assert err == ""
    assert "\nFigure 4: the order of the updates\n  not judged: " in out
    assert "\n    paper: little impact\n    ours:  of 3 orders the best test accuracies are " in out
    assert "are three methods (our reading)\n    paper: three orders\n" in out
    assert (tmp_path / "r" / "order-smoke.png").exists()
    assert json.loads((tmp_path / "r" / "order-smoke.json").read_text())["runs"] == 3


def test_an_experiment_that_is_named_twice_is_made_once(tmp_path):
    out = ipdlam_run("reproduce", "fig4", "order", "order", "--output", tmp_path)[0]
    assert out.count("Figure 4: the order of the updates") == 1


def test_a_part_is_said_to_be_one(tmp_path):
    out = ipdlam_run("reproduce", "order", "--only", "order increase", "--output", tmp_path)[0]
    assert "\nFigure 4: the order of the updates (1 of 3 runs)\n" in out


LINE = r"order {place}: ipdlam on digits \(.*order {order}.*\){seed}: \d+\.\d s of training, {accuracy}"
ACCURACY = r"test accuracy \d+\.\d\d % at best \(iteration \d\), \d+\.\d\d % at last"


def test_every_run_that_was_made_is_a_line(tmp_path):
    def lines(*more):
        out = ipdlam_run("reproduce", "order", "--output", tmp_path, *more)[0]
        return out.splitlines()[: out.splitlines().index("Figure 4: the order of the updates")]

    assert len(lines()) == 3
    assert lines() == []  # stored already
    spec = EXPERIMENTS["order"].runs("smoke")[1]
    path = tmp_path / "runs" / f"{spec.key}.json"
    path.unlink()
    (line,) = lines()
    order = dict(spec.settings)["order"]
    assert re.fullmatch(LINE.format(place="2/3", order=order, seed="", accuracy=ACCURACY), line)
    columns = json.loads(path.read_text())["columns"]
    accuracies = columns["validation_accuracy"]
    assert f": {columns['seconds'][-1]:.1f} s of training, " in line
    assert f" {100 * max(accuracies):.2f} % at best (iteration {accuracies.index(max(accuracies)) + 1})" in line
    assert line.endswith(f" {100 * accuracies[-1]:.2f} % at last")
    path.unlink()
    line = lines("--seeds", "2")[0]
    assert re.fullmatch(LINE.format(place="2/6", order=order, seed=", seed 0", accuracy=ACCURACY), line)


def test_a_line_of_a_run_that_diverged():
    spec = EXPERIMENTS["order"].runs("smoke")[0]
    columns = {"iteration": [1, 2], "seconds": [1.0, 2.5], "validation_accuracy": [0.5, None]}

    def cut(rows):
        return RunResult(spec, {name: values[:rows] for name, values in columns.items()}, "diverged", 1, {"torch": "2"})

    best = "test accuracy 50.00 % at best (iteration 1), 50.00 % at last"
    assert outcome(cut(2)) == f"2.5 s of training, diverged after 2 iterations, {best}"
    assert outcome(cut(1)) == f"1.0 s of training, diverged after 1 iteration, {best}"
    assert outcome(cut(0)) == "0.0 s of training, diverged after 0 iterations"


@pytest.mark.parametrize(("width", "words"), [(40, 24), (80, 54), (140, 99)])
@pytest.mark.parametrize("label", ["ipdlam on fashion-mnist [b] " * 9, "short"])
def test_bar_and_time_stay_visible_however_narrow_the_terminal(width, words, label):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, soft_wrap=True, color_system=None)
    with bar(console) as progress:
        progress.reset(progress.add_task("x"), total=10, description=label, completed=4)
    shown = next(line for line in re.split(r"[\r\n]", console.file.getvalue()) if "━" in line)
    line = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", shown)
    assert line[:words].rstrip() == (label if label == "short" else label[: words - 1] + "…")
    assert re.fullmatch(r" ━+[╸╺━ ]* +-:--:--", line[words:])
    assert len(line) == width
    assert line.count("━") >= width // 20


def test_lines_stand_above_the_bar_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    out = ipdlam_run("reproduce", "order", "fig2", "--output", tmp_path)[0]
    text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", out)
    drawn = re.split(r"[\r\n]", text)
    made = [line for line in drawn if "% at last" in line]
    assert len(made) == len({*EXPERIMENTS["order"].runs("smoke"), *EXPERIMENTS["fig2"].runs("smoke")})
    bars = [line for line in drawn if "━" in line]
    assert bars
    assert {len(line) for line in bars} == {40}
    assert not any(line.startswith("order") for line in bars[-1:])  # the bar of the first is gone


def test_a_warning_is_a_line(tmp_path):
    def warn(*details):
        warnings.warn("mind this", UserWarning, stacklevel=1)
        return real(*details)

    real = runner.execute
    with mock.patch.object(runner, "execute", warn):
        out, err = ipdlam_run("reproduce", "order", "--output", tmp_path)
    assert out.startswith("warning: mind this\n")
    assert err == ""


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


def test_a_signal_while_another_process_makes_the_run_ends_it(tmp_path):
    spec = EXPERIMENTS["order"].runs("smoke")[0]
    (tmp_path / "unfinished").mkdir()
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        assert len(pauses) < 5
        signal.raise_signal(signal.SIGTERM)

    with exclusive(tmp_path / "unfinished" / f"{spec.key}{LOCK}"), mock.patch("time.sleep", pause):
        out = ipdlam_run("reproduce", "order", "--output", tmp_path, code=130)[0]
    assert out.count("another process is making this run; waiting for it") == 1
    assert "stopped in order" in out


def test_a_signal_while_nothing_is_trained_ends_it_too(tmp_path):
    def interrupted(*details):
        signal.raise_signal(signal.SIGINT)
        return real(*details)

    real = make.save
    with mock.patch.object(make, "save", interrupted):
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
        (["all", "tabel1"], "unknown experiment 'tabel1'; known are table1, fig1"),
        (["order", "--only", " "], "only must hold words of a label, such as 'inertia 0.7', got ' '"),
        (["order", "--only", "sideways"], "only 'sideways' is in no label of order; they are: ipdlam on digits"),
    ],
)
def test_mistakes(tmp_path, arguments, words):
    assert words in refused("reproduce", *arguments, "--output", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_the_output_must_be_a_folder(tmp_path):
    (tmp_path / "f").write_text("")
    assert "is a file; choose a folder" in refused("reproduce", "order", "--output", tmp_path / "f")


# --- files and folders ---


@pytest.fixture
def untrained():
    """What is known before is said before."""
    with mock.patch.object(runner, "execute", side_effect=AssertionError("a run was made")):
        yield


def test_an_output_below_a_file(tmp_path, untrained):
    (tmp_path / "f").write_text("")
    assert refused("reproduce", "order", "--output", tmp_path / "f" / "r") == (
        f"error: output {tmp_path / 'f' / 'r'} cannot be used: {tmp_path / 'f'} is not a folder; move it away, or "
        "choose another --output\n"
    )


@pytest.mark.parametrize("name", ["", "runs", "unfinished"])
def test_an_output_that_cannot_be_written_to(tmp_path, monkeypatch, untrained, name):
    """Also by root, who may do everything."""
    folder = tmp_path / "r" / name
    folder.mkdir(parents=True)
    real = os.access
    monkeypatch.setattr(
        storage.os, "access", lambda path, mode: (path, mode & os.W_OK) != (folder, os.W_OK) and real(path, mode)
    )
    assert refused("reproduce", "order", "--output", tmp_path / "r") == (
        f"error: output {tmp_path / 'r'} cannot be used: the folder {folder} cannot be written to; change its "
        "permissions, or choose another --output\n"
    )


@pytest.mark.parametrize("name", ["runs", "unfinished"])
def test_a_file_where_runs_go(tmp_path, untrained, name):
    (tmp_path / name).write_text("")
    message = refused("reproduce", "order", "--output", tmp_path)
    assert f"cannot be used: {tmp_path / name} is not a folder; move it away, or choose another --output" in message


def test_a_folder_that_cannot_be_made_after_all(tmp_path, monkeypatch, untrained):
    """Whatever the permissions say."""

    def mkdir(self, *details, **more):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    message = refused("reproduce", "order", "--output", tmp_path, code=1)
    assert message.startswith("error: the run ipdlam on digits (")
    assert message.endswith(
        f"): {tmp_path / 'runs'} cannot be used: Read-only file system; mend that, or choose another folder for "
        "results\n"
    )


def full_disk(monkeypatch, module, name, when):
    """A function of a module fails as on a full disk for those paths."""
    real = getattr(module, name)

    def fail(path, *details, **more):
        if when(Path(path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *details, **more)

    monkeypatch.setattr(module, name, fail)


def test_a_full_disk_at_the_end_of_a_run(tmp_path, monkeypatch):
    spec = EXPERIMENTS["order"].runs("smoke")[0]
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        message = refused("reproduce", "order", "--output", tmp_path, code=1)
    assert message.startswith(
        f"error: the run {spec.label}: {tmp_path / 'runs' / spec.key}.json was not written: the disk is full: "
    )
    assert message.endswith(" kB are needed; make room or save elsewhere" + runner.GO_ON + "\n")
    ipdlam_run("reproduce", "order", "--output", tmp_path)


def test_a_full_disk_at_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "CHECKPOINT_EVERY", 2)
    spec = EXPERIMENTS["order"].runs("smoke")[0]
    with monkeypatch.context() as patch:
        full_disk(patch, storage, "sync_files", lambda path: "iteration-00000004" in path.name)
        message = refused("reproduce", "order", "--output", tmp_path, code=1)
    checkpoint = tmp_path / "unfinished" / spec.key / "iteration-00000004"
    assert message.startswith(f"error: the run {spec.label}: {checkpoint} was not written: the disk is full: ")
    assert message.endswith("make room or save elsewhere" + runner.GO_ON + "\n")
    seen = []
    runner.Store(tmp_path / "runs", tmp_path / "unfinished").make(spec, lambda record: seen.append(record.iteration))
    assert seen == [3, 4, 5, 6, 7, 8]


def test_a_full_disk_when_it_is_stopped(tmp_path, monkeypatch):
    """It is not said that it goes on from there."""

    def step(self, *, evaluate=True):
        signal.raise_signal(signal.SIGTERM)
        return real(self, evaluate=evaluate)

    real = ipdlam.IPDLAM.step
    monkeypatch.setattr(ipdlam.IPDLAM, "step", step)
    full_disk(monkeypatch, storage, "sync_files", lambda path: True)
    out, err = ipdlam_run("reproduce", "order", "--output", tmp_path, code=1)
    assert "goes on from there" not in out
    assert "iteration-00000001 was not written: the disk is full: " in err


@pytest.mark.parametrize("name", ["order-smoke.json", "order-smoke.png"])
def test_a_full_disk_when_results_are_written(tmp_path, monkeypatch, name):
    def write_file(path, content):
        with storage.explained(path, len(content)):
            if path.name == name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            path.write_bytes(content)

    monkeypatch.setattr("ipdlam.experiments.make.write_file", write_file)
    monkeypatch.setattr("ipdlam.training.plots.write_file", write_file)
    message = refused("reproduce", "order", "--output", tmp_path, code=1)
    assert message.startswith(f"error: {tmp_path / name} was not written: the disk is full: ")
    assert message.endswith(" are needed; make room or save elsewhere\n")


@pytest.mark.parametrize("spoil", [lambda file: file.write_text("{"), Path.unlink])
def test_a_damaged_checkpoint_is_named_with_its_run(tmp_path, spoil):
    def step(self, *, evaluate=True):
        if self.iteration == 2:
            signal.raise_signal(signal.SIGINT)
        return real(self, evaluate=evaluate)

    real = ipdlam.IPDLAM.step
    with mock.patch.object(ipdlam.IPDLAM, "step", step):
        ipdlam_run("reproduce", "order", "--output", tmp_path, code=130)
    spec = EXPERIMENTS["order"].runs("smoke")[0]
    folder = tmp_path / "unfinished" / spec.key
    spoil(folder / "iteration-00000003" / MANIFEST)
    message = refused("reproduce", "order", "--output", tmp_path, code=1)
    assert message.startswith(f"error: the run {spec.label}: {folder} holds no whole checkpoint; ")
    remedy = f"; remove the folder {folder}, then the same command makes the run anew\n"
    assert message.endswith(remedy)
    for path in (folder / "iteration-00000003").iterdir():
        path.unlink()
    (folder / "iteration-00000003").rmdir()
    folder.rmdir()
    ipdlam_run("reproduce", "order", "--output", tmp_path)


def test_data_in_a_folder_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("IPDLAM_DATA", str(tmp_path / "nowhere"))
    runner.problem_of.cache_clear()
    message = refused("reproduce", "fig1", "--scale", "small", "--output", tmp_path / "r")
    assert (
        f"IPDLAM_DATA is {tmp_path / 'nowhere'}, which does not exist; set it to a folder that holds mnist" in message
    )
    ipdlam_run("reproduce", "order", "--output", tmp_path / "r")  # on digits
