"""Alternating minimisation on mini-batches, with a fresh forward pass for each: nothing is kept for every sample."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ipdlam import defaults
from ipdlam.checks import check_integer, check_seed
from ipdlam.distributed.agreement import divide
from ipdlam.distributed.group import Span, uninterrupted
from ipdlam.errors import CheckpointError
from ipdlam.minibatch.batch import NoSamples, check_loader, default_batch_size, no_samples, unit_of
from ipdlam.minibatch.epoch import everyones_part, finish_epoch, joined, take
from ipdlam.minibatch.state import MiniBatchState, fill_stepper
from ipdlam.minibatch.step import Stepper, StepSettings
from ipdlam.network.arithmetic import PLAIN, products_for, refuse_precision, warn_where_idle, warn_where_slow
from ipdlam.network.graph import Graph
from ipdlam.network.matmul import USUAL, routine_for, usable
from ipdlam.network.objective import Objective
from ipdlam.network.samples import ArrayLike, Samples, is_array
from ipdlam.prox import LOSSES, Loss
from ipdlam.prox.registry import by_name, rebuild
from ipdlam.training.evaluation import evaluate
from ipdlam.training.history import History, Record
from ipdlam.training.loop import Callback, Stopping
from ipdlam.training.trainer import CountsEpochs

STARTS = ("auto", "rescale", "keep")
BAD_BATCHES = ("refuse", "skip")


class MiniBatchIPDLAM(CountsEpochs[MiniBatchState]):
    """Trains ``model`` in place by alternating minimisation on mini-batches; no gradient is back-propagated.

    For every batch, a forward pass gives ``z_l`` and ``a_l``. One sweep from the last layer down gives targets,

        z_L*     = argmin_x  L(y, x) + (rho (1 + delta) / 2) ||x - z_L||^2
        a_(l-1)* = a_(l-1) + (z_l* - z_l) W_l / mu                       (a proximal-linear step of small, fixed size)
        z_l*     = argmin_x  ||sigma_l(x) - a_l*||^2 + (1 + delta) ||x - z_l||^2

    and every ``W_l`` steps from its inertial point towards them in the metric of the (centred) activations it has seen,
    ``W_l <- W_hat + eta_l (z_l* - z_l)^T a_(l-1) M_l^-1 / m`` with ``M_l = cov(a_(l-1)) + delta mean variance``. The
    step ``eta_l`` is measured in the layer's own outputs, so it means the same in every network. Where a process group
    of ``torch.distributed`` is initialised, its processes train one model together: each gives its own samples, or its
    own part of every batch. See docs/method/minibatch.md and docs/guide/distributed.md.

    Parameters
    ----------
    model
        Any model of one input and one output that ``torch.fx`` can trace: see docs/method/networks.md.
    loss
        A name in ``ipdlam.prox.LOSSES`` or a ``Loss``.
    step
        The change of a hidden layer's outputs by a batch, in units of their size at the start, times the root of the
        number of layers. It rises over the first batches and descends linearly to zero over the epochs of ``fit``.
        By default 0.5, or 0.25 where the model is more than a perceptron.
    inertia
        ``beta`` in the paper.
    proximity
        ``delta`` in the paper: the weight of all proximal terms. By default 3, or 1 where the model is more than a
        perceptron.
    penalty
        ``rho_0`` in the paper. A step lowers the Moreau envelope of the loss with the weight ``rho (1 + delta)``,
        which is smoother than the loss, and another one.
    penalty_growth
        What ``rho`` is multiplied by, little by little, until 0.7 of the planned training is done: at a large penalty
        the envelope is the loss. In your own loop without a horizon, over the first 1000 batches. The squared loss is
        its own envelope, up to a factor, and its penalty does not grow.
    rank
        How many directions of a layer's inputs the metric knows.
    output_rank
        The same of the wishes for the outputs of a perceptron's hidden layers, if these have more outputs than that; 0
        leaves that side of the metric out.
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
    precision
        ``"bfloat16"`` narrows the operands of the large products (the forward pass, the pulls, the gradients of the
        weights) of a model in float32, whose results have the digits of bfloat16; the weights and all else stay
        float32. A surrounding
        ``torch.autocast`` with bfloat16 means the same. It is for processors that have instructions for it; on others
        it is slower, and a warning says so.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> X = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> history = MiniBatchIPDLAM(model).fit(X, torch.tensor([0, 1, 1, 0]), epochs=100)
    >>> history[-1].train_accuracy
    1.0
    """

    saved_as = "MiniBatchIPDLAM"
    view = Graph
    network: Graph
    trains_together = True
    start_is_training = False

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: str | Loss = defaults.LOSS,
        step: float | None = None,
        inertia: float = defaults.INERTIA,
        proximity: float | None = None,
        penalty: float = defaults.PENALTY,
        penalty_growth: float = defaults.ENVELOPE_GROWTH,
        rank: int = defaults.RANK,
        output_rank: int = defaults.OUTPUT_RANK,
        weight_decay: float = defaults.WEIGHT_DECAY,
        batch_size: int | None = None,
        seed: int = 0,
        start: str = "auto",
        horizon: int | None = None,
        bad_batches: str = "refuse",
        chunk_size: int | None = None,
        precision: str = defaults.PRECISION,
    ) -> None:
        super().__init__(model)
        self.loss = by_name("loss", loss, LOSSES, Loss)  # type: ignore[type-abstract]
        usual = defaults.PERCEPTRON if self.network.chain is not None else defaults.NETWORK
        step, proximity = (
            usual["step"] if step is None else step,
            usual["proximity"] if proximity is None else proximity,
        )
        self.settings = StepSettings(
            self.loss, step, inertia, proximity, penalty, rank, weight_decay, penalty_growth, precision, output_rank
        )
        refuse_precision(precision, self.network.dtype)
        warn_where_idle(precision, (layer.weight for layer in self.network.layers))
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
        self.seed = check_seed(seed)
        for name, value, known in (("start", start, STARTS), ("bad_batches", bad_batches, BAD_BATCHES)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        self.start_from, self.bad_batches = start, bad_batches
        self.horizon = None if horizon is None else check_integer("horizon", horizon, 1)
        rows = self.network.chunk_size if chunk_size is None else chunk_size
        self.chunk_size = check_integer("chunk_size", rows, 1)

    @torch.no_grad()
    def step(self, x: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """One batch of your own loop; the mean loss of the model on it before the step.

        The first call begins a run. A batch that is skipped gives NaN; one that diverges leaves the weights alone. Of
        several processes each gives its part of the batch, which may be arrays of no rows.
        """
        state = self._begun()
        with self.group.telling(), self._in_precision():
            self._check_whole(state)
            state.begin_alike(self._described)
            own = state.check_batch(self.bad_batches == "skip", x, y, sample_weight)
            batch = joined(state, own, everyones_part(state, own))
            if batch is None:
                return float("nan")
            stepper, state.weights = state.stepper, None
            if state.planned != (0, 0):  # a loop that goes on from what fit left has a descent of its own
                state.planned, stepper.rise_from = (0, 0), stepper.batches
            progress = (stepper.batches - stepper.rise_from) / self.horizon if self.horizon is not None else 0.0
            if progress == 1.0:
                warnings.warn(
                    f"batch {stepper.batches - stepper.rise_from + 1} is past the horizon of {self.horizon}: from here "
                    "on the steps are zero; make a trainer with a larger horizon",
                    UserWarning,
                    stacklevel=2,
                )
            self._warn_where_slow(state)
            started = time.perf_counter()
            with uninterrupted():
                loss = take(state, batch, progress, self.start_from)
            state.seconds += time.perf_counter() - started
        return loss

    def _iteration(self, state: MiniBatchState) -> Objective:
        """The rest of this epoch: a forward pass, a sweep and a step for each batch (:mod:`ipdlam.minibatch.step`)."""
        self._warn_where_slow(state)
        finish_epoch(state, self.start_from, self.bad_batches == "skip")
        return state.objective()

    def go_on(self, stopping: Stopping, callbacks: Iterable[Callback] = ()) -> History:
        with self.group.telling():
            state = self._whole_state()
            if state.loader is None and state.is_fed:
                raise RuntimeError("the run is one of step(x, y) and has no data of its own; call fit(X, y)")
        return super().go_on(stopping, callbacks)

    def save(self, path: str | PathLike[str], *, light: bool = False) -> None:
        with self.group.telling():
            state = self._whole_state()
            if not light and state.loader is None and state.is_fed:
                raise CheckpointError(
                    "a run of step(x, y) has no data to be loaded with; save state_dict(), or light=True"
                )
            super().save(path, light=light)

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, besides the model's weights; its tensors are copies."""
        state = self._begun()
        self._check_whole(state)
        stepper, counters = state.stepper, state.stepper.counters()
        if state.planned != (0, 0):  # as step does
            counters["rise_from"] = stepper.batches
        return {
            "settings": self.settings_dict(),
            "network": self.network.to_dict(),
            "counters": counters,
            "tensors": {name: tensor.clone() for name, tensor in stepper.tensors().items()},
            "products": state.products,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the trainer of :meth:`state_dict` would have, with :meth:`step`; its settings must be this one's."""
        with self._meeting_others():
            self.network = self._read_again()
            new = self._new_state(no_samples(self.network))
            given = {**state, "settings": self._completed(state.get("settings", {}))} if "settings" in state else state
            fill_stepper(new.stepper, given, self.settings_dict())
            new.products = self._agreed(usable(given.get("products", USUAL)))
            new.whole = True
            self._state = new

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
    def _from_settings(cls, model: nn.Module, settings: dict[str, Any]) -> Self:
        return cls(model, **{**settings, "loss": rebuild("loss", settings["loss"], LOSSES)})

    @classmethod
    def _completed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        # The penalty did not grow, products were full and metrics had one side before these settings were there.
        return {"penalty_growth": 1.0, "precision": defaults.PRECISION, "output_rank": 0, **settings}

    def _go_on_as_before(self, settings: dict[str, Any]) -> None:
        if "penalty_growth" not in settings:
            self.settings = dataclasses.replace(self.settings, penalty_growth=1.0)
        if "output_rank" not in settings:
            self.settings = dataclasses.replace(self.settings, output_rank=0)

    def _described(self) -> dict[str, Any]:
        """The settings, to be compared; a loss that no registry knows by its class."""
        narrow = self.network.arithmetic.narrow is not None  # also where a process has autocast switched on
        precision = {"precision": "bfloat16"} if narrow else {}
        try:
            return {**self.settings_dict(), **precision}
        except ValueError:
            own = {item.name: getattr(self.settings, item.name) for item in dataclasses.fields(self.settings)}
            return {**own, "loss": type(self.loss).__qualname__, **self._more_settings(), **precision}

    @contextmanager
    def _in_precision(self) -> Iterator[None]:
        network = self.network
        before = network.arithmetic  # not plain where this is inside of another one, which has switched autocast off
        if before is PLAIN:
            network.multiply(products_for(self.settings.precision, network.dtype, network.device))
        try:
            with super()._in_precision():
                yield
        finally:
            self.network.multiply(before)  # perhaps of another reading of the model

    def _read_again(self) -> Graph:
        network = Graph(self.model)
        network.multiply(self.network.arithmetic)
        return network

    def _warn_where_slow(self, state: MiniBatchState) -> None:
        if state.stepper.batches or self.network.arithmetic is PLAIN:
            return
        narrow = [layer.weight for layer in self.network.layers if layer.products.narrow is not None]
        if narrow:
            warn_where_slow(max(narrow, key=Tensor.numel))

    def _begin(self, samples: Samples, validation: Samples | None) -> MiniBatchState:
        state = self._allocate(samples, validation)
        state.begin_alike(self._described)
        if not state.is_fed:
            total = len(state.samples) if state.spans is None else state.spans[0].total
            self.network.refuse_single(state.batch_size, total)
        return state

    def _allocate(self, samples: Samples, validation: Samples | None) -> MiniBatchState:
        fed = isinstance(samples, NoSamples)
        spans = divide(self.group, self._described(), self.network, samples, validation, fed=fed)
        counted = samples.counted()
        if spans is not None and counted.weight is not None:
            counts = [int(number) for (number,) in self.group.numbers(float(len(counted)))]
            spans = Span.of_rank(self.group.rank, counts), spans[1]
        return self._new_state(counted, validation, spans)

    def _new_state(
        self, samples: Samples, validation: Samples | None = None, spans: tuple[Span, Span | None] | None = None
    ) -> MiniBatchState:
        total = len(samples) if spans is None else spans[0].total
        size = default_batch_size(total) if self.batch_size is None else self.batch_size
        order, stepper = torch.Generator().manual_seed(self.seed).get_state(), Stepper(self.network, self.settings)
        if samples.weight is not None:
            stepper.weight_unit = unit_of(samples.weight, self.group)
        loader = samples.loader if isinstance(samples, NoSamples) else None
        return MiniBatchState(samples, validation, stepper, size, order, loader, spans=spans, group=self.group)

    def _training_samples(self, X: Any, y: ArrayLike | None, sample_weight: ArrayLike | None) -> Samples:
        if is_array(X):
            return super()._training_samples(X, y, sample_weight)
        check_loader(X, y, sample_weight)
        return no_samples(self.network, X)

    def _scores(self, state: MiniBatchState) -> dict[str, Any]:
        if state.loader is None:
            return super()._scores(state)
        found: dict[str, Any] = {"train_loss": state.losses / state.counted if state.counted else None}
        if state.counted and state.correct is not None and not math.isnan(state.correct):
            found["train_accuracy"] = state.correct / state.counted
        if state.validation is not None:
            held_out = evaluate(self.model, self.loss, state.validation, self.chunk_size).of_all(self.group)
            found |= {"validation_loss": held_out.loss, "validation_accuracy": held_out.accuracy}
        return found

    def _record(self, state: MiniBatchState, objective: Objective, evaluated: bool) -> Record:
        try:
            return super()._record(state, objective, evaluated)
        finally:  # also where Ctrl-C ends the evaluation: the epoch is done
            state.begin_epoch()

    def _begun(self) -> MiniBatchState:
        """The run; a loop of the user's begins one where there is none."""
        if self._state is None:
            self.group = self._joined()
            with self.group.telling():
                self.network = self._read_again()
                self.network.refuse_hooks()
                self._state = self._new_state(no_samples(self.network))
                self._state.products = self._agreed(routine_for(self.network))
                self._state.whole = True
        return self._state

    def _check_whole(self, state: MiniBatchState) -> None:
        if not state.whole and state.is_fed:
            raise RuntimeError("the last batch did not end; load_state_dict an earlier state, or make a new trainer")
        self._whole_state()
