"""The penalty: the paper gives neither rho_0 nor a bound, and its curves depend on both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import (
    OPEN,
    OUTCOME,
    Claim,
    Column,
    Experiment,
    Panel,
    Results,
    Row,
    RunSpec,
    accuracy_row,
    at_best,
    number,
    percent,
    three_panels,
    titled,
)
from ipdlam.experiments.setup import datasets, ipdlam
from ipdlam.experiments.table1 import printed

VARIANTS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    ("0.1, growing (default)", ()),
    ("0.01, growing", (("penalty", 0.01),)),
    ("1, growing", (("penalty", 1.0),)),
    ("10, growing", (("penalty", 10.0),)),
    ("0.1, growing to 1", (("penalty_max", 1.0),)),
    ("1e-9, growing", (("penalty", 1e-9),)),
    ("0.1, constant", (("penalty_growth", 1.0),)),
)


def runs(scale: str) -> list[RunSpec]:
    """iPDLAM at 0.7 with other penalties."""
    base = ipdlam(scale, datasets(scale)[0])
    return [base.changed(settings=settings) for _, settings in VARIANTS]


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every penalty, with how far its end is from the paper's."""
    found = []
    for spec in specs:
        row = accuracy_row(spec, results[spec.key], variant=titled(VARIANTS, spec))
        row["misfit"] = misfit(row)
        found.append(row)
    return found


def misfit(row: Row) -> float | None:
    """The distance from Table 1 at 0.7: decades of Phi, and tens of points of training and of test accuracy."""
    paper = printed(row["data"], 0.7)
    ends = ("objective", "train_accuracy", "test_accuracy")
    theirs = [paper[f"paper_{key}"] for key in ("objective", "train_accuracy", "test_accuracy_corrected")]
    if row["diverged"] or None in theirs or not row["objective"] or row["objective"] <= 0.0:
        return None
    phi, *accuracies = zip((float(row[key]) for key in ends), map(float, theirs), strict=True)  # type: ignore[arg-type]
    return abs(math.log10(phi[0] / phi[1])) + sum(10.0 * abs(ours - paper) for ours, paper in accuracies)


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, lambda spec: titled(VARIANTS, spec))


def claims(table: Sequence[Row]) -> list[Claim]:
    """Which choice fits the paper, and which serves a user."""
    found = []
    comparable = [row for row in table if row["misfit"] is not None]
    if len(comparable) > 1:
        fits = min(comparable, key=lambda row: row["misfit"])
        paper = printed(fits["data"], 0.7)
        found.append(
            Claim(
                "rho_0, rho_max: which choice fits the end of the paper's curves best",
                f"Phi {number(paper['paper_objective'])}, training {percent(paper['paper_train_accuracy'])}, test "
                f"{percent(paper['paper_test_accuracy_corrected'])}",
                f"{fits['variant']}: Phi {number(fits['objective'])}, training {percent(fits['train_accuracy'])}, test "
                f"{percent(fits['test_accuracy'])}",
                OPEN,
            )
        )
    sound = [row for row in table if row["best_test_accuracy"] is not None]
    if len(sound) > 1:
        serves = max(sound, key=lambda row: row["best_test_accuracy"])
        others = (f"{row['variant']}: {percent(row['best_test_accuracy'])}" for row in sound if row is not serves)
        found.append(
            Claim(
                "rho_0, rho_max: which choice reaches the best test accuracy",
                "",
                f"{serves['variant']}: {at_best(serves)}; {', '.join(others)}",
                OPEN,
            )
        )
    return found


EXPERIMENT = Experiment(
    "penalty",
    "What the paper leaves open: the penalty",
    "The paper says that rho grows by 1.1 an iteration, neither from where nor how far. Misfit is the distance of the "
    "end of a "
    "run from Table 1 at inertia 0.7: decades of Phi, and tens of points of training and of test accuracy.",
    runs,
    rows,
    (Column("penalty", "variant"), Column("misfit", "misfit", "number"), *OUTCOME),
    panels,
    claims,
)
