"""How a claim is judged: one rule for several things said at once, and what is clear, close and said in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HOLDS, PARTLY, FAILS, UNMEASURED, OPEN = "holds", "holds partly", "does not hold", "not measured", "no claim"

CLEAR = (
    0.005  # accuracies that differ by less are called equal: 10000 test samples leave an error of 0.3 points at 90 %
)
CLOSE = 0.01  # an accuracy within a point of another one, or of a printed one, is like it

LEARNED = 0.2  # more than this is more than guessing among ten classes
NOT_RUN = "not run"
PAPER, READING = "the paper", "our reading"  # who says it; a reading goes on from what the paper says
QUESTION = "a question of ours"
KNOWN = "_known"  # the end of the name of a mean: how many seeds have a value, where not all do

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """One thing the paper says, or leaves open, and what was measured."""

    claim: str
    paper: str  # its number, or its words
    ours: str
    verdict: str
    source: str = PAPER


def unmeasured(claim: str, paper: str, source: str = PAPER) -> Claim:
    """A claim for which the runs are not there."""
    return Claim(claim, paper, NOT_RUN, UNMEASURED, source)


def question(words: str, ours: str, paper: str = "") -> Claim:
    """Something that the paper leaves open, and what was found."""
    return Claim(words, paper, ours, OPEN, QUESTION)


def judged(tests: Sequence[bool | None]) -> str:
    """The word for a claim that says several things, each found, not found, or (None) not measured.

    What was not measured keeps a claim from holding. It does not keep one from failing: where nothing that was measured
    was found, the rest can no longer make it hold.
    """
    known = [test for test in tests if test is not None]
    if not known:
        return UNMEASURED
    return HOLDS if all(tests) else PARTLY if any(known) else FAILS


def ahead(ours: float | None, theirs: float | None, lead: float = CLEAR) -> bool:
    """Whether an accuracy is clearly higher; the end of a run that diverged has none, and is behind every other."""
    return ours is not None and (theirs is None or ours > theirs + lead)


def lower(ours: float | None, theirs: float | None) -> bool:
    """Whether a number is smaller; the end of a run that diverged has none, and is behind every other."""
    return ours is not None and (theirs is None or ours < theirs)


def compared(better: Callable[[Any, Any], bool], mine: Row, theirs: Row, key: str) -> bool | None:
    """Whether one run is better there than another; not known where some of the seeds only have a value."""
    partly = any(f"{key}{KNOWN}" in row for row in (mine, theirs))
    return None if partly else better(mine[key], theirs[key])


def earlier(mine: Row, theirs: Row, key: str) -> bool | None:
    """Whether one run is there in fewer iterations.

    Not known where some of the seeds only are there at all, nor where both are first seen there by the same evaluation
    and the iterations before it were not evaluated.
    """
    tie = mine[key] is not None and mine[key] == theirs[key]
    return None if tie and mine["evaluated_every"] > 1 else compared(lower, mine, theirs, key)


def reaches(ours: float | None, printed: float) -> bool:
    """Whether an accuracy is as good as a printed one."""
    return ours is not None and ours >= printed - CLOSE


def alike(values: Sequence[float | None]) -> bool:
    """Whether accuracies are close to each other; a run that diverged is like no other."""
    known = [value for value in values if value is not None]
    return len(known) == len(values) and max(known) - min(known) <= CLOSE


def spread(values: Sequence[float | None]) -> str:
    """How far accuracies lie apart, in words."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"not to be compared ({len(values) - len(known)} of {len(values)} diverged)"
    return f"{100.0 * (max(known) - min(known)):.1f} points apart"


def within_a_decade(ours: float | None, printed: float) -> bool:
    """Whether a positive number is no further from another than a factor of ten."""
    return ours is not None and ours > 0.0 and abs(math.log10(ours / printed)) <= 1.0


def by(key: str, rows: Sequence[Row]) -> dict[Any, list[Row]]:
    """The rows that have the same value there."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def percent(value: float | None) -> str:
    """An accuracy in words."""
    return "none" if value is None else f"{100.0 * value:.1f} %"


def number(value: float | None) -> str:
    """A number in words."""
    return "none" if value is None else f"{value:.3g}"


def at_best(row: Row) -> str:
    """The best test accuracy of a run and where it was."""
    if row["best_iteration"] is None:
        return "never measured"
    return f"{percent(row['best_test_accuracy'])} at iteration {row['best_iteration']:.0f}"


def divergence(row: Row) -> str:
    """That a run diverged, in all seeds or in some."""
    seeds, diverged = row.get("seeds", 1), row.get("diverged_seeds", 1)
    return "diverged" if diverged == seeds else f"diverged in {diverged} of {seeds} seeds"


def said(row: Row, key: str, show: Callable[[float], str] = percent) -> str:
    """What a run has, in words; where it has nothing, why."""
    if row[key] is None:
        return divergence(row) if row["diverged"] else "never measured"
    return show(row[key])
