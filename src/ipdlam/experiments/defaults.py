"""The library's own penalty: which start and which growth serve a user, whatever the initial weights are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.base import OUTCOME, Column, Experiment, Panel, Results, RunSpec, accuracy_row, titled
from ipdlam.experiments.claims import Claim, Row, ahead, by, judged, percent, said, unmeasured
from ipdlam.experiments.setup import datasets, ipdlam

LIBRARY, NOTHING = "the library", "nothing said"
DEFAULT = "0.1, growing (default)"
RIDGE = ("ridge", 1e-5)  # that of the library
VARIANTS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    (DEFAULT, (RIDGE,)),
    ("0.1, constant", (RIDGE, ("penalty_growth", 1.0))),
    ("1, growing", (RIDGE, ("penalty", 1.0))),
    ("10, growing", (RIDGE, ("penalty", 10.0))),
)
INITIALISATIONS = ("paper", "he", "torch")
LENGTH: dict[str, dict[str, Any]] = {  # a part of the data shows it
    "smoke": {},
    "small": {"limit": 10000, "iterations": 60, "evaluate_every": 5},
    "paper": {},
}


def runs(scale: str) -> list[RunSpec]:
    """Every penalty from every kind of initial weights, with the library's ridge."""
    base = ipdlam(scale, datasets(scale)[0]).changed(**LENGTH[scale])
    return [
        base.changed(initialisation=initialisation, settings=settings)
        for initialisation in INITIALISATIONS
        for _, settings in VARIANTS
    ]


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every run."""
    return [
        accuracy_row(spec, results[spec.key], variant=titled(VARIANTS, spec), initialisation=spec.initialisation)
        for spec in specs
    ]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Test accuracy by iteration, for every kind of initial weights."""
    return [
        Panel(
            f"{kind} initialisation", {titled(VARIANTS, spec): spec for spec in mine}, "validation_accuracy", unit="%"
        )
        for kind in INITIALISATIONS
        if (mine := [spec for spec in specs if spec.initialisation == kind])
    ]


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """What each penalty comes to from its worst initial weights decides; of those that were not run it is not known."""
    claim = "The default penalty serves whatever the initial weights are: from its worst ones no other ends ahead of it"
    made = {variant: mine for variant, mine in by("variant", table).items() if len(mine) == len(INITIALISATIONS)}
    if DEFAULT not in made:
        return [unmeasured(claim, NOTHING, LIBRARY)]
    least = {variant: min(row["test_accuracy"] or 0.0 for row in mine) for variant, mine in made.items()}
    words = (
        f"{variant}: {percent(least[variant])} at the least ("
        + ", ".join(f"{row['initialisation']} {said(row, 'test_accuracy')}" for row in mine)
        + ")"
        for variant, mine in made.items()
    )
    tests = [not ahead(least[variant], least[DEFAULT]) for variant in made if variant != DEFAULT]
    missing = [None] * (len(VARIANTS) - len(made))
    return [Claim(claim, NOTHING, f"test accuracy at the end, {'; '.join(words)}", judged([*tests, *missing]), LIBRARY)]


EXPERIMENT = Experiment(
    "defaults",
    "The library's penalty",
    "The paper leaves open where the penalty starts. Here it starts and grows in several ways, with the ridge that the "
    "library adds, from the initial weights of the paper, of He and of torch; at small scale with 10000 samples of "
    "MNIST. A default has to work with all of them.",
    runs,
    rows,
    (Column("initialisation", "initialisation"), Column("penalty", "variant"), *OUTCOME),
    panels,
    claims,
)
