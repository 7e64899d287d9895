"""Figure 3: iPDLAM against the classical optimizers, by iteration and by seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import Experiment, Panel, Results, RunSpec, Verdict, accuracy_row
from ipdlam.experiments.setup import datasets, ipdlam, optimizer

OPTIMIZERS = ("sgd", "adagrad", "adadelta", "rmsprop", "adam", "amsgrad", "adamax")
RATES = {"smoke": (0.001, 0.01), "small": (0.001, 0.01, 0.05), "paper": (0.001,)}
EARLY = 40  # iterations in which the paper's method is always ahead


def runs(scale: str) -> list[RunSpec]:
    """iPDLAM at 0.7, and every optimizer at every rate; at the size of the paper SGD and Adam at its rate."""
    data = datasets(scale)[0]
    names = ("sgd", "adam") if scale == "paper" else OPTIMIZERS
    return [ipdlam(scale, data), *(optimizer(scale, data, each, rate) for rate in RATES[scale] for each in names)]


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return "iPDLAM" if spec.method == "ipdlam" else f"{spec.method} {dict(spec.settings)['learning_rate']}"


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every run, with its best accuracy in the first iterations."""
    found = []
    for spec in specs:
        result = results[spec.key]
        early = [value for value in result.columns["validation_accuracy"][:EARLY] if value is not None]
        more = {"name": name(spec), "learning_rate": dict(spec.settings).get("learning_rate")}
        found.append(accuracy_row(spec, result, **more, early_test_accuracy=max(early, default=None)))
    return found


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Training and test accuracy at the paper's rate, by iteration and by seconds."""
    shown = [spec for spec in specs if dict(spec.settings).get("learning_rate", 0.001) == 0.001]
    lines = {name(spec): spec for spec in shown}
    return [
        Panel(specs[0].data, lines, column, against=against, unit="%")
        for against in ("iteration", "seconds")
        for column in ("train_accuracy", "validation_accuracy")
    ]


def verdict(table: list[dict[str, Any]]) -> Verdict:
    """The paper: better than all of them in the first 40 iterations, better test accuracy than most of them."""
    mine, others = table[0], [row for row in table[1:] if row["learning_rate"] == 0.001]
    ahead_early = sum(mine["early_test_accuracy"] > (row["early_test_accuracy"] or 0.0) for row in others)
    ahead = sum((mine["test_accuracy"] or 0.0) > (row["test_accuracy"] or 0.0) for row in others)
    why = (
        f"at rate 0.001 iPDLAM's best in the first {EARLY} iterations beats {ahead_early} of {len(others)}, "
        f"its last test accuracy {ahead} of {len(others)}"
    )
    if ahead_early == len(others) and 2 * ahead > len(others):
        return Verdict("holds", why)
    return Verdict("holds partly" if ahead_early or ahead else "does not hold", why)


EXPERIMENT = Experiment(
    "fig3",
    "Figure 3: iPDLAM against classical optimizers",
    "iPDLAM is better than the classical optimizers in the first 40 iterations, and its test accuracy than most.",
    runs,
    rows,
    panels,
    verdict,
)
