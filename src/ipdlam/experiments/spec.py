"""An experiment is data: the runs it needs at each scale, and how they become rows, a picture and a verdict."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipdlam.defaults import PENALTY
from ipdlam.experiments.claims import CLOSE, Claim, Row

SCALES = ("smoke", "small", "paper")
START = PENALTY  # rho_0 of a run that does not say; Phi is compared at it, too

Value = float | int | str | tuple[float, ...] | None


@dataclass(frozen=True)
class RunSpec:
    """One run; two with equal specifications are the same run.

    What is not given is the method's default: a default that changes makes another run of an old specification. Tests
    hold the stored runs against the library.
    """

    data: str
    method: str  # ipdlam, dlam, minibatch, bcd, dladmm, or the name of an optimizer
    hidden: tuple[int, ...]
    iterations: int  # epochs of an optimizer
    settings: tuple[tuple[str, Value], ...] = ()  # of the method, by the names of its arguments
    activation: str = "relu"
    initialisation: str = "paper"
    loss: str = "squared"
    seed: int = 0
    limit: int | None = None  # training samples
    evaluate_every: int = 1
    then: RunSpec | None = None  # another method that goes on from the weights; its data and network are these

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    @property
    def key(self) -> str:
        """The name of the run's result: a checksum of its specification."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """The run in a few words."""
        given = ", ".join(f"{name} {value}".replace("e-0", "e-") for name, value in self.settings)
        layers = "hidden layer" if len(self.hidden) == 1 else "hidden layers"
        network = f"{len(self.hidden)} {layers}, {self.activation}, {self.initialisation} initialisation"
        usual = (len(self.hidden), self.activation, self.initialisation) == (2, "relu", "paper")
        then = "" if self.then is None else f", then {self.then.method}"
        return (
            f"{self.method} on {self.data}"
            + (f" ({given})" if given else "")
            + ("" if usual else f", {network}")
            + then
        )

    def changed(self, **fields: Any) -> RunSpec:
        """The same run but for some fields; ``settings`` are added to those there are. A second method has its seed."""
        more = dict(fields.pop("settings", ()))
        if "seed" in fields and self.then is not None:
            fields["then"] = self.then.changed(seed=fields["seed"])
        return dataclasses.replace(self, settings=tuple({**dict(self.settings), **more}.items()), **fields)

    def without(self, *names: str) -> RunSpec:
        """The same run but for some settings, which take their defaults."""
        return dataclasses.replace(self, settings=tuple(item for item in self.settings if item[0] not in names))


@dataclass(frozen=True)
class RunResult:
    """What a run left: one number an iteration in every column, None where it was not evaluated."""

    spec: RunSpec
    columns: Mapping[str, Sequence[float | None]]
    stop_reason: str | None
    passes: int  # over the data, in an iteration of the first method
    environment: Mapping[str, Any]

    def last(self, column: str) -> float | None:
        """The last value that was evaluated."""
        found = [value for value in self.columns[column] if value is not None]
        return found[-1] if found else None

    def best(self, column: str) -> tuple[float | None, int | None]:
        """The highest value and its iteration, the first among equals."""
        found = [
            (value, k)
            for k, value in zip(self.columns["iteration"], self.columns[column], strict=True)
            if value is not None
        ]
        if not found:
            return None, None
        value, iteration = max(found, key=lambda pair: (pair[0], -(pair[1] or 0)))
        return value, int(iteration or 0)

    def at(self, column: str, iteration: int | None) -> float | None:
        """The value after an iteration, if there is one."""
        return self.columns[column][iteration - 1] if iteration else None

    @property
    def total_passes(self) -> int:
        """Over the data, in the whole run; a second method is an optimizer, whose epoch is one."""
        made = len(self.columns["iteration"])
        first = made if self.spec.then is None else min(made, self.spec.iterations)
        return self.passes * first + (made - first)

    @property
    def diverged(self) -> bool:
        return self.stop_reason == "diverged"


Results = Mapping[str, RunResult]  # by key


@dataclass(frozen=True)
class Column:
    """A column of an experiment's table."""

    heading: str
    key: str  # of the rows
    kind: str = "text"  # text, percent, points (of percent), number, count, seconds


@dataclass(frozen=True)
class Panel:
    """One set of axes: lines by name, each a column of a run or, with ``across``, the best of it in several runs."""

    title: str
    lines: Mapping[str, RunSpec | tuple[RunSpec, ...]]
    column: str
    against: str = "iteration"
    logarithmic: bool = False
    unit: str = ""
    across: Callable[[RunSpec], float] | None = None

    def points(self, name: str, results: Results) -> list[tuple[float, float]]:
        """What is drawn of a line; accuracies in percent."""
        specs, unit = self.lines[name], 100.0 if self.unit == "%" else 1.0
        if self.across is not None:
            assert isinstance(specs, tuple)
            best = [(self.across(spec), results[spec.key].best(self.column)[0]) for spec in specs]
            return [(x, unit * y) for x, y in best if y is not None]
        assert isinstance(specs, RunSpec)
        columns = results[specs.key].columns
        pairs = zip(columns[self.against], columns[self.column], strict=True)
        return [(x, unit * y) for x, y in pairs if x is not None and y is not None]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or a question it leaves open."""

    name: str
    title: str
    about: str  # what is done, and why
    runs: Callable[[str], Sequence[RunSpec]]  # by scale
    rows: Callable[[Sequence[RunSpec], Results], list[dict[str, Any]]]
    columns: Sequence[Column]
    panels: Callable[[Sequence[RunSpec]], Sequence[Panel]]
    claims: Callable[[Sequence[Row], str], Sequence[Claim]]  # from means over the seeds, all that a scale has runs for
    shown: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows  # what the table has of these means


def accuracy_row(spec: RunSpec, result: RunResult, **more: Any) -> dict[str, Any]:
    """What every table shows of a run; accuracies are of the true forward pass. A run that diverged has no end."""
    best, at = result.best("validation_accuracy")
    end = {} if result.diverged else {name: result.last(name) for name in result.columns}
    return {
        **more,
        "data": spec.data,
        "method": spec.method,
        "hidden": list(spec.hidden),
        "seed": spec.seed,
        "run": spec.key,
        "iterations": len(result.columns["iteration"]),
        "evaluated_every": spec.evaluate_every,
        "objective": end.get("objective"),
        "objective_reweighed": reweighed(result, START),
        "rises": rises(result.columns["objective"]),
        "train_accuracy": end.get("train_accuracy"),
        "test_accuracy": end.get("validation_accuracy"),
        "best_test_accuracy": best,
        "best_iteration": at,
        "objective_at_best": result.at("objective", at),
        "train_accuracy_at_best": result.at("train_accuracy", at),
        "seconds": result.last("seconds"),
        "passes": result.total_passes,
        "diverged": result.diverged,
        "environment": dict(result.environment),
    }


def rises(values: Sequence[float | None]) -> int:
    """After how many iterations a number is larger than before."""
    return sum(b is not None and a is not None and b > a for a, b in itertools.pairwise(values))


def gaps(result: RunResult, iteration: int | None = None) -> float | None:
    """The squared gaps between the layers, linear and activation, after an iteration (the last one)."""
    place = len(result.columns["iteration"]) if iteration is None else iteration
    linear, activation = (result.at(name, place) for name in ("linear_gap", "activation_gap"))
    return None if linear is None or activation is None else linear + activation


def reweighed(result: RunResult, penalty: float) -> float | None:
    """Loss and gaps of the last iterate as Phi weighs them at another penalty.

    It compares iterates whose penalties have grown to different sizes. It is not what a run at that penalty would end
    with, whose z_L would have another loss.
    """
    loss, between = result.last("loss"), gaps(result)
    return None if result.diverged or loss is None or between is None else loss + 0.5 * penalty * between


def scores(result: RunResult, column: str, last: int | None = None) -> dict[int, float]:
    """What was evaluated, by iteration, up to the last that counts; what diverged has nothing right from then on."""
    found = {int(k or 0): value for k, value in zip(result.columns["iteration"], result.columns[column], strict=True)}
    if result.diverged:
        every = result.spec.evaluate_every
        found |= {k: 0.0 for k in range(len(found) + 1, result.spec.iterations + 1) if k % every == 0}
    return {k: value for k, value in found.items() if value is not None and (last is None or k <= last)}


def reached(mine: RunResult, theirs: RunResult, column: str) -> int | None:
    """When theirs is first close to the best that mine has, if it ever is."""
    level = mine.best(column)[0]
    found = scores(theirs, column).items()
    return next((k for k, value in found if level is not None and value >= level - CLOSE), None)


OUTCOME = (
    Column("Phi", "objective", "number"),
    Column("training", "train_accuracy", "percent"),
    Column("test", "test_accuracy", "percent"),
    Column("best test", "best_test_accuracy", "percent"),
    Column("at", "best_iteration", "count"),
    Column("passes", "passes", "count"),
    Column("seconds", "seconds", "seconds"),
)
"""What every table ends with."""


def titled(variants: Sequence[tuple[str, tuple[tuple[str, Any], ...]]], spec: RunSpec) -> str:
    """The title of the variant of iPDLAM at 0.7 that a run is."""
    given = tuple(item for item in spec.settings if item[0] not in ("inertia", "proximity"))
    return next(title for title, settings in variants if settings == given)


def three_panels(
    specs: Sequence[RunSpec], name: Callable[[RunSpec], str], other_phi: Sequence[str] = ()
) -> list[Panel]:
    """Phi, training and test accuracy by iteration, for every data set.

    ``other_phi`` are methods that minimise another function, which is not drawn beside Phi.
    """
    found = []
    for data in dict.fromkeys(spec.data for spec in specs):
        lines = {name(spec): spec for spec in specs if spec.data == data}
        comparable = {line: spec for line, spec in lines.items() if spec.method not in other_phi}
        found += [
            Panel(data, comparable, "objective", logarithmic=True),
            Panel(data, lines, "train_accuracy", unit="%"),
            Panel(data, lines, "validation_accuracy", unit="%"),
        ]
    return found
