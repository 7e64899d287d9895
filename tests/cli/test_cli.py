"""The command line as a user meets it: what it prints, writes, refuses, and in which words."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.main import get_command
from typer.testing import CliRunner

import forked
import ipdlam
from ipdlam.checkpoint.format import MANIFEST
from ipdlam.cli import app
from ipdlam.cli.display import Screen
from ipdlam.datasets import load
from ipdlam.runs import config as known
from ipdlam.runs import job as jobs
from ipdlam.runs.compare import compared_seeds
from ipdlam.runs.config import TrainConfig
from ipdlam.runs.folder import RunFolder
from ipdlam.runs.problem import Problem, split
from ipdlam.training.history import History, Record
from shell import ipdlam_run, records, refused, same_model, snapshot, summary, without_seconds

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
FILES = ["checkpoints", "config.toml", "curves.png", "environment.json", "history.jsonl", "model.safetensors"]
SMALL = ("--hidden", "8", "--iterations", "3")
COMMANDS = ("train", "compare", "evaluate", "predict", "datasets")


def python(*arguments, **more):
    process = subprocess.run(
        [sys.executable, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False, **more
    )
    return process.returncode, process.stdout, process.stderr


def forward(run, X, activation=torch.relu):
    """The network computed from its file, without the library."""
    tensors = load_file(run / "model.safetensors")
    z = torch.as_tensor(X)
    if "input.mean" in tensors:  # in float64
        z = (z - tensors["input.mean"]) / tensors["input.scale"]
    z = z.to(tensors["0.weight"].dtype)
    layers = sum(name.endswith("weight") for name in tensors)
    for index in range(layers):
        z = z @ tensors[f"{2 * index}.weight"].T + tensors[f"{2 * index}.bias"]
        z = activation(z) if index + 1 < layers else z
    if "output.mean" in tensors:  # of a regression, in the units of its targets
        z = z.double() * tensors["output.scale"] + tensors["output.mean"]
    return z


def read_csv(text):
    rows = list(csv.reader(io.StringIO(text)))
    return rows[0], rows[1:]


# --- data and runs that many tests share ------------------------------------------------------------------------------

GENERATOR = np.random.default_rng(0)
POINTS = GENERATOR.normal(size=(60, 3)).astype(np.float32)
KINDS = np.array(["blue", "green", "red"])[(POINTS[:, 0] > 0.3).astype(int) + (POINTS[:, 0] + POINTS[:, 1] > 0.9)]


def write_table(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def table(folder):
    """A header, a column that never changes, labels that are text."""
    rows = [[*map(str, point), "7", kind] for point, kind in zip(POINTS, KINDS, strict=True)]
    return write_table(folder / "table.csv", ["x", "y", "z", "constant", "kind"], rows)


@pytest.fixture(scope="module")
def digits(folder):
    run = folder / "digits"
    out, err = ipdlam_run("train", "digits", *SMALL, "--output", run, pictures=True)
    return SimpleNamespace(run=run, out=out, err=err)


@pytest.fixture(scope="module")
def table_run(folder, table):
    run = folder / "table"
    ipdlam_run("train", table, "--hidden", "6", "--iterations", "4", "--checkpoint-every", "1", "--output", run)
    return run


@pytest.fixture
def again(table_run, tmp_path):
    """A copy of the run of the table, to go on with."""
    return shutil.copytree(table_run, tmp_path / "again")


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [80, 140])
def test_help_lists_every_option_in_full(command, width):
    wanted = "--help-all" if command in ("train", "compare") else "--help"
    result = CliRunner().invoke(app, [command, wanted], env={"TERMINAL_WIDTH": str(width), "COLUMNS": str(width)})
    assert result.exit_code == 0
    declared = get_command(app).commands[command].params
    flags = {flag for parameter in declared for flag in (*parameter.opts, *parameter.secondary_opts) if "--" in flag}
    words = set(result.output.replace(",", " ").replace("│", " ").split())
    assert flags <= words
    if command == "train":
        assert {f"--{item.name.replace('_', '-')}" for item in dataclasses.fields(TrainConfig)} - words == {"--data"}
    if command != "datasets":
        assert "Examples:" in result.output
        assert f"ipdlam {command} " in result.output
    assert max(map(len, result.output.splitlines())) <= width


def test_the_overview_names_every_command():
    for arguments in (["--help"], ["-h"], []):
        output = CliRunner().invoke(app, arguments).output
        assert all(f" {command} " in output for command in COMMANDS)


def test_the_module_is_the_command():
    code, out, err = python("-m", "ipdlam", "--version")
    assert (code, out, err) == (0, f"ipdlam {ipdlam.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["compare", "--help"], ["train", "digits", "--loss", "x"]]
)
def test_help_and_mistakes_do_not_wait_for_torch(arguments):
    code = (
        "import sys\n"
        f"sys.argv = ['ipdlam', *{arguments!r}]\n"
        "from ipdlam.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    code, _, err = python("-c", code)
    assert code == 0, err


def test_a_word_that_is_no_command_or_option():
    for arguments in (["tran", "digits"], ["train", "digits", "--iteration-s", "3"]):
        code, out, err = python("-m", "ipdlam", *arguments)
        assert code == 2
        assert out == ""
        assert "Traceback" not in err
        assert "No such" in err


# --- train ------------------------------------------------------------------------------------------------------------


def test_a_run_leaves_all_of_its_files(digits):
    assert sorted(path.name for path in digits.run.iterdir()) == sorted([".lock", *FILES, "summary.json"])
    assert [path.name for path in (digits.run / "checkpoints").iterdir()] == ["iteration-00000003"]
    assert (digits.run / "curves.png").read_bytes().startswith(b"\x89PNG")
    environment = json.loads((digits.run / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert str(digits.run) not in json.dumps(environment)
    told = summary(digits.run)
    assert told["stop_reason"] == "iterations"
    assert told["iterations"] == 3
    assert Record.from_dict(told["last"]) == records(digits.run)[-1]
    assert Record.from_dict(told["best"]) == History(records(digits.run)).best


def test_history_has_a_line_for_every_iteration(digits):
    assert [record.iteration for record in records(digits.run)] == [1, 2, 3]
    assert all(record.validation_accuracy is not None for record in records(digits.run))
    assert list(RunFolder(digits.run).read_history()) == records(digits.run)


def test_plain_lines_where_there_is_no_terminal(digits):
    assert digits.err == ""
    assert "\x1b" not in digits.out
    lines = digits.out.splitlines()
    assert lines[0] == "reading digits ..."
    assert lines[1] == "ipdlam on digits, 64-8-10, 10 classes: 1347 samples, scored on 450 (test set)"
    assert lines[2] == f"run folder: {digits.run}"
    assert lines[3].startswith("checkpoints: exact, every 10 iterations, ")
    last = records(digits.run)[-1]
    told = next(line for line in lines if line.startswith("3/3 "))
    assert f"Phi {last.objective:.4g}  gaps {sum(last.linear_gap):.3g}" in told
    assert f"train {100 * last.train_accuracy:.2f} %  validation {100 * last.validation_accuracy:.2f} %" in told
    assert " peak " in told
    assert f"model:  {digits.run / 'model.safetensors'}" in lines
    assert f"curves: {digits.run / 'curves.png'}" in lines


def test_the_saved_configuration_makes_the_same_run(digits, tmp_path):
    ipdlam_run("train", "--config", digits.run / "config.toml", "--output", tmp_path / "twin")
    assert same_model(digits.run, tmp_path / "twin")
    assert without_seconds(digits.run) == without_seconds(tmp_path / "twin")
    one, other = (RunFolder(path).read_config() for path in (digits.run, tmp_path / "twin"))
    assert one == other
    assert other.output is None  # the folder is where it is: the file can be fed back as it is


def test_options_override_the_file_and_the_file_the_defaults(table, tmp_path):
    (tmp_path / "c.toml").write_text(f'data = "{table}"\nhidden = [5]\niterations = 1\nseed = 3\n')
    ipdlam_run("train", "--config", tmp_path / "c.toml", "--seed", "4", "--output", tmp_path / "run")
    made = RunFolder(tmp_path / "run").read_config()
    assert (made.data, made.hidden, made.iterations, made.seed) == (str(table), (5,), 1, 4)
    assert made.loss == TrainConfig().loss


def test_what_exists_is_refused_and_untouched(digits, tmp_path):
    before = snapshot(digits.run)
    message = refused("train", "digits", *SMALL, "--output", digits.run)
    assert f"output {digits.run} exists already; choose another --output, or go on with it" in message
    assert snapshot(digits.run) == before
    (tmp_path / "thesis.tex").write_text("years of work")
    message = refused("train", "digits", *SMALL, "--output", tmp_path)
    assert "exists already" in message
    assert "--resume" not in message  # it is no run
    refused("train", "digits", *SMALL, "--output", tmp_path / "thesis.tex")
    assert snapshot(tmp_path) == {tmp_path / "thesis.tex": b"years of work"}


def test_an_empty_folder_may_be_used(table, tmp_path):
    ipdlam_run("train", table, *SMALL, "--output", tmp_path)
    assert (tmp_path / "model.safetensors").is_file()


def test_without_an_output_the_folder_has_a_name_of_its_own(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        ipdlam_run("train", table, "--hidden", "3", "--iterations", "1", "--quiet")
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("table-2") for name in names)


def test_json_lines(table, tmp_path):
    out, err = ipdlam_run("train", table, *SMALL, "--json", "--output", tmp_path / "run")
    events = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert [event.pop("event") for event in events] == ["note", "begin", *["iteration"] * 3, "end"]
    assert {**events[1]["config"], "output": None} == RunFolder(tmp_path / "run").read_config().to_dict()
    assert events[1]["done"] == 0
    assert events[1]["checkpoint_bytes"] > 1000
    for event, record in zip(events[2:5], records(tmp_path / "run"), strict=True):
        assert event.pop("peak_memory") > 1_000_000
        assert Record.from_dict(event) == record
    assert events[-1] == {"run": str(tmp_path / "run"), "stop_reason": "iterations", "iterations": 3}


def test_quiet_prints_nothing(table, tmp_path):
    assert ipdlam_run("train", table, *SMALL, "--quiet", "--output", tmp_path / "run") == ("", "")
    out, err = ipdlam_run("train", table, *SMALL, "--quiet", "--inertia", "1.1", "--output", tmp_path / "warned")
    assert out == ""
    assert err.startswith("warning: inertia 1.1 is 1 or more")


@pytest.mark.parametrize("name", ["[bold]b[/bold]", "[/]", "ünï \N{GRINNING FACE}", "a b'c\"d"])
def test_folders_with_odd_names(table, tmp_path, name):
    run = tmp_path / name
    out = ipdlam_run("train", table, *SMALL, "--output", run)[0]
    assert f"run folder: {run}" in out
    assert f"{run} is finished" in ipdlam_run("train", "--resume", run)[0]
    ipdlam_run("evaluate", run)
    out = ipdlam_run("compare", table, *SMALL, "--methods", "dlam", "--output", tmp_path / f"{name}2")[0]
    assert f"results: {tmp_path / f'{name}2' / 'comparison.json'}" in out


def test_warnings_are_shown_as_before_after_a_run(table, tmp_path):
    before = warnings.showwarning
    ipdlam_run("train", table, *SMALL, "--output", tmp_path / "run")
    ipdlam_run("compare", table, *SMALL, "--methods", "ipdlam", "--output", tmp_path / "comparison")
    assert warnings.showwarning is before


# --- settings that change what is trained -----------------------------------------------------------------------------


def trained(table, output, *options):
    ipdlam_run("train", table, *SMALL, "--quiet", "--output", output, *options)
    return output


@pytest.mark.parametrize("loss", known.LOSSES)
def test_every_loss_trains(table, tmp_path, loss):
    run = trained(table, tmp_path / "run", "--loss", loss)
    assert records(run)[-1].train_accuracy > 0.5


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "dlam"],
        ["--regularizer", "none"],
        ["--regularizer", "non_negative"],
        ["--regularizer", "elastic_net", "--regularizer-strength", "1e-3"],
        ["--order", "nested-reverse"],
        ["--order", "z2, W2, a1, z1, W1"],
        ["--initialisation", "paper"],
        ["--initialisation", "torch"],
        ["--inertia", "0.1,0.2,0.3"],
        ["--hidden", ""],
        ["--hidden", "3,4,5"],
        ["--chunk-size", "7"],
        ["--validation", "none"],
        ["--no-standardize"],
        ["--seed", str(2**64 - 1)],
    ],
    ids=" ".join,
)
def test_options_reach_the_trainer(table, table_run, tmp_path, options):
    run = trained(table, tmp_path / "run", *options)
    assert all(np.isfinite(record.objective) for record in records(run))
    evaluated = json.loads(ipdlam_run("evaluate", run, "--json")[0])
    assert ("held-out samples" in evaluated) == ("--validation" not in options)


def test_double_precision(table, tmp_path):
    tensors = load_file(trained(table, tmp_path / "run", "--dtype", "float64") / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float64}


def test_threads(table, tmp_path):
    before = torch.get_num_threads()
    try:
        run = trained(table, tmp_path / "run", "--threads", "2")
        assert json.loads((run / "environment.json").read_text())["threads"] == 2
    finally:
        torch.set_num_threads(before)


def test_the_seed_decides(table, tmp_path):
    one, same, other = (trained(table, tmp_path / str(i), "--seed", seed) for i, seed in enumerate("556"))
    assert same_model(one, same)
    assert not same_model(one, other)


def test_the_limit_takes_the_first_samples(table, tmp_path):
    out = ipdlam_run("train", table, *SMALL, "--limit", "30", "--output", tmp_path / "run")[0]
    assert "24 samples, scored on 6 (held-out samples)" in out
    out = ipdlam_run("train", "digits", *SMALL, "--limit", "50", "--output", tmp_path / "digits")[0]
    assert "50 samples, scored on 450 (test set)" in out
    out = ipdlam_run("train", table, *SMALL, "--limit", "1e30", "--output", tmp_path / "all")[0]
    assert "48 samples" in out


def test_target_score_ends_the_run(tmp_path):
    options = ("--hidden", "20", "--iterations", "50", "--target-score", "0.8", "--output", tmp_path / "run")
    ipdlam_run("train", "digits", *options)
    scores = [record.validation_accuracy for record in records(tmp_path / "run")]
    assert len(scores) < 50
    assert scores[-1] >= 0.8 > max(scores[:-1])
    assert summary(tmp_path / "run")["stop_reason"] == "target_score"
    before = snapshot(tmp_path / "run")
    out = ipdlam_run("train", "--resume", tmp_path / "run")[0]
    assert "ended by: target_score; to go on, give a larger --target-score" in out
    assert snapshot(tmp_path / "run") == before
    ipdlam_run("train", "--resume", tmp_path / "run", "--target-score", "2", "--iterations", len(scores) + 1)
    assert len(records(tmp_path / "run")) == len(scores) + 1


def test_patience_ends_the_run_and_the_best_is_kept(table, tmp_path):
    options = ("--hidden", "6", "--iterations", "60", "--patience", "3", "--restore-best")
    out = ipdlam_run("train", table, *options, "--output", tmp_path / "run")[0]
    history = History(records(tmp_path / "run"))
    assert len(history) == history.best.iteration + 3
    assert summary(tmp_path / "run")["stop_reason"] == "patience"
    assert f"at iteration {history.best.iteration}; the best iterate was kept" in out
    evaluated = json.loads(ipdlam_run("evaluate", tmp_path / "run", "--json")[0])
    assert evaluated["held-out samples"]["accuracy"] == history.best.validation_accuracy
    assert evaluated["training samples"]["accuracy"] == history.best.train_accuracy
    assert (
        "ended by: patience; to go on, give a larger --patience" in ipdlam_run("train", "--resume", tmp_path / "run")[0]
    )
    # Killed after its last checkpoint and before its last files, it is finished and not trained any further.
    (tmp_path / "run" / "summary.json").unlink()
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    ipdlam_run("train", "--resume", tmp_path / "run")
    assert len(records(tmp_path / "run")) == len(history)
    assert summary(tmp_path / "run")["stop_reason"] == "patience"
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_evaluation_every_few_iterations(table, tmp_path):
    run = trained(table, tmp_path / "run", "--evaluate-every", "2")
    assert [record.train_accuracy is None for record in records(run)] == [True, False, False]


# --- data -------------------------------------------------------------------------------------------------------------


def test_held_out_samples_are_disjoint_seeded_and_as_many_as_asked_for(table):
    data = load(table)
    places = {tuple(row): place for place, row in enumerate(data.X.tolist())}
    found = {}
    for seed, fraction, size in ((0, "0.2", 12), (0, "0.5", 30), (1, "0.2", 12)):
        made = split(data, TrainConfig(standardize=False, validation=fraction, seed=seed))
        kept, aside = ([places[tuple(row)] for row in X.tolist()] for X in (made.X, made.validation[0]))
        assert len(aside) == size
        assert sorted(kept + aside) == list(range(60))
        assert torch.equal(data.y[kept], made.y)
        assert torch.equal(data.y[aside], made.validation[1])
        assert made.scored_on == "held-out samples"
        found[seed, fraction] = aside
    assert found[0, "0.2"] != found[1, "0.2"]
    again = split(data, TrainConfig(standardize=False, validation="0.2"))
    assert [places[tuple(row)] for row in again.validation[0].tolist()] == found[0, "0.2"]


def test_tables_are_standardised_by_their_training_samples(table):
    made = Problem(TrainConfig(data=str(table), hidden=(3,))).split
    assert torch.allclose(made.X[:, :3].mean(0), torch.zeros(3), atol=1e-6)
    assert torch.allclose(made.X[:, :3].std(0, correction=0), torch.ones(3), atol=1e-5)
    assert torch.equal(made.X[:, 3], torch.zeros(len(made.X)))  # the constant column
    assert made.preparation.scale[3] == 1.0
    assert torch.equal(made.validation[0][:, 3], torch.zeros(len(made.validation[0])))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("unit", [1e-30, 1e-15, 1.0, 1e15, 1e30])
def test_the_unit_of_a_column_does_not_matter(tmp_path, unit, dtype):
    np.savez(tmp_path / "d.npz", X=POINTS * unit, y=KINDS)
    made = Problem(TrainConfig(data=str(tmp_path / "d.npz"), hidden=(3,), dtype=dtype)).split
    assert torch.allclose(made.X.std(0, correction=0), torch.ones(3, dtype=made.X.dtype), atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1e-40, 0.1, 1e8 / 3, 3e38])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constant_columns_stay_finite(tmp_path, value, dtype):
    X = np.hstack([POINTS, np.full((60, 1), value)])
    np.savez(tmp_path / "d.npz", X=X, y=KINDS)
    made = Problem(TrainConfig(data=str(tmp_path / "d.npz"), hidden=(3,), dtype=dtype)).split
    assert made.preparation.scale[3] == 1.0
    assert torch.isfinite(made.X).all()


STAMPS = 1.7e9 + np.arange(400) * 0.25  # seconds: in float32 they are multiples of 128
LATE = np.array(["early", "late"])[(STAMPS > 1.7e9 + 50).astype(int)]


def write_stamps(path):
    """A table whose labels depend on times alone, in random order."""
    order = np.random.default_rng(0).permutation(400)
    if path.suffix == ".npz":
        np.savez(path, X=STAMPS[order, None], y=LATE[order])
        return path
    return write_table(path, ["time", "when"], [[f"{STAMPS[row]:.2f}", LATE[row]] for row in order])


@pytest.mark.parametrize("name", ["stamps.csv", "stamps.npz"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_numbers_with_small_differences_are_learnt(tmp_path, name, dtype):
    data, run = write_stamps(tmp_path / name), tmp_path / "run"
    ipdlam_run(
        "train", data, "--hidden", "20", "--iterations", "20", "--restore-best", "--dtype", dtype, "--output", run
    )
    score = summary(run)["best"]["validation_accuracy"]
    assert score > 0.95
    found = json.loads(ipdlam_run("evaluate", run, "--json")[0])
    assert found["held-out samples"]["accuracy"] == score
    inputs = write_table(tmp_path / "new.csv", ["time"], [["1700000010"], ["1700000090"]])
    assert read_csv(ipdlam_run("predict", run, inputs)[0])[1] == [["early"], ["late"]]


def test_targets_keep_their_digits(tmp_path):
    np.savez(tmp_path / "d.npz", X=np.eye(400)[:, :3], y=STAMPS)
    made = Problem(TrainConfig(data=str(tmp_path / "d.npz"), hidden=(3,), dtype="float64", validation="none")).split
    mean, scale = made.targets
    assert torch.allclose(made.y * scale + mean, torch.tensor(STAMPS)[:, None], rtol=0.0, atol=1e-6)


def test_a_column_that_becomes_constant_is_warned_about(tmp_path):
    rows = [[f"{1.7e9 + index % 50}", index % 7, index % 2] for index in range(60)]
    table = write_table(tmp_path / "t.csv", ["time", "x", "kind"], rows)
    options = ("--hidden", "3", "--iterations", "1", "--output")
    err = ipdlam_run("train", table, "--no-standardize", *options, tmp_path / "a")[1]
    assert "the values of 'time' vary, but are all the same in float32" in err
    assert "leave out --no-standardize, or use --dtype float64" in err
    for more in ((), ("--no-standardize", "--dtype", "float64")):
        assert "vary" not in ipdlam_run("train", table, *more, *options, tmp_path / f"b{len(more)}")[1]
    with pytest.warns(UserWarning, match=r"the values of 'time' vary, but .* float32; .*dtype=torch.float64"):
        load(table)
    assert load(table, dtype=torch.float64).X[:, 0].tolist() == [float(row[0]) for row in rows]


def test_images_are_not_standardised_unless_asked():
    assert Problem(TrainConfig(hidden=(3,))).split.preparation.mean is None
    assert Problem(TrainConfig(hidden=(3,), standardize=True)).split.preparation.mean is not None


def test_datasets_lists_three():
    out, err = ipdlam_run("datasets")
    assert err == ""
    assert [name for name in ("digits", "mnist", "fashion-mnist") if f"\n{name} " in out] == [
        "digits",
        "mnist",
        "fashion-mnist",
    ]


# --- evaluate and predict ---------------------------------------------------------------------------------------------


def test_evaluate_gives_the_scores_of_the_last_record(digits):
    last = records(digits.run)[-1]
    found = json.loads(ipdlam_run("evaluate", digits.run, "--json")[0])
    assert {name: part["samples"] for name, part in found.items()} == {"training samples": 1347, "test set": 450}
    assert found["training samples"]["accuracy"] == last.train_accuracy
    assert found["test set"]["accuracy"] == last.validation_accuracy
    assert found["test set"]["loss"] == pytest.approx(last.validation_loss, rel=1e-6)
    out, err = ipdlam_run("evaluate", digits.run)
    assert err == ""
    assert out.splitlines()[0].split() == ["samples", "mean", "loss", "accuracy"]
    assert f"{100 * last.validation_accuracy:.2f} %" in out


def test_evaluate_on_its_own_held_out_samples(table_run):
    last = records(table_run)[-1]
    found = json.loads(ipdlam_run("evaluate", table_run, "--json")[0])
    assert {name: part["samples"] for name, part in found.items()} == {"training samples": 48, "held-out samples": 12}
    assert found["training samples"]["accuracy"] == last.train_accuracy
    assert found["held-out samples"]["accuracy"] == last.validation_accuracy


def test_evaluate_on_another_file(table, table_run, tmp_path):
    """Other samples, with the columns in another order and a class less."""
    keep = KINDS != "blue"
    rows = [["7", *map(str, point[::-1]), kind] for point, kind in zip(POINTS[keep], KINDS[keep], strict=True)]
    other = write_table(tmp_path / "other.csv", ["constant", "z", "y", "x", "kind"], rows)
    outputs = forward(table_run, np.hstack([POINTS[keep], np.full((keep.sum(), 1), 7.0)]))
    expected = (np.array(["blue", "green", "red"])[outputs.argmax(1)] == KINDS[keep]).mean()
    for run in (table_run, table_run / "model.safetensors"):
        found = json.loads(ipdlam_run("evaluate", run, "--data", other, "--json")[0])
        assert found == {"all samples": {"samples": keep.sum(), "loss": mock.ANY, "accuracy": pytest.approx(expected)}}


def test_a_model_file_knows_its_label(tmp_path):
    rows = [[kind, *map(str, point)] for point, kind in zip(POINTS, KINDS, strict=True)]
    first = write_table(tmp_path / "first.csv", ["kind", "x", "y", "z"], rows)
    run = trained(first, tmp_path / "run", "--label", "kind")
    found = json.loads(ipdlam_run("evaluate", run / "model.safetensors", "--data", first, "--json")[0])
    assert found["all samples"]["samples"] == 60
    np.savez(tmp_path / "same.npz", X=POINTS, y=KINDS)
    arrays = json.loads(ipdlam_run("evaluate", run, "--data", tmp_path / "same.npz", "--json")[0])
    assert arrays["all samples"]["accuracy"] == found["all samples"]["accuracy"]


def test_evaluate_real_targets(tmp_path):
    np.savez(tmp_path / "train.npz", X=POINTS, y=POINTS[:, 0] * 2)
    run = trained(tmp_path / "train.npz", tmp_path / "run", "--activation", "tanh")
    out = ipdlam_run("evaluate", run)[0]
    assert "%" not in out
    # A few whole numbers would be taken for classes; the model knows better.
    np.savez(tmp_path / "other.npz", X=POINTS[:2], y=np.array([1, 2]))
    found = json.loads(ipdlam_run("evaluate", run, "--data", tmp_path / "other.npz", "--json")[0])
    outputs = forward(run, POINTS[:2], torch.tanh)
    errors = outputs[:, 0] - torch.tensor([1.0, 2.0])
    unit = load_file(run / "model.safetensors")["output.scale"]  # losses are in the units of the training
    assert found["all samples"]["loss"] == pytest.approx(float(0.5 * (errors / unit).square().mean()), rel=1e-4)
    assert found["all samples"]["mae"] == pytest.approx(float(errors.abs().mean()), rel=1e-4)
    assert found["all samples"]["accuracy"] is None


def test_what_cannot_be_evaluated(digits, table, table_run, tmp_path):
    assert "is a model without a run; say which data" in refused("evaluate", digits.run / "model.safetensors")
    assert "does not exist" in refused("evaluate", tmp_path / "nowhere")
    assert "it has no config.toml" in refused("evaluate", tmp_path)
    assert "is not a model that ipdlam saved" in refused("evaluate", table, "--data", table)
    assert "the model takes 64 inputs a row" in refused("evaluate", digits.run, "--data", table)
    np.savez(tmp_path / "strange.npz", X=np.hstack([POINTS, POINTS[:, :1]]), y=np.full(60, "purple"))
    assert "holds the class 'purple', which the model was not" in refused(
        "evaluate", table_run, "--data", tmp_path / "strange.npz"
    )
    other = write_table(tmp_path / "o.csv", ["x", "y", "q", "constant", "kind"], [["1", "2", "3", "4", "red"]])
    assert "has no column 'z' for the feature" in refused("evaluate", table_run, "--data", other)
    bare = shutil.copytree(table_run, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    assert f"holds no model yet; finish the run: ipdlam train --resume {bare}" in refused("evaluate", bare)


def test_predict_a_table(table, table_run, tmp_path):
    out, err = ipdlam_run("predict", table_run, table)
    assert err == ""
    header, rows = read_csv(out)
    outputs = forward(table_run, np.hstack([POINTS, np.full((60, 1), 7.0)]))
    assert header == ["prediction"]
    assert [row[0] for row in rows] == np.array(["blue", "green", "red"])[outputs.argmax(1)].tolist()
    # The file may lack the label, and have its columns in another order.
    inputs = write_table(
        tmp_path / "inputs.csv", ["z", "constant", "y", "x"], [[p[2], "7", p[1], p[0]] for p in POINTS]
    )
    assert ipdlam_run("predict", table_run, inputs)[0] == out
    header, rows = read_csv(ipdlam_run("predict", table_run, inputs, "--scores")[0])
    assert header == ["prediction", "output blue", "output green", "output red"]
    torch.testing.assert_close(torch.tensor([[float(x) for x in row[1:]] for row in rows]), outputs)


def test_predictions_are_written_to_a_new_file_only(table, table_run, tmp_path):
    target = tmp_path / "predicted.csv"
    assert ipdlam_run("predict", table_run, table, "--output", target)[1] == ""
    assert target.read_text() == ipdlam_run("predict", table_run, table)[0]
    before = target.read_bytes()
    assert "exists already" in refused("predict", table_run, table, "--output", target)
    assert target.read_bytes() == before
    assert "was not written" in refused("predict", table_run, table, "--output", target / "below", code=1)


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared", "cross_entropy"])
def test_two_classes(tmp_path, loss):
    labels = np.where(POINTS[:, 0] > 0, "yes", "no")
    data = write_table(
        tmp_path / "d.csv", ["a", "b", "c", "l"], [[*map(str, p), k] for p, k in zip(POINTS, labels, strict=True)]
    )
    run = trained(data, tmp_path / "run", "--loss", loss)
    header, rows = read_csv(ipdlam_run("predict", run, data, "--scores")[0])
    outputs = forward(run, POINTS)
    if loss in ("hinge", "logistic"):
        assert header == ["prediction", "output yes"]
        expected = np.where(outputs[:, 0] > 0, "yes", "no")
    else:
        assert header == ["prediction", "output no", "output yes"]
        expected = np.array(["no", "yes"])[outputs.argmax(1)]
    assert [row[0] for row in rows] == expected.tolist()
    found = json.loads(ipdlam_run("evaluate", run, "--data", data, "--json")[0])
    assert found["all samples"]["accuracy"] == pytest.approx((expected == labels).mean())


@pytest.mark.parametrize("targets", [1, 2])
def test_regression(tmp_path, targets):
    y = POINTS[:, :targets] @ np.ones((targets, targets)) + 0.5
    np.savez(tmp_path / "d.npz", X=POINTS, y=y[:, 0] if targets == 1 else y)
    run = trained(tmp_path / "d.npz", tmp_path / "run")
    header, rows = read_csv(ipdlam_run("predict", run, tmp_path / "d.npz")[0])
    assert header == (["prediction"] if targets == 1 else ["prediction 0", "prediction 1"])
    torch.testing.assert_close(
        torch.tensor([[float(x) for x in row] for row in rows]), forward(run, POINTS), check_dtype=False
    )
    assert records(run)[-1].train_accuracy is None


def write_idx(path, array):
    code = {"uint8": 0x08}[array.dtype.name]
    content = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_images_in_idx_files(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    images = GENERATOR.integers(0, 256, (30, 4, 5)).astype(np.uint8)
    labels = (images[:, 0, 0] > 128).astype(np.uint8)
    for prefix, rows in (("train", slice(0, 20)), ("t10k", slice(20, 30))):
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images[rows])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels[rows])
    run = trained(folder, tmp_path / "run")
    assert RunFolder(run).read_config().data == str(folder)
    header, rows = read_csv(ipdlam_run("predict", run, folder / "t10k-images-idx3-ubyte.gz")[0])
    outputs = forward(run, images[20:].reshape(10, -1) / np.float32(255.0))
    assert header == ["prediction"]
    assert [int(row[0]) for row in rows] == outputs.argmax(1).tolist()
    found = json.loads(ipdlam_run("evaluate", run, "--json")[0])
    assert found["test set"]["accuracy"] == records(run)[-1].validation_accuracy


def test_what_cannot_be_predicted(digits, table, table_run, tmp_path):
    assert "No such file" in refused("predict", table_run, tmp_path / "nowhere.csv")
    np.savez(tmp_path / "wide.npz", X=np.zeros((2, 9)))
    assert "the model takes 4 inputs a row" in refused("predict", table_run, tmp_path / "wide.npz")
    assert "does not exist" in refused("predict", tmp_path / "nowhere", table)


def test_a_reader_that_goes_away(table, table_run):
    """``ipdlam predict ... | head -1``: no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ipdlam", "predict", str(table_run), str(table)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait() != 0
    assert b"Traceback" not in err


# --- resume -----------------------------------------------------------------------------------------------------------


def test_more_iterations_go_on_bit_for_bit(table, table_run, again, tmp_path):
    out = ipdlam_run("train", "--resume", again, "--iterations", "7")[0]
    assert "resumed after iteration 4" in out
    ipdlam_run("train", "--config", table_run / "config.toml", "--iterations", "7", "--output", tmp_path / "straight")
    assert same_model(again, tmp_path / "straight")
    assert without_seconds(again) == without_seconds(tmp_path / "straight")
    assert RunFolder(again).read_config().iterations == 7
    assert summary(again)["iterations"] == 7


def test_a_finished_run_says_so_and_does_no_work(again):
    before = snapshot(again)
    with mock.patch.object(jobs, "Problem", side_effect=AssertionError("the data were read")):
        out, err = ipdlam_run("train", "--resume", again)
        assert out == (
            f"{again} is finished: 4 iterations, ended by: iterations; to go on, give a larger --iterations: "
            f"ipdlam train --resume {again} --iterations ...\n"
        )
        assert err == ""
        assert "is finished" in ipdlam_run("train", "--resume", again, "--iterations", "2")[0]
        assert ipdlam_run("train", "--resume", again, "--quiet") == ("", "")
        assert json.loads(ipdlam_run("train", "--resume", again, "--json")[0])["event"] == "note"
    assert snapshot(again) == before


def test_a_run_that_goes_on_is_not_finished(again):
    """An earlier end is forgotten when the run goes on: killed then, it is taken up again."""
    (again / "history.jsonl").write_bytes(b"damaged\n")
    killed = mock.patch("ipdlam.fullbatch.trainer.IPDLAM.go_on", side_effect=RuntimeError("killed"))
    with killed, pytest.raises(RuntimeError, match="killed"):
        CliRunner().invoke(app, ["train", "--resume", str(again), "--iterations", "6"], catch_exceptions=False)
    assert not (again / "summary.json").exists()
    assert "resumed after iteration 4" in ipdlam_run("train", "--resume", again)[0]
    assert len(records(again)) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--loss", "huber"], "loss was 'squared' and is 'huber'"),
        (["--hidden", "6,6"], "hidden were 1 and are 2"),
        (["--hidden", "7"], "hidden 1 was 6 and is 7"),
        (["--seed", "1"], "seed was 0 and is 1"),
        (["--restore-best"], "restore_best was False and is True"),
        (["--output", "elsewhere"], "output was "),
    ],
    ids=" ".join,
)
def test_other_settings_are_refused_by_name(again, options, words):
    before = snapshot(again)
    message = refused("train", "--resume", again, *options)
    assert f"cannot go on with other settings: {words}" in message
    assert "only iterations, epochs, then_epochs, patience, " in message
    assert snapshot(again) == before


def test_other_data_are_refused_wherever_they_are(again):
    """Data may have moved, so another place may be given; what is there must be the same."""
    before = snapshot(again)
    message = refused("train", "digits", "--resume", again, "--iterations", "6", code=1)
    assert "does not fit" in message
    assert snapshot(again) == before


def test_data_that_have_changed_are_refused_by_name(tmp_path):
    data = write_table(tmp_path / "d.csv", ["x", "y"], [[str(i), "ab"[i % 2]] for i in range(20)])
    run = trained(data, tmp_path / "run")
    write_table(data, ["x", "y"], [[str(i + (i == 7)), "ab"[i % 2]] for i in range(20)])
    before = snapshot(run)
    message = refused("train", "--resume", run, "--iterations", "5", code=1)
    assert "does not fit: the sha256 of training X was" in message
    assert snapshot(run) == before
    write_table(data, ["x", "y"], [[str(i), "ab"[(i + (i == 7)) % 2]] for i in range(20)])
    assert "the sha256 of training y was" in refused("train", "--resume", run, "--iterations", "5", code=1)


def test_a_damaged_checkpoint_is_reported_and_the_older_one_used(table_run, again):
    newest = again / "checkpoints" / "iteration-00000004" / "state-00000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    (again / "summary.json").unlink()  # as if it had been killed
    out, err = ipdlam_run("train", "--resume", again)
    assert err.startswith("warning: ")
    assert "iteration-00000004 is damaged" in err
    assert "resumed after iteration 3" in out
    assert same_model(again, table_run)
    assert without_seconds(again) == without_seconds(table_run)


def test_all_checkpoints_damaged(again):
    for manifest in again.glob("checkpoints/*/manifest.json"):
        manifest.write_text("{}")
    _, err = ipdlam_run("train", "--resume", again, "--iterations", "6", code=1)
    assert "holds no whole checkpoint" in err.splitlines()[-1]


def test_a_run_killed_before_its_first_checkpoint_starts_again(table_run, again):
    shutil.rmtree(again / "checkpoints")
    for name in ("model.safetensors", "summary.json"):
        (again / name).unlink()
    out = ipdlam_run("train", "--resume", again)[0]
    assert "no checkpoint was written yet: starting from the first iteration" in out
    assert same_model(again, table_run)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("light", "has light checkpoints, which hold the weights alone: it cannot go on where it stopped"),
        ("none", "holds a model but no checkpoint to go on from"),
    ],
)
def test_runs_that_cannot_go_on_are_left_alone(table, tmp_path, kind, words):
    run = trained(table, tmp_path / "run", "--checkpoint", kind)
    manifests = list((run / "checkpoints").glob(f"*/{MANIFEST}"))
    assert len(manifests) == (kind == "light")
    before = snapshot(run)
    message = refused("train", "--resume", run, "--iterations", "9", code=1)
    assert words in message
    assert "start a new run, with --checkpoint exact" in message
    assert snapshot(run) == before
    assert "is finished" in ipdlam_run("train", "--resume", run)[0]


def test_what_cannot_be_resumed(digits, table, tmp_path):
    assert "is not the folder of a run: it has no config.toml" in refused("train", "--resume", tmp_path)
    assert "is not the folder of a run" in refused("train", "--resume", tmp_path / "nowhere")
    assert "is not the folder of a run" in refused("train", "--resume", table)
    assert "leave out --config" in refused("train", "--resume", digits.run, "--config", digits.run / "config.toml")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.toml").write_text("itertions = 3")
    assert "did you mean 'iterations'?" in refused("train", "--resume", broken)


# --- things go wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "say what to train on: ipdlam train digits"),
        (["train", "digits", "--hidden", "3,x"], "hidden must be a whole number, got 'x'"),
        (["train", "digits", "--loss", "hing"], "loss must be one of"),
        (["train", "digits", *SMALL, "--order", "z2,W2"], "order omits the blocks"),
        (["train", "digits", *SMALL, "--order", "z9,W9"], "order names the block z9"),
        (["train", "digits", *SMALL, "--order", "backwards"], "order must be one of reverse"),
        (["train", "digits", *SMALL, "--label", "x"], "label is for the columns of a .csv or .tsv table"),
        (["train", "digits", *SMALL, "--task", "regression"], "the labels of digits are classes"),
        (["train", "digits", *SMALL, "--device", "nonsense"], "device 'nonsense' cannot be used"),
        (["train", "digits", *SMALL, "--penalty", "0"], "penalty must be a finite number > 0"),
        (["train", "digits", *SMALL, "--penalty-max", "0.01"], "penalty_max must be at least penalty"),
        (["train", "digits", "--regularizer", "non_negative", "--regularizer-strength", "1"], "means nothing to"),
        (["train", "digits", "--method", "dlam", "--inertia", "0.5"], "inertia means nothing to dlam"),
        (["train", "digits", "--hidden", "1000000000000"], "it needs more memory than there is"),
        (["train", "digits", "--hidden", "1e30"], "it needs more memory than there is"),
        (["train", "digits", *SMALL, "--validation", "1e-9"], "leaves none to train or to score on"),
        (["train", "digits", *SMALL, "--threads", "100000"], "threads must be at most 1024"),
        (["train", "--config", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["compare"], "say what to compare on"),
        (
            ["compare", "digits", "--methods", "ipdlam,magic"],
            "methods holds 'magic'; known are minibatch, ipdlam, dlam, bcd, dladmm, sgd",
        ),
        (["compare", "digits", "--methods", "adam,adam"], "methods must name each method once"),
        (["compare", "digits", "--methods", ","], "methods must name each method once, got none"),
        (
            ["compare", "digits", "--methods", "ipdlam,adam", "--learning-rate", "ipdlam=0.5"],
            "learning_rate names 'ipdlam', which has none; leave it out",
        ),
        (
            ["compare", "digits", "--methods", "ipdlam,bcd", "--learning-rate", "0.5"],
            "learning_rate is for the optimizers, got 0.5, and none of the methods ipdlam, bcd reads it",
        ),
        (
            ["compare", "digits", "--methods", "ipdlam", "--batch-size", "7"],
            "batch_size is for minibatch, the optimizers, got 7",
        ),
        (
            ["compare", "digits", "--methods", "bcd", "--order", "increase"],
            "order is for ipdlam, dlam, got increase, and none of the methods bcd reads it; add one that does, or",
        ),
        (["compare", "digits", "--methods", "dlam,bcd", "--inertia", "0.3"], "inertia is for minibatch, ipdlam, got"),
        (["compare", "digits", "--methods", "adam", "--regularizer", "l1"], "regularizer is for ipdlam, dlam, got l1"),
        (["compare", "digits", "--learning-rate", "-1"], "learning_rate must be a finite number > 0"),
        (["compare", "digits", "--learning-rate", "fast"], "learning_rate must be a number"),
        (["compare", "digits", "--batch-size", "0"], "batch_size must be an integer >= 1"),
        (["compare", "digits", "--learning-rate", "1e31"], "learning_rate must be a finite number > 0 and <= 1e+30"),
        (["compare", "digits", "--seeds", "0"], "seeds must be an integer >= 1"),
        (["compare", "digits", "--seeds", "few"], "seeds must be a whole number"),
        (["compare", "digits", "--seeds", "-1"], "seeds must be an integer >= 1, got -1"),
        (
            ["compare", "digits", "--seed", str(2**64 - 2), "--seeds", "3"],
            "seeds 3 from --seed 18446744073709551614 on",
        ),
        (["compare", "digits", "--seconds", "0"], "seconds must be a finite number > 0"),
        (["compare", "digits", "--seconds", "-1"], "seconds must be a finite number > 0, got -1"),
        (["compare", "digits", "--seconds", "inf"], "seconds must be a finite number > 0, got inf"),
        (["compare", "digits", "--iterations", "0"], "iterations must be an integer >= 1, got 0"),
        (["compare", "digits", "--iterations", "0", "--seconds", "1"], "iterations must be an integer >= 1, got 0"),
        (["compare", "digits", "--iterations", "-1"], "iterations must be an integer >= 0, got -1"),
        (["compare", "digits", "--limit", "0"], "limit must be an integer >= 1, got 0"),
        (["compare", "digits", "--learning-rate", "adam=0.1,adam=0.2"], "learning_rate has two values for adam"),
        (
            ["compare", "digits", "--learning-rate", "sgd=0.1"],
            "learning_rate names 'sgd', which is not among the methods",
        ),
        (["compare", "digits", *SMALL, "--learning-rate", "1e300", "--methods", "sgd"], "learning_rate must be"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_answered_in_one_line(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused(*arguments)
    assert not list(tmp_path.rglob("*.*"))  # nothing was written


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a graphics card")
def test_a_missing_graphics_card(tmp_path):
    assert "device 'cuda' cannot be used" in refused(
        "train", "digits", *SMALL, "--device", "cuda", "--output", tmp_path / "r"
    )


def test_data_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "Did you mean digits?" in refused("train", "digit")
    assert "nowhere.csv does not exist" in refused("train", "nowhere.csv")
    Path("empty.csv").write_text("")
    assert "is empty" in refused("train", "empty.csv")
    Path("bad.csv").write_text("x,y\n1,a\n1,a\ninf,b\n")
    assert "bad.csv, line 4, column 'x': 'inf' is not a finite number" in refused("train", "bad.csv")
    assert "has no column 'z' for the label" in refused("train", "bad.csv", "--label", "z")
    Path("one.csv").write_text("x,y\n1,a\n2,a\n3,a\n4,a\n5,a\n")
    assert "holds one class, 'a'; there is nothing to learn" in refused("train", "one.csv")
    np.savez("real.npz", X=POINTS, y=POINTS[:, 0])
    assert "Hinge needs targets of -1 and +1" in refused("train", "real.npz", "--loss", "hinge", *SMALL)
    assert "CrossEntropy needs" in refused("compare", "real.npz", "--loss", "cross_entropy", *SMALL)
    assert "has no test set; hold out a fraction" in refused("train", "real.npz", "--validation", "test")
    assert not Path("runs").exists() or not list(Path("runs").rglob("*.*"))


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_folder_of_data_that_does_not_exist(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IPDLAM_DATA", raising=False)
    message = refused(command, "mnist", "--data-dir", "nowhere")
    assert "data_dir (--data-dir) is nowhere, which does not exist; set it to a folder that holds mnist/" in message
    monkeypatch.setenv("IPDLAM_DATA", "nowhere")
    message = refused(command, "fashion-mnist")
    assert "IPDLAM_DATA is nowhere, which does not exist; set it to a folder that holds fashion-mnist/" in message
    assert not list(tmp_path.rglob("*.*"))
    ipdlam_run(command, "digits", *SMALL, "--limit", "50", "--data-dir", "nowhere", "--output", "run")


def test_a_run_whose_folder_of_data_is_gone_looks_elsewhere(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    run = tmp_path / "run"
    ipdlam_run("train", "digits", *SMALL, "--limit", "50", "--data-dir", data, "--output", run)
    assert RunFolder(run).read_config().data_dir == str(data)
    data.rmdir()
    assert RunFolder(run).read_config().data_dir is None


def test_an_output_that_cannot_be_written(table, tmp_path):
    for command in ("train", "compare"):
        message = refused(command, table, *SMALL, "--output", table / "run")
        assert f"output {table / 'run'} cannot be made: Not a directory" in message
        message = refused(command, table, *SMALL, "--output", tmp_path / ("x" * 300))
        assert "File name too long" in message


def test_a_run_that_diverges(tmp_path):
    options = ("--hidden", "8", "--iterations", "200", "--limit", "200", "--inertia", "10", "--quiet")
    run = tmp_path / "run"
    _, err = ipdlam_run("train", "digits", *options, "--output", run, code=3)
    warned, error = err.splitlines()
    assert warned.startswith("warning: inertia 10 is 1 or more")
    assert error.startswith("error: iteration ")
    assert " is not finite; the model holds the weights of iteration " in error
    assert all(torch.isfinite(tensor).all() for tensor in load_file(run / "model.safetensors").values())
    assert summary(run)["stop_reason"] == "diverged"
    assert 0 < len(records(run)) == summary(run)["iterations"] < 200
    ipdlam_run("evaluate", run)
    out = ipdlam_run("train", "digits", *options, "--json", "--output", tmp_path / "json", code=3)[0]
    assert json.loads(out.splitlines()[-1])["stop_reason"] == "diverged"


def test_a_run_that_diverges_at_once_leaves_nothing(tmp_path):
    np.savez(tmp_path / "d.npz", X=POINTS * 1e20, y=KINDS)
    message = refused("train", tmp_path / "d.npz", "--no-standardize", *SMALL, "--output", tmp_path / "run", code=3)
    assert "scale the inputs" in message
    assert not (tmp_path / "run").exists()


def test_a_history_that_cannot_be_written_costs_nothing_else(table, tmp_path, table_run):
    """A line that is lost to a full disk is reported, training goes on, and the whole history is written at the end."""
    calls = []

    def failing(self, record):
        calls.append(record)
        if len(calls) == 2:
            raise ipdlam.CheckpointError("history.jsonl was not written: the disk is full")
        append(self, record)

    append = RunFolder.append
    with mock.patch.object(RunFolder, "append", failing):
        _, err = ipdlam_run("train", "--config", table_run / "config.toml", "--output", tmp_path / "run")
    assert err == "warning: history.jsonl was not written: the disk is full\n"
    assert without_seconds(tmp_path / "run") == without_seconds(table_run)


def test_a_picture_that_cannot_be_written_costs_nothing_else(table, tmp_path):
    with mock.patch(
        "ipdlam.training.plots.write_file", side_effect=ipdlam.CheckpointError("curves.png was not written")
    ):
        _, err = ipdlam_run("train", table, *SMALL, "--output", tmp_path / "run", pictures=True)
    assert err == "warning: curves.png was not written\n"
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_without_matplotlib_the_run_succeeds_and_says_how_to_install_it(table, tmp_path):
    with mock.patch.dict(sys.modules, {"matplotlib": None, "matplotlib.style": None}):
        out, err = ipdlam_run("train", table, *SMALL, "--output", tmp_path / "run", pictures=True)
        assert err == ""
        assert "pip install matplotlib" in out
        assert not (tmp_path / "run" / "curves.png").exists()
        assert "curves:" not in out
        out = ipdlam_run("compare", table, *SMALL, "--methods", "dlam", "--output", tmp_path / "c", pictures=True)[0]
        assert "pip install matplotlib" in out
        assert (tmp_path / "c" / "comparison.json").is_file()


def test_without_tensorboard_nothing_is_begun(table, tmp_path):
    with mock.patch.dict(sys.modules, {"torch.utils.tensorboard": None}):
        message = refused("train", table, *SMALL, "--tensorboard", "--output", tmp_path / "run", code=1)
    assert "pip install tensorboard" in message
    assert not (tmp_path / "run").exists()


def test_tensorboard_events(table, tmp_path):
    pytest.importorskip("tensorboard")
    process = forked.command("train", table, *SMALL, "--tensorboard", "--output", tmp_path / "run")
    said, _ = process.communicate()
    assert process.returncode == 0, said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
        events.Reload()
    history = records(tmp_path / "run")
    names = {
        "method/objective": "objective",
        "scores/train_accuracy": "train_accuracy",
        "scores/validation_loss": "validation_loss",
    }
    for tag, name in names.items():
        read = [(event.step, event.value) for event in events.Scalars(tag)]
        assert read == [(record.iteration, pytest.approx(getattr(record, name), rel=1e-6)) for record in history]
    gaps = [event.value for event in events.Scalars("linear_gap/layer 2")]
    assert gaps == pytest.approx([record.linear_gap[1] for record in history], rel=1e-6)


# --- the live display -------------------------------------------------------------------------------------------------


def make_record(iteration, accuracy=0.98765, evaluated=True):
    scores = (0.1234567, accuracy, 0.2345678, accuracy) if evaluated else (None,) * 4
    if accuracy is None:
        scores = (0.00001234567, None, 0.00002345678, None)
    return Record(iteration, 123456.789, 1.2345e-05, 1.0, 1.0, (1.5e-7, 1.0e-7), (3.5e5, 4.0e5), 1.0, 1234.56, *scores)


def live(width, shown):
    """What a terminal of this width shows at the end, line by line."""
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, color_system=None, width=width, soft_wrap=True))
    made = TrainConfig(iterations=1000, checkpoint="none")
    parts = SimpleNamespace(validation=([0], [0]), scored_on="held-out samples", X=[0])
    run = SimpleNamespace(
        config=made,
        methods="ipdlam",
        stage="ipdlam",
        handover=None,
        unit="iteration",
        total=1000,
        problem=SimpleNamespace(split=parts, heading="t", errors=lambda model: None),
        model=None,
        folder=RunFolder(Path("run")),
        trainer=None,
    )
    screen.begin(run, History(shown[:1]))
    for record in shown[1:]:
        screen.record(record)
    screen.close()
    screen.end(run, History(shown, "iterations"))
    last = out.getvalue().split("\x1b[2K")[-1]
    return last.replace("\x1b[?25h", "").splitlines()


@pytest.mark.parametrize("accuracy", [0.98765, None])
@pytest.mark.parametrize("width", [50, 80, 140])
def test_the_screen_fits_and_shows_every_figure(width, accuracy):
    lines = live(width, [make_record(i, accuracy) for i in (997, 998, 999)])
    assert max(map(len, lines[:4])) <= width
    text = " ".join(" ".join(lines).split())
    assert "…" not in text
    best = "98.77 %" if accuracy else "loss 2.346e-05"
    for figure in (
        "999/1000",
        "Phi 1.234e-05",
        "linear gap 2.5e-07",
        "activation gap 7.5e+05",
        "penalty 1.23e+05",
        "peak memory ",
        "training time 1234.6 s",
        "training 98.77 %" if accuracy else "training loss 1.235e-05",
        f"held out {best}",
        f"best {best} at 997",
        f"best on the held-out samples: {best} at iteration 997; the last iterate was kept",
        "3 iterations, 1234.6 s of training, ended by: iterations",
    ):
        assert figure in text, figure


def test_the_best_score_stays_where_an_iteration_was_not_evaluated():
    lines = live(80, [make_record(1), make_record(2), make_record(3, evaluated=False)])
    text = " ".join(" ".join(lines).split())
    assert "best 98.77 % at 1" in text
    assert "training - " in text


def test_a_display_that_never_began_can_be_closed():
    Screen(Console(file=io.StringIO(), force_terminal=True)).close()


# --- compare ----------------------------------------------------------------------------------------------------------


def test_compare(tmp_path):
    output = tmp_path / "comparison"
    options = ("--hidden", "8", "--iterations", "2", "--limit", "200", "--methods", "ipdlam,dlam,adam")
    out, err = ipdlam_run("compare", "digits", *options, "--output", output, pictures=True)
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "digits, 64-8-10, 10 classes: 200 samples, scored on 450 (test set)"
    header = next(number for number, line in enumerate(lines) if line.startswith("method "))
    assert [line.split()[:2] for line in lines[header + 1 : header + 4]] == [
        ["iPDLAM", "2"],
        ["DLAM", "2"],
        ["Adam", "2"],
    ]
    content = json.loads((output / "comparison.json").read_text())
    assert content["config"]["hidden"] == [8]
    assert content["network"] == [64, 8, 10]
    assert content["samples"] == 200
    assert content["batch_size"] == 64
    assert content["minibatch"] is None
    assert content["scored_on"] == "test set"
    assert [row["method"] for row in content["rows"]] == ["iPDLAM", "DLAM", "Adam"]
    for name, row in zip(("ipdlam", "dlam", "adam"), content["rows"], strict=True):
        history = History.from_json(json.dumps(content["histories"][name]))
        assert len(history) == 2
        assert row["accuracy"] == history[-1].validation_accuracy
        assert row["best_accuracy"] == history.best.validation_accuracy
        assert row["objective"] == history[-1].objective
        assert row["seconds"] == history[-1].seconds
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
    before = snapshot(output)
    assert "exists already; choose another --output" in refused("compare", "digits", *options, "--output", output)
    assert snapshot(output) == before


@pytest.mark.parametrize(("given", "used"), [([], 64), (["--batch-size", "32"], 32)])
def test_a_comparison_says_which_batches_were_used(table, tmp_path, given, used):
    ipdlam_run("compare", table, *SMALL, "--methods", "minibatch,adam", *given, "--output", tmp_path / "c")
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert content["minibatch"]["batch_size"] == content["batch_size"] == used


def test_compare_trains_what_train_trains(table, table_run, tmp_path):
    options = ("--hidden", "6", "--iterations", "4", "--methods", "sgd,ipdlam", "--output", tmp_path / "c")
    ipdlam_run("compare", table, *options)
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    history = History.from_json(json.dumps(content["histories"]["ipdlam"]))
    assert [dataclasses.replace(record, seconds=0.0) for record in history] == without_seconds(table_run)


def test_compare_several_seeds_of_every_kind_of_method(table, tmp_path):
    methods, options = "ipdlam,bcd,dladmm,adam,sgd", ("--seeds", "2", "--seed", "3", "--output", tmp_path / "c")
    out = ipdlam_run("compare", table, *SMALL, "--methods", methods, "--learning-rate", "0.01,sgd=0.1", *options)[0]
    assert "means of 2 seeds" in out
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert content["learning_rates"] == {"sgd": 0.1, "adam": 0.01}
    assert list(content["histories"]) == [f"{name}, seed {seed}" for seed in (3, 4) for name in methods.split(",")]
    assert [row["method"] for row in content["rows"]] == ["iPDLAM", "BCD", "dlADMM", "Adam", "SGD"]
    for name, row in zip(methods.split(","), content["rows"], strict=True):
        ends = [content["histories"][f"{name}, seed {seed}"]["records"][-1]["train_loss"] for seed in (3, 4)]
        assert row["train_loss"] == pytest.approx(sum(ends) / 2)
        assert row["ranges"]["train_loss"] == [min(ends), max(ends)]
        assert ends[0] != ends[1]
    first = (table, *SMALL, "--methods", "adam,sgd", "--learning-rate", "0.01,sgd=0.1", "--seed", "3")
    ipdlam_run("compare", *first, "--output", tmp_path / "alone")
    alone = json.loads((tmp_path / "alone" / "comparison.json").read_text())
    for name in ("adam", "sgd"):
        ends = [
            each[-1]["train_loss"]
            for each in (alone["histories"][name]["records"], content["histories"][f"{name}, seed 3"]["records"])
        ]
        assert ends[0] == ends[1]


def test_a_comparison_in_equal_time(table, tmp_path):
    options = ("--hidden", "8", "--methods", "ipdlam,adam", "--seconds", "0.2", "--output", tmp_path / "c")
    ipdlam_run("compare", table, *options)
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    for history in content["histories"].values():
        seconds = [record["seconds"] for record in history["records"]]
        assert history["stop_reason"] == "time is up"
        assert seconds[-1] >= 0.2
        assert all(each < 0.2 for each in seconds[:-1])
    ipdlam_run("compare", table, *options[:-1], tmp_path / "d", "--iterations", "1")  # a bound where it is given
    assert json.loads((tmp_path / "d" / "comparison.json").read_text())["rows"][0]["iterations"] == 1


def test_compare_real_targets_without_validation(tmp_path):
    np.savez(tmp_path / "d.npz", X=POINTS, y=POINTS[:, 0])
    options = ("--methods", "ipdlam,sgd,adadelta", "--validation", "none", "--seeds", "2", "--output", tmp_path / "c")
    out = ipdlam_run("compare", tmp_path / "d.npz", *SMALL, *options)[0]
    assert "R²" in out
    assert "%" not in out
    assert "rates sgd 0.05, adadelta 1," in out  # each its own, where none is given
    row = json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"][1]
    low, high = row["ranges"]["train_loss"]
    assert low <= row["train_loss"] <= high
    assert f"{row['train_loss']:.3g}" in out


def test_compare_says_what_diverged(table, tmp_path):
    options = ("--methods", "ipdlam,sgd", "--learning-rate", "1e20", "--output", tmp_path / "c")
    out = ipdlam_run("compare", table, *SMALL, "--loss", "squared", *options)[0]
    assert "SGD diverged after " in out
    assert "iPDLAM diverged" not in out


class InterruptedAfterOne(ipdlam.IPDLAM):
    def _iteration(self, state):
        if self.history:
            raise KeyboardInterrupt
        return super()._iteration(state)


def test_one_interrupt_ends_a_comparison_with_what_there_is(table, tmp_path):
    with mock.patch.dict("ipdlam.runs.problem.TRAINERS", ipdlam=InterruptedAfterOne):
        options = ("--methods", "dlam,ipdlam,adam", "--output", tmp_path / "c")
        out = ipdlam_run("compare", table, *SMALL, *options, code=130)[0]
    assert "iPDLAM interrupted after 1 iterations" in out
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert list(content["histories"]) == ["dlam", "ipdlam"]


def test_means_are_of_the_seeds_that_all_methods_finished(table, tmp_path):
    class Interrupted(ipdlam.IPDLAM):
        runs = 0

        def _iteration(self, state):
            Interrupted.runs += not self.history
            if Interrupted.runs == 3:
                raise KeyboardInterrupt
            return super()._iteration(state)

    with mock.patch.dict("ipdlam.runs.problem.TRAINERS", ipdlam=Interrupted):
        options = ("--methods", "dlam,ipdlam,adam", "--seeds", "4", "--output", tmp_path / "c")
        out = ipdlam_run("compare", table, *SMALL, *options, code=130)[0]
    assert "means of the seeds that all methods finished, 0, 1; ±" in out
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert (content["seeds"], content["compared_seeds"]) == (4, [0, 1])
    assert [row["seeds"] for row in content["rows"]] == [2, 2, 2]
    assert "dlam, seed 2" in content["histories"]  # nothing is lost


def test_a_method_that_never_ends_an_iteration_costs_the_others_no_seed():
    made, none = History([Record(1, 1.0, 1.0, 1.0, 0.0, (), (), 1.0, 0.1)], "iterations"), History([], "diverged")
    assert compared_seeds({("a", 0): made, ("b", 0): none, ("a", 1): made, ("b", 1): none}) == [0, 1]
    assert compared_seeds({("a", 0): made, ("b", 0): made, ("a", 1): made, ("b", 1): none}) == [0]
    assert compared_seeds({("a", 5): none}) == []


def test_where_no_seed_is_finished_by_all_it_is_said(table, tmp_path):
    with mock.patch.dict("ipdlam.runs.problem.TRAINERS", ipdlam=InterruptedAfterOne):
        options = ("--methods", "dlam,ipdlam", "--seeds", "3", "--seed", "4", "--output", tmp_path / "c")
        out = ipdlam_run("compare", table, *SMALL, *options, code=130)[0]
    assert "no seed was finished by all methods; this is seed 4" in out
    assert "means" not in out
    content = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert content["compared_seeds"] == []
    assert [row["method"] for row in content["rows"]] == ["DLAM", "iPDLAM"]


def test_a_network_that_does_not_fit_into_memory(tmp_path):
    message = refused("train", "digits", "--hidden", "100000000", "--output", tmp_path / "run")
    assert "memory" in message
    assert not (tmp_path / "run").exists()
