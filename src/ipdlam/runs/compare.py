"""Several methods on one problem: the same data, network and initial weights, and a clock that counts training."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ipdlam.defaults import LEARNING_RATES
from ipdlam.errors import DivergenceError, StopTraining
from ipdlam.runs.config import DEFAULTS, OURS, ConfigError, TrainConfig, blamed_on_settings
from ipdlam.runs.environment import environment
from ipdlam.runs.problem import Problem
from ipdlam.training.history import History, Record
from ipdlam.training.loop import Stopping

TITLES = {
    **{"ipdlam": "iPDLAM", "dlam": "DLAM", "bcd": "BCD", "dladmm": "dlADMM", "minibatch": "mini-batch iPDLAM"},
    **{"sgd": "SGD", "amsgrad": "AMSGrad", "rmsprop": "RMSprop", "adamw": "AdamW", "nadam": "NAdam", "radam": "RAdam"},
}
TIME_IS_UP = "time is up"
ENDLESS = 10**9  # iterations, where the clock ends a run
TRIAL_EPOCHS, TRIAL_PART = 10, 0.1  # what a trial takes at most, in epochs and of the time


@dataclass(frozen=True)
class Terms:
    """What the methods are given besides the problem."""

    learning_rates: Mapping[str, float]  # by optimizer
    batch_size: int  # of the optimizers and of minibatch
    seconds: float | None = None  # of training, for each run
    minibatch: Mapping[str, Any] = field(default_factory=dict)  # the settings that no other method has

    def of_method(self, method: str) -> dict[str, Any]:
        """The settings of one method; what is not ours is compared as it is by default."""
        own: dict[str, Any] = {} if method in OURS else dict.fromkeys(DEFAULTS[method])
        if method in self.learning_rates:
            own["learning_rate"] = self.learning_rates[method]
        if "batch_size" in DEFAULTS[method]:
            own["batch_size"] = self.batch_size
        return {**own, **(self.minibatch if method == "minibatch" else {})}


def check_methods(methods: Sequence[str]) -> None:
    """Refuse unknown names and repeated ones."""
    for method in methods:
        if method not in DEFAULTS:
            raise ConfigError(f"methods holds {method!r}; known are {', '.join(DEFAULTS)}")
    if not methods or len(set(methods)) < len(methods):
        raise ConfigError(f"methods must name each method once, got {', '.join(methods) or 'none'}")


def check_read(given: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Refuse settings that none of the methods reads; what others are compared with keeps its own."""
    for name, value in given.items():
        if name == "iterations":  # of every method, here: those that count epochs take it for them
            continue
        readers = [method for method in OURS if name in DEFAULTS[method]]
        optimizers = LEARNING_RATES if name in ("learning_rate", "batch_size") else ()
        if (readers or optimizers) and not {*readers, *optimizers} & {*methods}:
            some = ", ".join([*readers, *(["the optimizers"] if optimizers else [])])
            raise ConfigError(
                f"{name} is for {some}, got {value}, and none of the methods {', '.join(methods)} reads it; add one "
                "that does, or leave it out"
            )


def resolve_rates(given: Mapping[str, float], methods: Sequence[str]) -> dict[str, float]:
    """The rate of every optimizer among the methods; one without a name is for all that are not named."""
    for name in given:
        if name and name not in methods:
            raise ConfigError(f"learning_rate names {name!r}, which is not among the methods {', '.join(methods)}")
        if name and name not in LEARNING_RATES:
            raise ConfigError(f"learning_rate names {name!r}, which has none; leave it out")
    return {name: given.get(name, given.get("", own)) for name, own in LEARNING_RATES.items() if name in methods}


@dataclass
class Comparison:
    """Some methods on one problem, each with some seeds, and what has become of them so far."""

    problem: Problem
    methods: Sequence[str]
    seeds: range
    iterations: int
    terms: Terms
    histories: dict[tuple[str, int], History] = field(default_factory=dict)
    errors: dict[tuple[str, int], dict[str, float | None] | None] = field(default_factory=dict)  # of regressions

    def run(self, begin: Callable[[str], Callable[[Record], Any]]) -> None:
        """Make all runs, until one is interrupted; ``begin`` is told the method of each and gives its callback."""
        for seed in self.seeds:
            for method in self.methods:
                model = self.problem.make_model(dataclasses.replace(self.problem.config, seed=seed))
                history = run_method(self.problem, model, method, seed, self.iterations, self.terms, begin(method))
                self.histories[method, seed] = history
                self.errors[method, seed] = self.problem.errors(model)
                if history.stop_reason == "interrupted":
                    return

    @property
    def was_interrupted(self) -> bool:
        return any(history.stop_reason == "interrupted" for history in self.histories.values())

    @property
    def compared(self) -> list[int]:
        """The seeds that all methods have finished."""
        return compared_seeds(self.histories)

    def runs(self) -> dict[str, list[History]]:
        """What is shown of each method: its runs with the seeds that are compared, or with the first."""
        seeds = self.compared or [self.seeds.start]
        found = {
            method: [self.histories[method, seed] for seed in seeds if self.histories.get((method, seed))]
            for method in self.methods
        }
        return {method: histories for method, histories in found.items() if histories}

    def row_of(self, method: str, history: History) -> dict[str, Any]:
        """What a table shows of one run."""
        errors = next(self.errors[run] for run, other in self.histories.items() if other is history)
        return {**row(method, history), **(errors or {})}

    def rows(self) -> list[dict[str, Any]]:
        """One for every method: its run, or the means of its seeds."""
        found = [[self.row_of(method, history) for history in each] for method, each in self.runs().items()]
        return [each[0] if len(self.seeds) == 1 else mean_row(each) for each in found]

    def label(self, method: str, seed: int) -> str:
        """The name of a run."""
        return method if len(self.seeds) == 1 else f"{method}, seed {seed}"

    def content(self, command: str) -> dict[str, Any]:
        """All of it, for a file."""
        problem, config, terms = self.problem, self.problem.config, self.terms
        has_batches = "minibatch" in self.methods
        return {
            "command": command,
            "environment": environment(),
            "config": config.resolved().to_dict(),
            "minibatch": config.of_method("minibatch", **terms.of_method("minibatch")).suited()
            if has_batches
            else None,
            "learning_rates": dict(terms.learning_rates),
            "batch_size": terms.batch_size,
            "seeds": len(self.seeds),
            "compared_seeds": self.compared,
            "seconds": terms.seconds,
            "samples": len(problem.split.X),
            "network": list(problem.widths),
            "scored_on": problem.split.scored_on,
            "rows": self.rows(),
            "histories": {self.label(*run): json.loads(history.to_json()) for run, history in self.histories.items()},
        }


def compared_seeds(histories: Mapping[tuple[str, int], History]) -> list[int]:
    """The seeds with which every method has made its run, so that means are of the same.

    A method that never finished an iteration is no reason to leave out a seed.
    """
    methods = {method for (method, _), history in histories.items() if history}
    seeds = list(dict.fromkeys(seed for _, seed in histories))

    def made(run: tuple[str, int]) -> bool:
        return bool(histories.get(run)) and histories[run].stop_reason != "interrupted"

    return [seed for seed in seeds if methods and all(made((method, seed)) for method in methods)]


def run_method(
    problem: Problem,
    model: nn.Module,
    method: str,
    seed: int,
    iterations: int,
    terms: Terms,
    callback: Callable[[Record], Any],
) -> History:
    """Train a fresh network of the problem's; an iteration of an optimizer or of minibatch is one epoch.

    A run that diverges ends there, and its history says so; so does one whose time is up.
    """
    config, split = dataclasses.replace(problem.config, seed=seed), problem.split
    callbacks = [callback] if terms.seconds is None else [callback, clock(terms.seconds)]
    try:
        with blamed_on_settings():
            config = config.of_method(method, **terms.of_method(method))
            if method == "minibatch" and terms.seconds is not None:
                iterations = min(iterations, affordable_epochs(problem, config, terms.seconds))
            trainer = problem.make_trainer(model, config)
            trainer.start(split.X, split.y, validation_data=split.validation)
            return trainer.go_on(Stopping(iterations), callbacks)
    except DivergenceError as error:
        return error.history
    except KeyboardInterrupt:  # while nothing was trained yet
        return History(stop_reason="interrupted")


def affordable_epochs(problem: Problem, config: TrainConfig, seconds: float) -> int:
    """How many epochs on mini-batches take so many seconds, less those of the trial that finds out.

    The steps descend to the last epoch, so that one has to be known.
    """
    split, model = problem.split, problem.make_model(config)
    trainer = problem.make_trainer(model, config)
    trainer.start(split.X, split.y)
    history = trainer.go_on(Stopping(TRIAL_EPOCHS, evaluate_every=TRIAL_EPOCHS), [clock(TRIAL_PART * seconds)])
    if history.stop_reason == "interrupted":
        raise KeyboardInterrupt
    times = [0.0, *history.column("seconds")]
    shortest = min(after - before for before, after in itertools.pairwise(times))  # the first ones take longer
    return max(1, int((seconds - times[-1]) / shortest))


def clock(seconds: float) -> Callable[[Record], None]:
    """A callback that ends a run after the iteration in which its time is up."""

    def watch(record: Record) -> None:
        if record.seconds >= seconds:
            raise StopTraining(TIME_IS_UP)

    return watch


def title(method: str) -> str:
    """The name of a method as its authors write it."""
    return TITLES.get(method, method.capitalize())


def row(method: str, history: History) -> dict[str, Any]:
    """What a table shows of one run; accuracies are those of the samples it was scored on, where there are any."""
    last, best = history[-1], history.best
    scored = any(record.validation_loss is not None for record in history)
    return {
        "method": title(method),
        "iterations": last.iteration,
        "seconds": last.seconds,
        "objective": last.objective,
        "train_accuracy": last.train_accuracy,
        "accuracy": last.validation_accuracy if scored else last.train_accuracy,
        "best_accuracy": None if best is None else best.validation_accuracy if scored else best.train_accuracy,
        "best_iteration": None if best is None else best.iteration,
        "train_loss": last.train_loss,
        "loss": last.validation_loss if scored else last.train_loss,
        "best_loss": None if best is None else best.validation_loss if scored else best.train_loss,
        "stop_reason": history.stop_reason,
    }


def mean_row(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row for the seeds of a method: means, and in ``ranges`` the smallest and the largest of each number."""
    found: dict[str, Any] = {**rows[0], "seeds": len(rows)}
    found["stop_reason"] = ", ".join(dict.fromkeys(str(each["stop_reason"]) for each in rows))
    found["ranges"] = {}
    for name in rows[0]:
        values = [each[name] for each in rows if isinstance(each[name], (int, float))]
        if values:
            found[name] = sum(values) / len(values)
            found["ranges"][name] = [min(values), max(values)]
    return found
