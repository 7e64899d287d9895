"""The gaps close while the accuracy falls: what stops the decay. The paper does not speak of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipdlam.experiments.claims import (
    CLEAR,
    FAILS,
    HOLDS,
    LEAD,
    READING,
    UNMEASURED,
    Claim,
    Row,
    ahead,
    at_best,
    lower,
    number,
    percent,
    question,
    said,
    unmeasured,
)
from ipdlam.experiments.paper.setup import LETTER, datasets, ipdlam
from ipdlam.experiments.spec import (
    OUTCOME,
    Column,
    Experiment,
    Panel,
    Results,
    RunSpec,
    accuracy_row,
    gaps,
    three_panels,
    titled,
)

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
FRESH = "mini-batches, each with a fresh forward pass"


def runs(scale: str) -> list[RunSpec]:
    """iPDLAM at 0.7 as it is, with a ridge, with other penalties, and the mini-batch method for as many epochs."""
    base = ipdlam(scale, datasets(scale)[0], LETTER)
    chosen = [settings for title, settings in VARIANTS if scale != "paper" or title in AT_PAPER_SCALE]
    fresh = [] if scale == "paper" else [base.changed(method="minibatch").without("inertia", "proximity")]
    return [*(base.changed(settings=settings) for settings in chosen), *fresh]


def title(spec: RunSpec) -> str:
    """What a run is called."""
    return FRESH if spec.method == "minibatch" else titled(VARIANTS, spec)


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every variant, with its first iterate of those evaluated, and what it loses from its best to its last."""
    found = []
    for spec in specs:
        result = results[spec.key]
        row = accuracy_row(spec, result, variant=title(spec))
        best, last = row["best_test_accuracy"], row["test_accuracy"]
        row["decay"] = None if best is None or last is None else best - last
        first = next(
            (k for k in range(1, row["iterations"] + 1) if result.at("validation_accuracy", k) is not None), None
        )
        row["first_iteration"], row["first_test_accuracy"] = first, result.at("validation_accuracy", first)
        row["gaps_at_first"], row["gaps"] = None if first is None else gaps(result, first), gaps(result)
        found.append(row)
    return found


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration; the mini-batch method has a Phi of its own."""
    return three_panels(specs, title, other_phi=["minibatch"])


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """That a small Phi means an accurate network; and what helps."""
    at = {row["variant"]: row for row in table}
    claim = "What is minimised measures progress: while the gaps close, the network gets better"
    paper = "objective and accuracy shown side by side, both improving"
    rule = (
        f"Where the gaps have closed, the last iterate has to be more than {LEAD} better than the first that was "
        f"evaluated, and at most {LEAD} below the best. With gaps that did not close there is nothing to judge."
    )
    if PLAIN not in at:
        return [unmeasured(claim, paper, READING, rule=rule)]
    shown = at.get(CONSTANT, at[PLAIN])  # Phi grows with rho, if that does; the gaps do not
    falls = shown["decay"] is not None and lower(shown["gaps"], shown["gaps_at_first"])
    better = falls and shown["decay"] <= CLEAR and ahead(shown["test_accuracy"], shown["first_test_accuracy"])
    found = [
        Claim(
            claim,
            paper,
            f"{shown['variant']}: from iteration {number(shown['first_iteration'])}, the first that was evaluated, to "
            f"{shown['iterations']:.0f} the squared gaps go from "
            f"{number(shown['gaps_at_first'])} to {number(shown['gaps'])}; the test accuracy is "
            f"{percent(shown['first_test_accuracy'])} at first, {at_best(shown)} and "
            f"{said(shown, 'test_accuracy')} at the end, Phi {number(shown['objective_at_best'])} and "
            f"{said(shown, 'objective', number)}",
            UNMEASURED if not falls else HOLDS if better else FAILS,
            READING,
            rule=rule,
        )
    ]
    cures = (
        f"{variant}: {said(row, 'test_accuracy')} (best {said(row, 'best_test_accuracy')})"
        for variant, row in at.items()
    )
    if len(at) > 1:
        found.append(question("What stops the decay", f"test accuracy at the end, {'; '.join(cures)}"))
    return found


EXPERIMENT = Experiment(
    "decay",
    "Does a smaller objective mean a better network?",
    "The activations of a sample can learn its label faster than the weights can follow, and the last layer is then "
    "fitted to activations that no forward pass gives. What keeps the accuracy: a ridge on the weights, another "
    "penalty, the best iterate instead of the last, or fresh activations from a forward pass for every batch (the "
    "mini-batch method, with its defaults, for as many epochs)?",
    runs,
    rows,
    (Column("variant", "variant"), Column("below its best", "decay", "points"), *OUTCOME),
    panels,
    claims,
)
