"""Depth: the claim behind the method is that back-propagation fails where gradients vanish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipdlam.experiments.claims import (
    CLOSE,
    LEARNED,
    NEAR,
    NOT_RUN,
    READING,
    Claim,
    Row,
    ahead,
    by,
    certain,
    compared,
    every,
    highest,
    judged,
    partly_known,
    percent,
    question,
    said,
)
from ipdlam.experiments.paper.setup import datasets
from ipdlam.experiments.spec import OUTCOME, Column, Experiment, Panel, Results, RunSpec, accuracy_row

DEPTHS = {"smoke": (2, 5), "small": (2, 3, 5, 10, 20), "paper": (2, 3, 5, 10, 20)}
WIDTH = {"smoke": 12, "small": 100, "paper": 300}
ITERATIONS = {"smoke": 3, "small": 30, "paper": 30}
LIMIT = {"smoke": 300, "small": 10000, "paper": None}
DEEPEST = max(DEPTHS["paper"])
NAMES = {"ipdlam": "iPDLAM", "dlam": "DLAM"}
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


def hidden_layers(spec: RunSpec) -> float:
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
            across=hidden_layers,
        )
        for initialisation in INITIALISATIONS
        for activation in ACTIVATIONS
    ]


RULE = (
    f"For each activation the best test accuracy of iPDLAM has to be over {percent(LEARNED)}, which is more than "
    f"guessing, and more than {NEAR} above both optimizers. It holds if that is so for all three activations, and "
    "partly if for some."
)


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """Whether iPDLAM is ahead of the better optimizer in the deepest networks."""
    best = {(row["method"], row["activation"], row["initialisation"]): row for row in table if row["depth"] == DEEPEST}
    return [
        Claim(
            f"With {DEEPEST} hidden layers and the {initialisation} initialisation, where gradients vanish, iPDLAM is "
            "ahead of SGD and Adam",
            "no vanishing gradients",
            "; ".join(words for words, _ in cases if words) or NOT_RUN,
            judged([found for _, found in cases]),
            READING,
            rule=RULE,
        )
        for initialisation in INITIALISATIONS
        for cases in [[deepest_case(best, activation, initialisation) for activation in ACTIVATIONS]]
    ] + [how_deep(table, initialisation) for initialisation in INITIALISATIONS if table]


def how_deep(table: Sequence[Row], initialisation: str) -> Claim:
    """The most layers with which a method learns more than guessing, for every activation."""
    words = []
    for activation in ACTIVATIONS:
        here = [row for row in table if (row["activation"], row["initialisation"]) == (activation, initialisation)]
        made = by("method", here)
        learned = {method: deepest(rows) for method, rows in made.items()}
        words += (
            [f"{activation}: {', '.join(f'{NAMES.get(method, method)} {most}' for method, most in learned.items())}"]
            if made
            else []
        )
    return question(
        f"How many hidden layers leave more than {percent(LEARNED)} test accuracy, {initialisation} initialisation",
        "; ".join(words) or NOT_RUN,
    )


def deepest(rows: Sequence[Row]) -> str:
    """With how many layers more than guessing was learned, at most, and for how many that is not known."""
    key = "best_test_accuracy"
    most = max((row["depth"] for row in rows if (row[key] or 0.0) > LEARNED), default=0)
    some = max((row["depth"] for row in rows if partly_known(row, key)), default=0)
    return f"{most or 'none'}" + (f", {some} not known" if some > most else "")


def deepest_case(
    best: Mapping[tuple[str, str, str], Row], activation: str, initialisation: str
) -> tuple[str, bool | None]:
    """Whether iPDLAM has learned something and is ahead of the better optimizer, in words and as a test."""
    cases = ((method, (method, activation, initialisation)) for method in METHODS)
    made = {method: best[case] for method, case in cases if case in best}
    if not {"ipdlam", "sgd", "adam"} <= set(made):
        return "", None
    key = "best_test_accuracy"
    mine, rivals = made["ipdlam"], [made["sgd"], made["adam"]]
    rival = highest(rivals, key)["method"]
    words = ", ".join(
        f"{NAMES.get(method, method)} {said(made[method], key)}"
        for method in ("ipdlam", "dlam", rival)
        if method in made
    )
    learned = certain(mine, key, lambda value: value is not None and value > LEARNED)
    leads = [compared(lambda ours, theirs: ahead(ours, theirs, CLOSE), mine, row, key) for row in rivals]
    return f"{activation}: {words}", every([learned, *leads])


EXPERIMENT = Experiment(
    "deep",
    "Depth: where gradients vanish",
    "The claim behind the method: it does not suffer from vanishing gradients, as back-propagation does. Networks of 2 "
    f"to 20 hidden layers, of {WIDTH['small']} units on the first {LIMIT['small']} samples at the small scale, of "
    f"{WIDTH['paper']} on all at the paper's; {ITERATIONS['small']} iterations or epochs. The alternating methods go "
    "in nested reverse, the order in which a change of the loss reaches the first layer in one iteration; with it, an "
    "iteration visits the data once for every layer, an epoch once. SGD at rate "
    f"{dict(METHODS['sgd'])['learning_rate']}, Adam at {dict(METHODS['adam'])['learning_rate']}, batches of "
    f"{dict(METHODS['adam'])['batch_size']}. The accuracies are the best of a run; what has not learned more than "
    f"{percent(LEARNED)} is ahead of nothing, and a lead is one of more than {NEAR}.",
    runs,
    rows,
    (
        Column("initialisation", "initialisation"),
        Column("activation", "activation"),
        Column("depth", "depth", "count"),
        Column("method", "method"),
        *OUTCOME[1:],
    ),
    panels,
    claims,
)
