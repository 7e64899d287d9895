"""Block coordinate descent of Zeng, Lau, Lin and Yao (2019), one of two methods that are called DLAM.

The paper of iPDLAM calls its own algorithm without inertia and proximal terms DLAM (:class:`ipdlam.DLAM`), and says of
the DLAM in its figures that the parameters are the defaults of Zeng et al., which belong to the method here. Which of
the two it drew is not said, so both are run.

With an output block ``v`` of its own beside the pre-activations ``z`` and activations ``a``, it minimises

    L(Y, V) + (gamma / 2) ||V - Z_L||^2
    + (gamma / 2) sum_(l<L) ||A_l - sigma_l(Z_l)||^2 + (rho / 2) sum_l ||Z_l - A_(l-1) W_l^T - b_l||^2

one block at a time, from the last layer to the first: v, z_L, W_L, then a_l, z_l, W_l for l = L-1 ... 1. The blocks v,
z_l (l < L), W and b are held by a proximal term ``(alpha / 2) ||x - x_before||^2``. Here gamma = rho = 1 and alpha = 5,
the values of its authors. The update of b reads the new W, as one block after the other; in their release it reads the
old one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ipdlam.baselines.protocol import AlternatingBaseline, AlternatingState, State
from ipdlam.checkpoint.format import RowStore
from ipdlam.checks import check_number
from ipdlam.defaults import BCD_PROXIMITY, LOSS
from ipdlam.fullbatch.orders import Block
from ipdlam.fullbatch.state import Variables
from ipdlam.fullbatch.updates import aim_z, update_a, update_b, update_hidden_z, update_W
from ipdlam.network.linalg import gain
from ipdlam.network.model import Weights
from ipdlam.network.objective import Objective, Tally, squared_distance, weighted_sum
from ipdlam.network.samples import Samples
from ipdlam.prox import Loss


@dataclass
class BCDState(AlternatingState):
    """The output block beside the rest."""

    v: Tensor

    def tensors(self) -> dict[str, RowStore]:
        return {**super().tensors(), "v": self.v}


class BCD(AlternatingBaseline):
    """Trains ``model`` in place by block coordinate descent.

    Parameters
    ----------
    model
        An ``nn.Sequential`` of Linear layers and activations, the last one Linear.
    loss
        A name in ``ipdlam.prox.LOSSES`` or a ``Loss``.
    proximity
        ``alpha`` in its authors' paper: the weight of the proximal terms.
    chunk_size
        How many samples are visited at a time; by default as many as suit the cache.
    """

    saved_as = "BCD"

    def __init__(
        self,
        model: nn.Sequential,
        *,
        loss: str | Loss = LOSS,
        proximity: float = BCD_PROXIMITY,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(model, loss, chunk_size)
        self.proximity = check_number("proximity", proximity, low=0.0)

    def _own_settings(self) -> dict[str, Any]:
        return {"proximity": self.proximity}

    def _begin(self, samples: Samples, validation: Samples | None) -> BCDState:
        variables = Variables.begin(self.network, samples, self.chunk_size)
        v = variables.shard.current[Block("z", len(self.network))].clone()
        return BCDState(samples, validation, Weights(dict(variables.W), dict(variables.b)), variables, v)

    @torch.no_grad()
    def _advance(self, state: State) -> None:
        assert isinstance(state, BCDState)
        variables = state.variables
        for l in range(len(self.network), 0, -1):
            self._visit(state, l)
            moments, W, b = variables.sums[l].take(), variables.W[l], variables.b[l]
            known = None if state.iteration == 0 else W  # the weights of the start are no solution
            variables.W[l] = update_W(moments, W, W, b, 0.0, self.proximity, 1.0, None, known)
            if b is not None:
                variables.b[l] = update_b(moments, variables.W[l], b, b, 0.0, self.proximity)
        self.network.write(variables.W, variables.b)

    @torch.no_grad()
    def _measure(self, state: State) -> Objective:
        """The gap of the output block comes last among those of the activations."""
        assert isinstance(state, BCDState)
        variables, tally, last = state.variables, Tally(), len(self.network)
        for chunk in variables.shard.chunks():
            v, weight = state.v[chunk.rows], chunk.weight
            for l in self.network.numbers:
                tally.linear_gap[l] += squared_distance(chunk.z(l), variables.preactivation(chunk, l), weight)
                if l < last:
                    value = self.network.activation(l).value
                    tally.activation_gap[l] += squared_distance(chunk.a(l), chunk.z(l), weight, value)
            tally.activation_gap[last] += squared_distance(v, chunk.z(last), weight)
            targets = state.samples.targets(self.loss, chunk.rows, self.network.outputs)
            tally.loss += weighted_sum(self.loss.value(targets, v), weight)
        linear, activation = (
            tuple(gap[l] for l in self.network.numbers) for gap in (tally.linear_gap, tally.activation_gap)
        )
        return Objective(1.0, tally.loss, 0.0, linear, activation, 0.0)

    def _visit(self, state: BCDState, l: int) -> None:
        """The z (and a, or v) updates of one layer over all samples, and the sums its W update needs."""
        variables, network, delta = state.variables, self.network, self.proximity
        z, a = Block("z", l), Block("a", l)
        K = gain(variables.W[l + 1], 1.0, f"layer {l + 1}") if l < len(network) else None
        for chunk in variables.shard.chunks():
            P = variables.preactivation(chunk, l)
            if K is None:
                v = state.v[chunk.rows]
                targets = state.samples.targets(self.loss, chunk.rows, network.outputs)
                v.copy_(self.loss._prox(targets, torch.lerp(chunk.z(l), v, delta / (1.0 + delta)), 1.0 + delta))
                torch.lerp(P, v, 0.5, out=chunk.previous[z])
            else:
                update_a(
                    network.activation(l),
                    chunk.z(l),
                    chunk.a(l),
                    chunk.previous[a],
                    z_next=chunk.z(l + 1),
                    W=variables.W[l + 1],
                    b=variables.b[l + 1],
                    K=K,
                    gamma=0.0,
                    delta=0.0,
                )
                chunk.swap(a)
                chunk.previous[z].copy_(chunk.z(l))  # no inertia: the point of the proximal term is z itself
                V = aim_z(P, chunk.z(l), chunk.previous[z], 0.0, delta)
                update_hidden_z(network.activation(l), chunk.a(l), V, delta)
            chunk.swap(z)
            variables.sums[l].add(chunk.z(l), chunk.a(l - 1), chunk.weight)
        variables.shard.swap([z] if K is None else [a, z])
