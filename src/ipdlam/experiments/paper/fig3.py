"""Figure 3: iPDLAM against the classical optimizers, by iteration and by seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipdlam.experiments.claims import (
    CLEAR,
    CLOSE,
    FAILS,
    FIRST,
    HOLDS,
    LEAD,
    LEARNED,
    NEAR,
    NEAR_ONE,
    PAPER,
    PARTS,
    READING,
    TIE,
    UNMEASURED,
    Claim,
    Row,
    ahead,
    alike,
    always_diverged,
    at_best,
    by,
    compared,
    earlier,
    highest,
    judged,
    partly_known,
    percent,
    question,
    reaches,
    said,
    unmeasured,
    when,
)
from ipdlam.experiments.paper.setup import CHOSEN, Reading, datasets, ipdlam, optimizer
from ipdlam.experiments.paper.table1 import PAPER_HIDDEN, at_seven
from ipdlam.experiments.spec import (
    OUTCOME,
    Column,
    Experiment,
    Panel,
    Results,
    RunResult,
    RunSpec,
    accuracy_row,
    reached,
    scores,
)

# Those that the paper compares with in its figure, those whose rates it speaks of, and all that it names.
COMPARED = ("sgd", "adagrad", "adadelta", "adam", "adamax")
RATED = ("sgd", "rmsprop", "adam", "adadelta", "amsgrad", "adamax")
OPTIMIZERS = ("sgd", "adagrad", "adadelta", "rmsprop", "adam", "amsgrad", "adamax")
PAPER_RATE = 0.001
RATES = {"smoke": (0.001, 0.01), "small": (0.001, 0.01, 0.05), "paper": (0.001,)}
EPOCHS_AT_OTHER_RATES = {"smoke": 8, "small": 60}  # they are faster than the paper's, which has its 200
EARLY = 40  # iterations in which the paper's method is always ahead
LATE = 0.9  # of a run; what changes clearly after it has not converged
FEW = 10  # iterations before which it has learned quite good parameters


def runs(scale: str, reading: Reading = CHOSEN) -> list[RunSpec]:
    """iPDLAM at 0.7, and every optimizer at every rate; at the size of the paper those of its figure, at its rate."""
    data = datasets(scale)[0]
    names = COMPARED if scale == "paper" else OPTIMIZERS
    found = [ipdlam(scale, data, reading)]
    for rate in RATES[scale]:
        for each in names:
            spec = optimizer(scale, data, each, rate)
            found.append(spec if rate == PAPER_RATE else spec.changed(iterations=EPOCHS_AT_OTHER_RATES[scale]))
    return found


def name(spec: RunSpec) -> str:
    """A line of the figure."""
    return "iPDLAM" if spec.method == "ipdlam" else f"{spec.method} {dict(spec.settings)['learning_rate']}"


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every run, with how it stands to iPDLAM, where that was made."""
    mine = next((results[spec.key] for spec in specs if spec.method == "ipdlam"), None)
    found = []
    for spec in specs:
        result = results[spec.key]
        row = accuracy_row(spec, result, name=name(spec), learning_rate=dict(spec.settings).get("learning_rate"))
        row["test_accuracy_in_few"] = max(scores(result, "validation_accuracy", FEW - 1).values(), default=None)
        row["stable_iteration"] = stable(result)
        row["late_gain"] = late_gain(result)
        if mine is not None:
            row["smallest_train_lead"] = smallest_lead(mine, result, "train_accuracy")
            row["smallest_test_lead"] = smallest_lead(mine, result, "validation_accuracy")
            row["train_level_iteration"] = reached(mine, result, "train_accuracy")
            row["level_iteration"] = reached(mine, result, "validation_accuracy")
            row["level_seconds"] = result.at("seconds", row["level_iteration"])
        found.append(row)
    return found


def smallest_lead(mine: RunResult, theirs: RunResult, column: str) -> float | None:
    """By how much mine is ahead where it is least so, among the early iterations after which both were evaluated."""
    first, second = (scores(result, column, EARLY) for result in (mine, theirs))
    return min((first[k] - second[k] for k in first.keys() & second.keys()), default=None)


def stable(result: RunResult) -> int | None:
    """The first evaluated iteration from which on the test accuracy stays close to where it ends."""
    found = scores(result, "validation_accuracy")
    if result.diverged or max(found.values(), default=0.0) <= LEARNED:  # what learns nothing is stable at once
        return None
    iterations = sorted(found)
    end = found[iterations[-1]]
    away = [place for place, k in enumerate(iterations) if abs(found[k] - end) > CLOSE]
    return iterations[away[-1] + 1 if away else 0]


def late_gain(result: RunResult) -> float | None:
    """By how much the test accuracy changes in the last tenth of a run."""
    found = scores(result, "validation_accuracy")
    if result.diverged or not found:
        return None
    last = max(found)
    return found[last] - found[max((k for k in found if k <= LATE * last), default=last)]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Training and test accuracy at the paper's rate, by iteration and by seconds."""
    shown = [spec for spec in specs if dict(spec.settings).get("learning_rate", PAPER_RATE) == PAPER_RATE]
    lines = {name(spec): spec for spec in shown}
    return [
        Panel(specs[0].data, lines, column, against=against, unit="%")
        for against in ("iteration", "seconds")
        for column in ("train_accuracy", "validation_accuracy")
    ]


@dataclass(frozen=True)
class OfAll:
    """Something that is said of iPDLAM and each of the optimizers."""

    claim: str
    paper: str
    test: Callable[[Row, Row], bool | None]  # of iPDLAM and one of them
    mine: Callable[[Row], str]  # how ours begins
    theirs: Callable[[Row], str]
    rule: str  # for one of them


def fewer_iterations(kind: str, key: str) -> OfAll:
    """When a level is reached, in iterations."""
    return OfAll(
        f"It takes fewer iterations to reach the same {kind} accuracy",
        "fewer",
        lambda mine, row: earlier(mine, row, key),
        lambda mine: f"{NEAR} below its best after {when(mine, key)} iterations; ",
        lambda row: when(row, key),
        f"The level is {NEAR} below the best {kind} accuracy of iPDLAM. {FIRST}",
    )


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """What the paper says of the classical optimizers, at its rate and at the best of ours."""
    mine = next((row for row in table if row["method"] == "ipdlam"), None)
    others = by("method", [row for row in table if row["method"] != "ipdlam"])
    at_paper = [row for rows in others.values() for row in rows if row["learning_rate"] == PAPER_RATE]
    own = Rivals([row for row in at_paper if row["method"] in COMPARED], COMPARED, f"at rate {PAPER_RATE}", PAPER)
    found = [few(mine), *comparisons(mine, own)]
    if len(RATES[scale]) > 1:
        complete = [rows for rows in others.values() if len(rows) == len(RATES[scale])]
        best = [highest(rows, "best_test_accuracy") for rows in complete]
        found += comparisons(mine, Rivals(best, OPTIMIZERS, "each at its best rate", READING))
        found.append(rates_alike({method: rows for method, rows in others.items() if method in RATED}, RATES[scale]))
    return [*found, not_converging(next((row for row in own.rows if row["method"] == "sgd"), None))]


@dataclass(frozen=True)
class Rivals:
    """Optimizers, those of ``names`` that were run, to hold iPDLAM against."""

    rows: Sequence[Row]
    names: Sequence[str]
    rates: str
    source: str

    @property
    def missing(self) -> str:
        """How many were run, in words, where it is not all of them."""
        made, meant = len(self.rows), len(self.names)
        return f" ({made} of {meant} were run)" if made < meant else ""


def comparisons(mine: Row | None, rivals: Rivals) -> list[Claim]:
    """All that is said of iPDLAM and each of them, and how long they take, of which nothing is said."""
    first, *rest = (of_all(each, mine, rivals) for each in OF_ALL)
    found = [first, most(mine, rivals), *rest]
    if mine is not None and rivals.rows:
        seconds = ", ".join(f"{row['method']} {when(row, 'level_seconds', 's')}" for row in rivals.rows)
        ours = f"iPDLAM {when(mine, 'level_seconds', 's')}; {seconds}"
        found.append(question(f"How many seconds they take to reach that test accuracy ({rivals.rates})", ours))
    return found


def of_all(said_of: OfAll, mine: Row | None, rivals: Rivals) -> Claim:
    """Whether it is so of all of them; of those that were not run it is not known."""
    claim = f"{said_of.claim} ({rivals.rates})"
    rule = f"{said_of.rule} It holds if so against all {len(rivals.names)} optimizers, and partly if against some."
    if mine is None or not rivals.rows:
        return unmeasured(claim, said_of.paper, rivals.source, rule=rule)
    missing = [None] * (len(rivals.names) - len(rivals.rows))
    words = ", ".join(f"{row['method']} {said_of.theirs(row)}" for row in rivals.rows)
    verdict = judged([*(said_of.test(mine, row) for row in rivals.rows), *missing])
    ours = said_of.mine(mine) + words + rivals.missing
    return Claim(claim, said_of.paper, ours, verdict, rivals.source, rule=rule)


def led(mine: Row, row: Row) -> bool | None:
    """Whether iPDLAM was clearly ahead of a rival all the time; not known where there is nothing to compare."""
    leads = [row[f"smallest_{kind}_lead"] for kind in ("train", "test")]
    return None if None in leads else all(ahead(lead, 0.0) for lead in leads)


def lead(row: Row, key: str) -> str:
    """Points in words."""
    return said(row, key, lambda value: f"{100.0 * value:+.1f}")


OF_ALL = (
    OfAll(
        f"In the first {EARLY} iterations iPDLAM is always better than all of them",
        'always, "both in" (the sentence breaks off)',
        led,
        lambda mine: "its smallest lead in test accuracy (in training accuracy), in points, is on ",
        lambda row: f"{lead(row, 'smallest_test_lead')} ({lead(row, 'smallest_train_lead')})",
        f"Its smallest lead, in test and in training accuracy, has to be more than {LEAD}, among the iterations "
        "after which both were evaluated.",
    ),
    OfAll(
        "It cannot beat them on training accuracy",
        "cannot beat them",
        lambda mine, row: compared(lambda ours, theirs: not ahead(ours, theirs), mine, row, "train_accuracy"),
        lambda mine: f"at the end {said(mine, 'train_accuracy')}; ",
        lambda row: said(row, "train_accuracy"),
        f"It must not end more than {LEAD} ahead.",
    ),
    OfAll(
        "It is the fastest to be stable",
        "the fastest",
        lambda mine, row: earlier(mine, row, "stable_iteration"),
        lambda mine: f"within {NEAR} of its end from iteration {when(mine, 'stable_iteration')} on; ",
        lambda row: when(row, "stable_iteration"),
        f"Stable is from where the test accuracy stays within {NEAR} of the last one. {FIRST}",
    ),
    fewer_iterations("training", "train_level_iteration"),
    fewer_iterations("test", "level_iteration"),
)


def few(mine: Row | None) -> Claim:
    """Quite good parameters, early: close to its best and, at the paper's size, to the paper's accuracy."""
    claim, words = f"It learns quite good parameters in fewer than {FEW} iterations", f"fewer than {FEW}"
    rule = (
        f"Before iteration {FEW} the test accuracy has to be within {NEAR} of its best and, in a network of the "
        f"paper's size, at most {NEAR} below the printed one. {PARTS}"
    )
    if mine is None:
        return unmeasured(claim, words, rule=rule)
    paper, early = at_seven(mine["data"]), mine["test_accuracy_in_few"]
    goals = [mine["best_test_accuracy"]]
    if paper is not None and mine["hidden"] == PAPER_HIDDEN:
        goals.append(paper[2])
    known = not any(partly_known(mine, key) for key in ("test_accuracy_in_few", "best_test_accuracy"))
    tests = [goal is not None and reaches(early, goal) if known else None for goal in goals]
    return Claim(
        claim,
        words,
        f"{percent(early)} before iteration {FEW}; best test accuracy {at_best(mine)}",
        judged(tests),
        rule=rule,
    )


def not_converging(sgd: Row | None) -> Claim:
    """What the paper says of its figure: it does not converge where it learns nothing, or has not come to rest."""
    claim, paper = f"SGD fails to converge (at rate {PAPER_RATE})", "fails to converge"
    rule = (
        f"It holds if SGD diverges, does not learn more than guessing, or still changes by more than {LEAD} in "
        "the last tenth of its iterations."
    )
    if sgd is None:
        return unmeasured(claim, paper, rule=rule)
    return Claim(
        claim,
        paper,
        f"{said(sgd, 'test_accuracy')} at the end; in the last tenth of the iterations it changes by "
        f"{lead(sgd, 'late_gain')} points",
        judged([unsettled(sgd)]),
        rule=rule,
    )


def unsettled(row: Row) -> bool | None:
    """Whether a run comes to nothing or not to rest; not known where some of the seeds only have an end."""
    if always_diverged(row):
        return True
    if row["test_accuracy"] is None or row["late_gain"] is None:
        return None
    return bool(row["test_accuracy"] <= LEARNED or abs(row["late_gain"]) > CLEAR)


def most(mine: Row | None, rivals: Rivals) -> Claim:
    """Something that is said of more than half of them; what was not run may leave it open."""
    claim = f"Its test accuracy at the end is better than that of most of them ({rivals.rates})"
    rule = f"{TIE} It holds if it is higher than more than half of the {len(rivals.names)} optimizers."
    if mine is None or not rivals.rows:
        return unmeasured(claim, "most", rivals.source, rule=rule)
    found = {row["method"]: compared(ahead, mine, row, "test_accuracy") for row in rivals.rows}
    beaten, unbeaten = ([method for method, test in found.items() if test is kind] for kind in (True, False))
    others = [f"{row['method']} {said(row, 'test_accuracy')}" for row in rivals.rows if row["method"] not in beaten]
    half = len(rivals.names) / 2.0
    return Claim(
        claim,
        "most",
        f"{said(mine, 'test_accuracy')}: better than {len(beaten)} of {len(found)}"
        + (f"; not than {', '.join(others)}" if others else "")
        + rivals.missing,
        HOLDS if len(beaten) > half else FAILS if len(unbeaten) > half else UNMEASURED,
        rivals.source,
        rule=rule,
    )


def rates_alike(others: Mapping[Any, Sequence[Row]], rates: Sequence[float]) -> Claim:
    """The paper tried other rates and saw nothing new; of a rate that was not run it is not known."""
    claim, paper = "Larger learning rates give similar results", "similar at 0.01 and 0.05"
    rule = (
        f"For each optimizer the best test accuracies at all rates have to lie within {NEAR_ONE}, and so have the "
        f"training accuracies at the end. {PARTS}"
    )
    several = {method: rows for method, rows in others.items() if len(rows) > 1}
    if not several:
        return unmeasured(claim, paper, rule=rule)
    words = [f"{method} {', '.join(map(at_rate, rows))}" for method, rows in several.items()]
    tests: list[bool | None] = [
        alike(rows, key) for rows in several.values() for key in ("best_test_accuracy", "train_accuracy")
    ]
    made = sum(len(rows) for rows in several.values())
    missing = [None] * (len(RATED) * len(rates) - made)
    ours = f"best test accuracy (training accuracy at the end): {'; '.join(words)}"
    return Claim(claim, paper, ours, judged([*tests, *missing]), rule=rule)


def at_rate(row: Row) -> str:
    """What a rate gives, in words."""
    return f"{percent(row['best_test_accuracy'])} ({said(row, 'train_accuracy')}) at {row['learning_rate']}"


ABOUT = (
    "iPDLAM at inertia 0.7 and torch's optimizers in batches of 512, from the same weights. The paper has one learning "
    "rate for all of them, 0.001; here each also gets others, because SGD and Adadelta are not made for it, for "
    f"{EPOCHS_AT_OTHER_RATES['small']} epochs instead of 200, so that their end comes earlier. Iterations are compared "
    "where both methods were evaluated, and not every one is: of two that are first seen at a level after the same "
    "iteration neither is known to be faster. A test accuracy is reached, and stable, within "
    f"{100.0 * CLOSE:.0f} point; less than {100.0 * CLEAR:.1f} points is no lead, and what changes by more in the last "
    "tenth of its iterations, diverges or only guesses has not converged."
)
EXPERIMENT = Experiment(
    "fig3",
    "Figure 3: iPDLAM against classical optimizers",
    ABOUT,
    runs,
    rows,
    (
        Column("method", "method"),
        Column("rate", "learning_rate"),
        Column(f"smallest lead in {EARLY}", "smallest_test_lead", "points"),
        Column("stable from", "stable_iteration", "count"),
        Column("level at", "level_iteration", "count"),
        Column("after seconds", "level_seconds", "seconds"),
        *OUTCOME[1:],
    ),
    panels,
    claims,
)
