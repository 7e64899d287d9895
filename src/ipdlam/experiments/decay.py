"""Phi falls while the accuracy falls too: what stops the decay. The paper does not speak of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import (
    FAILS,
    HOLDS,
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
    gaps,
    number,
    percent,
    three_panels,
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


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    given = tuple(item for item in spec.settings if item[0] not in ("inertia", "proximity"))
    return next(title for title, settings in VARIANTS if settings == given)


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every variant, with what it loses from its best iterate to its last."""
    found = []
    for spec in specs:
        row = accuracy_row(spec, results[spec.key], variant=name(spec))
        at_best = row["best_iteration"]
        row["objective_at_best"] = results[spec.key].columns["objective"][at_best - 1]
        row["gaps_at_best"], row["gaps"] = gaps(results[spec.key], at_best), gaps(results[spec.key])
        row["decay"] = (row["best_test_accuracy"] or 0.0) - (row["test_accuracy"] or 0.0)
        found.append(row)
    return found


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, name)


def claims(table: Sequence[Row]) -> list[Claim]:
    """That a small Phi means an accurate network; and what helps."""
    plain = next((row for row in table if row["variant"] == PLAIN), None)
    if plain is None:
        return []
    shown = next((row for row in table if row["variant"] == CONSTANT), plain)  # Phi grows with rho, if that does
    found = [
        Claim(
            "The objective measures progress: while it falls, the network gets better",
            "objective and accuracy shown side by side, both improving",
            f"{shown['variant']}: from iteration {shown['best_iteration']:.0f} to {shown['iterations']:.0f} Phi goes "
            "from "
            f"{number(shown['objective_at_best'])} to {number(shown['objective'])}, the squared gaps between the "
            "layers "
            f"from {number(shown['gaps_at_best'])} to {number(shown['gaps'])}, and the test accuracy from "
            f"{percent(shown['best_test_accuracy'])} to {percent(shown['test_accuracy'])}",
            FAILS if shown["decay"] > CLEAR else HOLDS,
        )
    ]
    cured = [row for row in table if row["variant"] != PLAIN]
    if cured:
        words = "; ".join(
            f"{row['variant']}: {percent(row['test_accuracy'])} (best {percent(row['best_test_accuracy'])})"
            for row in cured
        )
        found.append(
            Claim(
                "What stops the decay (the paper does not speak of it)",
                "",
                f"test accuracy at the end, as in the paper: {percent(plain['test_accuracy'])}; {words}",
                OPEN,
            )
        )
    return found


EXPERIMENT = Experiment(
    "decay",
    "Does a smaller objective mean a better network?",
    "The activations a learn the labels faster than the weights can follow, and the last layer is fitted to them "
    "instead of to "
    "the forward pass: Phi falls, the gaps between the layers stay, and the network that is used gets worse. A ridge "
    "on the "
    "weights, a larger penalty, or keeping the best iterate are the cures inside the method.",
    runs,
    rows,
    (Column("variant", "variant"), Column("below its best", "decay", "points"), *OUTCOME),
    panels,
    claims,
)
