"""Figure 3: iPDLAM against the classical optimizers, by iteration and by seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import (
    FAILS,
    HOLDS,
    OUTCOME,
    PARTLY,
    UNMEASURED,
    Claim,
    Column,
    Experiment,
    Panel,
    Results,
    Row,
    RunSpec,
    accuracy_row,
    at_best,
    by,
    higher,
    judged,
    lower,
    percent,
)
from ipdlam.experiments.setup import datasets, ipdlam, optimizer

OPTIMIZERS = ("sgd", "adagrad", "adadelta", "rmsprop", "adam", "amsgrad", "adamax")
PAPER_RATE = 0.001
RATES = {"smoke": (0.001, 0.01), "small": (0.001, 0.01, 0.05), "paper": (0.001,)}
EPOCHS_AT_OTHER_RATES = {"smoke": 8, "small": 60}  # they are faster than the paper's, which has its 200
EVALUATE_EVERY = 5  # epochs
EARLY = 40  # iterations in which the paper's method is always ahead


def runs(scale: str) -> list[RunSpec]:
    """iPDLAM at 0.7, and every optimizer at every rate; at the size of the paper SGD and Adam at its rate."""
    data = datasets(scale)[0]
    names = ("sgd", "adam") if scale == "paper" else OPTIMIZERS
    found = [ipdlam(scale, data)]
    for rate in RATES[scale]:
        for each in names:
            spec = optimizer(scale, data, each, rate)
            spec = spec if scale == "smoke" else spec.changed(evaluate_every=EVALUATE_EVERY)
            found.append(spec if rate == PAPER_RATE else spec.changed(iterations=EPOCHS_AT_OTHER_RATES[scale]))
    return found


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
    shown = [spec for spec in specs if dict(spec.settings).get("learning_rate", PAPER_RATE) == PAPER_RATE]
    lines = {name(spec): spec for spec in shown}
    return [
        Panel(specs[0].data, lines, column, against=against, unit="%")
        for against in ("iteration", "seconds")
        for column in ("train_accuracy", "validation_accuracy")
    ]


def claims(table: Sequence[Row]) -> list[Claim]:
    """What the paper says of the classical optimizers, at its rate and at the best of ours."""
    mine = next((row for row in table if row["method"] == "ipdlam"), None)
    others = by("method", [row for row in table if row["method"] != "ipdlam"])
    if mine is None or not others:
        return []
    at_paper = [row for rows in others.values() for row in rows if row["learning_rate"] == PAPER_RATE]
    found = comparison(mine, at_paper, f"at rate {PAPER_RATE}")
    if any(len(rows) > 1 for rows in others.values()):
        best = [max(rows, key=lambda row: row["best_test_accuracy"] or 0.0) for rows in others.values()]
        found += comparison(mine, best, "each at its best rate")
    found.append(
        Claim(
            "It learns quite good parameters in fewer than 10 iterations",
            "fewer than 10",
            f"best test accuracy {at_best(mine)}",
            judged([lower(mine["best_iteration"], 10)]),
        )
    )
    return found


def comparison(mine: Row, rivals: Sequence[Row], rates: str) -> list[Claim]:
    """Early and in the end; where not all seven were run, nothing is said of all."""
    found = []
    for claim, key, enough in (
        (f"In the first {EARLY} iterations iPDLAM is better than all of them", "early_test_accuracy", 1.0),
        ("Its test accuracy at the end is better than that of most of them", "test_accuracy", 0.5),
    ):
        beaten = [row for row in rivals if higher(mine[key], row[key])]
        ahead = [f"{row['method']} {percent(row[key])}" for row in rivals if row not in beaten]
        share = len(beaten) / len(rivals) if rivals else 0.0
        holds = share == 1.0 if enough == 1.0 else share > enough
        word = UNMEASURED if not rivals else HOLDS if holds else PARTLY if beaten else FAILS
        found.append(
            Claim(
                f"{claim} ({rates})",
                "all" if enough == 1.0 else "most",
                f"{percent(mine[key])}: better than {len(beaten)} of {len(rivals)}"
                + (f" (of {len(OPTIMIZERS)} in the paper)" if len(rivals) < len(OPTIMIZERS) else "")
                + (f"; ahead of it: {', '.join(ahead)}" if ahead else ""),
                PARTLY if word == HOLDS and len(rivals) < len(OPTIMIZERS) else word,
            )
        )
    return found


EXPERIMENT = Experiment(
    "fig3",
    "Figure 3: iPDLAM against classical optimizers",
    "iPDLAM at inertia 0.7 and torch's optimizers in batches of 512, from the same weights. The paper has one "
    "learning rate "
    "for all of them, 0.001; here each also gets others, because SGD and Adadelta are not made for it.",
    runs,
    rows,
    (
        Column("method", "method"),
        Column("rate", "learning_rate"),
        Column(f"best test in {EARLY}", "early_test_accuracy", "percent"),
        *OUTCOME,
    ),
    panels,
    claims,
)
