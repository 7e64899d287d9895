"""Algorithm 1 one batch after the other: what "the same mini-batch sizes (512)" of the paper may mean, too.

An iteration visits the samples in batches, in their order. Each batch is an iteration of Algorithm 1 for itself: the z
of its samples, W and b from its sums alone, then its a. So the proximal term of W and b holds against the sum over a
batch, whatever the number of samples. The auxiliary variables of a sample are kept until its batch comes round again,
or made afresh by a forward pass with the weights of the batch before.

Neither is a method to train with. They stand here to be held against the paper's table (``ipdlam reproduce readings``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ipdlam.baselines.protocol import AlternatingBaseline, AlternatingState, State
from ipdlam.checks import check_integer
from ipdlam.defaults import BATCH_SIZE, INERTIA, LOSS, PENALTY, PENALTY_GROWTH, PENALTY_MAX, PROXIMITY
from ipdlam.fullbatch.memory import Chunk
from ipdlam.fullbatch.orders import Block, Plan, Visit, reverse
from ipdlam.fullbatch.passes import objective_of, pass_over, solve_weights, update
from ipdlam.fullbatch.settings import PenaltySchedule, resolve_settings
from ipdlam.fullbatch.state import Variables
from ipdlam.network.linalg import all_finite, gain
from ipdlam.network.model import Weights
from ipdlam.network.objective import Objective
from ipdlam.network.samples import Samples
from ipdlam.prox import Loss

MEASURE = Visit(measures=True)
NOTHING_AHEAD = Plan(MEASURE, (), frozenset(), frozenset())


class BatchByBatch(AlternatingBaseline):
    """Trains ``model`` in place by an iteration of Algorithm 1 for every batch.

    Parameters
    ----------
    model
        An ``nn.Sequential`` of Linear layers and activations, the last one Linear.
    loss
        A name in ``ipdlam.prox.LOSSES`` or a ``Loss``.
    batch_size
        How many samples a batch has; they come in the order of the data.
    fresh
        Whether z and a of a batch come from a forward pass each time, or are kept from the iteration before.
    inertia, proximity, penalty, penalty_growth, penalty_max
        As in :class:`ipdlam.IPDLAM`; the penalty grows from one pass over the data to the next.
    """

    saved_as = "BatchByBatch"

    def __init__(
        self,
        model: nn.Sequential,
        *,
        loss: str | Loss = LOSS,
        batch_size: int = BATCH_SIZE,
        fresh: bool = False,
        inertia: float = INERTIA,
        proximity: float = PROXIMITY,
        penalty: float = PENALTY,
        penalty_growth: float = PENALTY_GROWTH,
        penalty_max: float = PENALTY_MAX,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(model, loss, chunk_size)
        layers, self.schedule = len(self.network), PenaltySchedule(penalty, penalty_growth, penalty_max)
        self.fresh = bool(fresh)
        rows = check_integer("batch_size", batch_size, 1)
        self.settings = resolve_settings(
            layers, self.loss, None, inertia, proximity, None, self.schedule, "reverse", rows
        )

    def _own_settings(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "batch_size": settings.chunk_size,
            "fresh": self.fresh,
            "inertia": settings.inertia.z,
            "proximity": settings.proximity,
            "penalty": self.schedule.initial,
            "penalty_growth": self.schedule.growth,
            "penalty_max": self.schedule.maximum,
        }

    def _begin(self, samples: Samples, validation: Samples | None) -> AlternatingState:
        variables = Variables.begin(self.network, samples, self.settings.chunk_size, constant_input=False)
        return AlternatingState(samples, validation, Weights(dict(variables.W), dict(variables.b)), variables)

    @torch.no_grad()
    def _advance(self, state: State) -> None:
        assert isinstance(state, AlternatingState)
        variables, rho = state.variables, self.settings.penalty.at(state.iteration + 1)
        for chunk in variables.shard.chunks():
            if self.fresh:
                variables.forward(self.network, chunk)
            self._iterate(variables, chunk, rho)
            if not all(all_finite(W) for W in variables.W.values()):
                raise self._divergence(state)
        variables.shard.swap(block for block in reverse(len(self.network)) if block.kind != "W")
        self.network.write(variables.W, variables.b)

    @torch.no_grad()
    def _measure(self, state: State) -> Objective:
        assert isinstance(state, AlternatingState)
        variables, rho = state.variables, self.settings.penalty.at(state.iteration + 1)
        tally = pass_over(variables, self.network, self.settings, NOTHING_AHEAD, MEASURE, rho, rho)
        return objective_of(variables, self.settings, tally, rho)

    def _iterate(self, variables: Variables, chunk: Chunk, rho: float) -> None:
        """Lines 1 to 7 of Algorithm 1 for the samples of one batch."""
        layers = self.network.numbers
        for l in layers:
            update(variables, self.network, self.settings, NOTHING_AHEAD, chunk, Block("z", l), rho, {})
        for l in layers:
            variables.sums[l].add(chunk.z(l), chunk.a(l - 1), chunk.weight)
            W, b = variables.W[l], variables.b[l]
            moments = variables.sums[l].take()  # of this batch alone: no earlier system is like it
            variables.W[l], variables.b[l] = solve_weights(variables, self.settings, l, moments, rho, first=True)
            variables.W_previous[l], variables.b_previous[l] = W, b
        for l in layers[:-1]:
            K = gain(variables.W[l + 1], 1.0 + self.settings.proximity, f"layer {l + 1}")
            update(variables, self.network, self.settings, NOTHING_AHEAD, chunk, Block("a", l), rho, {l: K})
