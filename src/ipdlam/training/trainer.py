"""What trains a model and can be stopped after any iteration: saved, and taken up again to the bit."""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn
from typing_extensions import Self

from ipdlam.checkpoint.format import Checkpoint, differences, refuse_differences
from ipdlam.checkpoint.together import read_together, write_together
from ipdlam.checks import check_integer
from ipdlam.distributed.agreement import refuse_mismatch
from ipdlam.distributed.group import SERIAL, Group
from ipdlam.errors import CheckpointError
from ipdlam.network.history import History, Record
from ipdlam.network.mlp import Network
from ipdlam.network.objective import Objective
from ipdlam.network.samples import ArrayLike, Samples, ValidationData, check_samples, validation_parts
from ipdlam.prox import Loss
from ipdlam.training.evaluation import scores
from ipdlam.training.loop import Callback, Stopping, check_callbacks, run_loop
from ipdlam.training.state import Course, named
from ipdlam.version import __version__

C = TypeVar("C", bound=Course)


class Resumable(ABC, Generic[C]):
    """A way to train ``model`` in place; ``C`` is what it remembers from one iteration to the next."""

    saved_as: ClassVar[str]  # the name of the class whose ``load`` takes up what ``save`` wrote
    unit: ClassVar[str] = "iteration"  # what a step is called
    optimizer: str | None = None  # the one that back-propagates, by name
    loss: Loss
    chunk_size: int  # samples evaluated at a time
    group: Group = SERIAL  # the processes that train the model together

    def __init__(self, model: nn.Sequential) -> None:
        self.network = Network(model)
        self._run: C | None = None

    @property
    def model(self) -> nn.Sequential:
        """The model being trained."""
        return self.network.model

    @property
    def history(self) -> History:
        """The records of the run so far."""
        return self._started().history

    @property
    def iteration(self) -> int:
        """How many iterations the run has made; 0 before it starts."""
        return 0 if self._run is None else self._run.iteration

    @abstractmethod
    def start(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> None:
        """Check the data, and begin a run from the model as it is.

        The arrays are read in every iteration, and copied only where they have to be converted: leave them as they are
        until the run is over. That a tensor was changed in place is noticed; that a NumPy array was is not.
        """

    @abstractmethod
    def _next(self, evaluate: bool) -> Record:
        """What the loop calls: one iteration, or epoch, and its record."""

    @abstractmethod
    def settings_dict(self) -> dict[str, Any]:
        """Everything that defines a run besides the model and the data, in plain JSON types."""

    @classmethod
    @abstractmethod
    def _from_settings(cls, model: nn.Sequential, settings: dict[str, Any]) -> Self:
        """The inverse of :meth:`settings_dict`."""

    @abstractmethod
    def _allocate(self, samples: Samples, validation: Samples | None) -> C:
        """A run whose counters and tensors remain to be restored."""

    def go_on(self, stopping: Stopping, callbacks: Iterable[Callback] = ()) -> History:
        """Go on with the run from its last iterate until it has ``stopping.iterations`` records, or ends earlier."""
        with self.group.telling():
            run, checked = self._whole_run(), check_callbacks(callbacks)
            self.network.write(*run.last_weights())
            if self.group.size > 1:
                given = {**dataclasses.asdict(stopping), **run.place()}
                refuse_mismatch(self.group.everyones(given, "go on with a run"))
            run.plan_until(stopping.iterations)
        with self.network.in_full_precision():
            return run_loop(self._next, self.network, run.history, stopping, checked, run.progress, self.group)

    def save(self, path: str | PathLike[str], *, light: bool = False) -> None:
        """Write a checkpoint, a folder, from which :meth:`load` continues as if nothing had happened.

        It holds every variable on which the run depends; ``light`` keeps the weights, the settings and the history
        alone. The folder appears when it is whole; an older checkpoint of that name is replaced then. A full disk or a
        missing folder raises :class:`ipdlam.CheckpointError`, and training can go on. Where several processes train
        together, all of them call it, with the same path.
        """
        with self.group.telling():
            self._save(self._whole_run(), Path(path), light)

    def _save(self, run: C, path: Path, light: bool) -> None:
        if self.group.size > 1:
            refuse_mismatch(self.group.everyones({"path": str(path), "light": light}, "save"))
        content = {
            "kind": "light" if light else "exact",
            "ipdlam": __version__,
            "trainer": self.saved_as,
            "settings": self.settings_dict(),
            "network": self.network.to_dict(),
            "data": run.fingerprints() if run.spans is None else run.fingerprints_by_row(self.group),
            "run": run.counters(),
        }
        write_together(self.group, path, run.named_weights() if light else run.tensors(), content)

    def checkpoint_bytes(self, *, light: bool = False) -> int:
        """About how large :meth:`save` makes a checkpoint, the parts of all processes together."""
        run = self._started()
        tensors = run.named_weights() if light else run.tensors()
        return sum(tensor.shape.numel() * tensor.element_size() for tensor in tensors.values())

    def close(self) -> None:
        """Forget the run, and remove what it keeps in files; the model keeps its weights."""
        if self._run is not None:
            self._run.close()
        self._run = None

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        model: nn.Sequential,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> Self:
        """A trainer with the settings of a checkpoint, whose weights are written to ``model``.

        With the data it was trained on, ``step`` and ``continue_fit`` go on with the very numbers of the saved run;
        other data are refused. Without data, ``fit`` and ``start`` begin from the saved weights. ``path`` is a
        checkpoint or a folder of ``iteration-...`` checkpoints, of which the newest whole one is taken.
        """
        checkpoint = cls._read(Path(path))
        return cls.take_up(checkpoint, model, X, y, sample_weight=sample_weight, validation_data=validation_data)

    @classmethod
    def take_up(
        cls,
        checkpoint: Checkpoint,
        model: nn.Sequential,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> Self:
        """:meth:`load` for a checkpoint that has been read."""
        group = cls._joined()
        with group.telling():
            trainer = cls._made_by(checkpoint, model)
            trainer.group = group
            trainer._go_on_from(checkpoint, X, y, sample_weight, validation_data)
            group.agree()
        return trainer

    @classmethod
    def _read(cls, path: Path) -> Checkpoint:
        group = cls._joined()
        with group.telling():
            if group.size > 1:
                refuse_mismatch(group.everyones({"path": str(path)}, "load"))
        return read_together(group, path)

    @classmethod
    def _joined(cls) -> Group:
        """The processes that a trainer is to share its work with."""
        return SERIAL

    @classmethod
    def _made_by(cls, checkpoint: Checkpoint, model: nn.Sequential) -> Self:
        """A trainer with the settings of a checkpoint of such a model; the model is left as it is."""
        content = checkpoint.content
        with checkpoint.understood():
            saved_by = saved_as(checkpoint)
            if saved_by != cls.saved_as:
                raise ValueError(f"it is of a run of {saved_by}; load it with {saved_by}.load")
            refuse_differences(checkpoint, differences(content["network"], Network(model).to_dict(), "the model's"))
            return cls._from_settings(model, content["settings"])

    @torch.no_grad()
    def _go_on_from(
        self,
        checkpoint: Checkpoint,
        X: ArrayLike | None,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
    ) -> None:
        """Take the weights of a checkpoint and, with the data it was trained on, the rest of its run."""
        network = self.network
        with checkpoint.understood():
            kind, data, counters = (checkpoint.content[name] for name in ("kind", "data", "run"))
        if X is None:
            W, b = network.read()
            checkpoint.copy_into(named("", W, b), only=True)
            network.write(W, b)
            return
        if kind != "exact":
            raise CheckpointError(
                f"{checkpoint.path} is a light checkpoint, which holds the weights alone; load it without data and "
                "call fit"
            )
        run = self._allocate(*self._check_data(X, y, sample_weight, validation_data))
        try:
            self._fill(run, checkpoint, data, counters)
        except BaseException:
            run.close()
            raise
        network.write(*run.last_weights())
        run.whole = True
        self._run = run

    def _fill(self, run: C, checkpoint: Checkpoint, data: dict[str, Any], counters: dict[str, Any]) -> None:
        """Copy a checkpoint into a run, if it is one on the same data."""
        if (data.get("validation") is None) != (run.validation is None):
            had = "with" if run.validation is None else "without"
            raise CheckpointError(f"{checkpoint.path} was saved {had} validation data; load it {had} validation_data")
        by_row = data.get("by") == "row"  # saved by several processes
        if run.spans is None or by_row:
            given = run.fingerprints_by_row(self.group) if by_row else run.fingerprints()
            refuse_differences(checkpoint, differences(data, given, "the sha256 of"))
        elif self.group.is_first:
            warnings.warn(
                f"{checkpoint.path} was saved by one process, so it is not checked whether these are its data",
                UserWarning,
                stacklevel=2,
            )
        with checkpoint.understood():
            run.restore(counters, self.network)
        checkpoint.copy_into(run.tensors())
        with checkpoint.understood():
            run.check_filled()

    def _check_data(
        self,
        X: ArrayLike,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
    ) -> tuple[Samples, Samples | None]:
        """What to train and what to score on."""
        if self.optimizer is None:
            self.network.refuse_hooks()
        if y is None:
            raise ValueError("y is missing: give the targets of X")
        samples = self._samples(X, y, sample_weight)
        if validation_data is None:
            return samples, None
        return samples, self._samples(*validation_parts(validation_data), prefix="validation ")

    def _samples(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, prefix: str = "") -> Samples:
        part = self.group.size > 1
        return check_samples(self.network, self.loss, X, y, sample_weight, prefix, part=part)

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        stopping: Stopping,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
        callbacks: Iterable[Callback],
    ) -> History:
        with self._meeting_others():
            checked = check_callbacks(callbacks)
        self.start(X, y, sample_weight=sample_weight, validation_data=validation_data)
        return self.go_on(stopping, checked)

    @contextmanager
    def _meeting_others(self) -> Iterator[None]:
        """Find the processes to share a run with, from where on they hear of whatever fails."""
        self.group = self._joined()
        with self.group.telling(), self.network.in_full_precision():
            yield

    def _stopping_after(
        self,
        name: str,
        more: int,
        restore_best: bool,
        patience: int | None,
        target_score: float | None,
        evaluate_every: int,
    ) -> Stopping:
        """When a run that has come this far ends, if it makes so many ``more`` of what ``name`` says."""
        with self.group.telling():
            done = len(self._whole_run().history)
            check_integer(name, more, 0)
            return Stopping(done + more, restore_best, patience, target_score, evaluate_every)

    def _started(self) -> C:
        if self._run is None:
            raise RuntimeError("no run has been started; call start(X, y) or fit(X, y) first")
        return self._run

    def _whole_run(self) -> C:
        run = self._started()
        if not run.whole:
            raise RuntimeError(f"the last {self.unit} did not end; call start(X, y) to go on from the model's weights")
        self.network.refuse_changes(hooks=self.optimizer is not None)
        run.refuse_changes()
        return run

    def _scores(self, run: C) -> dict[str, Any]:
        """The fields of a record that the true forward pass fills."""
        return scores(self.model, self.loss, run.samples, run.validation, self.chunk_size, self.group)

    def _record(self, run: C, objective: Objective, evaluated: bool) -> Record:
        """Evaluate if asked and add the iteration to the history, whatever interrupts the evaluation."""
        found: dict[str, Any] = {}
        try:
            if evaluated:
                found = self._scores(run)
        finally:
            record = Record(
                iteration=run.iteration, seconds=run.seconds, optimizer=self.optimizer, **objective.terms(), **found
            )
            run.history.append(record)
        return record


class CountsIterations(Resumable[C]):
    """One whose steps are iterations."""

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        iterations: int = 50,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
    ) -> History:
        """Start from the model's weights and take up to ``iterations`` steps.

        ``restore_best`` leaves the weights of the best score; ``patience`` ends the run after so many evaluations
        without a better score; ``target_score`` ends it when reached (accuracy, or minus the mean loss for real
        targets; on validation data where given). Callbacks get each record and may raise :class:`ipdlam.StopTraining`.
        Ctrl-C ends the run with what has been trained, and ``fit`` returns as usual. ``continue_fit`` and ``step`` go
        on from the last iterate, also after ``restore_best``, but not after a Ctrl-C in the middle of an iteration: z
        and a are then half-way, and ``start`` begins anew from the weights, or :meth:`load` from a checkpoint.
        """
        with self._meeting_others():
            stopping = Stopping(iterations, restore_best, patience, target_score, evaluate_every)
        return self._fit(X, y, stopping, sample_weight, validation_data, callbacks)

    def continue_fit(
        self,
        *,
        iterations: int = 50,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
    ) -> History:
        """Up to ``iterations`` more steps of the run that ``fit``, ``start`` or ``load`` left; otherwise as ``fit``."""
        stopping = self._stopping_after("iterations", iterations, restore_best, patience, target_score, evaluate_every)
        return self.go_on(stopping, callbacks)


def saved_as(checkpoint: Checkpoint) -> str:
    """The name of the class that saved a checkpoint."""
    return str(checkpoint.content.get("trainer", "IPDLAM"))  # there was one class before the name was written
