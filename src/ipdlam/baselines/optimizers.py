"""The classical optimizers, by back-propagation, on the models, losses, clock and records of the method itself."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ipdlam.checks import check_integer, check_number
from ipdlam.errors import DivergenceError
from ipdlam.evaluation import evaluate
from ipdlam.history import History, Record
from ipdlam.inputs import ArrayLike, Samples, ValidationData, check_samples, check_validation
from ipdlam.linalg import all_finite
from ipdlam.loop import Callback, Progress, Stopping, Weights, check_callbacks, run_loop
from ipdlam.network import Network
from ipdlam.prox import LOSSES, Loss
from ipdlam.settings import by_name
from ipdlam.shards import default_chunk_size

LARGEST_SEED = 2**64 - 1
LARGEST_RATE = 1e30  # some way below the largest float32: the optimizers divide it by numbers such as 1 - beta

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "amsgrad": functools.partial(torch.optim.Adam, amsgrad=True),
    "adamax": torch.optim.Adamax,
}
"""Name to optimizer, called with the parameters and ``lr``; all else is torch's default."""


@dataclass
class Run:
    """What goes on from one epoch to the next."""

    samples: Samples
    validation: Samples | None
    optimizer: Optimizer
    generator: torch.Generator  # of the order of the samples
    weights: Weights  # of the last finished epoch; the model may hold the best ones, or half an epoch
    progress: Progress = field(default_factory=Progress)
    history: History = field(default_factory=History)
    epoch: int = 0
    seconds: float = 0.0
    whole: bool = True  # False while an epoch is under way: the optimizer's moments cannot be taken back


class BackPropagation:
    """Trains ``model`` in place by a gradient method, with the interface of :class:`ipdlam.IPDLAM`.

    For every batch of the shuffled samples it takes one step of the optimizer down the gradient of

        sum_i weight_i L(y_i, model(x_i)) / sum_i weight_i

    over the batch; an epoch is an iteration. Where ``L`` has a kink, torch chooses the subgradient.

    Parameters
    ----------
    model
        What :class:`ipdlam.IPDLAM` trains: an ``nn.Sequential`` of Linear layers and activations, the last one Linear.
    optimizer
        A name in ``OPTIMIZERS``.
    loss
        A name in ``ipdlam.prox.LOSSES`` or a ``Loss``.
    learning_rate
        ``lr`` in torch. One rate does not suit all: adadelta is made for 1, sgd likes 0.1, adam 0.001.
    batch_size
        The samples to a step; the last batch of an epoch holds what is left.
    seed
        Of the order of the samples, and of nothing else: the model's weights are taken as they are.
    chunk_size
        How many samples are evaluated at a time; by default as many as suit the cache.

    >>> model = nn.Sequential(nn.Linear(2, 1))
    >>> trainer = BackPropagation(model, "sgd", learning_rate=0.1)
    >>> history = trainer.fit(torch.eye(2), torch.ones(2), epochs=3)
    >>> history[2].objective < history[0].objective
    True
    """

    def __init__(
        self,
        model: nn.Sequential,
        optimizer: str = "adam",
        *,
        loss: str | Loss = "squared",
        learning_rate: float = 0.001,
        batch_size: int = 512,
        seed: int = 0,
        chunk_size: int | None = None,
    ) -> None:
        self.network = Network(model)
        if not isinstance(optimizer, str) or optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
        self.optimizer = optimizer
        self.loss = by_name("loss", loss, LOSSES, Loss)  # type: ignore[type-abstract]
        self.learning_rate = check_number("learning_rate", learning_rate, 0.0, LARGEST_RATE, strict=True)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.seed = check_integer("seed", seed, 0)
        if self.seed > LARGEST_SEED:
            raise ValueError(f"seed must be below 2**64, got {seed!r}")
        rows = default_chunk_size(self.network) if chunk_size is None else chunk_size
        self.chunk_size = check_integer("chunk_size", rows, 1)
        self._run: Run | None = None

    @property
    def model(self) -> nn.Sequential:
        """The model being trained."""
        return self.network.model

    @property
    def history(self) -> History:
        """The records of the run so far."""
        return self._started().history

    def start(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> None:
        """Check the data, and begin a run from the model as it is: a new optimizer, and the seed's first order."""
        self.network = Network(self.model)
        samples = check_samples(self.network, self.loss, X, y, sample_weight)
        validation = None if validation_data is None else check_validation(self.network, self.loss, validation_data)
        weights = self.network.read()
        optimizer = OPTIMIZERS[self.optimizer](self.model.parameters(), lr=self.learning_rate)
        generator = torch.Generator().manual_seed(self.seed)
        self._run = Run(counted(samples), validation, optimizer, generator, weights)

    def step(self, *, evaluate: bool = True) -> Record:
        """One epoch; ``evaluate`` runs the model on the data for the record's losses and accuracies.

        As in :meth:`ipdlam.IPDLAM.step` the run goes on from its own last weights, whatever else has changed the
        model's. An epoch that does not end leaves the weights of the one before.
        """
        run = self._started()
        if not run.whole:
            raise RuntimeError("the last epoch did not end; call start(X, y) to go on from the model's weights")
        run.whole = False
        self.network.write(*run.weights)
        started = time.perf_counter()
        try:
            loss = self._epoch(run)
            if not (math.isfinite(loss) and all(all_finite(weight.detach()) for weight in self.model.parameters())):
                raise self._divergence(run)
            seconds = time.perf_counter() - started
            run.weights = self.network.read()
        except BaseException:
            self.network.write(*run.weights)
            raise
        finally:
            self.model.zero_grad(set_to_none=True)
        run.epoch += 1
        run.seconds += seconds
        run.whole = True
        return self._record(run, loss, evaluate)

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        epochs: int = 50,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        restore_best: bool = False,
        patience: int | None = None,
        target_score: float | None = None,
        evaluate_every: int = 1,
        callbacks: Iterable[Callback] = (),
    ) -> History:
        """Start from the model's weights and train for up to ``epochs``; the rest as in :meth:`ipdlam.IPDLAM.fit`."""
        check_integer("epochs", epochs, 0)
        stopping = Stopping(epochs, restore_best, patience, target_score, evaluate_every)
        checked = check_callbacks(callbacks)
        self.start(X, y, sample_weight=sample_weight, validation_data=validation_data)
        run = self._started()
        return run_loop(
            lambda evaluate: self.step(evaluate=evaluate),
            self.network,
            run.history,
            stopping,
            checked,
            run.progress,
        )

    def _started(self) -> Run:
        if self._run is None:
            raise RuntimeError("no run has been started; call start(X, y) or fit(X, y) first")
        return self._run

    @torch.enable_grad()
    def _epoch(self, run: Run) -> float:
        """Every sample once, in a new order; the sum of the losses, each as it was met."""
        samples, total = run.samples, torch.zeros((), dtype=torch.float64, device=self.network.device)
        order = torch.randperm(len(samples), generator=run.generator).to(self.network.device)
        for rows in samples.rows(self.batch_size):
            batch = picked(samples, order[rows])
            run.optimizer.zero_grad(set_to_none=True)
            outputs = self.model(batch.X)
            losses = self.loss.value(batch.targets(self.loss, slice(None), outputs.shape[1]), outputs)
            mean = losses.mean() if batch.weight is None else losses @ (batch.weight / batch.weight.sum())
            mean.backward()  # type: ignore[no-untyped-call]
            run.optimizer.step()
            losses = losses.detach().double()
            total += losses.sum() if batch.weight is None else losses @ batch.weight.double()
        return float(total)

    def _divergence(self, run: Run) -> DivergenceError:
        run.history.stop_reason = "diverged"
        return DivergenceError(
            f"epoch {run.epoch + 1} is not finite; the model holds the weights of epoch {run.epoch} (the best ones "
            f"with restore_best). Use a learning_rate below {self.learning_rate:g}, or scale the inputs",
            run.history,
        )

    def _record(self, run: Run, loss: float, evaluated: bool) -> Record:
        """Evaluate if asked and add the epoch to the history, whatever interrupts the evaluation.

        The constraints of the method hold by construction, so its objective is the loss.
        """
        layers = len(self.network)
        scores: dict[str, Any] = {}
        try:
            if evaluated:
                train = evaluate(self.model, self.loss, run.samples, self.chunk_size)
                scores = {"train_loss": train.loss, "train_accuracy": train.accuracy}
                if run.validation is not None:
                    validation = evaluate(self.model, self.loss, run.validation, self.chunk_size)
                    scores |= {"validation_loss": validation.loss, "validation_accuracy": validation.accuracy}
        finally:
            record = Record(
                iteration=run.epoch,
                penalty=0.0,
                objective=loss,
                loss=loss,
                regularization=0.0,
                linear_gap=(0.0,) * layers,
                activation_gap=(0.0,) * (layers - 1),
                lyapunov=loss,
                seconds=run.seconds,
                **scores,
            )
            run.history.append(record)
        return record


def picked(samples: Samples, which: Tensor) -> Samples:
    """Some of the samples, by number or by mask."""
    weight = None if samples.weight is None else samples.weight[which]
    return Samples(samples.X[which], samples.y[which], weight)


def counted(samples: Samples) -> Samples:
    """The samples without those of weight zero: a batch of nothing else would have no mean."""
    if samples.weight is None or bool((samples.weight > 0).all()):
        return samples
    return picked(samples, samples.weight > 0)
