"""Runs of experiments: made once, stored by a checksum of their specification, taken up where they were stopped."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from ipdlam.baselines import BCD, DLADMM
from ipdlam.checkpoint.files import LOCK, NOTHING_LOST, exclusive, unwritable, write_file
from ipdlam.checkpoint.format import in_series, series
from ipdlam.errors import DivergenceError, FileError
from ipdlam.experiments.spec import START, RunResult, RunSpec
from ipdlam.fullbatch.trainer import IPDLAM
from ipdlam.prox import Ridge
from ipdlam.runs import problem as problems
from ipdlam.runs.config import TrainConfig
from ipdlam.runs.environment import environment
from ipdlam.runs.problem import Problem
from ipdlam.training.callbacks import Checkpoints
from ipdlam.training.history import History, Record
from ipdlam.training.loop import Stopping
from ipdlam.training.trainer import Trainer

CHECKPOINT_EVERY = 20
# What a specification of ipdlam or dlam means where it does not say; the library's own defaults may change.
UNSAID = {"penalty": START, "penalty_growth": 1.1, "penalty_max": 1e6}
GO_ON = "; then the same command goes on from the checkpoint before, or anew where there is none"
FINISHED = ("iterations", "diverged")  # why a run has ended that is not to go on
GAPS = ("linear_gap", "activation_gap")
WATCHED = ("iteration", "objective", "loss", "seconds", *GAPS)
COLUMNS = (*WATCHED, "train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
Callback = Callable[[Record], Any]


class Store:
    """A folder of results, ``<key>.json`` each, and of unfinished runs beside them.

    ``made`` is called with every result that was made here, not with those that were stored already; ``waiting`` again
    and again while another process is making a run that is needed here.
    """

    def __init__(
        self,
        folder: Path,
        work: Path,
        made: Callable[[RunResult], Any] = lambda result: None,
        waiting: Callable[[], Any] = lambda: None,
    ) -> None:
        self.folder = folder
        self.work = work
        self.made = made
        self.waiting = waiting

    def unwritable(self) -> str | None:
        """Why no run can be kept, and what to do: known before hours of training."""
        return unwritable(self.folder) or unwritable(self.work)

    def path(self, spec: RunSpec) -> Path:
        """Where the result of a run is."""
        return self.folder / f"{spec.key}.json"

    def read(self, spec: RunSpec) -> RunResult | None:
        """The result of a run that was made, or None; a damaged one, or one of another run, is refused."""
        try:
            content = json.loads(self.path(spec).read_bytes())
            other = content["spec"] != spec.to_dict()
            columns = {name: content["columns"][name] for name in COLUMNS}
            check_columns(columns)
            if not other:
                check_end(content, columns, spec)
            found = RunResult(spec, columns, content["stop_reason"], int(content["passes"]), content["environment"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileError(
                f"{self.path(spec)} cannot be read: {error.strerror or error}; change its permissions, or remove what "
                "is in its place, then make it again"
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileError(
                f"{self.path(spec)} is damaged ({type(error).__name__}: {error}); remove that file, then make it again"
            ) from error
        if other:
            raise FileError(
                f"{self.path(spec)} holds another run than its name says; remove that file, then make it again"
            )
        return found

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
        """The stored result of a run, or that of making it now.

        Where another process is making it, its result is waited for. What is stopped leaves a checkpoint and raises
        ``KeyboardInterrupt``.
        """
        found, work = self.read(spec), self.work / spec.key
        if found is not None and not work.exists():
            return found
        with framed(before=f"the run {spec.label}: "):
            with framed(after="; mend that, or choose another folder for results"):
                for folder in (self.folder, self.work):
                    folder.mkdir(parents=True, exist_ok=True)
                lock = exclusive(self.work / f"{spec.key}{LOCK}", self.waiting)
            with lock:
                result = self.read(spec)
                if missing := result is None:
                    history, passes = execute(spec, work, callback)
                    if history.stop_reason not in FINISHED:
                        raise KeyboardInterrupt
                    with framed(after=GO_ON):
                        self.write(RunResult(spec, columns(history), history.stop_reason, passes, environment()))
                    result = self.read(spec)
                assert result is not None
                shutil.rmtree(work, ignore_errors=True)  # also what a process left that died right here
        if missing:
            self.made(result)
        return result


@contextmanager
def framed(before: str = "", after: str = "") -> Iterator[None]:
    """Say of an error of files which run it stops, before it, and what to do, after it."""
    try:
        yield
    except (FileError, OSError) as error:
        if isinstance(error, FileError):
            reason = str(error).removesuffix(NOTHING_LOST)  # soon it is: the process ends
        elif error.filename is None:  # not of a file: a closed pipe
            raise
        else:
            reason = f"{error.filename} cannot be used: {error.strerror}"
        raise FileError(f"{before}{reason}{after}") from error


def check_columns(columns: dict[str, Any]) -> None:
    """Refuse what no run leaves: columns of different lengths, words for numbers, more right than there are samples."""
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("its columns have different lengths")
    for name, values in columns.items():
        numbers = [value for value in values if value is not None]
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers):
            raise ValueError(f"{name} holds something else than numbers")
        if any(isinstance(value, int) and abs(value) > sys.float_info.max for value in numbers):
            raise ValueError(f"{name} holds numbers that no float has")
        if name == "seconds" and any(value < 0.0 for value in numbers):
            raise ValueError("seconds holds negative numbers")
        if name.endswith("accuracy") and not all(0.0 <= value <= 1.0 for value in numbers):
            raise ValueError(f"{name} is not between 0 and 1")


def check_end(content: dict[str, Any], columns: dict[str, Any], spec: RunSpec) -> None:
    """Refuse what no finished run leaves: another end, no environment, other rows than one for every iteration.

    A run that diverged has fewer, and none where it did so in the first; it alone may hold infinities and NaN in what
    the methods watch. Losses of the forward pass, which nobody minimises, may overflow in any.
    """
    iterations = columns["iteration"]
    reason, where, total = content["stop_reason"], content["environment"], total_iterations(spec)
    if reason not in FINISHED:
        raise ValueError(f"stop_reason must be one of {', '.join(FINISHED)}, got {reason!r}")
    if not isinstance(where, dict) or not where:
        raise ValueError(f"environment must say where it was made, got {where!r}")
    if not isinstance(content["passes"], int) or content["passes"] < 1:
        raise ValueError(f"passes must be a whole number from 1 on, got {content['passes']!r}")
    for name in WATCHED:
        if reason == "iterations" and not all(math.isfinite(value) for value in columns[name] if value is not None):
            raise ValueError(f"{name} holds numbers that are not finite")
    if iterations != list(range(1, len(iterations) + 1)):
        raise ValueError("iteration does not count from 1 on")
    if len(iterations) > total or (reason == "iterations" and len(iterations) < total):
        raise ValueError(f"its columns have {len(iterations)} rows, but the run has {total} iterations")


def total_iterations(spec: RunSpec) -> int:
    """How many a run makes if it does not diverge, those of a second method included."""
    return spec.iterations + (spec.then.iterations if spec.then else 0)


def rounded(value: float | None) -> float | None:
    """Seven significant digits."""
    return None if value is None else float(f"{value:.7g}")


def columns(history: History) -> dict[str, list[float | None]]:
    """The history by column, gaps summed over the layers."""
    found = {name: history.column(name) for name in COLUMNS}
    return {name: [sum(gaps) for gaps in values] if name in GAPS else values for name, values in found.items()}


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
    """Make a run, and how often an iteration of its first method visits the data.

    A second method goes on from the weights and with the history of the first. What was stopped goes on from its
    checkpoints: the first method in ``work``, the second in ``work/then``.
    """
    problem = problem_of(config_of(spec))
    model = problem.make_model(dataclasses.replace(problem.config, seed=spec.seed))
    first = make_trainer(spec, spec.seed, model)
    passes = passes_of(first)
    if spec.then is None:
        return advance(begun(first, problem, work), spec.iterations, spec, work, callback), passes
    second = make_trainer(spec.then, spec.seed, model)
    if not series(work / "then"):
        first = begun(first, problem, work)
        history = advance(first, spec.iterations, spec, work, callback)
        if history.stop_reason != "iterations":  # it diverged or was interrupted
            return history, passes
        if not in_series(work, len(history)).exists():  # the second method never waits for the first again
            with framed(after=GO_ON):
                Checkpoints(first, work, keep=1).save(len(history))
    second = begun(second, problem, work / "then", after=first)
    return advance(second, total_iterations(spec), spec.then, work / "then", callback), passes


def begun(trainer: Trainer[Any], problem: Problem, work: Path, **more: Any) -> Trainer[Any]:
    """The trainer at its newest checkpoint, or at its start."""
    split = problem.split
    if series(work):
        with framed(after=f"; remove the folder {work}, then the same command makes the run anew"):
            return type(trainer).load(work, trainer.model, split.X, split.y, validation_data=split.validation)
    trainer.start(split.X, split.y, validation_data=split.validation, **more)
    return trainer


def advance(trainer: Trainer[Any], iterations: int, spec: RunSpec, work: Path, callback: Callback) -> History:
    """Go on to so many iterations in all; a run that diverges ends there, and says so."""
    callbacks = [callback]
    with framed(after=GO_ON):
        if spec.iterations > CHECKPOINT_EVERY:
            callbacks.append(Checkpoints(trainer, work, every=CHECKPOINT_EVERY, keep=1))
        try:
            history = trainer.go_on(Stopping(iterations, evaluate_every=spec.evaluate_every), callbacks)
        except DivergenceError as error:
            return error.history
        if history.stop_reason != "iterations" and history:
            try:
                Checkpoints(trainer, work, keep=1).save(len(history))
            except FileError:
                raise
            except RuntimeError:  # half an iteration cannot be saved; the checkpoint before it can be used
                pass
    return history


def make_trainer(spec: RunSpec, seed: int, model: nn.Module) -> Trainer[Any]:
    """The method of a specification with its settings.

    ``ridge`` is the strength of the regularizer of ``ipdlam`` and ``dlam``, which have none without it.
    """
    settings: dict[str, Any] = {"loss": spec.loss, **dict(spec.settings)}
    if spec.method in ("ipdlam", "dlam"):
        strength = settings.pop("ridge", None)
        settings = {**UNSAID, **settings, "regularizer": None if strength is None else Ridge(strength)}
        if spec.method == "ipdlam":
            settings = {"inertia": 0.7, "proximity": 1.0, "weight_proximity": None, **settings}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="inertia .* is 1 or more")  # that is what Table 1 is about
        return problems.make_trainer(spec.method, model, seed, settings)


def passes_of(trainer: Trainer[Any]) -> int:
    """How many passes over the data an iteration, or epoch, needs.

    A pass ends where an update waits for a sum over all samples of what an update before it has changed: the rule of
    :mod:`ipdlam.fullbatch.orders`. BCD waits for the moments of its L layers, one after the other. dlADMM waits in both
    sweeps (for those of the first layer, where they turn, once), and in both for the sums that give the step of each of
    its L - 1 activations: 2 L - 1 + 2 (L - 1). That is what it needs; our version, on whole arrays, reads them more
    often. On mini-batches an update waits for its batch alone, so an epoch is one pass. (The few samples that the start
    of ``minibatch`` is scaled on are not counted.)
    """
    if isinstance(trainer, IPDLAM):
        return trainer.plan.passes
    layers = len(trainer.network)
    if isinstance(trainer, BCD):
        return layers
    return 4 * layers - 3 if isinstance(trainer, DLADMM) else 1
