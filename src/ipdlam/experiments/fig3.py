"""Figure 3: iPDLAM against the classical optimizers, by iteration and by seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ipdlam.experiments.base import OUTCOME, Column, Experiment, Panel, Results, RunResult, RunSpec, accuracy_row
from ipdlam.experiments.claims import (
    CLEAR,
    CLOSE,
    FAILS,
    HOLDS,
    OPEN,
    PARTLY,
    UNMEASURED,
    Claim,
    Row,
    ahead,
    alike,
    at_best,
    by,
    ending,
    judged,
    lower,
    percent,
    reaches,
)
from ipdlam.experiments.setup import datasets, ipdlam, optimizer
from ipdlam.experiments.table1 import PAPER_HIDDEN, at_seven

OPTIMIZERS = ("sgd", "adagrad", "adadelta", "rmsprop", "adam", "amsgrad", "adamax")
PAPER_RATE = 0.001
RATES = {"smoke": (0.001, 0.01), "small": (0.001, 0.01, 0.05), "paper": (0.001,)}
EPOCHS_AT_OTHER_RATES = {"smoke": 8, "small": 60}  # they are faster than the paper's, which has its 200
EVALUATE_EVERY = 5  # epochs
EARLY = 40  # iterations in which the paper's method is always ahead
FEW = 10  # iterations before which it has learned quite good parameters


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
    """One for every run, with how it stands to iPDLAM, where that was made."""
    mine = next((results[spec.key] for spec in specs if spec.method == "ipdlam"), None)
    found = []
    for spec in specs:
        result = results[spec.key]
        row = accuracy_row(spec, result, name=name(spec), learning_rate=dict(spec.settings).get("learning_rate"))
        row["test_accuracy_in_few"] = max(scores(result, "validation_accuracy", FEW - 1).values(), default=None)
        row["stable_iteration"] = stable(result)
        if mine is not None:
            row["smallest_train_lead"] = smallest_lead(mine, result, "train_accuracy")
            row["smallest_test_lead"] = smallest_lead(mine, result, "validation_accuracy")
            row["level_iteration"], row["level_seconds"] = reached(result, mine.best("validation_accuracy")[0])
        found.append(row)
    return found


def scores(result: RunResult, column: str, last: int | None = None) -> dict[int, float]:
    """What was evaluated, by iteration, up to the last that counts."""
    pairs = zip(result.columns["iteration"], result.columns[column], strict=True)
    return {int(k or 0): value for k, value in pairs if value is not None and (last is None or (k or 0) <= last)}


def smallest_lead(mine: RunResult, theirs: RunResult, column: str) -> float | None:
    """By how much mine is ahead where it is least so, among the early iterations after which both were evaluated."""
    first, second = (scores(result, column, EARLY) for result in (mine, theirs))
    return min((first[k] - second[k] for k in first.keys() & second.keys()), default=None)


def stable(result: RunResult) -> int | None:
    """The first evaluated iteration from which on the test accuracy stays close to where it ends."""
    found = scores(result, "validation_accuracy")
    if result.diverged or not found:
        return None
    iterations = sorted(found)
    end = found[iterations[-1]]
    away = [place for place, k in enumerate(iterations) if abs(found[k] - end) > CLOSE]
    return iterations[away[-1] + 1 if away else 0]


def reached(result: RunResult, level: float | None) -> tuple[int | None, float | None]:
    """Iterations and seconds until the test accuracy is close to a level, if it ever is."""
    for k, value in scores(result, "validation_accuracy").items():
        if level is not None and value >= level - CLOSE:
            return k, result.at("seconds", k)
    return None, None


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
    if mine is None:
        return []
    found = [few(mine)]
    at_paper = [row for rows in others.values() for row in rows if row["learning_rate"] == PAPER_RATE]
    sets = [(at_paper, f"at rate {PAPER_RATE}")] if at_paper else []
    if any(len(rows) > 1 for rows in others.values()):
        best = [max(rows, key=lambda row: row["best_test_accuracy"] or 0.0) for rows in others.values()]
        sets.append((best, "each at its best rate"))
    for rivals, rates in sets:
        found += [
            each(
                f"In the first {EARLY} iterations iPDLAM is always better than all of them ({rates})",
                "always, in training and test accuracy",
                rivals,
                lambda row: all(ahead(row[f"smallest_{kind}_lead"], 0.0) for kind in ("train", "test")),
                "its smallest lead in test accuracy, in points, is on ",
                lambda row: (
                    "none" if row["smallest_test_lead"] is None else f"{100.0 * row['smallest_test_lead']:+.1f}"
                ),
            ),
            most(mine, rivals, rates),
            each(
                f"It cannot beat them on training accuracy ({rates})",
                "cannot beat them",
                rivals,
                lambda row: not ahead(mine["train_accuracy"], row["train_accuracy"]),
                f"at the end {ending(mine, 'train_accuracy')}; ",
                lambda row: ending(row, "train_accuracy"),
            ),
            each(
                f"It is the fastest to be stable ({rates})",
                "the fastest",
                rivals,
                lambda row: lower(mine["stable_iteration"], row["stable_iteration"]),
                f"within a point of its end from iteration {whole(mine['stable_iteration'])} on; ",
                lambda row: whole(row["stable_iteration"]),
            ),
            each(
                f"It takes fewer iterations to reach the same test accuracy ({rates})",
                "fewer",
                rivals,
                lambda row: lower(mine["level_iteration"], row["level_iteration"]),
                f"a point below its best after {whole(mine['level_iteration'])} iterations; ",
                lambda row: whole(row["level_iteration"]),
            ),
            Claim(
                f"How many seconds they take to reach that test accuracy ({rates})",
                "",
                f"iPDLAM {seconds(mine)}; " + ", ".join(f"{row['method']} {seconds(row)}" for row in rivals),
                OPEN,
            ),
        ]
    if len(sets) == 2:
        found.append(rates_alike(others))
    return found


def few(mine: Row) -> Claim:
    """Quite good parameters, early: close to its best and, at the paper's size, to the paper's accuracy."""
    paper, early = at_seven(mine["data"]), mine["test_accuracy_in_few"]
    tests = [mine["best_test_accuracy"] is not None and reaches(early, mine["best_test_accuracy"])]
    if paper is not None and mine["hidden"] == PAPER_HIDDEN:
        tests.append(reaches(early, paper[2]))
    return Claim(
        f"It learns quite good parameters in fewer than {FEW} iterations",
        f"fewer than {FEW}",
        f"{percent(early)} before iteration {FEW}; best test accuracy {at_best(mine)}",
        judged(tests),
    )


def each(
    claim: str,
    paper: str,
    rivals: Sequence[Row],
    test: Callable[[Row], bool],
    first: str,
    word: Callable[[Row], str],
) -> Claim:
    """Something that is said of all seven optimizers; those that were not run are not known."""
    missing = [None] * (len(OPTIMIZERS) - len(rivals))
    words = ", ".join(f"{row['method']} {word(row)}" for row in rivals)
    return Claim(claim, paper, first + words, judged([*(test(row) for row in rivals), *missing]))


def most(mine: Row, rivals: Sequence[Row], rates: str) -> Claim:
    """Something that is said of more than half of the seven; what was not run may leave it open."""
    beaten = [row for row in rivals if ahead(mine["test_accuracy"], row["test_accuracy"])]
    others = [f"{row['method']} {ending(row, 'test_accuracy')}" for row in rivals if row not in beaten]
    half = len(OPTIMIZERS) / 2.0
    refuted = PARTLY if beaten else FAILS
    return Claim(
        f"Its test accuracy at the end is better than that of most of them ({rates})",
        "most",
        f"{ending(mine, 'test_accuracy')}: better than {len(beaten)} of {len(rivals)}"
        + (f" (of {len(OPTIMIZERS)} in the paper)" if len(rivals) < len(OPTIMIZERS) else "")
        + (f"; not than {', '.join(others)}" if others else ""),
        HOLDS if len(beaten) > half else refuted if len(others) > half else UNMEASURED,
    )


def rates_alike(others: dict[Any, list[Row]]) -> Claim:
    """The paper tried other rates and saw nothing new."""
    best = {method: [row["best_test_accuracy"] for row in rows] for method, rows in others.items() if len(rows) > 1}
    words = (f"{method} {' / '.join(percent(value) for value in values)}" for method, values in best.items())
    rates = " / ".join(str(row["learning_rate"]) for row in max(others.values(), key=len))
    return Claim(
        "Larger learning rates give similar results",
        "similar at 0.01 and 0.05",
        f"best test accuracy at {rates}: {', '.join(words)}",
        judged([*(alike(values) for values in best.values()), *[None] * (len(OPTIMIZERS) - len(best))]),
    )


def whole(value: float | None) -> str:
    """A number of iterations in words."""
    return "never" if value is None else f"{value:.0f}"


def seconds(row: Row) -> str:
    """The time until the level in words."""
    return "never" if row["level_seconds"] is None else f"{row['level_seconds']:.0f} s"


EXPERIMENT = Experiment(
    "fig3",
    "Figure 3: iPDLAM against classical optimizers",
    "iPDLAM at inertia 0.7 and torch's optimizers in batches of 512, from the same weights. The paper has one learning "
    "rate for all of them, 0.001; here each also gets others, because SGD and Adadelta are not made for it. Iterations "
    "are compared where both methods were evaluated. That test accuracy is within "
    f"{100.0 * CLOSE:.0f} point of the best that iPDLAM has; less than {100.0 * CLEAR:.1f} points is no lead.",
    runs,
    rows,
    (
        Column("method", "method"),
        Column("rate", "learning_rate"),
        Column(f"iPDLAM's smallest lead in {EARLY}", "smallest_test_lead", "points"),
        Column("stable from", "stable_iteration", "count"),
        Column("its level at", "level_iteration", "count"),
        Column("after seconds", "level_seconds", "seconds"),
        *OUTCOME[1:],
    ),
    panels,
    claims,
)
