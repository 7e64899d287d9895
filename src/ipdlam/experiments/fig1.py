"""Figure 1: iPDLAM with three inertias against DLAM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import Experiment, Panel, Results, RunSpec, Verdict, accuracy_row, three_panels
from ipdlam.experiments.setup import datasets, dlam, ipdlam

INERTIAS = (0.2, 0.5, 0.7)


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
    return [accuracy_row(spec, results[spec.key], name=name(spec)) for spec in specs]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, name)


def verdict(table: list[dict[str, Any]]) -> Verdict:
    """The paper: smaller Phi and higher accuracy than DLAM."""
    words, better = [], []
    for data in dict.fromkeys(row["data"] for row in table):
        mine = [row for row in table if row["data"] == data]
        base = next(row for row in mine if row["method"] == "dlam")
        others = [row for row in mine if row["method"] != "dlam" and not row["diverged"]]
        lower = sum(row["objective"] < base["objective"] for row in others)
        higher = sum(row["best_test_accuracy"] > base["best_test_accuracy"] for row in others)
        better += [lower == len(others), higher == len(others)]
        words.append(
            f"{data}: {lower} of {len(others)} end with a smaller Phi, {higher} with a higher best test accuracy"
        )
    word = "holds" if all(better) else "holds partly" if any(better) else "does not hold"
    return Verdict(word, "; ".join(words))


EXPERIMENT = Experiment(
    "fig1",
    "Figure 1: iPDLAM against DLAM",
    "iPDLAM reaches smaller objective values and higher training and test accuracy than DLAM.",
    runs,
    rows,
    panels,
    verdict,
)
