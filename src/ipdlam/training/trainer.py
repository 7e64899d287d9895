"""The skeleton of every trainer: fit, continue_fit, start, save, load, and what a failure leaves.

A method fills in its settings (:meth:`Trainer.settings_dict` and back), a new run (:meth:`Trainer._begin`), a run to be
filled from a checkpoint (:meth:`Trainer._allocate`), and one iteration (:meth:`Trainer._iteration`). What it remembers
from one iteration to the next is a :class:`ipdlam.training.state.RunState`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn
from typing_extensions import ParamSpec, Self

from ipdlam.checkpoint.format import Checkpoint, refuse_differences
from ipdlam.checkpoint.together import read_together, write_together
from ipdlam.checks import check_integer, differences
from ipdlam.defaults import EPOCHS, ITERATIONS
from ipdlam.distributed.agreement import refuse_mismatch
from ipdlam.distributed.group import SERIAL, Group, current_group, uninterrupted
from ipdlam.errors import CheckpointError, DivergenceError
from ipdlam.network.matmul import FAST, USUAL, multiplying, routine_for
from ipdlam.network.memory import keep_freed_memory
from ipdlam.network.mlp import Network
from ipdlam.network.model import ModelView
from ipdlam.network.objective import Objective
from ipdlam.network.samples import ArrayLike, Loader, Samples, ValidationData, check_samples, is_array, validation_parts
from ipdlam.prox import Loss
from ipdlam.training.callbacks import ProgressBar
from ipdlam.training.evaluation import scores
from ipdlam.training.history import History, Record
from ipdlam.training.loop import Callback, Stopping, check_callbacks, run_loop
from ipdlam.training.state import RunState
from ipdlam.version import __version__

S = TypeVar("S", bound=RunState)
P = ParamSpec("P")
R = TypeVar("R")


class Trainer(ABC, Generic[S]):
    """A way to train ``model`` in place; ``S`` is what it remembers from one iteration to the next."""

    saved_as: ClassVar[str]  # the name of the class whose ``load`` takes up what ``save`` wrote
    unit: ClassVar[str] = "iteration"  # what a step is called
    trains_together: ClassVar[bool] = False  # whether the processes of a group share one run
    start_is_training: ClassVar[bool] = True  # whether a start works something out from the data, on the clock
    remedy: str = "Scale the inputs"  # against divergence
    optimizer: str | None = None  # the one that back-propagates, by name
    storage: Path | None = None  # where z and a live, if not in memory
    loss: Loss
    chunk_size: int  # samples evaluated at a time
    group: Group = SERIAL  # the processes that train the model together

    view: ClassVar[type[ModelView]] = Network  # how it sees a model
    network: Any  # that view of its model

    def __init__(self, model: nn.Module) -> None:
        self.network = self.view(model)
        self._state: S | None = None

    @property
    def model(self) -> nn.Module:
        """The model being trained."""
        model: nn.Module = self.network.model
        return model

    @property
    def history(self) -> History:
        """The records of the run so far."""
        return self._started().history

    @property
    def iteration(self) -> int:
        """How many iterations the run has made; 0 before it starts."""
        return 0 if self._state is None else self._state.iteration

    # What a method fills in.

    @abstractmethod
    def settings_dict(self) -> dict[str, Any]:
        """Everything that defines a run besides the model and the data, in plain JSON types."""

    @classmethod
    @abstractmethod
    def _from_settings(cls, model: nn.Module, settings: dict[str, Any]) -> Self:
        """The inverse of :meth:`settings_dict`."""

    @classmethod
    def _completed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a checkpoint, with those that came later as they were meant then."""
        return settings

    def _go_on_as_before(self, settings: dict[str, Any]) -> None:
        """Take settings that came after a checkpoint as they were meant then."""

    @abstractmethod
    def _begin(self, samples: Samples, validation: Samples | None) -> S:
        """A new run from the model as it is."""

    @abstractmethod
    def _allocate(self, samples: Samples, validation: Samples | None) -> S:
        """A run whose counters and tensors remain to be restored."""

    @abstractmethod
    def _iteration(self, state: S) -> Objective:
        """One iteration, or epoch, counted in the state; the model holds its weights then."""

    def _check_settings(self) -> None:
        """Refuse settings that came from a file and do not fit the network."""

    # Beginning, going on.

    @torch.no_grad()
    def start(
        self,
        X: ArrayLike | Loader,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> None:
        """Check the data, and begin a run from the model as it is (that of rank 0, where several processes train).

        The arrays are read in every iteration, and copied only where they have to be converted: leave them as they are
        until the run is over. It is noticed that a tensor was changed in place, and that a NumPy array was, where some
        rows of it tell.
        """
        with self._meeting_others():
            self.network = self._read_again()
            samples, validation = self._check_data(X, y, sample_weight, validation_data)
            products = self._agreed(routine_for(self.network))
            started = time.perf_counter()
            with multiplying(products):
                state = self._begin(samples, validation)
            if self.start_is_training:
                state.seconds = self.group.first_number(time.perf_counter() - started)
            state.products, state.whole = products, True
            self._state = state

    def go_on(self, stopping: Stopping, callbacks: Iterable[Callback] = ()) -> History:
        """Go on with the run from its last iterate until it has ``stopping.iterations`` records, or ends earlier."""
        with self.group.telling():
            state, checked = self._whole_state(), check_callbacks(callbacks)
            self.network.write(*state.last_weights())
            if self.group.size > 1:
                given = {**dataclasses.asdict(stopping), **state.place()}
                refuse_mismatch(self.group.everyones(given, "go on with a run"))
            state.plan_until(stopping.iterations)
        with self._in_precision():
            return run_loop(self._next, self.network, state.history, stopping, checked, state.progress, self.group)

    @torch.no_grad()
    def _next(self, evaluate: bool) -> Record:
        """What the loop calls: one iteration, or epoch, and its record."""
        with self.group.telling(), self._in_precision():
            state = self._whole_state()
            with uninterrupted(lambda: state.is_unrecorded):  # what is counted has a record
                return self._record(state, self._iteration(state), evaluate)

    def close(self) -> None:
        """Forget the run, and remove what it keeps in files; the model keeps its weights."""
        if self._state is not None:
            self._state.close()
        self._state = None

    # Checkpoints.

    def save(self, path: str | PathLike[str], *, light: bool = False) -> None:
        """Write a checkpoint, a folder, from which :meth:`load` continues as if nothing had happened.

        It holds every variable on which the run depends; ``light`` keeps the weights, the settings and the history
        alone. The folder appears when it is whole; an older checkpoint of that name is replaced then. A full disk or a
        missing folder raises :class:`ipdlam.CheckpointError`, and training can go on. Where several processes train
        together, all of them call it, with the same path.
        """
        with self.group.telling():
            self._save(self._whole_state(), Path(path), light)

    def _save(self, state: S, path: Path, light: bool) -> None:
        if self.group.size > 1:
            refuse_mismatch(self.group.everyones({"path": str(path), "light": light}, "save"))
        content = {
            "kind": "light" if light else "exact",
            "ipdlam": __version__,
            "trainer": self.saved_as,
            "settings": self.settings_dict(),
            "network": self.network.to_dict(),
            "data": state.fingerprints() if state.spans is None else state.fingerprints_by_row(self.group),
            "run": state.counters(),
        }
        write_together(self.group, path, state.named_weights() if light else state.tensors(), content)

    def checkpoint_bytes(self, *, light: bool = False) -> int:
        """About how large :meth:`save` makes a checkpoint, the parts of all processes together."""
        state = self._started()
        tensors = state.named_weights() if light else state.tensors()
        return sum(tensor.shape.numel() * tensor.element_size() for tensor in tensors.values())

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        model: nn.Module,
        X: ArrayLike | Loader | None = None,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        storage: str | PathLike[str] | None = None,
    ) -> Self:
        """A trainer with the settings of a checkpoint, whose weights are written to ``model``.

        With the data it was trained on, ``step`` and ``continue_fit`` go on with the very numbers of the saved run;
        other data are refused. Without data, ``fit`` and ``start`` begin from the saved weights. ``path`` is a
        checkpoint or a folder of ``iteration-...`` checkpoints, of which the newest whole one is taken. ``storage`` is
        a folder for z and a, of the methods that can keep them there; it does not matter where they were when the
        checkpoint was saved, nor how many processes saved it and who of them held which samples.
        """
        group = cls._joined()
        with group.telling():
            if group.size > 1:
                refuse_mismatch(group.everyones({"path": str(path)}, "load"))
        checkpoint = read_together(group, Path(path))
        with group.telling():
            trainer = cls._made_by(checkpoint, model)
            trainer.group = group
            trainer._keep_in(storage)
        trainer.take_up(checkpoint, X, y, sample_weight=sample_weight, validation_data=validation_data)
        return trainer

    @classmethod
    def _made_by(cls, checkpoint: Checkpoint, model: nn.Module) -> Self:
        """A trainer with the settings of a checkpoint of such a model; the model is left as it is."""
        content = checkpoint.content
        with checkpoint.understood():
            cls._refuse_others(checkpoint)
            trainer = cls._from_settings(model, cls._completed(content["settings"]))
            refuse_differences(checkpoint, differences(content["network"], trainer.network.to_dict(), "the model's"))
            trainer._check_settings()
        return trainer

    @classmethod
    def _refuse_others(cls, checkpoint: Checkpoint) -> None:
        saved_by = saved_as(checkpoint)
        if saved_by != cls.saved_as:
            raise ValueError(f"it is of a run of {saved_by}; load it with {saved_by}.load")

    def _keep_in(self, storage: str | PathLike[str] | None) -> None:
        """Keep z and a in a folder; a method that has none has nothing to keep there."""
        if storage is not None:
            raise ValueError(f"{type(self).__name__} keeps nothing on a disk; leave out storage, got {str(storage)!r}")

    @torch.no_grad()
    def take_up(
        self,
        checkpoint: Checkpoint,
        X: ArrayLike | Loader | None = None,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> None:
        """:meth:`load` into this trainer, for a checkpoint that has been read: its settings must be this one's."""
        self.group = self._joined()
        with self.group.telling():
            with checkpoint.understood():
                self._refuse_others(checkpoint)
                kind, data, counters = (checkpoint.content[key] for key in ("kind", "data", "run"))
                settings, network = (checkpoint.content[key] for key in ("settings", "network"))
            refuse_differences(checkpoint, differences(network, self.network.to_dict(), "the model's"))
            self._go_on_as_before(settings)
            changed = differences(self._completed(settings), self.settings_dict(), "")
            if changed:
                raise CheckpointError(f"the settings of {checkpoint.path} have changed: {'; '.join(changed)}")
            if X is None:
                weights = self.network.read()
                checkpoint.copy_into(weights.named(), only=True)
                self.network.write(*weights)
            elif kind != "exact":
                raise CheckpointError(
                    f"{checkpoint.path} is a light checkpoint, which holds the weights alone; load it without data and "
                    "call fit"
                )
            else:
                self._go_on_from(checkpoint, data, counters, X, y, sample_weight, validation_data)
            self.group.agree()

    def _go_on_from(
        self,
        checkpoint: Checkpoint,
        data: dict[str, Any],
        counters: dict[str, Any],
        X: ArrayLike | Loader,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
    ) -> None:
        state = self._allocate(*self._check_data(X, y, sample_weight, validation_data))
        try:
            self._fill(state, checkpoint, data, counters)
        except BaseException:
            state.close()
            raise
        self.network.write(*state.last_weights())
        state.whole = True
        self._state = state

    def _fill(self, state: S, checkpoint: Checkpoint, data: dict[str, Any], counters: dict[str, Any]) -> None:
        """Copy a checkpoint into a run, if it is one on the same data."""
        if (data.get("validation") is None) != (state.validation is None):
            had = "with" if state.validation is None else "without"
            raise CheckpointError(f"{checkpoint.path} was saved {had} validation data; load it {had} validation_data")
        by_row = data.get("by") == "row"  # saved by several processes
        if state.spans is None or by_row:
            given = state.fingerprints_by_row(self.group) if by_row else state.fingerprints()
            refuse_differences(checkpoint, differences(data, given, "the sha256 of"))
        elif self.group.is_first:
            warnings.warn(
                f"{checkpoint.path} was saved by one process, so it is not checked whether these are its data",
                UserWarning,
                stacklevel=2,
            )
        with checkpoint.understood():
            state.restore(counters, self.network)
        state.products = self._agreed(state.products)
        checkpoint.copy_into(state.tensors())
        with checkpoint.understood():
            state.check_filled()

    # What the above share.

    @classmethod
    def _joined(cls) -> Group:
        """The processes that a trainer is to share its work with."""
        return current_group() if cls.trains_together else SERIAL

    @contextmanager
    def _meeting_others(self) -> Iterator[None]:
        """Find the processes to share a run with, from where on they hear of whatever fails."""
        self.group = self._joined()
        with self.group.telling(), self._in_precision():
            yield

    @contextmanager
    def _in_precision(self) -> Iterator[None]:
        """What is computed inside has the precision that the method says, whatever autocast the caller has."""
        keep_freed_memory(large=self.network.inputs is None)  # pictures, sequences: whatever is no perceptron
        with self.network.in_full_precision(), multiplying(USUAL if self._state is None else self._state.products):
            yield

    def _agreed(self, products: str) -> str:
        """The routine for products, if all processes have it: their bits have to be the same."""
        if self.group.size == 1:
            return products
        return FAST if all(has for (has,) in self.group.numbers(float(products == FAST))) else USUAL

    def _read_again(self) -> Any:
        """The model as it is now: it may have been converted or changed since the trainer was made."""
        return self.view(self.model)

    def _check_data(
        self,
        X: ArrayLike | Loader,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
    ) -> tuple[Samples, Samples | None]:
        """What to train and what to score on."""
        if self.optimizer is None:
            self.network.refuse_hooks()
        samples = self._training_samples(X, y, sample_weight)
        if validation_data is None:
            return samples, None
        return samples, self._samples(*validation_parts(validation_data), prefix="validation ")

    def _training_samples(self, X: Any, y: ArrayLike | None, sample_weight: ArrayLike | None) -> Samples:
        if y is None and not is_array(X):
            raise TypeError(
                f"{type(self).__name__} takes X and y as arrays, got {type(X).__name__}; an iterable of batches is for "
                "MiniBatchIPDLAM"
            )
        if y is None:
            raise ValueError("y is missing: give the targets of X")
        return self._samples(X, y, sample_weight)

    def _samples(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, prefix: str = "") -> Samples:
        part, mapped = self.group.size > 1, self.storage is not None
        return check_samples(self.network, self.loss, X, y, sample_weight, prefix, part=part, mapped=mapped)

    def _fit(
        self,
        X: ArrayLike | Loader,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
        callbacks: Iterable[Callback],
        verbose: bool,
        *stopping: Any,
    ) -> History:
        """Begin a run and go on with it; what says when it ends is refused before the data are looked at."""
        with self._meeting_others():
            until, checked = Stopping(*stopping), check_callbacks(callbacks)
        self.start(X, y, sample_weight=sample_weight, validation_data=validation_data)
        return self._go_on_watched(until, checked, verbose)

    def _continue_fit(self, callbacks: Iterable[Callback], verbose: bool, more: int, *stopping: Any) -> History:
        """Go on with a run for so many ``more`` iterations."""
        with self.group.telling():
            done = len(self._whole_state().history)
            until = Stopping(done + check_integer(f"{self.unit}s", more, 0), *stopping)
        return self._go_on_watched(until, callbacks, verbose)

    def _go_on_watched(self, until: Stopping, callbacks: Iterable[Callback], verbose: bool) -> History:
        """Go on with a run, with a bar where it is wanted (of several processes, on the first)."""
        if not (verbose and self.group.is_first):
            return self.go_on(until, callbacks)
        bar = ProgressBar(until.iterations, len(self._started().history), self.unit)
        try:
            return self.go_on(until, [*check_callbacks(callbacks), bar])
        finally:
            bar.close()

    def _started(self) -> S:
        if self._state is None:
            raise RuntimeError("no run has been started; call start(X, y) or fit(X, y) first")
        return self._state

    def _whole_state(self) -> S:
        """What the run remembers, if it can go on from there."""
        state = self._started()
        if not state.whole:
            raise RuntimeError(f"the last {self.unit} did not end; call start(X, y) to go on from the model's weights")
        self.network.refuse_changes(hooks=self.optimizer is not None)
        state.refuse_changes()
        return state

    def _scores(self, state: S) -> dict[str, Any]:
        """The fields of a record that the true forward pass fills."""
        return scores(self.model, self.loss, state.samples, state.validation, self.chunk_size, self.group)

    def _record(self, state: S, objective: Objective, evaluated: bool) -> Record:
        """Evaluate if asked and add the iteration to the history, whatever interrupts the evaluation."""
        found: dict[str, Any] = {}
        with self.group.in_step():
            try:
                if evaluated:
                    state.evaluating = True
                    found = self._scores(state)
            finally:
                state.evaluating = False
                record = Record(
                    iteration=state.iteration,
                    seconds=state.seconds,
                    optimizer=self.optimizer,
                    **objective.terms(),
                    **found,
                )
                state.history.append(record)
        return record

    def _divergence(self, state: S) -> DivergenceError:
        """What to raise where an iteration is not finite; the run is over."""
        state.history.stop_reason = "diverged"
        others = any(record.optimizer != self.optimizer for record in state.history)  # of a trainer before this one
        unit = "iteration" if others else self.unit
        return DivergenceError(
            f"{unit} {state.iteration + 1} is not finite; the model holds the weights of {unit} "
            f"{state.iteration} (the best ones with restore_best). {self.remedy}",
            state.history,
        )


def counting(own: str, other: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Answer the wrong argument of a method by the name of the trainer: it counts its ``own``, others the ``other``."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(method).parameters if name != "self"]

        @functools.wraps(method)
        def checked(*arguments: P.args, **named: P.kwargs) -> R:
            called = f"{type(arguments[0]).__name__}.{method.__name__}"
            for name in named:
                if name == other:
                    raise TypeError(f"{called} counts {own}, got {other}={named[name]!r}; use {own}=")
                if name not in known:
                    raise TypeError(f"{called} has no argument {name!r}; it has {', '.join(known)}")
            return method(*arguments, **named)

        return checked

    return decorate


class CountsIterations(Trainer[S]):
    """One whose steps are iterations."""

    @counting("iterations", other="epochs")
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        iterations: int = ITERATIONS,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> History:
        """Start from the model's weights and take up to ``iterations`` steps.

        ``restore_best`` leaves the weights of the best score; ``patience`` ends the run after so many evaluations
        without a better score; ``target_score`` ends it when reached (accuracy, or minus the mean loss for real
        targets; on validation data where given, which may also be an iterable of batches). Callbacks get each record
        and may raise :class:`ipdlam.StopTraining`; ``verbose`` shows a progress bar.
        Ctrl-C ends the run with what has been trained, and ``fit`` returns as usual. ``continue_fit`` and ``step`` go
        on from the last iterate, also after ``restore_best``, but not after a Ctrl-C in the middle of an iteration: z
        and a are then half-way, and ``start`` begins anew from the weights, or :meth:`load` from a checkpoint.
        """
        stopping = (iterations, restore_best, patience, target_score, evaluate_every)
        return self._fit(X, y, sample_weight, validation_data, callbacks, verbose, *stopping)

    @counting("iterations", other="epochs")
    def continue_fit(
        self,
        *,
        iterations: int = ITERATIONS,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> History:
        """Up to ``iterations`` more steps of the run that ``fit``, ``start`` or ``load`` left; otherwise as ``fit``."""
        stopping = (iterations, restore_best, patience, target_score, evaluate_every)
        return self._continue_fit(callbacks, verbose, *stopping)

    def step(self, *, evaluate: bool = True) -> Record:
        """One iteration; ``evaluate`` runs the model on the data for the record's losses and accuracies.

        The run keeps its own weights and writes them to the model: what else changes the model's weights between two
        steps is overwritten. ``start`` takes them up.
        """
        return super()._next(evaluate)

    def _next(self, evaluate: bool) -> Record:
        return self.step(evaluate=evaluate)  # so that a subclass may have a step of its own


class CountsEpochs(Trainer[S]):
    """One whose steps are epochs."""

    unit = "epoch"

    @counting("epochs", other="iterations")
    def fit(
        self,
        X: ArrayLike | Loader,
        y: ArrayLike | None = None,
        *,
        epochs: int = EPOCHS,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> History:
        """Start from the model's weights and train for up to ``epochs``; the rest as in :meth:`ipdlam.IPDLAM.fit`.

        For :class:`ipdlam.MiniBatchIPDLAM`, ``X`` alone may be any iterable of batches ``(x, y)`` or ``(x, y,
        sample_weight)`` that can be gone through once for every epoch, such as a ``DataLoader``. Its training scores
        are the mean losses as they were met. Ctrl-C ends an epoch between two batches, and ``continue_fit`` goes on
        with the next one (with a loader, with the next epoch: a loader cannot be entered half-way). Of several
        processes each gives its samples, or a loader of its parts of the batches; one that ends early goes on without
        samples.
        """
        with self._meeting_others():
            check_integer("epochs", epochs, 0)
        stopping = (epochs, restore_best, patience, target_score, evaluate_every)
        return self._fit(X, y, sample_weight, validation_data, callbacks, verbose, *stopping)

    @counting("epochs", other="iterations")
    def continue_fit(
        self,
        *,
        epochs: int = EPOCHS,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ) -> History:
        """Up to ``epochs`` more of the run that ``fit``, ``start`` or ``load`` left; otherwise as ``fit``.

        As far as the steps were planned they go on descending; beyond, :class:`ipdlam.MiniBatchIPDLAM` lets them rise
        again and descend over the new epochs.
        """
        stopping = (epochs, restore_best, patience, target_score, evaluate_every)
        return self._continue_fit(callbacks, verbose, *stopping)


def saved_as(checkpoint: Checkpoint) -> str:
    """The name of the class that saved a checkpoint."""
    return str(checkpoint.content.get("trainer", "IPDLAM"))  # there was one class before the name was written
