"""The command line in this process, and what it leaves, for the tests."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import sys
import warnings
from pathlib import Path
from unittest import mock

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from ipdlam.cli import app, main
from ipdlam.runs.folder import RunFolder
from ipdlam.training.history import Record

# The options of all commands, made once: that takes longer than many a command of these tests.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)


def fake_curves(histories, path, title=None, unit="iteration"):
    """Drawing takes longer than the training of these tests."""
    assert histories
    Path(path).write_bytes(b"a picture")
    return Path(path)


class QuickFigure:
    """A picture of a few dots that differ with what is to be shown: half a second less than a real one."""

    dpi = 1

    def __init__(self, panels, results, title):
        shown = [(panel.title, {name: panel.points(name, results) for name in panel.lines}) for panel in panels]
        self.dots = hashlib.shake_128(json.dumps([title, shown]).encode()).digest(96)

    def savefig(self, file, format, dpi):
        Image.frombytes("RGB", (8, 4), self.dots).save(file, format=format)


def quick_pictures():
    """Experiments draw a :class:`QuickFigure`; everything else of a picture is real."""
    return mock.patch("ipdlam.experiments.make.draw", QuickFigure)


def ipdlam_run(*arguments, code=0, pictures=False, stdout=None):
    """Run the command in this process; what it wrote to its two streams, the first of which may be another."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        if not pictures:
            stack.enter_context(mock.patch("ipdlam.runs.job.curves", fake_curves))
            stack.enter_context(mock.patch("ipdlam.training.plots.curves", fake_curves))
            stack.enter_context(quick_pictures())
        stack.enter_context(mock.patch.object(sys, "argv", ["ipdlam", *map(str, arguments)]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")  # as outside of pytest: what is not expected shows in the output
        stack.enter_context(contextlib.redirect_stdout(out if stdout is None else stdout))
        stack.enter_context(contextlib.redirect_stderr(err))
        caught = stack.enter_context(pytest.raises(SystemExit))
        main()
    found = caught.value.code or 0
    assert found == code, (found, out.getvalue(), err.getvalue())
    return out.getvalue(), err.getvalue()


def refused(*arguments, code=2):
    """The one line that says why."""
    err = ipdlam_run(*arguments, code=code)[1]
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


def records(run):
    return [Record.from_dict(json.loads(line)) for line in (run / "history.jsonl").read_text().splitlines()]


def without_seconds(run):
    return [dataclasses.replace(record, seconds=0.0) for record in records(run)]


def summary(run):
    return json.loads((run / "summary.json").read_text())


def same_model(one, other):
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def assert_same_run(one, other):
    assert same_model(one, other)
    assert without_seconds(one) == without_seconds(other)


class Killed(BaseException):
    """Nothing that the program could do something about."""


def kill_after(iteration, *arguments):
    """Train until a record is written, and end as a kill would: nothing else is written."""

    def append(self, record):
        real(self, record)
        if record.iteration == iteration:
            raise Killed

    real = RunFolder.append
    with mock.patch.object(RunFolder, "append", append), pytest.raises(Killed):
        CliRunner().invoke(app, ["train", *map(str, arguments), "--quiet"], catch_exceptions=False)


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
