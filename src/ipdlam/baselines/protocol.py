"""What all baselines share with the method: checks, the clock, the records, the loop, and what a failure leaves."""

from __future__ import annotations

import dataclasses
import math
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from typing_extensions import Self

from ipdlam.checkpoint.format import RowStore
from ipdlam.checks import check_integer
from ipdlam.errors import DivergenceError, SolveError
from ipdlam.fullbatch.memory import default_chunk_size
from ipdlam.fullbatch.settings import by_name, describe, rebuild
from ipdlam.fullbatch.state import Run
from ipdlam.network.history import History, Record
from ipdlam.network.linalg import all_finite
from ipdlam.network.mlp import Network
from ipdlam.network.objective import Objective
from ipdlam.network.samples import ArrayLike, Samples, ValidationData
from ipdlam.prox import LOSSES, Loss
from ipdlam.training.loop import Weights
from ipdlam.training.state import Course
from ipdlam.training.trainer import CountsIterations, Resumable


@dataclass
class State(Course):
    """What goes on from one iteration to the next; a baseline adds its own."""

    weights: Weights  # of the last finished iteration; the model may hold the best ones, or half an iteration

    def last_weights(self) -> Weights:
        return self.weights


@dataclass
class RunState(State):
    """z, a and the weights as in a run of the method."""

    run: Run

    def tensors(self) -> dict[str, RowStore]:
        return {**self.run.tensors(), **super().tensors()}

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), **self.run.sum_counters()}

    def restore(self, counters: dict[str, Any], network: Network) -> None:
        super().restore(counters, network)
        self.run.restore_sums(counters)


class Baseline(Resumable[State]):
    """A way to train ``model`` in place, with the interface of :class:`ipdlam.IPDLAM`."""

    remedy: str = "Scale the inputs"  # against divergence
    start_is_training: ClassVar[bool] = True  # whether it works something out from the data, on the clock

    def __init__(self, model: nn.Sequential, loss: str | Loss, chunk_size: int | None) -> None:
        super().__init__(model)
        self.loss = by_name("loss", loss, LOSSES, Loss)  # type: ignore[type-abstract]
        rows = default_chunk_size(self.network) if chunk_size is None else chunk_size
        self.chunk_size = check_integer("chunk_size", rows, 1)

    @abstractmethod
    def _begin(self, samples: Samples, validation: Samples | None) -> State:
        """A new run from the model as it is."""

    @abstractmethod
    def _advance(self, state: State) -> None:
        """One iteration; the model holds the weights of the last one before it and those of this one after it."""

    @abstractmethod
    def _measure(self, state: State) -> Objective:
        """What the method minimises, after an iteration; off the clock."""

    @abstractmethod
    def _own_settings(self) -> dict[str, Any]:
        """The arguments of the constructor, besides the model and what all baselines have, in plain JSON types."""

    def start(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        after: Resumable[Any] | None = None,
    ) -> None:
        """Check the data, and begin a run from the model as it is.

        It goes on with the history of the trainer of the same model that it comes ``after``: the iterations, the
        seconds and the best score are those of both, with its weights where they are kept. Patience begins anew.
        """
        if after is not None and after.model is not self.model:
            raise ValueError("after is a trainer of another model; its history cannot go on with this one")
        self.network = Network(self.model)
        samples, validation = self._check_data(X, y, sample_weight, validation_data)
        started = time.perf_counter()
        with self.network.in_full_precision():
            state = self._begin(samples, validation)
        if self.start_is_training:
            state.seconds = time.perf_counter() - started
        if after is not None:
            before = after._started()
            state.history, state.iteration = History(before.history), before.iteration
            state.seconds += before.seconds
            state.progress = dataclasses.replace(before.progress, unimproved=0)
        state.whole = True
        self._run = state

    def step(self, *, evaluate: bool = True) -> Record:
        """One iteration; ``evaluate`` runs the model on the data for the record's losses and accuracies.

        As in :meth:`ipdlam.IPDLAM.step` the run goes on from its own last weights, whatever else has changed the
        model's. An iteration that does not end leaves the weights of the one before.
        """
        with self.network.in_full_precision():
            return self._step(evaluate)

    def _step(self, evaluate: bool) -> Record:
        state = self._whole_run()
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

    def _next(self, evaluate: bool) -> Record:
        return self.step(evaluate=evaluate)

    def settings_dict(self) -> dict[str, Any]:
        return {"loss": describe("loss", self.loss, LOSSES), **self._own_settings(), "chunk_size": self.chunk_size}

    @classmethod
    def _from_settings(cls, model: nn.Sequential, settings: dict[str, Any]) -> Self:
        return cls(model, **{**settings, "loss": rebuild("loss", settings["loss"], LOSSES)})

    def _allocate(self, samples: Samples, validation: Samples | None) -> State:
        return self._begin(samples, validation)

    def _divergence(self, state: State) -> DivergenceError:
        state.history.stop_reason = "diverged"
        others = any(record.optimizer != self.optimizer for record in state.history)  # of a trainer before this one
        unit = "iteration" if others else self.unit
        return DivergenceError(
            f"{unit} {state.iteration + 1} is not finite; the model holds the weights of {unit} "
            f"{state.iteration} (the best ones with restore_best). {self.remedy}",
            state.history,
        )


class AlternatingBaseline(CountsIterations[State], Baseline):
    """A baseline that counts iterations, as the method does."""
