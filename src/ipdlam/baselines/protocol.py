"""What all baselines share with the method: checks, the clock, the records, the loop, and what a failure leaves."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from ipdlam.checks import check_integer
from ipdlam.errors import DivergenceError, SolveError
from ipdlam.evaluation import scores
from ipdlam.history import History, Record
from ipdlam.inputs import ArrayLike, Samples, ValidationData, check_samples, check_validation
from ipdlam.linalg import all_finite
from ipdlam.loop import Callback, Progress, Stopping, Weights, check_callbacks, run_loop
from ipdlam.network import Network
from ipdlam.objective import Objective
from ipdlam.prox import LOSSES, Loss
from ipdlam.settings import by_name
from ipdlam.shards import default_chunk_size


@dataclass
class State:
    """What goes on from one iteration to the next; a baseline adds its own."""

    samples: Samples
    validation: Samples | None
    weights: Weights  # of the last finished iteration; the model may hold the best ones, or half an iteration
    progress: Progress = field(default_factory=Progress, kw_only=True)
    history: History = field(default_factory=History, kw_only=True)
    iteration: int = field(default=0, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    whole: bool = field(default=True, kw_only=True)  # False while an iteration is under way


class Baseline(ABC):
    """A way to train ``model`` in place, with the interface of :class:`ipdlam.IPDLAM`."""

    unit: ClassVar[str] = "iteration"  # what a step is called
    remedy: str = "Scale the inputs"  # against divergence

    def __init__(self, model: nn.Sequential, loss: str | Loss, chunk_size: int | None) -> None:
        self.network = Network(model)
        self.loss = by_name("loss", loss, LOSSES, Loss)  # type: ignore[type-abstract]
        rows = default_chunk_size(self.network) if chunk_size is None else chunk_size
        self.chunk_size = check_integer("chunk_size", rows, 1)
        self._state: State | None = None

    @property
    def model(self) -> nn.Sequential:
        """The model being trained."""
        return self.network.model

    @property
    def history(self) -> History:
        """The records of the run so far."""
        return self._started().history

    @abstractmethod
    def _begin(self, samples: Samples, validation: Samples | None) -> State:
        """A new run from the model as it is."""

    @abstractmethod
    def _advance(self, state: State) -> None:
        """One iteration; the model holds the weights of the last one before it and those of this one after it."""

    @abstractmethod
    def _measure(self, state: State) -> Objective:
        """What the method minimises, after an iteration; off the clock."""

    def start(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
    ) -> None:
        """Check the data, and begin a run from the model as it is."""
        self.network = Network(self.model)
        samples = check_samples(self.network, self.loss, X, y, sample_weight)
        validation = None if validation_data is None else check_validation(self.network, self.loss, validation_data)
        self._state = self._begin(samples, validation)

    def step(self, *, evaluate: bool = True) -> Record:
        """One iteration; ``evaluate`` runs the model on the data for the record's losses and accuracies.

        As in :meth:`ipdlam.IPDLAM.step` the run goes on from its own last weights, whatever else has changed the
        model's. An iteration that does not end leaves the weights of the one before.
        """
        state = self._started()
        if not state.whole:
            raise RuntimeError(f"the last {self.unit} did not end; call start(X, y) to go on from the model's weights")
        state.whole = False
        self.network.write(*state.weights)
        started = time.perf_counter()
        try:
            self._advance(state)
            seconds = time.perf_counter() - started
            objective = self._measure(state)
            finite = math.isfinite(objective.value)
            if not (finite and all(all_finite(weight.detach()) for weight in self.model.parameters())):
                raise self._divergence(state)
            state.weights = self.network.read()
        except SolveError as error:
            self.network.write(*state.weights)
            raise self._divergence(state) from error
        except BaseException:
            self.network.write(*state.weights)
            raise
        state.iteration += 1
        state.seconds += seconds
        state.whole = True
        return self._record(state, objective, evaluate)

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        stopping: Stopping,
        sample_weight: ArrayLike | None,
        validation_data: ValidationData | None,
        callbacks: Iterable[Callback],
    ) -> History:
        checked = check_callbacks(callbacks)
        self.start(X, y, sample_weight=sample_weight, validation_data=validation_data)
        state = self._started()
        return run_loop(
            lambda evaluate: self.step(evaluate=evaluate),
            self.network,
            state.history,
            stopping,
            checked,
            state.progress,
        )

    def _started(self) -> State:
        if self._state is None:
            raise RuntimeError("no run has been started; call start(X, y) or fit(X, y) first")
        return self._state

    def _divergence(self, state: State) -> DivergenceError:
        state.history.stop_reason = "diverged"
        return DivergenceError(
            f"{self.unit} {state.iteration + 1} is not finite; the model holds the weights of {self.unit} "
            f"{state.iteration} (the best ones with restore_best). {self.remedy}",
            state.history,
        )

    def _record(self, state: State, objective: Objective, evaluated: bool) -> Record:
        """Evaluate if asked and add the iteration to the history, whatever interrupts the evaluation."""
        found: dict[str, Any] = {}
        try:
            if evaluated:
                with torch.no_grad():
                    found = scores(self.model, self.loss, state.samples, state.validation, self.chunk_size)
        finally:
            record = Record(iteration=state.iteration, seconds=state.seconds, **objective.terms(), **found)
            state.history.append(record)
        return record


class AlternatingBaseline(Baseline):
    """A baseline that counts iterations, as the method does."""

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
        """Start from the model's weights and take up to ``iterations`` steps, as :meth:`ipdlam.IPDLAM.fit` does."""
        stopping = Stopping(iterations, restore_best, patience, target_score, evaluate_every)
        return self._fit(X, y, stopping, sample_weight, validation_data, callbacks)
