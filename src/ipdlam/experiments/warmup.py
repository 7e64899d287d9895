"""The paper's advice: a few iterations of iPDLAM, then a classical optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import (
    OUTCOME,
    Claim,
    Column,
    Experiment,
    Panel,
    Results,
    Row,
    RunResult,
    RunSpec,
    accuracy_row,
    judged,
    percent,
)
from ipdlam.experiments.setup import datasets, ipdlam, optimizer

WARM = {"smoke": 2, "small": 5, "paper": 5}
TOTAL = {"smoke": 6, "small": 30, "paper": 30}
RATES = {"sgd": 0.05, "adam": 0.001}


def runs(scale: str) -> list[RunSpec]:
    """SGD and Adam alone, and after a few iterations of iPDLAM: as many passes over the data in all."""
    data, found = datasets(scale)[0], []
    for name, rate in RATES.items():
        alone = optimizer(scale, data, name, rate).changed(
            iterations=TOTAL[scale], initialisation="torch", evaluate_every=1
        )
        warm = ipdlam(scale, data).changed(iterations=WARM[scale], initialisation="torch", evaluate_every=1)
        found += [
            alone,
            dataclasses.replace(warm, then=alone.changed(iterations=TOTAL[scale] - WARM[scale])),
        ]
    return found


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return f"iPDLAM, then {spec.then.method}" if spec.then is not None else f"{spec.method} alone"


def score_at(result: RunResult, seconds: float) -> float | None:
    """The best test accuracy within so many seconds of training."""
    pairs = zip(result.columns["seconds"], result.columns["validation_accuracy"], strict=True)
    return max((value for spent, value in pairs if value is not None and (spent or 0.0) <= seconds), default=None)


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every run, with its best accuracy in the time that the quicker of its pair took."""
    found = []
    for place, spec in enumerate(specs):
        pair = specs[place - place % 2 : place - place % 2 + 2]
        seconds = min(results[each.key].last("seconds") or 0.0 for each in pair)
        more = {
            "name": name(spec),
            "equal_seconds": seconds,
            "accuracy_at_equal_seconds": score_at(results[spec.key], seconds),
        }
        found.append(accuracy_row(spec, results[spec.key], **more))
    return found


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Test accuracy by passes and by seconds."""
    lines = {name(spec): spec for spec in specs}
    return [
        Panel(specs[0].data, lines, "validation_accuracy", against=against, unit="%")
        for against in ("iteration", "seconds")
    ]


def claims(table: Sequence[Row]) -> list[Claim]:
    """Whether the warm-up pays, at equal passes and at equal seconds."""
    found = []
    for method in RATES:
        alone = next((row for row in table if row["method"] == method), None)
        warm = next((row for row in table if row["name"] == f"iPDLAM, then {method}"), None)
        if alone is None or warm is None:
            continue
        passes = (warm["best_test_accuracy"] or 0.0) - (alone["best_test_accuracy"] or 0.0)
        seconds = (warm["accuracy_at_equal_seconds"] or 0.0) - (alone["accuracy_at_equal_seconds"] or 0.0)
        found.append(
            Claim(
                f"A first stage of iPDLAM pays before {method}",
                "greatly reduces the total training time",
                f"{100.0 * passes:+.2f} points of test accuracy at equal passes over the data, {100.0 * seconds:+.2f} "
                "in equal "
                f"time ({percent(alone['best_test_accuracy'])} alone)",
                judged([passes > 0.0, seconds > 0.0]),
            )
        )
    return found


EXPERIMENT = Experiment(
    "warmup",
    "iPDLAM as a warm-up",
    "The paper's advice: some iterations of iPDLAM, then a classical optimizer. Against the optimizer alone, with as "
    "many passes "
    "over the data in all, and in as much time, from PyTorch's initialisation.",
    runs,
    rows,
    (
        Column("method", "name"),
        Column("best test in equal time", "accuracy_at_equal_seconds", "percent"),
        *OUTCOME,
    ),
    panels,
    claims,
)
