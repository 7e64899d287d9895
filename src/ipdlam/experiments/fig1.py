"""Figure 1: iPDLAM with three inertias against DLAM."""

from __future__ import annotations

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
    RunSpec,
    accuracy_row,
    by,
    higher,
    judged,
    lower,
    number,
    percent,
    three_panels,
)
from ipdlam.experiments.setup import datasets, dlam, ipdlam

INERTIAS = (0.2, 0.5, 0.7)
CLAIMS = (
    ("a smaller objective", "objective", number, lower),
    ("a higher training accuracy at the end", "train_accuracy", percent, higher),
    ("a higher test accuracy at the end", "test_accuracy", percent, higher),
    ("a higher test accuracy at its best", "best_test_accuracy", percent, higher),
    ("its best in fewer iterations", "best_iteration", number, lower),
)


def runs(scale: str) -> list[RunSpec]:
    """DLAM and the three inertias."""
    return [
        spec
        for data in datasets(scale)
        for spec in (dlam(scale, data), *(ipdlam(scale, data, inertia) for inertia in INERTIAS))
    ]


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return "DLAM" if spec.method == "dlam" else f"iPDLAM, inertia {dict(spec.settings)['inertia']}"


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every line."""
    return [
        accuracy_row(spec, results[spec.key], name=name(spec), inertia=dict(spec.settings).get("inertia", 0.0))
        for spec in specs
    ]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, name)


def claims(table: Sequence[Row]) -> list[Claim]:
    """The paper: smaller Phi and higher accuracy than DLAM, for every inertia."""
    found = []
    for data, mine in by("data", table).items():
        base = next((row for row in mine if row["method"] == "dlam"), None)
        others = [row for row in mine if row["method"] != "dlam"]
        if base is None or not others:
            continue
        unknown = [False] * (len(INERTIAS) - len(others))  # what was not made is not shown
        for claim, key, show, better in CLAIMS:
            words = (f"{row['inertia']}: {'diverged' if row['diverged'] else show(row[key])}" for row in others)
            found.append(
                Claim(
                    f"{data}: than DLAM, iPDLAM has {claim}",
                    "so for inertia 0.2, 0.5 and 0.7",
                    f"DLAM {show(base[key])}; inertia {', '.join(words)}",
                    judged([*(not row["diverged"] and better(row[key], base[key]) for row in others), *unknown]),
                )
            )
    return found


EXPERIMENT = Experiment(
    "fig1",
    "Figure 1: iPDLAM against DLAM",
    "The method with inertia 0.2, 0.5 and 0.7, and without inertia and proximal terms (DLAM).",
    runs,
    rows,
    (Column("data", "data"), Column("method", "name"), *OUTCOME),
    panels,
    claims,
)
