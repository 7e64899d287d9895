"""Runs of experiments: made once, stored by a checksum of their specification, taken up where they were stopped."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ipdlam.baselines import BCD, DLADMM, OPTIMIZERS, BackPropagation
from ipdlam.callbacks import Checkpoints
from ipdlam.checkpoint import in_series, series
from ipdlam.config import TrainConfig
from ipdlam.environment import environment
from ipdlam.errors import CheckpointError, DivergenceError
from ipdlam.experiments.base import RunResult, RunSpec
from ipdlam.history import History, Record
from ipdlam.loop import Stopping
from ipdlam.problem import Problem
from ipdlam.prox import Ridge
from ipdlam.resumable import Resumable
from ipdlam.storage import write_file
from ipdlam.trainer import DLAM, IPDLAM

CHECKPOINT_EVERY = 20
Callback = Callable[[Record], Any]


class Store:
    """A folder of results, ``<key>.json`` each, and of unfinished runs beside them."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder = folder
        self.work = work

    def path(self, spec: RunSpec) -> Path:
        """Where the result of a run is."""
        return self.folder / f"{spec.key}.json"

    def read(self, spec: RunSpec) -> RunResult | None:
        """The result of a run that was made, or None; one whose content was changed is refused."""
        try:
            content = json.loads(self.path(spec).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(f"{self.path(spec)} is damaged: {error}; remove it, and it is made again") from error
        if content["spec"] != spec.to_dict():
            raise CheckpointError(f"{self.path(spec)} holds another run than its name says; remove it")
        return RunResult(spec, content["columns"], content["stop_reason"], content["passes"], content["environment"])

    def write(self, result: RunResult) -> None:
        """Keep a result; columns are rounded to what float32 runs mean."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "spec": result.spec.to_dict(),
            "stop_reason": result.stop_reason,
            "passes": result.passes,
            "environment": dict(result.environment),
            "columns": {name: [rounded(value) for value in values] for name, values in result.columns.items()},
        }
        lines = json.dumps(content).replace('], "', '],\n"').replace('}, "', '},\n"')
        write_file(self.path(result.spec), (lines + "\n").encode())

    def make(self, spec: RunSpec, callback: Callback) -> RunResult:
        """The stored result of a run, or that of making it now."""
        found = self.read(spec)
        if found is not None:
            return found
        history, passes = execute(spec, self.work / spec.key, callback)
        if history.stop_reason == "interrupted":
            raise KeyboardInterrupt
        self.write(RunResult(spec, columns(history), history.stop_reason, passes, environment()))
        shutil.rmtree(self.work / spec.key, ignore_errors=True)
        result = self.read(spec)
        assert result is not None
        return result


def rounded(value: float | None) -> float | None:
    """Seven significant digits."""
    return None if value is None else float(f"{value:.7g}")


def columns(history: History) -> dict[str, list[float | None]]:
    """The history by column, gaps summed over the layers."""
    names = ("iteration", "objective", "loss", "seconds", "train_loss", "train_accuracy", "validation_loss")
    found: dict[str, list[float | None]] = {name: history.column(name) for name in (*names, "validation_accuracy")}
    for name in ("linear_gap", "activation_gap"):
        found[name] = [sum(gaps) for gaps in history.column(name)]
    return found


@functools.lru_cache(maxsize=2)
def problem_of(config: TrainConfig) -> Problem:
    """The data of a configuration, read once for all its runs."""
    return Problem(config)


def config_of(spec: RunSpec) -> TrainConfig:
    """What a specification shares with a training job: data, network, loss."""
    return TrainConfig(
        data=spec.data,
        hidden=spec.hidden,
        activation=spec.activation,
        initialisation=spec.initialisation,
        loss=spec.loss,
        limit=spec.limit,
    )


def execute(spec: RunSpec, work: Path, callback: Callback) -> tuple[History, int]:
    """Make a run; a second method goes on from the weights of the first, and their histories are joined.

    What was stopped goes on from its checkpoints: the first method in ``work``, the second in ``work/then``.
    """
    problem = problem_of(config_of(spec))
    seeded = dataclasses.replace(problem.config, seed=spec.seed)
    model = problem.make_model(seeded)
    history, passes = train(spec, problem, model, work, callback)
    if spec.then is not None and history.stop_reason == "iterations":  # not if it diverged or was interrupted
        second, _ = train(spec.then, problem, model, work / "then", callback)
        history = joined(history, second)
    return history, passes


def joined(first: History, second: History) -> History:
    """Two histories as one: iterations and seconds of the second go on from the first."""
    done, spent = len(first), first[-1].seconds if first else 0.0
    later = (dataclasses.replace(r, iteration=r.iteration + done, seconds=r.seconds + spent) for r in second)
    return History([*first, *later], second.stop_reason)


def train(spec: RunSpec, problem: Problem, model: nn.Sequential, work: Path, callback: Callback) -> tuple[History, int]:
    """One method on the problem, from its newest checkpoint or from the model as it is, and its passes an iteration.

    A run that diverges ends there, and says so.
    """
    callbacks = [callback]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="inertia .* is 1 or more")  # that is what the table is about
            trainer = begun(spec, problem, model, work)
        if spec.iterations > CHECKPOINT_EVERY:
            callbacks.append(Checkpoints(trainer, work, every=CHECKPOINT_EVERY, keep=1))
        history = trainer.go_on(Stopping(spec.iterations, evaluate_every=spec.evaluate_every), callbacks)
    except DivergenceError as error:
        return error.history, 1
    if spec.then is not None and history.stop_reason == "iterations" and not in_series(work, len(history)).exists():
        Checkpoints(trainer, work, keep=1).save(len(history))  # the second method never waits for the first again
    return history, passes_of(trainer, problem)


def begun(spec: RunSpec, problem: Problem, model: nn.Sequential, work: Path) -> Resumable[Any]:
    """The method of a specification, at its newest checkpoint or at its start."""
    trainer, split = make_trainer(spec, model), problem.split
    if series(work):
        return type(trainer).load(work, model, split.X, split.y, validation_data=split.validation)
    trainer.start(split.X, split.y, validation_data=split.validation)
    return trainer


def make_trainer(spec: RunSpec, model: nn.Sequential) -> Resumable[Any]:
    """The method of a specification with its settings."""
    settings: dict[str, Any] = {"loss": spec.loss, **dict(spec.settings)}
    if spec.method in OPTIMIZERS:
        return BackPropagation(model, spec.method, seed=spec.seed, **settings)
    if spec.method in ("bcd", "dladmm"):
        return BCD(model, **settings) if spec.method == "bcd" else DLADMM(model, **settings)
    strength = settings.pop("ridge", None)
    regularizer = None if strength is None else Ridge(strength)
    return (DLAM if spec.method == "dlam" else IPDLAM)(model, regularizer=regularizer, **settings)


def passes_of(trainer: Resumable[Any], problem: Problem) -> int:
    """How often an iteration visits the data."""
    if isinstance(trainer, IPDLAM):
        return trainer.plan.passes
    if isinstance(trainer, BCD):
        return len(problem.widths) - 1
    return 2 if isinstance(trainer, DLADMM) else 1
