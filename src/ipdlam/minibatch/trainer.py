"""Alternating minimisation on mini-batches, with a fresh forward pass for each: nothing is kept for every sample."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from os import PathLike
from typing import Any

import torch
from torch import nn
from typing_extensions import Self

from ipdlam.checkpoint.format import Checkpoint
from ipdlam.checks import check_integer, check_seed
from ipdlam.distributed.agreement import divide
from ipdlam.distributed.group import Group, Span, current_group
from ipdlam.distributed.interrupts import uninterrupted
from ipdlam.errors import CheckpointError
from ipdlam.fullbatch.memory import default_chunk_size
from ipdlam.fullbatch.settings import by_name, rebuild
from ipdlam.minibatch.epoch import finish_epoch, take
from ipdlam.minibatch.feeding import everyones_part, joined
from ipdlam.minibatch.state import (
    BatchRun,
    Loader,
    NoSamples,
    check_loader,
    default_batch_size,
    fill_state,
    is_array,
    no_samples,
    unit_of,
)
from ipdlam.minibatch.step import Batchwise, StepSettings
from ipdlam.network.history import History, Record
from ipdlam.network.mlp import Network
from ipdlam.network.samples import ArrayLike, Samples, ValidationData, validation_parts
from ipdlam.prox import LOSSES, Loss
from ipdlam.training.evaluation import evaluate
from ipdlam.training.loop import Callback, Stopping, check_callbacks
from ipdlam.training.trainer import Resumable

STARTS = ("auto", "rescale", "keep")
BAD_BATCHES = ("refuse", "skip")


class MiniBatchIPDLAM(Resumable[BatchRun]):
    """Trains ``model`` in place by alternating minimisation on mini-batches; no gradient is back-propagated.

    For every batch, a forward pass gives ``z_l`` and ``a_l``. One sweep from the last layer down gives targets,

        z_L*     = argmin_x  L(y, x) + (rho (1 + delta) / 2) ||x - z_L||^2
        a_(l-1)* = a_(l-1) + (z_l* - z_l) W_l / mu                       (a proximal-linear step of small, fixed size)
        z_l*     = argmin_x  ||sigma_l(x) - a_l*||^2 + (1 + delta) ||x - z_l||^2

    and every ``W_l`` steps from its inertial point towards them in the metric of the (centred) activations it has seen,
    ``W_l <- W_hat + eta_l (z_l* - z_l)^T a_(l-1) M_l^-1 / m`` with ``M_l = cov(a_(l-1)) + delta mean variance``. The
    step ``eta_l`` is measured in the layer's own outputs, so it means the same in every network (docs/minibatch.md).
    Where a process group of ``torch.distributed`` is initialised, its processes train one model together: each gives
    its own samples, or its own part of every batch (docs/distributed.md).

    Parameters
    ----------
    model
        What :class:`ipdlam.IPDLAM` trains: an ``nn.Sequential`` of Linear layers and activations, the last one Linear.
    loss
        A name in ``ipdlam.prox.LOSSES`` or a ``Loss``.
    step
        The change of a hidden layer's outputs by a batch, in units of their size at the start, times the root of the
        number of layers. It rises over the first batches and descends linearly to zero over the epochs of ``fit``.
    inertia
        ``beta`` in the paper.
    proximity
        ``delta`` in the paper: the weight of all proximal terms.
    penalty
        ``rho`` in the paper, which does not grow here: each batch starts from a forward pass, so no gap is left to
        close.
    rank
        How many directions of a layer's inputs the metric knows.
    weight_decay
        A batch shrinks the weights by this part of its step.
    batch_size
        Samples to a batch in ``fit(X, y)``; by default 512, or 64 below 10000 samples.
    seed
        Of the order of the samples in ``fit(X, y)``, and of nothing else.
    start
        ``"rescale"`` scales and shifts the layers so that their outputs on the first samples have mean 0 and deviation
        1; ``"keep"`` takes the weights as they are; ``"auto"`` keeps those of a model that has been trained.
    horizon
        For your own loop of :meth:`step`: the number of batches over which the steps descend; by default they do not.
    bad_batches
        What becomes of a batch of a loader or of ``step`` with NaN or infinity: ``"refuse"`` raises, ``"skip"`` warns.
    chunk_size
        How many samples are evaluated at a time; by default as many as suit the cache.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> history = MiniBatchIPDLAM(model).fit(X, torch.tensor([0, 1, 1, 0]), epochs=100)
    >>> history[-1].train_accuracy
    1.0
    """

    saved_as = "MiniBatchIPDLAM"
    unit = "epoch"

    def __init__(
        self,
        model: nn.Sequential,
        *,
        loss: str | Loss = "squared",
        step: float = 0.5,
        inertia: float = 0.7,
        proximity: float = 3.0,
        penalty: float = 0.1,
        rank: int = 64,
        weight_decay: float = 0.0,
        batch_size: int | None = None,
        seed: int = 0,
        start: str = "auto",
        horizon: int | None = None,
        bad_batches: str = "refuse",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(model)
        self.loss = by_name("loss", loss, LOSSES, Loss)  # type: ignore[type-abstract]
        self.settings = StepSettings(self.loss, step, inertia, proximity, penalty, rank, weight_decay)
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
        self.seed = check_seed(seed)
        for name, value, known in (("start", start, STARTS), ("bad_batches", bad_batches, BAD_BATCHES)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        self.start_from, self.bad_batches = start, bad_batches
        self.horizon = None if horizon is None else check_integer("horizon", horizon, 1)
        rows = default_chunk_size(self.network) if chunk_size is None else chunk_size
        self.chunk_size = check_integer("chunk_size", rows, 1)

    def fit(
        self,
        X: ArrayLike | Loader,
        y: ArrayLike | None = None,
        *,
        epochs: int = 10,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
    ) -> History:
        """Start from the model's weights and train for up to ``epochs``; the rest as in :meth:`ipdlam.IPDLAM.fit`.

        ``X`` alone may be any iterable of batches ``(x, y)`` or ``(x, y, sample_weight)`` that can be gone through once
        for every epoch, such as a ``DataLoader``. Its training scores are the mean losses as they were met. Ctrl-C ends
        an epoch between two batches, and ``continue_fit`` goes on with the next one (with a loader, with the next
        epoch: a loader cannot be entered half-way). Of several processes each gives its samples, or a loader of its
        parts of the batches; one that ends early goes on without samples.
        """
        with self._meeting_others():
            check_integer("epochs", epochs, 0)
            stopping = Stopping(epochs, restore_best, patience, target_score, evaluate_every)
            checked = check_callbacks(callbacks)
        self.start(X, y, sample_weight=sample_weight, validation_data=validation_data)
        return self.go_on(stopping, checked)

    def continue_fit(
        self,
        *,
        epochs: int = 10,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
    ) -> History:
        """Up to ``epochs`` more of the run that ``fit``, ``start`` or ``load`` left; otherwise as ``fit``.

        As far as the steps were planned they go on descending; beyond, they rise again and descend over the new epochs.
        """
        stopping = self._stopping_after("epochs", epochs, restore_best, patience, target_score, evaluate_every)
        return self.go_on(stopping, callbacks)

    def save(self, path: str | PathLike[str], *, light: bool = False) -> None:
        with self.group.telling():
            run = self._whole_run()
            if not light and run.loader is None and run.is_fed:
                raise CheckpointError(
                    "a run of step(x, y) has no data to be loaded with; save state_dict(), or light=True"
                )
            super().save(path, light=light)

    def go_on(self, stopping: Stopping, callbacks: Iterable[Callback] = ()) -> History:
        with self.group.telling():
            run = self._whole_run()
            if run.loader is None and run.is_fed:
                raise RuntimeError("the run is one of step(x, y) and has no data of its own; call fit(X, y)")
        return super().go_on(stopping, callbacks)

    @torch.no_grad()
    def start(
        self,
        X: ArrayLike | Loader,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> None:
        """Check the data, and begin a run from the model as it is (on rank 0)."""
        with self._meeting_others():
            self.network = Network(self.model)
            data: Any = X
            run = self._allocate(*self._check_data(data, y, sample_weight, validation_data))
            run.begin_alike(self._described())
            run.loader = None if is_array(X) else data
            run.whole = True
            self._run = run

    @torch.no_grad()
    def step(self, x: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """One batch of your own loop; the mean loss of the model on it before the step.

        The first call begins a run. A batch that is skipped gives NaN; one that diverges leaves the weights alone. Of
        several processes each gives its part of the batch, which may be arrays of no rows.
        """
        run = self._begun()
        with self.group.telling(), self.network.in_full_precision():
            self._check_whole(run)
            run.begin_alike(self._described())
            own = run.check_batch(self.bad_batches == "skip", x, y, sample_weight)
            batch = joined(run, own, everyones_part(run, own))
            if batch is None:
                return float("nan")
            state, run.weights = run.state, None
            if run.planned != (0, 0):  # a loop that goes on from what fit left has a descent of its own
                run.planned, state.rise_from = (0, 0), state.batches
            progress = (state.batches - state.rise_from) / self.horizon if self.horizon is not None else 0.0
            started = time.perf_counter()
            with uninterrupted():
                loss = take(run, batch, progress, self.start_from)
            run.seconds += time.perf_counter() - started
        return loss

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, besides the model's weights; its tensors are copies."""
        run = self._begun()
        self._check_whole(run)
        state, counters = run.state, run.state.counters()
        if run.planned != (0, 0):  # as step does
            counters["rise_from"] = state.batches
        return {
            "settings": self.settings_dict(),
            "network": self.network.to_dict(),
            "counters": counters,
            "tensors": {name: tensor.clone() for name, tensor in state.tensors().items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the trainer of :meth:`state_dict` would have, with :meth:`step`; its settings must be this one's."""
        with self._meeting_others():
            self.network = Network(self.model)
            run = self._new_run(no_samples(self.network))
            fill_state(run.state, state, self.settings_dict())
            run.whole = True
            self._run = run

    def settings_dict(self) -> dict[str, Any]:
        return {**self.settings.to_dict(), **self._more_settings()}

    def _more_settings(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "seed": self.seed,
            "start": self.start_from,
            "horizon": self.horizon,
            "bad_batches": self.bad_batches,
            "chunk_size": self.chunk_size,
        }

    @classmethod
    def take_up(
        cls,
        checkpoint: Checkpoint,
        model: nn.Sequential,
        X: ArrayLike | Loader | None = None,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> Self:
        """:meth:`load` for a checkpoint that has been read; ``X`` alone may be a loader, as in ``fit``."""
        data: Any = X
        trainer = super().take_up(
            checkpoint, model, data, y, sample_weight=sample_weight, validation_data=validation_data
        )
        if trainer._run is not None and not is_array(X):
            trainer._run.loader = data
        return trainer

    @classmethod
    def _from_settings(cls, model: nn.Sequential, settings: dict[str, Any]) -> Self:
        return cls(model, **{**settings, "loss": rebuild("loss", settings["loss"], LOSSES)})

    @classmethod
    def _joined(cls) -> Group:
        return current_group()

    def _allocate(self, samples: Samples, validation: Samples | None) -> BatchRun:
        fed = isinstance(samples, NoSamples)
        spans = divide(self.group, self._described(), self.network, samples, validation, fed=fed)
        samples = samples.counted()
        if spans is not None and samples.weight is not None:
            counts = [int(number) for (number,) in self.group.numbers(float(len(samples)))]
            spans = Span.of_rank(self.group.rank, counts), spans[1]
        return self._new_run(samples, validation, spans)

    def _new_run(
        self, samples: Samples, validation: Samples | None = None, spans: tuple[Span, Span | None] | None = None
    ) -> BatchRun:
        total = len(samples) if spans is None else spans[0].total
        size = default_batch_size(total) if self.batch_size is None else self.batch_size
        order, state = torch.Generator().manual_seed(self.seed).get_state(), Batchwise(self.network, self.settings)
        if samples.weight is not None:
            state.weight_unit = unit_of(samples.weight, self.group)
        return BatchRun(samples, validation, state, size, order, spans=spans, group=self.group)

    def _described(self) -> dict[str, Any]:
        """The settings, to be compared; a loss that no registry knows by its class."""
        try:
            return self.settings_dict()
        except ValueError:
            own = {item.name: getattr(self.settings, item.name) for item in dataclasses.fields(self.settings)}
            return {**own, "loss": type(self.loss).__qualname__, **self._more_settings()}

    def _check_data(
        self,
        X: ArrayLike,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
    ) -> tuple[Samples, Samples | None]:
        if is_array(X):
            return super()._check_data(X, y, sample_weight, validation_data)
        check_loader(X, y, sample_weight)
        if validation_data is None:
            return no_samples(self.network), None
        return no_samples(self.network), self._samples(*validation_parts(validation_data), prefix="validation ")

    def _scores(self, run: BatchRun) -> dict[str, Any]:
        if run.loader is None:
            return super()._scores(run)
        found: dict[str, Any] = {"train_loss": run.losses / run.counted if run.counted else None}
        if run.validation is not None:
            held_out = evaluate(self.model, self.loss, run.validation, self.chunk_size).of_all(self.group)
            found |= {"validation_loss": held_out.loss, "validation_accuracy": held_out.accuracy}
        return found

    @torch.no_grad()
    def _next(self, evaluate: bool) -> Record:
        """The rest of this epoch."""
        run = self._whole_run()
        finish_epoch(run, self.start_from, self.bad_batches == "skip")
        try:
            return self._record(run, run.objective(), evaluate)
        finally:  # also where Ctrl-C ends the evaluation: the epoch is done
            run.position, run.losses, run.counted = 0, 0.0, 0.0

    def _begun(self) -> BatchRun:
        """The run; a loop of the user's begins one where there is none."""
        if self._run is None:
            self.group = self._joined()
            with self.group.telling():
                self.network = Network(self.model)
                self.network.refuse_hooks()
                self._run = self._new_run(no_samples(self.network))
                self._run.whole = True
        return self._run

    def _check_whole(self, run: BatchRun) -> None:
        if not run.whole and run.is_fed:
            raise RuntimeError("the last batch did not end; load_state_dict an earlier state, or make a new trainer")
        self._whole_run()
