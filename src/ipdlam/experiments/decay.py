"""Phi falls while the accuracy falls too: what stops the decay. The paper does not speak of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import Experiment, Panel, Results, RunSpec, Verdict, accuracy_row, three_panels
from ipdlam.experiments.setup import datasets, ipdlam

VARIANTS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    ("as in the paper", ()),
    ("ridge 1e-6", (("ridge", 1e-6),)),
    ("ridge 1e-5", (("ridge", 1e-5),)),
    ("ridge 1e-4", (("ridge", 1e-4),)),
    ("penalty 10", (("penalty", 10.0),)),
    ("constant penalty", (("penalty_growth", 1.0),)),
)
AT_PAPER_SCALE = ("as in the paper", "ridge 1e-5")


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
        row["decay"] = (row["best_test_accuracy"] or 0.0) - (row["test_accuracy"] or 0.0)
        found.append(row)
    return found


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, name)


def verdict(table: list[dict[str, Any]]) -> Verdict:
    """That a small Phi means an accurate network."""
    lost = "; ".join(f"{row['variant']}: {100 * row['decay']:.1f} points below its best" for row in table)
    return Verdict("does not hold" if table[0]["decay"] > 0.005 else "holds", f"at the end, test accuracy is, {lost}")


EXPERIMENT = Experiment(
    "decay",
    "Does a smaller objective mean a better network?",
    "The paper reports the objective as the measure of progress.",
    runs,
    rows,
    panels,
    verdict,
)
