"""Figure 1: iPDLAM with three inertias against DLAM, in both senses of that name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ipdlam.experiments.claims import (
    FAILS,
    FIRST,
    HOLDS,
    PAPER,
    READING,
    TIE,
    UNMEASURED,
    Claim,
    Row,
    ahead,
    at_best,
    by,
    compared,
    earlier,
    judged,
    lower,
    number,
    percent,
    question,
    said,
    unmeasured,
)
from ipdlam.experiments.paper.setup import CHOSEN, LETTER, Reading, datasets, dlam, ipdlam
from ipdlam.experiments.spec import (
    OUTCOME,
    START,
    Column,
    Experiment,
    Panel,
    Results,
    RunSpec,
    accuracy_row,
    three_panels,
)

INERTIAS = (0.2, 0.5, 0.7)
SENSES = {"dlam": "DLAM", "bcd": "DLAM (Zeng et al.)"}


class Lead(NamedTuple):
    """Something that is said of iPDLAM and DLAM."""

    words: str
    key: str
    show: Callable[[float | None], str]
    better: Callable[[Row, Row, str], bool | None]  # of the two runs, in what has the key
    rule: str
    source: str = PAPER


SMALLER = "Phi is compared after the last iteration; any smaller number is smaller."
SOONER = f"The iteration of the best test accuracy is compared. {FIRST}"
LEADS = (
    Lead("a smaller objective", "objective", number, partial(compared, lower), SMALLER),
    Lead("a higher training accuracy at the end", "train_accuracy", percent, partial(compared, ahead), TIE),
    Lead("a higher test accuracy at the end", "test_accuracy", percent, partial(compared, ahead), TIE),
    Lead("a higher test accuracy at its best", "best_test_accuracy", percent, partial(compared, ahead), TIE, READING),
    Lead("its best in fewer iterations", "best_iteration", number, earlier, SOONER, READING),
)


def runs(scale: str, reading: Reading = CHOSEN) -> list[RunSpec]:
    """DLAM in both senses, the proximal terms without inertia, and the three inertias."""
    return [
        spec
        for data in datasets(scale)
        for spec in (
            dlam(scale, data, reading),
            dlam(scale, data, LETTER).changed(method="bcd"),
            *(ipdlam(scale, data, reading, inertia) for inertia in (0.0, *INERTIAS)),
        )
    ]


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return SENSES.get(spec.method) or f"iPDLAM, inertia {dict(spec.settings)['inertia']}"


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every line."""
    return [
        accuracy_row(spec, results[spec.key], name=name(spec), inertia=dict(spec.settings).get("inertia"))
        for spec in specs
    ]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Phi, training and test accuracy by iteration."""
    return three_panels(specs, name, other_phi=["bcd"])


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """The paper: smaller Phi and higher accuracy than DLAM, for every inertia."""
    found, made = [], by("data", table)
    for data in datasets(scale):
        mine = made.get(data, [])
        at = {row["inertia"]: row for row in mine if row["method"] == "ipdlam"}
        others = [at[inertia] for inertia in INERTIAS if inertia in at]
        senses = {row["method"]: row for row in mine if row["method"] in SENSES}
        for method, name in SENSES.items():
            found += [
                comparison(
                    f"{data}: iPDLAM has {lead.words} than {name}"
                    + (" has its" if lead.key == "best_iteration" else ""),
                    lead,
                    senses.get(method),
                    others,
                )
                for lead in LEADS
                if method == "dlam" or lead.key != "objective"  # each has an objective of its own
            ]
        found.append(not_descending(data, others, senses.get("dlam")))
        if "dlam" in senses and 0.0 in at and INERTIAS[-1] in at:
            found.append(parts(data, senses["dlam"], at[0.0], at[INERTIAS[-1]]))
    return found


def comparison(claim: str, lead: Lead, base: Row | None, others: Sequence[Row]) -> Claim:
    """Whether it is so for every inertia; of one that was not run it is not known."""
    paper, key, show = "so for inertia 0.2, 0.5 and 0.7", lead.key, lead.show
    rule = f"{lead.rule} It holds if it is so for all three inertias, and partly if for some."
    if base is None or not others:
        return unmeasured(claim, paper, lead.source, rule=rule)
    words = (f"{row['inertia']}: {said(row, key, show)}" for row in others)
    missing = [None] * (len(INERTIAS) - len(others))
    return Claim(
        claim,
        paper,
        f"{SENSES[base['method']]} {said(base, key, show)}; inertia {', '.join(words)}"
        + (weighed_alike(base, others) if key == "objective" else ""),
        judged([*(lead.better(row, base, key) for row in others), *missing]),
        lead.source,
        rule=rule,
    )


def weighed_alike(base: Row, others: Sequence[Row]) -> str:
    """The same iterates at the first rho, in words: the loss counts for more there, and the order may be another."""
    key = "objective_reweighed"
    words = (f"{row['inertia']}: {said(row, key, number)}" for row in others)
    return f" (the same iterates at rho = {START}: DLAM {said(base, key, number)}; {', '.join(words)})"


def not_descending(data: str, others: Sequence[Row], base: Row | None) -> Claim:
    """The paper says so of its curves; whose doing it is, inertia's or the penalty's, the experiment on that says."""
    claim, paper = f"{data}: Phi does not always descend", "not always"
    rule = "It holds if Phi rises after some iteration with one of the three inertias."
    long_enough = [row for row in others if row["iterations"] > 1]
    if not long_enough:
        return unmeasured(claim, paper, rule=rule)
    named = {**{f"inertia {row['inertia']}": row for row in long_enough}, **({"DLAM": base} if base else {})}
    words = (f"{name}: {row['rises']:.3g} of {row['iterations'] - 1:.3g}" for name, row in named.items())
    some = any(row["rises"] > 0 for row in long_enough)
    verdict = HOLDS if some else FAILS if len(long_enough) == len(INERTIAS) else UNMEASURED  # another one may rise
    return Claim(claim, paper, f"iterations in which it rises, {', '.join(words)}", verdict, rule=rule)


def parts(data: str, none: Row, proximal: Row, both: Row) -> Claim:
    """DLAM has neither proximal terms nor inertia: which of them makes the difference."""
    lines = {"DLAM": none, "proximal terms without inertia": proximal, f"inertia {both['inertia']}, too": both}
    words = (
        f"{line}: best test {at_best(row)}, at the end {said(row, 'test_accuracy')}" for line, row in lines.items()
    )
    return question(f"{data}: what the proximal terms do, and what inertia adds", "; ".join(words))


ABOUT = (
    "The method with inertia 0.2, 0.5 and 0.7 and delta = 1, and without either (DLAM), from the same weights and with "
    "the same rho. The paper gives its DLAM the default parameters of Zeng et al., whose block coordinate descent is a "
    "method of its own, minimises another function and stands beside it. Phi is compared at the end of the runs, where "
    "all have the same rho; weighed at the first rho, where the loss counts for more, the same iterates may come in "
    "another order. Since delta changes with inertia between DLAM "
    "and the others, delta = 1 is also run without inertia."
)
EXPERIMENT = Experiment(
    "fig1",
    "Figure 1: iPDLAM against DLAM",
    ABOUT,
    runs,
    rows,
    (Column("data", "data"), Column("method", "name"), *OUTCOME),
    panels,
    claims,
)
