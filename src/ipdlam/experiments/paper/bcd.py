"""Block coordinate descent and dlADMM: whether these baselines are what their authors made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.claims import Claim, Row, certain, judged, percent, said, unmeasured
from ipdlam.experiments.paper.setup import datasets
from ipdlam.experiments.spec import OUTCOME, Column, Experiment, Panel, Results, RunSpec, accuracy_row, three_panels

HIDDEN = {"smoke": (20,) * 3, "small": (300,) * 3, "paper": (1500,) * 3}
ITERATIONS = {"smoke": 8, "small": 50, "paper": 50}
METHODS = {"smoke": ("bcd", "dladmm", "dlam"), "small": ("bcd", "dladmm", "dlam"), "paper": ("bcd",)}
AUTHORS = "Zeng et al."
RELEASED = (0.944, 0.95)  # test accuracy of Zeng et al. with three hidden layers of 1500 after 50 iterations


def runs(scale: str) -> list[RunSpec]:
    """Three hidden layers, as in the release of Zeng et al."""
    every = 1 if scale == "smoke" else 5
    spec = RunSpec(datasets(scale)[0], "bcd", HIDDEN[scale], ITERATIONS[scale], evaluate_every=every)
    return [spec.changed(method=method) for method in METHODS[scale]]


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every method."""
    return [accuracy_row(spec, results[spec.key]) for spec in specs]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Training and test accuracy by iteration; each minimises a function of its own."""
    found = three_panels(specs, lambda spec: spec.method)
    return [panel for panel in found if panel.column != "objective"]


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """The released figure, for the network it was released for."""
    if scale != "paper":  # another network
        return []
    mine = next((row for row in table if row["method"] == "bcd"), None)
    low, high = RELEASED
    claim = (
        "Block coordinate descent (Zeng et al.) has its authors' test accuracy on MNIST with three hidden layers of "
        "1500 after 50 iterations"
    )
    released = f"{percent(low)} to {percent(high)}"
    rule = "It holds if the test accuracy after the last iteration lies in the released range, which is taken as it is."
    if mine is None:
        return [unmeasured(claim, released, AUTHORS, rule=rule)]
    return [
        Claim(
            claim,
            released,
            f"{said(mine, 'test_accuracy')} with hidden layers of {', '.join(map(str, mine['hidden']))}",
            judged([certain(mine, "test_accuracy", lambda value: low <= (value or 0.0) <= high)]),
            AUTHORS,
            rule=rule,
        )
    ]


EXPERIMENT = Experiment(
    "bcd",
    "The other alternating methods",
    "DLAM means two things in the literature: this algorithm without inertia and proximal terms (dlam), and the block "
    "coordinate descent of Zeng et al. (bcd). dlADMM is the method of Wang et al., whose set-up the paper follows.",
    runs,
    rows,
    (Column("method", "method"), *OUTCOME[1:]),
    panels,
    claims,
)
