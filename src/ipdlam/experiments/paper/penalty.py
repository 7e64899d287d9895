"""The penalty: the paper gives neither rho_0 nor a bound, and its curves depend on both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ipdlam.experiments.claims import (
    FIRST,
    NEAR,
    Claim,
    Row,
    at_best,
    earlier,
    judged,
    number,
    percent,
    question,
    unmeasured,
    when,
)
from ipdlam.experiments.paper.setup import LETTER, datasets, ipdlam
from ipdlam.experiments.paper.table1 import at_seven
from ipdlam.experiments.spec import (
    OUTCOME,
    Column,
    Experiment,
    Panel,
    Results,
    RunSpec,
    accuracy_row,
    reached,
    three_panels,
    titled,
)

GROWING, SMALL, CONSTANT = "0.1, growing to 1e6 (default)", "0.1, constant", "10, constant"
VARIANTS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    (GROWING, ()),
    ("0.01, growing to 1e6", (("penalty", 0.01),)),
    ("1, growing to 1e6", (("penalty", 1.0),)),
    ("10, growing to 1e6", (("penalty", 10.0),)),
    ("0.1, growing to 1", (("penalty_max", 1.0),)),
    ("0.1, growing without end", (("penalty_max", 1e12),)),  # 200 iterations make it 2e7
    ("1e-9, growing without end", (("penalty", 1e-9),)),  # and this one 0.2
    (SMALL, (("penalty_growth", 1.0),)),
    (CONSTANT, (("penalty", 10.0), ("penalty_growth", 1.0))),
)


def runs(scale: str) -> list[RunSpec]:
    """iPDLAM at 0.7 with other penalties."""
    base = ipdlam(scale, datasets(scale)[0], LETTER)
    return [base.changed(settings=settings) for _, settings in VARIANTS]


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every penalty, with how far its end is from the paper's, and when it is as good as a constant one."""
    constant = next((results[spec.key] for spec in specs if titled(VARIANTS, spec) == CONSTANT), None)
    found = []
    for spec in specs:
        row = accuracy_row(spec, results[spec.key], variant=titled(VARIANTS, spec))
        row["misfit"] = misfit(row)
        if constant is not None:
            row["level_iteration"] = reached(constant, results[spec.key], "validation_accuracy")
        found.append(row)
    return found


def misfit(row: Row) -> float | None:
    """The distance from Table 1 at 0.7: decades of Phi, and tens of points of training and of test accuracy."""
    paper = at_seven(row["data"])
    objective, *accuracies = (row[key] for key in ("objective", "train_accuracy", "test_accuracy"))
    if paper is None or None in (objective, *accuracies) or objective <= 0.0:
        return None
    apart = (10.0 * abs(ours - theirs) for ours, theirs in zip(accuracies, paper[1:], strict=True))
    return float(abs(math.log10(objective / paper[0])) + sum(apart))


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, lambda spec: titled(VARIANTS, spec))


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """Whether the penalty should grow; which choice fits the paper, and which serves a user."""
    found = [speed({row["variant"]: row for row in table})]
    comparable = [row for row in table if row["misfit"] is not None]
    if len(comparable) > 1:
        fits = min(comparable, key=lambda row: row["misfit"])
        others = [f"{row['misfit']:.1f}" for row in comparable if row is not fits]
        objective, train, test = at_seven(fits["data"]) or (math.nan,) * 3
        found.append(
            question(
                "rho_0, rho_max: which choice fits the end of the paper's curves best",
                f"{fits['variant']}: Phi {number(fits['objective'])}, training {percent(fits['train_accuracy'])}, test "
                f"{percent(fits['test_accuracy'])}, hidden layers of {fits['hidden'][0]}; misfit {fits['misfit']:.1f}, "
                f"that of the others {', '.join(others)}",
                f"Phi {number(objective)}, training {percent(train)}, test {percent(test)}, hidden layers of 1500",
            )
        )
    sound = [row for row in table if row["best_test_accuracy"] is not None]
    if len(sound) > 1:
        serves = max(sound, key=lambda row: row["best_test_accuracy"])
        rest = (f"{row['variant']}: {percent(row['best_test_accuracy'])}" for row in sound if row is not serves)
        found.append(
            question(
                "rho_0, rho_max: which choice reaches the best test accuracy",
                f"{serves['variant']}: {at_best(serves)}; {', '.join(rest)}",
            )
        )
    if table:
        counts = (f"{row['variant']}: {row['rises']:.0f}" for row in table)
        found.append(
            question("rho_0, rho_max: in how many iterations Phi rises", "; ".join(counts), "not always descent")
        )
    return found


def speed(at: Mapping[str, Row]) -> Claim:
    """Small at first, and growing: the constant penalties to hold each of the two against are ours."""
    claim = "A penalty that starts small and grows gives further training speed"
    paper = "further training speed"
    rule = (
        f"The growing penalty has to reach the best test accuracy of a constant penalty of 10, less {NEAR}, in fewer "
        f"iterations than each of the two constant ones. {FIRST} It holds if it beats both, and partly if one."
    )
    if not {GROWING, CONSTANT} <= set(at):
        return unmeasured(claim, paper, rule=rule)
    rivals = [name for name in (CONSTANT, SMALL) if name in at]
    words = (f"{name}: {when(at[name], 'level_iteration')}" for name in (GROWING, *rivals))
    tests = [earlier(at[GROWING], at[name], "level_iteration") for name in rivals]
    return Claim(
        claim,
        paper,
        f"iterations to {NEAR} below the best test accuracy of a constant penalty of 10, {'; '.join(words)}",
        judged([*tests, *[None] * (2 - len(tests))]),
        rule=rule,
    )


EXPERIMENT = Experiment(
    "penalty",
    "What the paper leaves open: the penalty",
    "The paper says that rho grows by 1.1 an iteration, neither from where nor how far. Misfit is the distance of the "
    "end of a run from Table 1 at inertia 0.7: decades of Phi, and tens of points of training and of test accuracy. A "
    "narrower network than the paper's has lower accuracies, which is part of its misfit. A penalty that starts small "
    "and grows is held against a large one and against a small one that does not grow.",
    runs,
    rows,
    (Column("penalty", "variant"), Column("misfit", "misfit", "number"), *OUTCOME),
    panels,
    claims,
)
