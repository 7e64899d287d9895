"""Alternating minimisation on mini-batches, with a fresh forward pass for each: nothing is kept for every sample."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

import torch
from torch import nn
from typing_extensions import Self

from ipdlam.batches import (
    BatchRun,
    Loader,
    batches_of,
    check_batch_parts,
    check_loader,
    default_batch_size,
    fill_state,
    is_array,
    length_of,
    no_samples,
    unit_of,
)
from ipdlam.batchwise import Batchwise, StepSettings
from ipdlam.checkpoint import Checkpoint
from ipdlam.checks import check_integer, check_seed
from ipdlam.errors import CheckpointError, DivergenceError, SolveError
from ipdlam.evaluation import evaluate
from ipdlam.history import History, Record
from ipdlam.inputs import ArrayLike, Samples, ValidationData, validation_parts
from ipdlam.interrupts import uninterrupted
from ipdlam.linalg import all_finite
from ipdlam.loop import Callback, Stopping, check_callbacks
from ipdlam.network import Network
from ipdlam.prox import LOSSES, Loss
from ipdlam.resumable import Resumable
from ipdlam.settings import by_name, rebuild
from ipdlam.shards import default_chunk_size
from ipdlam.start import count

STARTS = ("auto", "rescale", "keep")
BAD_BATCHES = ("refuse", "skip")
START_ROWS = 256  # of the samples that the start is scaled on, where batches are smaller


class MiniBatchIPDLAM(Resumable[BatchRun]):
    """Trains ``model`` in place by alternating minimisation on mini-batches; no gradient is back-propagated.

    For every batch, a forward pass gives ``z_l`` and ``a_l``. One sweep from the last layer down gives targets,

        z_L*     = argmin_x  L(y, x) + (rho (1 + delta) / 2) ||x - z_L||^2
        a_(l-1)* = a_(l-1) + (z_l* - z_l) W_l / mu                       (a proximal-linear step of small, fixed size)
        z_l*     = argmin_x  ||sigma_l(x) - a_l*||^2 + (1 + delta) ||x - z_l||^2

    and every ``W_l`` steps from its inertial point towards them in the metric of the (centred) activations it has seen,
    ``W_l <- W_hat + eta_l (z_l* - z_l)^T a_(l-1) M_l^-1 / m`` with ``M_l = cov(a_(l-1)) + delta mean variance``. The
    step ``eta_l`` is measured in the layer's own outputs, so it means the same in every network (docs/minibatch.md).

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
        epoch: a loader cannot be entered half-way).
        """
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
        run = self._whole_run()
        if not light and run.loader is None and not len(run.samples):
            raise CheckpointError("a run of step(x, y) has no data to be loaded with; save state_dict(), or light=True")
        super().save(path, light=light)

    def go_on(self, stopping: Stopping, callbacks: Iterable[Callback] = ()) -> History:
        run = self._whole_run()
        if run.loader is None and not len(run.samples):
            raise RuntimeError("the run is one of step(x, y) and has no data of its own; call fit(X, y)")
        run.plan_until(stopping.iterations)
        return super().go_on(stopping, callbacks)

    def start(
        self,
        X: ArrayLike | Loader,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> None:
        """Check the data, and begin a run from the model as it is."""
        self.network = Network(self.model)
        data: Any = X
        self._run = self._allocate(*self._check_data(data, y, sample_weight, validation_data))
        self._run.loader = None if is_array(X) else data
        self._run.whole = True

    @torch.no_grad()
    def step(self, x: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """One batch of your own loop; the mean loss of the model on it before the step.

        The first call begins a run. A batch that is skipped gives NaN; one that diverges leaves the weights alone.
        """
        run = self._begun()
        batch = run.check_batch(self.bad_batches == "skip", x, y, sample_weight)
        if batch is None:
            return float("nan")
        state, run.weights = run.state, None
        if run.planned != (0, 0):  # a loop that goes on from what fit left has a descent of its own
            run.planned, state.rise_from = (0, 0), state.batches
        progress = (state.batches - state.rise_from) / self.horizon if self.horizon is not None else 0.0
        started = time.perf_counter()
        with uninterrupted():
            loss = self._take(run, batch, progress)
        run.seconds += time.perf_counter() - started
        return loss

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, besides the model's weights; its tensors are copies."""
        run = self._begun()
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
        self.network = Network(self.model)
        run = self._allocate(no_samples(self.network), None)
        fill_state(run.state, state, self.settings_dict())
        run.whole = True
        self._run = run

    def settings_dict(self) -> dict[str, Any]:
        return {
            **self.settings.to_dict(),
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

    def _allocate(self, samples: Samples, validation: Samples | None) -> BatchRun:
        samples = samples.counted()
        size = default_batch_size(len(samples)) if self.batch_size is None else self.batch_size
        order, state = torch.Generator().manual_seed(self.seed).get_state(), Batchwise(self.network, self.settings)
        if samples.weight is not None:
            state.weight_unit = unit_of(samples.weight)
        return BatchRun(samples, validation, state, size, order)

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
            held_out = evaluate(self.model, self.loss, run.validation, self.chunk_size)
            found |= {"validation_loss": held_out.loss, "validation_accuracy": held_out.accuracy}
        return found

    @torch.no_grad()
    def _next(self, evaluate: bool) -> Record:
        """The rest of this epoch."""
        run = self._whole_run()
        before = self.network.read()  # to fall back on
        run.weights = None
        if run.loader is not None:
            run.position, run.losses, run.counted = 0, 0.0, 0.0
        generator = torch.Generator()
        generator.set_state(run.order)
        try:
            started = time.perf_counter()
            for batch in self._batches(run, generator):
                with uninterrupted():
                    if batch is not None:
                        self._take(run, batch, run.planned_part)
                    run.position += 1
                    run.seconds, started = run.seconds + time.perf_counter() - started, time.perf_counter()
            if not self._sound():
                raise run.divergence()
        except BaseException as error:
            run.whole = run.whole and self._sound() and not isinstance(error, DivergenceError)
            if run.whole:
                run.weights = self.network.read()  # restore_best may leave others in the model
            else:
                self.network.write(*before)
            raise
        if not run.position:
            raise ValueError(
                "X has no batches: it was empty in this epoch; give an iterable that can be gone through again"
            )
        run.epoch_batches = run.position
        run.iteration += 1
        run.order = generator.get_state()
        run.weights = self.network.read()
        try:
            return self._record(run, run.objective(), evaluate)
        finally:  # also where Ctrl-C ends the evaluation: the epoch is done
            run.position, run.losses, run.counted = 0, 0.0, 0.0

    def _batches(self, run: BatchRun, generator: torch.Generator) -> Iterator[Samples | None]:
        """What is left of this epoch; None for a batch that is skipped."""
        if run.loader is None:
            order = torch.randperm(len(run.samples), generator=generator).to(self.network.device)
            run.epoch_batches = -(-len(run.samples) // run.batch_size)
            first = order[: max(run.batch_size, START_ROWS)]
            run.state.prepare(run.samples.picked(first), self.start_from)
            yield from batches_of(run.samples, order, run.batch_size, run.position)
            return
        run.epoch_batches = length_of(run.loader) or run.epoch_batches
        for batch in run.loader:
            yield run.check_batch(self.bad_batches == "skip", *check_batch_parts(batch))

    def _take(self, run: BatchRun, batch: Samples, progress: float) -> float:
        """Train on one batch."""
        state = run.state
        run.whole = False  # what fails in between leaves some layers a step ahead
        try:
            state.prepare(batch, self.start_from)
            loss = state.update(batch, progress)
        except (SolveError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]  # of what overflows
            raise run.divergence() from error
        run.whole = True
        if not math.isfinite(loss):
            raise run.divergence()
        weight = count(batch)
        run.losses += loss * weight
        run.counted += weight
        return loss

    def _begun(self) -> BatchRun:
        """The run; a loop of the user's begins one where there is none."""
        if self._run is None:
            self.network = Network(self.model)
            self._run = self._allocate(no_samples(self.network), None)
            self._run.whole = True
        if not self._run.whole and not len(self._run.samples):
            raise RuntimeError("the last batch did not end; load_state_dict an earlier state, or make a new trainer")
        return self._whole_run()

    def _sound(self) -> bool:
        """Whether the model's weights are finite."""
        return all(all_finite(weight.detach()) for weight in self.model.parameters())
