"""Depth: the claim behind the method is that back-propagation fails where gradients vanish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import (
    OUTCOME,
    Claim,
    Column,
    Experiment,
    Panel,
    Results,
    Row,
    RunSpec,
    accuracy_row,
    judged,
    percent,
)
from ipdlam.experiments.setup import datasets

DEPTHS = {"smoke": (2, 5), "small": (2, 3, 5, 10, 20), "paper": (2, 3, 5, 10, 20)}
WIDTH = {"smoke": 12, "small": 100, "paper": 300}
ITERATIONS = {"smoke": 3, "small": 30, "paper": 30}
LIMIT = {"smoke": 300, "small": 10000, "paper": None}
CLEAR = 0.01  # less than a point is chance
ACTIVATIONS = ("relu", "tanh", "sigmoid")
INITIALISATIONS = ("paper", "torch")
METHODS: dict[str, tuple[tuple[str, Any], ...]] = {
    "ipdlam": (("order", "nested-reverse"),),
    "dlam": (("order", "nested-reverse"),),
    "sgd": (("learning_rate", 0.05), ("batch_size", 128)),
    "adam": (("learning_rate", 0.001), ("batch_size", 128)),
}


def runs(scale: str) -> list[RunSpec]:
    """Every method at every depth, activation and initialisation."""
    return [
        RunSpec(
            datasets(scale)[0],
            method,
            (WIDTH[scale],) * depth,
            ITERATIONS[scale],
            settings,
            activation=activation,
            initialisation=initialisation,
            limit=LIMIT[scale],
            evaluate_every=ITERATIONS[scale] if scale == "smoke" else 3,
        )
        for initialisation in INITIALISATIONS
        for activation in ACTIVATIONS
        for depth in DEPTHS[scale]
        for method, settings in METHODS.items()
    ]


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every run."""
    return [
        accuracy_row(
            spec,
            results[spec.key],
            depth=len(spec.hidden),
            activation=spec.activation,
            initialisation=spec.initialisation,
        )
        for spec in specs
    ]


def depth(spec: RunSpec) -> float:
    """How many hidden layers."""
    return float(len(spec.hidden))


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """The best test accuracy against depth, for every activation and initialisation."""
    return [
        Panel(
            f"{activation}, {initialisation} initialisation",
            {
                method: tuple(
                    spec
                    for spec in specs
                    if (spec.method, spec.activation, spec.initialisation) == (method, activation, initialisation)
                )
                for method in METHODS
            },
            "validation_accuracy",
            unit="%",
            across=depth,
        )
        for initialisation in INITIALISATIONS
        for activation in ACTIVATIONS
    ]


def claims(table: Sequence[Row]) -> list[Claim]:
    """Whether iPDLAM is ahead of the better optimizer in the deepest networks."""
    scale = next(scale for scale, width in WIDTH.items() if width == table[0]["hidden"][0])
    deepest = max(DEPTHS[scale])
    best = {
        (row["method"], row["activation"], row["initialisation"]): row["best_test_accuracy"] or 0.0
        for row in table
        if row["depth"] == deepest
    }
    found = []
    for initialisation in INITIALISATIONS:
        ahead, words = [], []
        for activation in ACTIVATIONS:
            cases = ((method, (method, activation, initialisation)) for method in METHODS)
            scores = {method: best[case] for method, case in cases if case in best}
            if len(scores) < len(METHODS):
                continue
            rival = max(("sgd", "adam"), key=scores.__getitem__)
            ahead.append(scores["ipdlam"] - CLEAR > scores[rival])
            words.append(
                f"{activation}: iPDLAM {percent(scores['ipdlam'])}, DLAM {percent(scores['dlam'])}, {rival} "
                f"{percent(scores[rival])}"
            )
        found.append(
            Claim(
                f"With {deepest} hidden layers and the {initialisation} initialisation, where gradients vanish, "
                "iPDLAM is "
                "ahead of SGD and Adam",
                "no vanishing gradients",
                "; ".join(words),
                judged(ahead),
            )
        )
    return found


EXPERIMENT = Experiment(
    "deep",
    "Depth: where gradients vanish",
    "The claim behind the method: it does not suffer from vanishing gradients, as back-propagation does. Networks of "
    "2 to 20 "
    "hidden layers, nested reverse (the order in which a change of the loss reaches the first layer in one iteration).",
    runs,
    rows,
    (
        Column("initialisation", "initialisation"),
        Column("activation", "activation"),
        Column("depth", "depth", "count"),
        Column("method", "method"),
        *OUTCOME,
    ),
    panels,
    claims,
)
