"""Ways to lose a run or its results on the command line, each of which must not."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from idxfiles import write_idx
from ipdlam.checkpoint import format as checkpoint
from ipdlam.datasets.sources import CATALOGUE
from ipdlam.runs.config import read_toml
from shell import assert_same_run, ipdlam_run, records, refused, same_model, summary

QUICK = ("--hidden", "8", "--iterations", "2", "--checkpoint-every", "1")

# --- names and paths --------------------------------------------------------------------------------------------------


def write_images(folder, count=40, side=8, labels=10):
    """A folder of IDX files with images of noise."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part in ("train", "t10k"):
        write_idx(folder / f"{part}-images-idx3-ubyte", generator.integers(0, 256, (count, side, side)).astype("uint8"))
        write_idx(folder / f"{part}-labels-idx1-ubyte", (np.arange(count) % labels).astype("uint8"))
    return folder


def test_a_folder_named_like_a_data_set_is_not_taken_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "digits")
    ipdlam_run("train", "digits", *QUICK, "--output", "run")
    assert read_toml(tmp_path / "run" / "config.toml")["data"] == "digits"
    scores = json.loads(ipdlam_run("evaluate", "run", "--json")[0])
    assert scores["test set"]["samples"] == 450
    assert scores["test set"]["accuracy"] == summary(tmp_path / "run")["last"]["validation_accuracy"]
    ipdlam_run("train", "--resume", "run", "--iterations", "3")
    ipdlam_run("train", "digits", *QUICK, "--iterations", "3", "--output", "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_path_to_a_folder_named_like_a_data_set_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_images(tmp_path / "digits")
    ipdlam_run("train", "./digits", *QUICK, "--output", "run")
    assert read_toml(tmp_path / "run" / "config.toml")["data"] == str(folder)
    monkeypatch.chdir("/")
    assert json.loads(ipdlam_run("evaluate", tmp_path / "run", "--json")[0])["test set"]["samples"] == 40


# --- checkpoints that cannot be read ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    run = tmp_path_factory.mktemp("failures") / "run"
    ipdlam_run("train", "digits", *QUICK, "--output", run)
    return run


@pytest.fixture
def again(digits, tmp_path):
    """A copy of the run, as if it had been killed after its last checkpoint."""
    run = shutil.copytree(digits, tmp_path / "again")
    (run / "summary.json").unlink()
    return run


def from_a_newer_version(newest, monkeypatch):
    file = newest / checkpoint.MANIFEST
    manifest = json.loads(file.read_bytes())
    manifest.pop("sha256")
    file.write_text(checkpoint.seal({**manifest, "version": 2}))
    return "version 2"


def without_permission(newest, monkeypatch):
    def read_plain(path, most=-1):
        if path.parent == newest:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, most)

    real = checkpoint.read_plain
    monkeypatch.setattr(checkpoint, "read_plain", read_plain)
    return "manifest.json cannot be read: Permission denied"


def of_another_program(newest, monkeypatch):
    shutil.rmtree(newest)
    newest.mkdir()
    (newest / "photo.jpg").write_bytes(b"a picture")
    return "it has no manifest.json"


@pytest.mark.parametrize("spoil", [from_a_newer_version, without_permission, of_another_program])
def test_a_checkpoint_that_is_not_known_to_be_damaged_is_not_removed(again, monkeypatch, spoil):
    newest = again / "checkpoints" / "iteration-00000002"
    words = spoil(newest, monkeypatch)
    names = sorted(again.rglob("*"))
    err = ipdlam_run("train", "--resume", again, "--iterations", "3", code=1)[1].splitlines()[-1]
    assert "iteration-00000002 is newer than the checkpoint to go on from, and is not known to be damaged" in err
    assert words in err
    assert err.endswith("Mend that, or move the folder away")
    assert sorted(again.rglob("*")) == names


def test_a_damaged_checkpoint_of_ours_is_replaced(again, digits):
    newest = again / "checkpoints" / "iteration-00000002"
    (newest / "state-00000.safetensors").write_bytes(b"")
    err = ipdlam_run("train", "--resume", again)[1]
    assert "iteration-00000002 is damaged" in err
    assert_same_run(again, digits)


# --- memory that runs out ---------------------------------------------------------------------------------------------

NO_MEMORY = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


def run_out(monkeypatch, place, call, error):
    """Let the memory run out in one of the calls of a function."""
    home, name = pkgutil.resolve_name(place.rpartition(".")[0]), place.rpartition(".")[2]
    real, calls = getattr(home, name), itertools.count(1)

    def short(*arguments, **more):
        if next(calls) == call:
            raise error
        return real(*arguments, **more)

    monkeypatch.setattr(home, name, short)


@pytest.mark.parametrize("error", [NO_MEMORY, MemoryError()], ids=["torch", "python"])
@pytest.mark.parametrize("storage", [False, True], ids=["memory", "disk"])
def test_memory_that_runs_out_leaves_the_last_weights(tmp_path, monkeypatch, error, storage):
    options = ("--hidden", "8", "--iterations", "4")
    disk = ("--storage", tmp_path / "state") if storage else ()
    ipdlam_run("train", "digits", *options, "--output", tmp_path / "whole")
    ipdlam_run("train", "digits", *options, "--iterations", "2", "--output", tmp_path / "two")
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        run_out(patch, "ipdlam.fullbatch.trainer.pass_over", 4, error)  # the first is that of the start
        out, err = ipdlam_run("train", "digits", *options, *disk, "--output", run, code=1)
    assert err.startswith("error: memory ran out after 2 iterations; the last weights are in ")
    assert err.count("\n") == 1
    assert f"--resume {run}" in err
    assert ("with --storage" in err) == (not storage)
    assert "2 iterations, " in out
    assert summary(run)["stop_reason"] == "memory"
    assert same_model(run, tmp_path / "two")
    assert len(records(run)) == 2
    ipdlam_run("train", "--resume", run)  # there was no checkpoint yet
    assert_same_run(run, tmp_path / "whole")


def test_memory_that_runs_out_on_mini_batches_and_in_the_second_stage(tmp_path, monkeypatch):
    small = ("--hidden", "8", "--limit", "200", "--checkpoint-every", "1")
    with monkeypatch.context() as patch:
        run_out(patch, "ipdlam.minibatch.epoch.take", 6, NO_MEMORY)
        options = ("--epochs", "3", "--batch-size", "50", "--output", tmp_path / "batches")
        err = ipdlam_run("train", "digits", *small, *options, code=1)[1]
    assert "memory ran out after 1 epochs" in err
    assert "use a smaller hidden, or smaller batches" in err
    assert (tmp_path / "batches" / "model.safetensors").is_file()
    ipdlam_run("train", "--resume", tmp_path / "batches")
    assert len(records(tmp_path / "batches")) == 3
    with monkeypatch.context() as patch:
        run_out(patch, "ipdlam.baselines.optimizers.BackPropagation._advance", 2, MemoryError())
        options = ("--iterations", "2", "--then", "adam", "--then-epochs", "2", "--output", tmp_path / "then")
        assert (
            "memory ran out after 2 iterations and 1 epochs of adam"
            in ipdlam_run("train", "digits", *small, *options, code=1)[1]
        )
    ipdlam_run("train", "--resume", tmp_path / "then")
    assert len(records(tmp_path / "then")) == 4


def test_those_who_keep_the_state_on_a_disk_are_not_told_to(tmp_path, monkeypatch):
    run_out(monkeypatch, "ipdlam.fullbatch.trainer.pass_over", 1, NO_MEMORY)
    options = ("--hidden", "8", "--storage", tmp_path / "state", "--output", tmp_path / "run")
    message = refused("train", "digits", *options)
    assert "there is not enough memory: z and a of 1347 samples" in message
    assert message.endswith("use a smaller hidden, limit or chunk_size\n")
    assert not (tmp_path / "run").exists()


def test_memory_that_runs_out_elsewhere_is_one_line(digits, monkeypatch):
    run_out(monkeypatch, "ipdlam.runs.predict.evaluate", 1, NO_MEMORY)
    assert refused("evaluate", digits, code=1).startswith("error: there is not enough memory; ")


@pytest.mark.parametrize("error", [RuntimeError("no fonts"), ValueError("an image of 0 x 0 pixels"), MemoryError()])
def test_curves_that_cannot_be_drawn_never_fail_a_run(tmp_path, monkeypatch, error):
    for home in ("ipdlam.runs.job", "ipdlam.training.plots"):
        monkeypatch.setattr(f"{home}.curves", mock.Mock(side_effect=error))
    err = ipdlam_run("train", "digits", *QUICK, "--output", tmp_path / "run", pictures=True)[1]
    assert f"warning: the curves were not drawn: {error or 'MemoryError'}" in err
    assert summary(tmp_path / "run")["stop_reason"] == "iterations"
    options = ("--hidden", "8", "--iterations", "1", "--methods", "ipdlam", "--output", tmp_path / "compare")
    out = ipdlam_run("compare", "digits", *options, pictures=True)[0]
    assert "warning: the curves were not drawn" in out
    assert (tmp_path / "compare" / "comparison.json").is_file()


# --- logs that cannot be written --------------------------------------------------------------------------------------

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("mode", [(), ("--json",)], ids=["lines", "json"])
def test_a_log_on_a_full_disk_costs_no_run(digits, tmp_path, mode):
    run = tmp_path / "run"
    with FULL.open("w") as full:
        err = ipdlam_run("train", "digits", *QUICK, *mode, "--output", run, stdout=full)[1]
    assert_same_run(run, digits)
    assert err == (
        "warning: the output could not be written (No space left on device), and the run went on without it; "
        f"every iteration is in {run / 'history.jsonl'}\n"
    )


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_logs_of_both_streams_on_a_full_disk(digits, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "ipdlam", "train", "digits", *QUICK, "--output", str(run)]
    with FULL.open("w") as full:
        assert subprocess.run(command, stdout=full, stderr=full, check=False).returncode == 0
    assert_same_run(run, digits)
    assert (run / "curves.png").stat().st_size > 0


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("command", "result"),
    [
        (("compare", "digits", "--hidden", "8", "--iterations", "1", "--methods", "dlam"), "comparison.json"),
        (("reproduce", "order"), "order-smoke.json"),
    ],
)
def test_a_log_on_a_full_disk_costs_no_comparison(tmp_path, command, result):
    with FULL.open("w") as full:
        err = ipdlam_run(*command, "--output", tmp_path / "out", stdout=full)[1]
    assert "warning: the output could not be written (No space left on device)" in err
    assert (tmp_path / "out" / result).is_file()


# --- links and pipes where files are expected -------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path):
    """Somebody's file, elsewhere."""
    file = tmp_path / "thesis.txt"
    file.write_text("ten years of work")
    yield file
    assert file.read_text() == "ten years of work"


@contextlib.contextmanager
def no_longer_than(seconds):
    """Fail instead of waiting for ever."""

    def late(number, frame):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_lock_that_is_a_link_or_a_pipe_is_refused(again, tmp_path, precious):
    new = tmp_path / "new"
    new.mkdir()
    for folder, command in ((new, ("train", "digits", *QUICK, "--output", new)), (again, ("train", "--resume", again))):
        lock = folder / ".lock"
        lock.unlink(missing_ok=True)
        lock.symlink_to(precious)
        assert f"output {folder} cannot be written to: .lock is a link; remove it" in refused(*command)
        lock.unlink()
        os.mkfifo(lock)
        with no_longer_than(60):
            message = refused(*command)
        assert f"output {folder} cannot be written to: .lock is not a plain file; remove it" in message


def test_a_lock_is_not_truncated(again, digits):
    (again / ".lock").write_text("a note")
    ipdlam_run("train", "--resume", again)
    assert (again / ".lock").read_text() == "a note"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_stands_in_the_place_of_an_unfinished_file_goes(again, digits, precious, kind):
    names = ["config.toml", "history.jsonl", "summary.json", "model.safetensors", "checkpoints/iteration-00000003"]
    for name in names:
        place = (again / name).with_name(f".unfinished-{Path(name).name}")
        place.symlink_to(precious if "." in place.name[1:] else precious.parent) if kind == "link" else os.mkfifo(place)
    with no_longer_than(60):
        ipdlam_run("train", "--resume", again, "--iterations", "3")
    assert len(records(again)) == 3
    assert (again / "checkpoints" / "iteration-00000003").is_dir()
    assert not list(again.rglob(".unfinished-*"))


@pytest.mark.parametrize(
    "name", ["environment.json", "summary.json", "history.jsonl", "checkpoints/iteration-00000002/manifest.json"]
)
def test_a_pipe_in_the_place_of_a_file_does_not_hang(again, name):
    (again / name).unlink(missing_ok=True)
    os.mkfifo(again / name)
    with no_longer_than(60):
        if name.startswith("checkpoints"):
            err = ipdlam_run("train", "--resume", again, code=1)[1]
            assert "manifest.json is not a plain file; remove it" in err
        else:
            ipdlam_run("train", "--resume", again, "--iterations", "3")
            assert len(records(again)) == 3
            assert (again / name).is_file()


# --- tracebacks that were ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("train", "~nouser/x.csv"), 2, "~nouser/x.csv does not exist"),
        (("train", "mnist", "--data-dir", "~nouser/x"), 2, "which does not exist"),
        (("train", "digits", *QUICK, "--inertia", "1e308"), 2, "inertia is 1e+308, which is beyond torch.float32"),
        (("train", "digits", *QUICK, "--proximity", "1e39"), 2, "proximity is 1e+39, which is beyond torch.float32"),
    ],
)
def test_mistakes_that_were_tracebacks(tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    assert words in ipdlam_run(*arguments, code=code)[1].splitlines()[-1]


def test_a_user_that_does_not_exist_is_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ipdlam_run("train", "digits", *QUICK, "--storage", "~nouser/state", "--output", "~nouser/run")
    assert (tmp_path / "~nouser" / "run" / "model.safetensors").is_file()


def test_a_variable_that_torchrun_left_is_no_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ipdlam_run("train", "digits", *QUICK, "--output", tmp_path / "run")
    ipdlam_run("evaluate", tmp_path / "run")


@pytest.mark.parametrize("name", ["environment.json", "summary.json", "history.jsonl"])
@pytest.mark.parametrize("content", ["[]", "3", "null", "[" * 100_000, '{"a":' * 100_000, "[]\n[]\n"])
def test_files_of_a_run_that_hold_something_else(again, digits, name, content):
    (again / name).write_text(content)
    ipdlam_run("train", "--resume", again)
    assert_same_run(again, digits)


def test_forged_records_are_refused(again):
    for file in again.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(file.read_bytes())
        manifest.pop("sha256")
        manifest["content"]["run"]["history"][-1]["objective"] = "small"
        file.write_text(checkpoint.seal(manifest))
    message = refused("train", "--resume", again, code=1)
    assert "cannot be used: TypeError: objective of iteration 2 is 'small'" in message


def test_streams_that_are_closed_or_know_no_more_than_ascii(digits, tmp_path):
    command = [sys.executable, "-m", "ipdlam", "evaluate", str(digits)]
    done = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *command], check=False)
    assert done.returncode == 0
    odd = shutil.copytree(digits, tmp_path / "größe…")
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    ipdlam_run("train", "--resume", odd, stdout=plain)
    plain.flush()
    assert b"gr??e? is finished" in plain.buffer.getvalue()


# --- exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "nowhere.csv"), "does not exist"),
        (("train", "nothing"), "neither the name of a data set"),
        (("train", "--resume", "nowhere"), "nowhere"),
        (("train", "--config", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("train", "{table}", "--label", "z"), "no column 'z'"),
        (("train", "{table}", "--drop", "z"), "no column 'z'"),
        (("train", "{table}", "--hidden", "0"), "hidden"),
        (("train", "{table}", "--epochs", "many"), "epochs"),
        (("compare", "{table}", "--methods", "magic"), "magic"),
        (("compare", "nowhere.csv"), "does not exist"),
        (("evaluate", "nowhere"), "does not exist"),
        (("evaluate", "{table}", "--data", "digits"), "is not a model that ipdlam saved"),
        (("evaluate", "{digits}", "--data", "nowhere.csv"), "does not exist"),
        (("evaluate", "{digits}", "--data", "{table}"), "error"),
        (("predict", "{digits}", "nowhere.csv"), "nowhere.csv cannot be read"),
        (("predict", "{digits}", "{table}"), "table.csv"),
        (("predict", "{digits}", "{table}", "--output", "{table}"), "exists already"),
        (("report", "nowhere"), "does not exist"),
        (("reproduce", "nothing"), "unknown experiment"),
    ],
)
def test_what_a_command_names_is_a_mistake_of_one_kind(digits, tmp_path, monkeypatch, arguments, words):
    """Whatever is wrong with it: that it is not there, is something else, or does not fit."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("a,b,y\n1,2,3\n4,5,6\n7,8,9\n")
    given = [text.format(table=tmp_path / "table.csv", digits=digits) for text in arguments]
    assert words in refused(*given, code=2)


# --- smaller ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inside", "words"), [("", "is the folder"), ("state", "is inside the folder")])
def test_the_state_does_not_live_in_the_folder_of_the_run(tmp_path, inside, words):
    run = tmp_path / "run"
    message = refused("train", "digits", *QUICK, "--storage", run / inside, "--output", run)
    assert f"{words} of the run, {run}; give a folder elsewhere" in message
    assert not run.exists()


def test_an_unknown_label_does_not_print_every_column(tmp_path):
    table = tmp_path / "wide.csv"
    names = [f"measurement{place}" for place in range(5000)]
    table.write_text(",".join(names) + "\n" + ",".join("1" * 5000) + "\n")
    for label in ("measurment17", "99999"):
        message = refused("train", table, "--label", label)
        assert len(message) < 600
        assert "measurement0, measurement1" in message
        assert "and 4990 more" in message
    assert "did you mean 'measurement17'?" in refused("train", table, "--label", "measurment17")


def test_columns_of_one_name_are_refused_before_they_are_learnt(tmp_path):
    table = tmp_path / "double.csv"
    table.write_text("x,x,kind\n1,2,a\n3,4,b\n")
    assert "has 2 columns 'x'; give each column a name of its own" in refused("train", table)


def test_records_are_json_that_others_read(tmp_path):
    """A loss that overflows is null there: JSON has no Infinity."""

    def strict(text):
        return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    def scores(self, run):
        return {"train_loss": float("inf"), "train_accuracy": 0.5}

    run = tmp_path / "run"
    with mock.patch("ipdlam.fullbatch.trainer.IPDLAM._scores", scores):
        out = ipdlam_run("train", "digits", *QUICK, "--json", "--output", run)[0]
        ipdlam_run("train", "--resume", run, "--iterations", "3")
        options = ("--hidden", "8", "--iterations", "1", "--methods", "ipdlam", "--output", tmp_path / "compare")
        ipdlam_run("compare", "digits", *options)
    lines = [strict(line) for line in out.splitlines()]
    assert [line["train_loss"] for line in lines if line["event"] == "iteration"] == [None, None]
    assert [strict(line)["train_loss"] for line in (run / "history.jsonl").read_text().splitlines()] == [None] * 3
    assert strict((run / "summary.json").read_text())["last"]["train_loss"] is None
    assert strict((tmp_path / "compare" / "comparison.json").read_text())["rows"][0]["train_loss"] is None


def test_every_mirror_is_encrypted():
    assert all(mirror.startswith("https://") for source in CATALOGUE.values() for mirror in source.mirrors)
