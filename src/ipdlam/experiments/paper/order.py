"""Figure 4: the three orders of the updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipdlam.experiments.claims import (
    CLOSE,
    FAILS,
    HOLDS,
    NEAR_ONE,
    PARTS,
    READING,
    Claim,
    Row,
    alike,
    judged,
    spread,
    unmeasured,
)
from ipdlam.experiments.paper.setup import CHOSEN, Reading, datasets, ipdlam
from ipdlam.experiments.spec import OUTCOME, Column, Experiment, Panel, Results, RunSpec, accuracy_row, three_panels

ORDERS = ("reverse", "increase", "nested-reverse")


def runs(scale: str, reading: Reading = CHOSEN) -> list[RunSpec]:
    """One run for every order; the first is the default, and the run that other experiments have."""
    base = ipdlam(scale, datasets(scale)[0], reading)
    return [base, *(base.changed(settings=(("order", order),)) for order in ORDERS[1:])]


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return str(dict(spec.settings).get("order", ORDERS[0]))


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
    return [little_impact(table), three_orders({row["order"]: row for row in table})]


def little_impact(table: Sequence[Row]) -> Claim:
    """Accuracies are alike, whatever the order."""
    claim, paper = "The order of the updates has little impact", "little impact"
    rule = f"The best test accuracies of the three have to lie within {NEAR_ONE}, and so have the last ones. {PARTS}"
    if len(table) < 2:
        return unmeasured(claim, paper, rule=rule)
    keys = ("best_test_accuracy", "test_accuracy")
    best, last = ([row[key] for row in table] for key in keys)
    missing = [None] * (len(ORDERS) - len(table))
    return Claim(
        claim,
        paper,
        f"of {len(table)} orders the best test accuracies are {spread(best)}, the last ones {spread(last)}",
        judged([*(alike(table, key) for key in keys), *missing]),
        rule=rule,
    )


def three_orders(at: Mapping[str, Row]) -> Claim:
    """The paper lists three; that they differ in effect it does not say."""
    claim, paper = "Reverse, increase and nested reverse are three methods", "three orders"
    rule = "It fails if Phi of reverse and of increase agree to the last digit in every iteration."
    if not {"reverse", "increase"} <= set(at):
        return unmeasured(claim, paper, READING, rule=rule)
    same = at["increase"]["same_as_reverse"]
    words = "reverse and increase are the same method, to the last digit: no block of a group reads another"
    ours, verdict = (words, FAILS) if same else ("reverse and increase differ", HOLDS)
    return Claim(claim, paper, ours, verdict, READING, rule=rule)


ABOUT = (
    "Inertia 0.7 on MNIST. Nested reverse visits the data once for every layer in an iteration, the others once. "
    f"Little is taken to be within {100.0 * CLOSE:.0f} point of accuracy."
)
EXPERIMENT = Experiment(
    "order",
    "Figure 4: the order of the updates",
    ABOUT,
    runs,
    rows,
    (Column("order", "order"), *OUTCOME),
    panels,
    claims,
)
