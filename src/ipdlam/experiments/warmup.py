"""The paper's advice: a few iterations of iPDLAM, then a classical optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import OUTCOME, Column, Experiment, Panel, Results, RunResult, RunSpec, accuracy_row
from ipdlam.experiments.claims import CLEAR, Claim, Row, divergence, judged
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
    """One for every run; a warm one has what it gains on the optimizer alone, where that was made."""
    lone = {spec.method: results[spec.key] for spec in specs if spec.then is None}
    found = []
    for spec in specs:
        result = results[spec.key]
        row = accuracy_row(
            spec, result, name=name(spec), optimizer=spec.method if spec.then is None else spec.then.method
        )
        alone = lone.get(row["optimizer"])
        if spec.then is not None and alone is not None:
            seconds = min(each.last("seconds") or 0.0 for each in (result, alone))
            ends = [score_at(each, seconds) for each in (result, alone)]
            row["gain"] = difference(row["best_test_accuracy"], alone.best("validation_accuracy")[0])
            row["gain_in_equal_time"] = difference(*ends)
        found.append(row)
    return found


def difference(ours: float | None, theirs: float | None) -> float | None:
    """Ours less theirs, where both are known."""
    return None if ours is None or theirs is None else ours - theirs


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Test accuracy by passes and by seconds."""
    lines = {name(spec): spec for spec in specs}
    return [
        Panel(specs[0].data, lines, "validation_accuracy", against=against, unit="%")
        for against in ("iteration", "seconds")
    ]


def claims(table: Sequence[Row]) -> list[Claim]:
    """Whether the warm-up pays, at equal passes and at equal seconds; only a clear gain in every seed is one."""
    found = []
    for row in table:
        if "gain" not in row:
            continue
        seeds = f" (in the worst of {row['seeds']} seeds {{}})" if row["seeds"] > 1 else ""
        keys = ("gain", "gain_in_equal_time")
        lowest = [row[key] if row[key] is None else row.get(f"{key}_range", [row[key]])[0] for key in keys]
        found.append(
            Claim(
                f"A first stage of iPDLAM pays before {row['optimizer']}",
                "greatly reduces the total training time",
                f"best test accuracy {points(row['gain'])} at equal passes over the data, "
                f"{points(row['gain_in_equal_time'])} in equal time"
                + seeds.format(", ".join(map(points, lowest)))
                + (f"; {divergence(row)}" if row["diverged"] else ""),
                judged([False if row["diverged"] else None if low is None else low > CLEAR for low in lowest]),
            )
        )
    return found


def points(gain: float | None) -> str:
    """A gain in words; in a time in which one of the two made no iteration nothing can be compared."""
    return "not known" if gain is None else f"{100.0 * gain:+.2f} points"


EXPERIMENT = Experiment(
    "warmup",
    "iPDLAM as a warm-up",
    f"The paper's advice: some iterations of iPDLAM, then a classical optimizer: {WARM['small']} iterations as in the "
    f"paper, without a ridge, then {TOTAL['small'] - WARM['small']} epochs in batches of 512, at rate {RATES['sgd']} "
    f"for SGD and {RATES['adam']} for Adam. Against {TOTAL['small']} epochs of the optimizer alone, which are as many "
    "passes over the data, and within as much time, from PyTorch's initialisation.",
    runs,
    rows,
    (
        Column("method", "name"),
        Column("gain", "gain", "points"),
        Column("in equal time", "gain_in_equal_time", "points"),
        *OUTCOME[1:],
    ),
    panels,
    claims,
)
