"""Figure 4: the three orders of the updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import Experiment, Panel, Results, RunSpec, Verdict, accuracy_row, three_panels
from ipdlam.experiments.setup import datasets, ipdlam

ORDERS = ("reverse", "increase", "nested-reverse")
CLOSE = 0.01


def runs(scale: str) -> list[RunSpec]:
    """One run for every order."""
    return [ipdlam(scale, datasets(scale)[0]).changed(settings=(("order", order),)) for order in ORDERS]


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return str(dict(spec.settings)["order"])


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every order; whether it has the very numbers of reverse."""
    first = results[specs[0].key].columns["objective"]
    return [
        accuracy_row(
            spec, results[spec.key], order=name(spec), same_as_reverse=results[spec.key].columns["objective"] == first
        )
        for spec in specs
    ]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, name)


def verdict(table: list[dict[str, Any]]) -> Verdict:
    """The paper: the order has little impact."""
    best = [row["best_test_accuracy"] or 0.0 for row in table]
    last = [row["test_accuracy"] or 0.0 for row in table]
    same = (
        "reverse and increase are the same method, to the last digit" if table[1]["same_as_reverse"] else "all differ"
    )
    spread = (max(best) - min(best), max(last) - min(last))
    why = f"{same}; best test accuracies differ by {100 * spread[0]:.1f} points, the last ones by {100 * spread[1]:.1f}"
    return Verdict("holds" if max(spread) <= CLOSE else "holds partly", why)


EXPERIMENT = Experiment(
    "order",
    "Figure 4: the order of the updates",
    "The order of the updates has little impact on the optimization.",
    runs,
    rows,
    panels,
    verdict,
)
