"""What the library starts with where nothing is said: its penalty and its initial weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipdlam.experiments.claims import LEAD, Claim, Row, ahead, by, compared, judged, said, unmeasured
from ipdlam.experiments.paper.setup import LETTER, datasets, ipdlam
from ipdlam.experiments.spec import OUTCOME, Column, Experiment, Panel, Results, RunSpec, accuracy_row, titled

LIBRARY, NOTHING = "the library", "nothing said"
DEFAULT = "0.1, growing (default)"
RIDGE = ("ridge", 1e-5)  # that of the library
VARIANTS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    (DEFAULT, (RIDGE,)),
    ("0.1, constant", (RIDGE, ("penalty_growth", 1.0))),
    ("1, growing", (RIDGE, ("penalty", 1.0))),
    ("10, growing", (RIDGE, ("penalty", 10.0))),
)
RELU = "relu"
DEFAULT_WEIGHTS = "torch"
INITIALISATIONS = ("paper", "he", "torch")
USUAL = (RELU, 2)  # activation and hidden layers of the paper
SHAPES: dict[str, tuple[tuple[str, int], ...]] = {  # others
    "smoke": ((RELU, 1), ("tanh", 2)),
    "small": ((RELU, 1), (RELU, 3), (RELU, 5), (RELU, 10), ("tanh", 2), ("sigmoid", 2)),
    "paper": (),
}
LENGTH: dict[str, dict[str, Any]] = {  # a part of the data shows it
    "smoke": {},
    "small": {"limit": 10000, "iterations": 60, "evaluate_every": 5},
    "paper": {},
}


def runs(scale: str) -> list[RunSpec]:
    """From every kind of initial weights, with the library's ridge: every penalty, and every other network."""
    base = ipdlam(scale, datasets(scale)[0], LETTER).changed(settings=VARIANTS[0][1], **LENGTH[scale])
    width = base.hidden[0]
    cases = [base.changed(settings=settings) for _, settings in VARIANTS]
    cases += [base.changed(activation=activation, hidden=(width,) * depth) for activation, depth in SHAPES[scale]]
    return [case.changed(initialisation=initialisation) for case in cases for initialisation in INITIALISATIONS]


def rows(specs: Sequence[RunSpec], results: Results) -> list[dict[str, Any]]:
    """One for every run."""
    return [
        accuracy_row(
            spec,
            results[spec.key],
            variant=titled(VARIANTS, spec),
            initialisation=spec.initialisation,
            activation=spec.activation,
            depth=len(spec.hidden),
        )
        for spec in specs
    ]


def panels(specs: Sequence[RunSpec]) -> list[Panel]:
    """Test accuracy by iteration: all penalties for every kind of initial weights, and all kinds for every network."""
    found, column = [], "validation_accuracy"
    for kind in INITIALISATIONS:
        mine = [spec for spec in specs if network(spec) == USUAL and spec.initialisation == kind]
        lines = {titled(VARIANTS, spec): spec for spec in mine}
        found += [Panel(f"{kind} initialisation", lines, column, unit="%")] if lines else []
    for shape in dict.fromkeys(map(network, specs)):
        lines = {
            f"{spec.initialisation} initialisation": spec
            for spec in specs
            if network(spec) == shape and titled(VARIANTS, spec) == DEFAULT
        }
        found += [Panel(named(*shape), lines, column, unit="%")] if lines and shape != USUAL else []
    return found


def network(spec: RunSpec) -> tuple[str, int]:
    """What kinds of initial weights are compared in."""
    return spec.activation, len(spec.hidden)


def named(activation: str, depth: int) -> str:
    """A network in words."""
    return f"{activation}, {depth} hidden layer{'' if depth == 1 else 's'}"


def claims(table: Sequence[Row], scale: str) -> list[Claim]:
    """That nothing else serves a user better."""
    shapes = {USUAL, *SHAPES[scale]}
    of_shape = {shape: [row for row in table if (row["activation"], row["depth"]) == shape] for shape in shapes}
    return [penalties(of_shape[USUAL]), weights(of_shape)]


def penalties(table: Sequence[Row]) -> Claim:
    """What each penalty comes to from its worst initial weights decides; of those that were not run it is not known."""
    claim = "The default penalty serves whatever the initial weights are: from its worst ones no other ends ahead of it"
    rule = (
        "Every penalty is judged by the initial weights from which it ends worst. The default must not be more than "
        f"{LEAD} behind any other there. It holds if that is so of all others, and partly if of some."
    )
    made = {variant: mine for variant, mine in by("variant", table).items() if len(mine) == len(INITIALISATIONS)}
    if DEFAULT not in made:
        return unmeasured(claim, NOTHING, LIBRARY, rule=rule)
    least = {variant: min(mine, key=lambda row: row["test_accuracy"] or 0.0) for variant, mine in made.items()}
    words = (
        f"{variant}: {said(least[variant], 'test_accuracy')} at the least ("
        + ", ".join(f"{row['initialisation']} {said(row, 'test_accuracy')}" for row in mine)
        + ")"
        for variant, mine in made.items()
    )
    tests = [not_ahead(row, least[DEFAULT]) for variant, row in least.items() if variant != DEFAULT]
    missing = [None] * (len(VARIANTS) - len(made))
    ours = f"test accuracy at the end, {'; '.join(words)}"
    return Claim(claim, NOTHING, ours, judged([*tests, *missing]), LIBRARY, rule=rule)


def weights(of_shape: Mapping[tuple[str, int], Sequence[Row]]) -> Claim:
    """Of networks for which one of the kinds was not run nothing is known."""
    claim = "The default initial weights serve whatever the network is: no other kind ends ahead of them"
    rule = (
        f"In every network each other kind of initial weights must not end more than {LEAD} ahead of the default. "
        "It holds if that is so of all pairs, and partly if of some."
    )
    tests: list[bool | None] = []
    words = []
    for shape, rows in sorted(of_shape.items()):
        kinds = {row["initialisation"]: row for row in rows if row["variant"] == DEFAULT}
        if len(kinds) < len(INITIALISATIONS):
            tests.append(None)
            continue
        tests += [not_ahead(row, kinds[DEFAULT_WEIGHTS]) for kind, row in kinds.items() if kind != DEFAULT_WEIGHTS]
        ends = ", ".join(f"{kind} {said(kinds[kind], 'test_accuracy')}" for kind in INITIALISATIONS)
        words.append(f"{named(*shape)}: {ends}")
    if not words:
        return unmeasured(claim, NOTHING, LIBRARY, rule=rule)
    ours = f"test accuracy at the end, {'; '.join(words)}"
    return Claim(claim, NOTHING, ours, judged(tests), LIBRARY, rule=rule)


def not_ahead(other: Row, default: Row) -> bool | None:
    """Whether another choice does not end ahead of the default."""
    return compared(lambda theirs, ours: not ahead(theirs, ours), other, default, "test_accuracy")


EXPERIMENT = Experiment(
    "defaults",
    "The library's defaults",
    "The paper leaves open where the penalty starts. Here it starts and grows in several ways, with the ridge that the "
    "library adds, from the initial weights of the paper, of He and of torch; at small scale with 10000 samples of "
    "MNIST. A default has to work with all of them. The kinds of initial weights are held against each other in other "
    "networks, too.",
    runs,
    rows,
    (
        Column("activation", "activation"),
        Column("hidden layers", "depth"),
        Column("initialisation", "initialisation"),
        Column("penalty", "variant"),
        *OUTCOME,
    ),
    panels,
    claims,
)
