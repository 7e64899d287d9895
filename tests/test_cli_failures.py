"""Ways to lose a run or its results on the command line, each of which must not."""

from __future__ import annotations

import json

import numpy as np

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
