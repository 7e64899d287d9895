"""Figure 4: the three orders of the updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import OUTCOME, Column, Experiment, Panel, Results, RunSpec, accuracy_row, three_panels
from ipdlam.experiments.claims import CLOSE, FAILS, HOLDS, UNMEASURED, Claim, Row, alike, judged, spread, unmeasured
from ipdlam.experiments.setup import datasets, ipdlam

ORDERS = ("reverse", "increase", "nested-reverse")


def runs(scale: str) -> list[RunSpec]:
    """One run for every order."""
    return [ipdlam(scale, datasets(scale)[0]).changed(settings=(("order", order),)) for order in ORDERS]


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return str(dict(spec.settings)["order"])


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every order; whether it has the very numbers of reverse, where that was made."""
    reverse = next((results[spec.key].columns["objective"] for spec in specs if name(spec) == "reverse"), None)
    return [
        accuracy_row(
            spec,
            results[spec.key],
            order=name(spec),
            same_as_reverse=None if reverse is None else results[spec.key].columns["objective"] == reverse,
        )
        for spec in specs
    ]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, name)


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """The paper: the order has little impact."""
    little, three = (
        "The order of the updates has little impact",
        "Reverse, increase and nested reverse are three orders",
    )
    if len(table) < len(ORDERS):
        return [unmeasured(little, "little impact"), unmeasured(three, "three")]
    increase = next(row for row in table if row["order"] == "increase")
    best, last = ([row[key] for row in table] for key in ("best_test_accuracy", "test_accuracy"))
    return [
        Claim(
            little,
            "little impact",
            f"best test accuracies are {spread(best)}, the last ones {spread(last)}",
            judged([alike(best), alike(last)]),
        ),
        Claim(
            three,
            "three",
            "reverse and increase are the same method, to the last digit: no block of a group reads another"
            if increase["same_as_reverse"]
            else "all differ"
            if increase["same_as_reverse"] is not None
            else "reverse was not run with every seed",
            {True: FAILS, False: HOLDS}.get(increase["same_as_reverse"], UNMEASURED),
        ),
    ]


EXPERIMENT = Experiment(
    "order",
    "Figure 4: the order of the updates",
    "Inertia 0.7 on MNIST. Nested reverse visits the data once for every layer in an iteration, the others once. "
    f"Little is taken to be within {100.0 * CLOSE:.0f} point of accuracy.",
    runs,
    rows,
    (Column("order", "order"), *OUTCOME),
    panels,
    claims,
)
