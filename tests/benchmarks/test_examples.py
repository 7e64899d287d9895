"""What is not run does not exist: examples and benchmarks, at their smallest."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from forked import Forked, program, run
from programs import ROOT


def test_save_and_resume():
    printed = run("examples/save_and_resume.py")
    assert "kept: iteration-00000005, iteration-00000010" in printed
    assert "bit for bit the run that never stopped: True" in printed


def test_warmup_then_adam():
    printed = run("examples/warmup_then_adam.py", "--warm", "1", "--epochs", "3")
    assert "then Adam: best" in printed
    assert "Adam alone: best" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--warm", "0"), "argument --warm: must be at least 1, got 0;"),
        (("--warm", "-2"), "argument --warm: must be at least 1, got -2;"),
        (("--warm", "3", "--epochs", "3"), "argument --epochs: must be above --warm, got 3 and 3, "),
        (("--warm", "21"), "argument --epochs: must be above --warm, got 20 and 21, "),
    ],
)
def test_warmup_then_adam_refuses_a_stage_of_nothing(arguments, message):
    process = Forked(program, "examples/warmup_then_adam.py", *arguments, cwd=ROOT)
    said, _ = process.communicate()
    assert process.returncode == 2
    assert message in said
    assert "Traceback" not in said


def test_every_example_is_run_here():
    named = Path(__file__).read_text()
    assert [path.name for path in (ROOT / "examples").glob("*.py") if f"examples/{path.name}" not in named] == []


def test_iteration_benchmark(tmp_path):
    run("benchmarks/iteration.py", "--scale", "smoke", "--output", str(tmp_path / "iteration.json"))
    result = json.loads((tmp_path / "iteration.json").read_text())
    reverse, whole = result["parts"]["reverse"], result["parts"]["whole-array"]
    # The version with whole arrays is the same algorithm: its objective is the engine's.
    assert all(abs(a - b) <= 2e-3 * abs(b) for a, b in zip(whole["objective"], reverse["objective"], strict=False))
    assert result["summary"]["ratio_to_products"] > 0
    assert result["environment"]["torch"]


def test_disk_benchmark(tmp_path):
    run("benchmarks/disk.py", "--scale", "smoke", "--folder", str(tmp_path), "--output", str(tmp_path / "disk.json"))
    result = json.loads((tmp_path / "disk.json").read_text())
    assert result["summary"]["same_bits"] is True
    assert [len(result["parts"][place]["seconds"]) for place in ("memory", "disk")] == [2, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["disk.json"]  # nothing else is left


def test_ridge_benchmark(tmp_path):
    run("benchmarks/ridge.py", "--scale", "smoke", "--output", str(tmp_path / "ridge.json"))
    rows = json.loads((tmp_path / "ridge.json").read_text())["rows"]
    assert [row["strength"] for row in rows] == [None, 1e-5, 1e-4]
    assert all(0.5 < row["test_accuracy"][-1] <= 1.0 for row in rows)


def test_minibatch_benchmark(tmp_path):
    output = tmp_path / "minibatch.json"
    run("benchmarks/minibatch.py", "range", "ablation", "--scale", "smoke", "--output", str(output))
    rows = json.loads(output.read_text())["rows"]
    assert {row["part"] for row in rows} == {"range", "ablation"}
    assert all(row["scores"] for row in rows)  # nothing diverged
    before = output.read_text()
    run("benchmarks/minibatch.py", "range", "--scale", "smoke", "--output", str(output))
    assert json.loads(output.read_text())["rows"] == json.loads(before)["rows"]  # made once


def test_race_benchmark(tmp_path):
    """With what is installed; the search, the race and the tables of all methods."""
    output = tmp_path / "race.json"
    part = ("--methods", "ours;ours, tuned;Adam;Muon", "--scale", "smoke", "--output", str(output))
    run("benchmarks/race.py", "tune", "measure", "cost", "profile", *part)
    rows = json.loads(output.read_text())["rows"]
    trials = [row for row in rows if row["part"] == "tune"]
    assert [row["method"] for row in trials] == ["ours, tuned"] * 6 + ["Adam"] * 6 + ["Muon"] * 6
    assert len({json.dumps(row["settings"]) for row in trials}) == len(trials)
    raced = [row for row in rows if row["part"] == "measure"]
    assert {(row["method"], row["epochs"]) for row in raced} == {
        (name, epochs) for name in ("ours", "ours, tuned", "Adam", "Muon") for epochs in (2, 4)
    }
    ours = next(row for row in raced if row["method"] == "ours")
    assert ours["reached"]["0.8"][1] > 0.0
    assert next(row for row in rows if row["part"] == "profile")["milliseconds"] > 0.0
    costs = {row["method"]: row["milliseconds"] for row in rows if row["part"] == "cost"}
    assert list(costs) == ["ours", "Adam", "Muon"]
    assert min(costs.values()) > 0.0
    run("benchmarks/race.py", "tune", "measure", *part)
    assert json.loads(output.read_text())["rows"] == rows  # made once
    other = ("--methods", "ours;Adam", "--scale", "smoke", "--output", str(output))
    process = Forked(program, "benchmarks/race.py", "measure", *other, cwd=ROOT)
    said, _ = process.communicate()
    assert process.returncode == 1
    assert "a race is run anew for other methods" in said
    output.write_text("{")
    process = Forked(program, "benchmarks/race.py", "tune", *part, cwd=ROOT)
    said, _ = process.communicate()
    assert process.returncode == 1
    assert "race.json does not hold results" in said
    assert output.read_text() == "{"


def test_the_tables_of_a_race(tmp_path, monkeypatch):
    """Who is first, who is not there and why; a peer that we do not reach is among our losses."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    race_tables, summary_tables = (importlib.import_module(name) for name in ("race_tables", "summary_tables"))

    def raced(method, seed, times, epochs=1, ended="plan over"):
        reached = dict(zip(("0.98", "0.984"), [time and [10, time] for time in times], strict=True))
        curve = [[5, 0.5, 0.9], [10, 1.0, 0.985]]
        found = {"part": "measure", "problem": "mnist", "seed": seed, "epochs": epochs, "method": method}
        cost = {"planned_steps": 20, "milliseconds_per_step": 2.0, "settings": {"rate": 0.1}, "curve": curve}
        return {**found, **cost, "reached": reached, "ended": ended}

    rows = [raced("ours", seed, [1.0 + seed, None]) for seed in (0, 1)]
    rows += [raced("ours", seed, [0.5 + seed, None], epochs=3) for seed in (0, 1)]  # the faster plan
    rows += [raced("Adam", seed, [2.0, 3.0]) for seed in (0, 1)]
    rows += [raced("SGD", 0, [None, None], ended="diverged"), raced("SGD", 1, [4.0, None])]
    result = {"rows": rows}
    assert race_tables.medians(rows, "0.98") == {"ours": 1.0, "Adam": 2.0}
    assert race_tables.best_peer(rows, "0.98") == "Adam"
    assert race_tables.ratio(rows, "0.98", "ours", "Adam") == 0.5
    first, second = race_tables.summary_table(result)[2:]
    assert "| 1.00 s | Adam, 2.00 s | **0.50** |" in first
    assert "not reached by all seeds" in second
    lines = race_tables.problem_table(result, "mnist")
    assert "1 of 2 seeds: diverged" in next(line for line in lines if line.startswith("| SGD"))
    rows_of = summary_tables.races(result)
    assert [row[1].split(",")[0] for row in rows_of[False]] == ["not reached"]
    assert rows_of[True] == []
    race_tables.draw(result, tmp_path / "race.png")
    assert (tmp_path / "race.png").stat().st_size > 1000


def test_precision_benchmark(tmp_path):
    output = tmp_path / "precision.json"
    run("benchmarks/precision.py", "--scale", "smoke", "--output", str(output))
    rows = json.loads(output.read_text())["rows"]
    assert [row["precision"] for row in rows] == ["float32", "bfloat16"]
    assert min(row["score"] for row in rows) > 0.9
    run("benchmarks/precision.py", "--scale", "smoke", "--output", str(output))
    assert json.loads(output.read_text())["rows"] == rows  # made once


def test_leads_benchmark(tmp_path):
    output = tmp_path / "leads.json"
    run("benchmarks/race_leads.py", "--scale", "smoke", "--output", str(output))
    rows = json.loads(output.read_text())["rows"]
    assert [row["lead"] for row in rows][:2] == ["nothing", "inertia 0"]
    assert len({row["scores"][-1] for row in rows}) > 3  # they do something
    assert all(row["scores"][-1] > 0.8 for row in rows)


def test_tabular_benchmark(tmp_path):
    output = tmp_path / "tabular.json"
    run("benchmarks/tabular.py", "--scale", "smoke", "--output", str(output))
    rows = json.loads(output.read_text())["rows"]
    own = [row for row in rows if row.get("method") == "ipdlam, mini-batch"]
    assert [row["table"] for row in own] == ["iris", "diabetes"]
    assert own[0]["score"] > 0.85
    assert own[1]["score"] > 0.2
    assert all(row["peak"] > row["before"] > 0 for row in rows if row["part"] == "memory")


def test_peers_are_tuned_on_held_out_images_and_raced_at_their_best(tmp_path, monkeypatch):
    """On noise in the place of CIFAR-10: the grid grows until the best rate is inside it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    convolutions = importlib.import_module("convolutions")
    torch.manual_seed(0)
    parts = [(torch.rand(n, 3, 32, 32), torch.arange(n) % 10) for n in (24, 10)]
    monkeypatch.setattr(convolutions, "cifar", lambda limit: (*parts[0], *parts[1]))
    scores = {0.003: 0.2, 0.01: 0.3, 0.03: 0.4, 0.1: 0.5, 0.3: 0.4, 1.0: 0.1}
    seen = []

    def train(name, rate, model, loader, epochs):
        seen.append((name, rate, len(loader.y)))
        model.rate = rate

    monkeypatch.setattr(convolutions, "train_peer", train)
    monkeypatch.setattr(convolutions, "accuracy", lambda model, X, y: scores.get(getattr(model, "rate", None), 0.0))
    output = tmp_path / "convolutions.json"
    convolutions.tune(output, "resnet8", 1, 4, None)
    assert seen[:5] == [("adamw", rate, 20) for rate in (0.003, 0.01, 0.03, 0.1, 0.3)]
    assert seen[5:] == [("sgd", rate, 20) for rate in (0.1, 0.3, 1.0, 0.03)]
    methods = convolutions.tuned_methods(output, "resnet8")
    assert methods == ["ours", "adamw=0.1", "sgd=0.1"]
    convolutions.measure_cifar(output, "resnet8", methods, 1, 4, 0, None)
    rows = json.loads(output.read_text())["cifar"]["rows"]
    assert [(row["method"], row["samples"], row["test"]) for row in rows] == [
        ("ours", 24, 0.0), ("adamw=0.1", 24, 0.5), ("sgd=0.1", 24, 0.5)
    ]  # fmt: skip


def test_convolutions_and_the_envelope(tmp_path):
    output = tmp_path / "convolutions.json"
    run(
        "benchmarks/convolutions.py",
        "step",
        "--networks",
        "cnn",
        "--rounds",
        "2",
        "--batch",
        "4",
        "--output",
        str(output),
    )
    small = ("--data", "digits", "--seeds", "1", "--epochs", "1", "--limit", "100")
    run("benchmarks/convolutions.py", "accuracy", *small, "--output", str(output))
    run("benchmarks/convolutions.py", "ablate", *small, "--output", str(output))
    found = json.loads(output.read_text())
    assert len({row["variant"] for row in found["ablate"]["rows"]}) * 2 == len(found["ablate"]["rows"])
    assert all(0.0 <= row["averaged"]["0.33"] <= 1.0 for row in found["ablate"]["rows"])
    assert found["step"]["rows"][0]["peak_bytes"]["ours"] > 0
    assert 0.0 < found["accuracy"]["rows"][0]["test"][0] <= 1.0
    output = tmp_path / "envelope.json"
    run(
        "benchmarks/envelope.py",
        "--samples",
        "60",
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--no-tables",
        "--output",
        str(output),
    )
    assert len(json.loads(output.read_text())["rows"]) == 2
