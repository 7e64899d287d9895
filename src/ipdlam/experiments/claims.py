"""How a claim is judged: one rule for several things said at once, and what is clear, close and said in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HOLDS, PARTLY, FAILS, UNMEASURED, OPEN = "holds", "holds partly", "does not hold", "not measured", "no claim"
UNJUDGED = "not judged"  # what smoke runs cannot judge

CLEAR = (
    0.005  # accuracies that differ by less are called equal: 10000 test samples leave an error of 0.3 points at 90 %
)
CLOSE = 0.01  # an accuracy within a point of another one, or of a printed one, is like it


def points(difference: float, one: str = "a") -> str:
    """A difference of accuracies in words.

    >>> points(0.005), points(0.01), points(0.02)
    ('half a point', 'a point', '2 points')
    """
    words = {0.005: "half a point", 0.01: f"{one} point"}
    return words.get(difference, f"{100.0 * difference:g} points")


# What rules call these differences.
LEAD, NEAR, NEAR_ONE = points(CLEAR), points(CLOSE), points(CLOSE, "one")

LEARNED = 0.2  # more than this is more than guessing among ten classes
NOT_RUN = "not run"
PAPER, READING = "the paper", "our reading"  # who says it; a reading goes on from what the paper says
QUESTION = "a question of ours"
# Ends and parts of rules.
TIE = f"Higher means by more than {LEAD}: 94.6 % against 94.7 % is a tie, and a tie does not count as higher."
PARTS = "It holds if all of this is found, and partly if some is."
FIRST = "If one evaluation finds both there, and not every iteration was evaluated, neither is known to be faster."
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
    rule: str = field(kw_only=True)  # how the verdict is reached, in a plain sentence or two


def unmeasured(claim: str, paper: str, source: str = PAPER, *, rule: str) -> Claim:
    """A claim for which the runs are not there."""
    return Claim(claim, paper, NOT_RUN, UNMEASURED, source, rule=rule)


def question(words: str, ours: str, paper: str = "") -> Claim:
    """Something that the paper leaves open, and what was found."""
    return Claim(words, paper, ours, OPEN, QUESTION, rule="")


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


def partly_known(row: Row, key: str) -> bool:
    """Whether some of the seeds only have a value, so that there is no mean to judge."""
    return f"{key}{KNOWN}" in row


def certain(row: Row, key: str, test: Callable[[Any], bool]) -> bool | None:
    """What a test finds of a value; not known where some of the seeds only have one."""
    return None if partly_known(row, key) else test(row[key])


def every(tests: Sequence[bool | None]) -> bool | None:
    """Whether all of several are so: one that is not settles it, one that is not known leaves it open."""
    return False if False in tests else None if None in tests else True


def compared(better: Callable[[Any, Any], bool], mine: Row, theirs: Row, key: str) -> bool | None:
    """Whether one run is better there than another; not known where some of the seeds only have a value."""
    return None if partly_known(mine, key) or partly_known(theirs, key) else better(mine[key], theirs[key])


def highest(rows: Sequence[Row], key: str) -> Row:
    """The row with the highest value; one that some of the seeds only have may be it, and is taken for it."""
    return max(rows, key=lambda row: math.inf if partly_known(row, key) else row[key] or 0.0)


def earlier(mine: Row, theirs: Row, key: str) -> bool | None:
    """Whether one run is there in fewer iterations.

    Not known where some of the seeds only are there at all, nor where both are first seen there by the same evaluation
    and the iterations before it were not evaluated.
    """
    tie = mine[key] is not None and mine[key] == theirs[key]
    return None if tie and mine["evaluated_every"] > 1 else compared(lower, mine, theirs, key)


def reaches(ours: float | None, printed: float, close: float = CLOSE) -> bool:
    """Whether an accuracy is as good as a printed one."""
    return ours is not None and ours >= printed - close


def alike(rows: Sequence[Row], key: str) -> bool | None:
    """Whether accuracies are close to each other; a run that diverged is like no other."""
    if any(partly_known(row, key) for row in rows):
        return None
    known = [row[key] for row in rows if row[key] is not None]
    return len(known) == len(rows) and max(known) - min(known) <= CLOSE


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
    return "diverged" if always_diverged(row) else f"diverged in {row['diverged_seeds']} of {row['seeds']} seeds"


def always_diverged(row: Row) -> bool:
    """Whether a run diverged with every seed."""
    return bool(row["diverged_seeds"] == row["seeds"])


def when(row: Row, key: str, unit: str = "") -> str:
    """Iterations or seconds until something is reached, in words."""
    if row.get(key) is None:
        known = row.get(f"{key}{KNOWN}")
        return "never" if known is None else f"only in {known} of {row['seeds']} seeds"
    return f"{row[key]:.0f}{f' {unit}' if unit else ''}"


def said(row: Row, key: str, show: Callable[[float], str] = percent) -> str:
    """What a run has, in words; where it has nothing, why."""
    if row[key] is None:
        return divergence(row) if row["diverged"] else "never measured"
    return show(row[key])
