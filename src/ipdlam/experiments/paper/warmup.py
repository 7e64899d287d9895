"""The paper's advice: a few iterations of iPDLAM, then a classical optimizer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.claims import CLEAR, LEAD, PARTS, READING, Claim, Row, divergence, judged, unmeasured, when
from ipdlam.experiments.paper.setup import LETTER, datasets, ipdlam, optimizer
from ipdlam.experiments.spec import OUTCOME, Column, Experiment, Panel, Results, RunResult, RunSpec, accuracy_row

WARM = {"smoke": 2, "small": 5, "paper": 5}
TOTAL = {"smoke": 6, "small": 30, "paper": 30}
RATES = {"sgd": 0.05, "adam": 0.001}
FASTER = 1.1  # times; less may be the clock
GREATLY = 2.0  # times


def runs(scale: str) -> list[RunSpec]:
    """SGD and Adam alone, and after a few iterations of iPDLAM: as many passes over the data in all."""
    data, found = datasets(scale)[0], []
    for name, rate in RATES.items():
        alone = optimizer(scale, data, name, rate).changed(
            iterations=TOTAL[scale], initialisation="torch", evaluate_every=1
        )
        warm = ipdlam(scale, data, LETTER).changed(iterations=WARM[scale], initialisation="torch", evaluate_every=1)
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
            row["level_seconds"], row["level_seconds_alone"] = (seconds_to(each, alone) for each in (result, alone))
            row["speed_gain"] = speed_gain(row["level_seconds"], row["level_seconds_alone"])
        found.append(row)
    return found


def seconds_to(result: RunResult, alone: RunResult) -> float | None:
    """Seconds of training until the test accuracy is not clearly below the best of the optimizer alone."""
    level = alone.best("validation_accuracy")[0]
    pairs = zip(result.columns["seconds"], result.columns["validation_accuracy"], strict=True)
    return next((s for s, value in pairs if level is not None and value is not None and value >= level - CLEAR), None)


def speed_gain(ours: float | None, alone: float | None) -> float | None:
    """How many times as fast ours is there; 0 if it never is."""
    return None if not alone else 0.0 if not ours else alone / ours


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


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """Whether the warm-up saves time, and whether it pays at equal passes and at equal seconds, with every seed."""
    warm = {row["optimizer"]: row for row in table if "gain" in row}
    return [judge(name, warm.get(name)) for name in RATES for judge in (time_saved, accuracy_gained)]


def accuracy_gained(optimizer: str, row: Row | None) -> Claim:
    """The paper's advice, by what the network is worth in the end."""
    claim, paper = f"A first stage of iPDLAM pays before {optimizer}", "recommended at the first stage"
    rule = (
        f"With every seed the best test accuracy has to be higher by more than {LEAD} than that of the optimizer "
        f"alone, at equal passes over the data and in equal time. {PARTS}"
    )
    if row is None:
        return unmeasured(claim, paper, READING, rule=rule)
    seeds = f" (in the worst of {row['seeds']} seeds {{}})" if row["seeds"] > 1 else ""
    keys = ("gain", "gain_in_equal_time")
    lowest = [row[key] if row[key] is None else row.get(f"{key}_range", [row[key]])[0] for key in keys]
    return Claim(
        claim,
        paper,
        f"best test accuracy {points(row['gain'])} at equal passes over the data, "
        f"{points(row['gain_in_equal_time'])} in equal time"
        + seeds.format(", ".join(map(points, lowest)))
        + (f"; {divergence(row)}" if row["diverged"] else ""),
        judged([False if row["diverged"] else None if low is None else low > CLEAR for low in lowest]),
        READING,
        rule=rule,
    )


def time_saved(optimizer: str, row: Row | None) -> Claim:
    """The paper's promise: less time, and much less, to the same accuracy; a tenth may be the clock."""
    claim = f"A first stage of iPDLAM reduces the time that {optimizer} takes, and greatly"
    paper = "greatly reduces the total training time"
    rule = (
        f"Time is taken to within {LEAD} of the best test accuracy of the optimizer alone. With every seed it has "
        f"to be reached more than {FASTER} times as fast (less may be the clock), greatly: more than {GREATLY:.0f} "
        f"times. {PARTS}"
    )
    if row is None:
        return unmeasured(claim, paper, rule=rule)
    speed = row["speed_gain"]
    slowest = speed if speed is None else row.get("speed_gain_range", [speed])[0]
    ours, alone = (when(row, key, "s") for key in ("level_seconds", "level_seconds_alone"))
    return Claim(
        claim,
        paper,
        f"to within {LEAD} of the best that {optimizer} has alone: {ours}, alone {alone}"
        + ("" if speed is None else f"; {speed:.2f} times as fast")
        + (
            f", {slowest:.2f} with the slowest of {row['seeds']} seeds"
            if speed is not None and row["seeds"] > 1
            else ""
        )
        + (f"; {divergence(row)}" if row["diverged"] else ""),
        judged([False if row["diverged"] else None if slowest is None else slowest > by for by in (FASTER, GREATLY)]),
        rule=rule,
    )


def points(gain: float | None) -> str:
    """A gain in words; in a time in which one of the two made no iteration nothing can be compared."""
    return "not known" if gain is None else f"{100.0 * gain:+.2f} points"


EXPERIMENT = Experiment(
    "warmup",
    "iPDLAM as a warm-up",
    f"The paper's advice: some iterations of iPDLAM, then a classical optimizer: {WARM['small']} iterations as in the "
    f"paper, without a ridge, then {TOTAL['small'] - WARM['small']} epochs in batches of 512, at rate {RATES['sgd']} "
    f"for SGD and {RATES['adam']} for Adam. Against {TOTAL['small']} epochs of the optimizer alone, which are as many "
    "passes over the data, and within as much time, from PyTorch's initialisation. Time is taken to be saved where "
    f"the warm-up is there more than {FASTER} times as fast with every seed, greatly where it is so more than "
    f"{GREATLY:.0f} times.",
    runs,
    rows,
    (
        Column("method", "name"),
        Column("times as fast", "speed_gain", "number"),
        Column("gain", "gain", "points"),
        Column("in equal time", "gain_in_equal_time", "points"),
        *OUTCOME[1:],
    ),
    panels,
    claims,
)
