"""Ways to lose a run or its results on the command line, each of which must not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ipdlam import checkpoint
from ipdlam.config import read_toml
from shell import assert_same_run, ipdlam_run, summary
from test_datasets import write_idx

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
    def read_bytes(self):
        if self.parent == newest:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
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
