"""Figure 2: the proximity at inertia 0.7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.claims import CLOSE, NEAR_ONE, PARTS, UNMEASURED, Claim, Row, alike, judged, spread, unmeasured
from ipdlam.experiments.paper.setup import CHOSEN, Reading, datasets, ipdlam
from ipdlam.experiments.spec import OUTCOME, Column, Experiment, Panel, Results, RunSpec, accuracy_row, three_panels

PROXIMITIES = (0.1, 0.2, 0.3, 0.4, 1.0)


def runs(scale: str, reading: Reading = CHOSEN) -> list[RunSpec]:
    """Five proximities on MNIST."""
    return [ipdlam(scale, datasets(scale)[0], reading, proximity=proximity) for proximity in PROXIMITIES]


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return f"proximity {dict(spec.settings)['proximity']}"


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every proximity."""
    return [accuracy_row(spec, results[spec.key], proximity=dict(spec.settings)["proximity"]) for spec in specs]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, name)


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """The paper: all five behave alike."""
    claim, paper = "The algorithm is insensitive to delta", "very similar for 0.1, 0.2, 0.3, 0.4 and 1"
    rule = (
        f"The best test accuracies of the five runs have to lie within {NEAR_ONE}, and so have the last ones, and the "
        f"last training accuracies. {PARTS}"
    )
    if not table:
        return [unmeasured(claim, paper, rule=rule)]
    if len(table) < 2:
        return [Claim(claim, paper, "one proximity only", UNMEASURED, rule=rule)]
    keys = ("best_test_accuracy", "test_accuracy", "train_accuracy")
    best, last, train = ([row[key] for row in table] for key in keys)
    missing = [None] * (len(PROXIMITIES) - len(table))
    return [
        Claim(
            claim,
            paper,
            f"of {len(table)} proximities the best test accuracies are {spread(best)}, the last ones {spread(last)}, "
            f"the last training accuracies {spread(train)}",
            judged([*(alike(table, key) for key in keys), *missing]),
            rule=rule,
        )
    ]


ABOUT = (
    f"Inertia 0.7 on MNIST with five proximities. Similar is taken to be within {100.0 * CLOSE:.0f} point of accuracy."
)
EXPERIMENT = Experiment(
    "fig2",
    "Figure 2: the proximity delta",
    ABOUT,
    runs,
    rows,
    (Column("delta", "proximity"), *OUTCOME),
    panels,
    claims,
)
