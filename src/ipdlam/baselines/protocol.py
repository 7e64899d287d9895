"""What all baselines share beyond the skeleton of a trainer: the clock, and the weights that a failure leaves."""

from __future__ import annotations

import dataclasses
import math
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import nn
from typing_extensions import Self

from ipdlam.checkpoint.format import RowStore
from ipdlam.checks import check_integer
from ipdlam.errors import SolveError
from ipdlam.fullbatch.state import Variables
from ipdlam.network.linalg import all_finite
from ipdlam.network.model import ModelView, Weights
from ipdlam.network.objective import Objective
from ipdlam.network.samples import ArrayLike, Loader, Samples, ValidationData
from ipdlam.prox import LOSSES, Loss
from ipdlam.prox.registry import by_name, describe, rebuild
from ipdlam.training.history import History
from ipdlam.training.state import RunState
from ipdlam.training.trainer import CountsIterations, Trainer


@dataclass
class State(RunState):
    """What goes on from one iteration to the next; a baseline adds its own."""

    weights: Weights  # of the last finished iteration; the model may hold the best ones, or half an iteration

    def last_weights(self) -> Weights:
        return self.weights


@dataclass
class AlternatingState(State):
    """z, a and the weights as in a run of the method."""

    variables: Variables

    def tensors(self) -> dict[str, RowStore]:
        return {**self.variables.tensors(), **super().tensors()}

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), **self.variables.counters()}

    def restore(self, counters: dict[str, Any], network: ModelView) -> None:
        super().restore(counters, network)
        self.variables.restore(counters)


class Baseline(Trainer[State]):
    """A way to train ``model`` in place, with the interface of :class:`ipdlam.IPDLAM`."""

    def __init__(self, model: nn.Module, loss: str | Loss, chunk_size: int | None) -> None:
        super().__init__(model)
        self.loss = by_name("loss", loss, LOSSES, Loss)  # type: ignore[type-abstract]
        rows = self.network.chunk_size if chunk_size is None else chunk_size
        self.chunk_size = check_integer("chunk_size", rows, 1)

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
        X: ArrayLike | Loader,
        y: ArrayLike | None = None,
        *,
        sample_weight: ArrayLike | None = None,
        validation_data: ValidationData | None = None,
        after: Trainer[Any] | None = None,
    ) -> None:
        """Check the data, and begin a run from the model as it is.

        It goes on with the history of the trainer of the same model that it comes ``after``: the iterations, the
        seconds and the best score are those of both, with its weights where they are kept. Patience begins anew.
        """
        if after is not None and after.model is not self.model:
            raise ValueError("after is a trainer of another model; its history cannot go on with this one")
        earlier = None if after is None else after._started()
        super().start(X, y, sample_weight=sample_weight, validation_data=validation_data)
        if earlier is not None:
            state = self._started()
            state.history, state.iteration = History(earlier.history), earlier.iteration
            state.seconds += earlier.seconds
            state.progress = dataclasses.replace(earlier.progress, unimproved=0)

    def _iteration(self, state: State) -> Objective:
        """The run goes on from its own last weights; an iteration that does not end leaves them in the model."""
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
        state.count(seconds)
        return objective

    def _allocate(self, samples: Samples, validation: Samples | None) -> State:
        return self._begin(samples, validation)

    def settings_dict(self) -> dict[str, Any]:
        return {"loss": describe("loss", self.loss, LOSSES), **self._own_settings(), "chunk_size": self.chunk_size}

    @classmethod
    def _from_settings(cls, model: nn.Module, settings: dict[str, Any]) -> Self:
        return cls(model, **{**settings, "loss": rebuild("loss", settings["loss"], LOSSES)})


class AlternatingBaseline(CountsIterations[State], Baseline):
    """A baseline that counts iterations, as the method does."""
