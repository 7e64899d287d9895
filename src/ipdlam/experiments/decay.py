"""The gaps close while the accuracy falls: what stops the decay. The paper does not speak of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import (
    FAILS,
    HOLDS,
    OPEN,
    OUTCOME,
    UNMEASURED,
    Claim,
    Column,
    Experiment,
    Panel,
    Results,
    Row,
    RunSpec,
    accuracy_row,
    gaps,
    lower,
    number,
    percent,
    three_panels,
    titled,
)
from ipdlam.experiments.setup import datasets, ipdlam

PLAIN, CONSTANT = "as in the paper", "constant penalty"
VARIANTS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    (PLAIN, ()),
    ("ridge 1e-6", (("ridge", 1e-6),)),
    ("ridge 1e-5", (("ridge", 1e-5),)),
    ("ridge 1e-4", (("ridge", 1e-4),)),
    ("penalty 10", (("penalty", 10.0),)),
    (CONSTANT, (("penalty_growth", 1.0),)),
)
AT_PAPER_SCALE = (PLAIN, "ridge 1e-5")
CLEAR = 0.005  # half a point is noise


def runs(scale: str) -> list[RunSpec]:
    """iPDLAM at 0.7 as it is, with a ridge, and with other penalties."""
    base = ipdlam(scale, datasets(scale)[0])
    chosen = [settings for title, settings in VARIANTS if scale != "paper" or title in AT_PAPER_SCALE]
    return [base.changed(settings=settings) for settings in chosen]


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every variant, with what it loses from its best iterate to its last."""
    found = []
    for spec in specs:
        result = results[spec.key]
        row = accuracy_row(spec, result, variant=titled(VARIANTS, spec))
        best, last, place = row["best_test_accuracy"], row["test_accuracy"], row["best_iteration"]
        measured = place is not None
        row["decay"] = best - last if measured else None
        row["objective_at_best"] = result.columns["objective"][place - 1] if measured else None
        row["gaps_at_best"], row["gaps"] = gaps(result, place) if measured else None, gaps(result)
        found.append(row)
    return found


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, lambda spec: titled(VARIANTS, spec))


def claims(table: Sequence[Row]) -> list[Claim]:
    """That a small Phi means an accurate network; and what helps."""
    at = {row["variant"]: row for row in table if row["decay"] is not None}
    if PLAIN not in at:
        return []
    shown = at.get(CONSTANT, at[PLAIN])  # Phi grows with rho, if that does; the gaps do not
    falls = lower(shown["gaps"], shown["gaps_at_best"])
    found = [
        Claim(
            "What is minimised measures progress: while the gaps close, the network gets better",
            "objective and accuracy shown side by side, both improving",
            f"{shown['variant']}: from iteration {shown['best_iteration']:.0f} to {shown['iterations']:.0f} Phi goes "
            f"from {number(shown['objective_at_best'])} to {number(shown['objective'])}, the squared gaps from "
            f"{number(shown['gaps_at_best'])} to {number(shown['gaps'])}, the test accuracy from "
            f"{percent(shown['best_test_accuracy'])} to {percent(shown['test_accuracy'])}",
            UNMEASURED if not falls else FAILS if shown["decay"] > CLEAR else HOLDS,
        )
    ]
    cures = (
        f"{title}: {percent(row['test_accuracy'])} (best {percent(row['best_test_accuracy'])})"
        for title, row in at.items()
    )
    if len(at) > 1:
        found.append(Claim("What stops the decay", "", f"test accuracy at the end, {'; '.join(cures)}", OPEN))
    return found


EXPERIMENT = Experiment(
    "decay",
    "Does a smaller objective mean a better network?",
    "The activations of a sample can learn its label faster than the weights can follow, and the last layer is then "
    "fitted to activations that no forward pass gives. What inside the method keeps the accuracy: a ridge on the "
    "weights, another penalty, or the best iterate instead of the last?",
    runs,
    rows,
    (Column("variant", "variant"), Column("below its best", "decay", "points"), *OUTCOME),
    panels,
    claims,
)
