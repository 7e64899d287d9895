"""dlADMM of Wang, Yu, Chen and Zhao (2019): alternating directions with a dual variable on the last layer.

It seeks a stationary point of

    L(Y, Z_L) + (nu / 2) sum_(l<L) (||Z_l - A_(l-1) W_l^T - b_l||^2 + ||A_l - sigma_l(Z_l)||^2)
    subject to  Z_L = A_(L-1) W_L^T + b_L,

whose constraint is carried by a multiplier U and a penalty ``rho``. An iteration sweeps the layers backward (a, z, b,
W) and forward (W, b, z, a), then moves U. Weights and activations take one step of a quadratic model each, whose
curvature is doubled until the model lies above the function, at most ``DOUBLINGS`` times; no linear system is solved.

The release of its authors (github.com/xianggebenben/dlADMM) differs:

- Every search begins at a curvature of 1, of functions that are multiplied by ``rho`` = 1e-6. Here functions are
  divided by ``rho``, which makes that 1e6. Activations need at most 1 + ||W||^2, so their steps are tiny there and full
  ones here, where the first search of a block begins at 1 and every other at half of the last curvature.
- After three rises of the training loss in a row, ``rho`` (up to 0.1) and, from 100 hidden units on, the curvatures
  that searches begin at are multiplied by ten. Here ``rho`` stays.
- Z_L starts at 1 for the class of a sample and at -1 for the others, and is updated by up to 500 steps of FISTA. Here
  it starts at the forward pass, and its update is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ipdlam.baselines.protocol import AlternatingBaseline, State
from ipdlam.checkpoint.format import RowStore
from ipdlam.checks import check_number
from ipdlam.defaults import DLADMM_PENALTY, LOSS
from ipdlam.network.model import ModelView, Weights
from ipdlam.network.objective import Objective
from ipdlam.network.samples import Samples
from ipdlam.prox import Loss

DOUBLINGS = 60


@dataclass
class ADMMState(State):
    """Every variable by layer; ``a[0]`` are the inputs."""

    W: dict[int, Tensor]
    b: dict[int, Tensor | None]
    z: dict[int, Tensor]
    a: dict[int, Tensor]
    dual: Tensor  # U, one row a sample
    curvature: dict[str, float]  # of the quadratic models, by block

    def tensors(self) -> dict[str, RowStore]:
        found = {f"z{l}": z for l, z in self.z.items()} | {f"a{l}": a for l, a in self.a.items() if l > 0}
        return {**super().tensors(), **found, "dual": self.dual}

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), "curvature": self.curvature}

    def restore(self, counters: dict[str, Any], network: ModelView) -> None:
        super().restore(counters, network)
        self.curvature = {str(block): float(value) for block, value in counters["curvature"].items()}


class DLADMM(AlternatingBaseline):
    """Trains ``model`` in place by dlADMM, on whole arrays.

    Parameters
    ----------
    model
        An ``nn.Sequential`` of Linear layers and activations, the last one Linear.
    loss
        A name in ``ipdlam.prox.LOSSES`` or a ``Loss``.
    penalty
        ``rho`` and ``nu``, one value for both, as its authors choose them.
    chunk_size
        How many samples are evaluated at a time; by default as many as suit the cache.
    """

    saved_as = "DLADMM"

    def __init__(
        self,
        model: nn.Sequential,
        *,
        loss: str | Loss = LOSS,
        penalty: float = DLADMM_PENALTY,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(model, loss, chunk_size)
        self.penalty = check_number("penalty", penalty, low=0.0, strict=True)

    def _own_settings(self) -> dict[str, Any]:
        return {"penalty": self.penalty}

    @torch.no_grad()
    def _begin(self, samples: Samples, validation: Samples | None) -> ADMMState:
        if samples.weight is not None:
            raise ValueError("dlADMM takes no sample_weight; leave it out")
        W, b, _ = self.network.read()
        z: dict[int, Tensor] = {}
        a = {0: samples.X}
        for l in self.network.numbers:
            z[l] = product(a[l - 1], W[l], b[l])
            if l < len(self.network):
                a[l] = self.network.activation(l).value(z[l]).clone()  # the identity gives z itself
        dual = torch.zeros_like(z[len(self.network)])
        return ADMMState(samples, validation, Weights(W, b), dict(W), dict(b), z, a, dual, {})

    @torch.no_grad()
    def _advance(self, state: State) -> None:
        assert isinstance(state, ADMMState)
        last = len(self.network)
        for l in range(last, 0, -1):
            if l < last:
                self._update_a(state, l)
            self._update_z(state, l)
            self._update_b(state, l)
            self._update_W(state, l)
        for l in range(1, last + 1):
            self._update_W(state, l)
            self._update_b(state, l)
            self._update_z(state, l)
            if l < last:
                self._update_a(state, l)
        residual = state.z[last] - product(state.a[last - 1], state.W[last], state.b[last])
        state.dual += self.penalty * residual
        self.network.write(state.W, state.b)

    @torch.no_grad()
    def _measure(self, state: State) -> Objective:
        """The objective with the penalty on every gap; the multiplier is left out."""
        assert isinstance(state, ADMMState)
        numbers = self.network.numbers
        linear = tuple(
            float((state.z[l] - product(state.a[l - 1], state.W[l], state.b[l])).double().square().sum())
            for l in numbers
        )
        activation = tuple(
            float((state.a[l] - self.network.activation(l).value(state.z[l])).double().square().sum())
            for l in numbers[:-1]
        )
        loss = float(self.loss.value(self._targets(state), state.z[len(self.network)]).double().sum())
        return Objective(self.penalty, loss, 0.0, linear, activation, 0.0)

    def _targets(self, state: ADMMState) -> Tensor:
        return state.samples.targets(self.loss, slice(None), self.network.outputs)

    def _goal(self, state: ADMMState, l: int) -> Tensor:
        """What ``a_(l-1) W_l^T + b_l`` is drawn to: z_l, moved by the multiplier at the last layer."""
        return state.z[l] if l < len(self.network) else state.z[l] + state.dual / self.penalty

    def _update_z(self, state: ADMMState, l: int) -> None:
        P = product(state.a[l - 1], state.W[l], state.b[l])
        if l < len(self.network):
            state.z[l] = self.network.activation(l)._prox(state.a[l], P, 1.0)
        else:
            state.z[l] = self.loss._prox(self._targets(state), P - state.dual / self.penalty, self.penalty)

    def _update_b(self, state: ADMMState, l: int) -> None:
        """The minimiser: the curvature in b is known."""
        if state.b[l] is not None:
            state.b[l] = (self._goal(state, l) - product(state.a[l - 1], state.W[l], None)).mean(0)

    def _update_W(self, state: ADMMState, l: int) -> None:
        a, W = state.a[l - 1], state.W[l]
        residual = self._goal(state, l) - product(a, W, state.b[l])
        gradient = -(residual.mT @ a)
        # The function is quadratic: along the gradient its curvature is one product, whatever the step.
        state.W[l] = W - gradient / self._curvature(state, f"W{l}", gradient, squared(a @ gradient.mT))

    def _update_a(self, state: ADMMState, l: int) -> None:
        a, W = state.a[l], state.W[l + 1]
        residual = self._goal(state, l + 1) - product(a, W, state.b[l + 1])
        gradient = a - self.network.activation(l).value(state.z[l]) - residual @ W
        bend = squared(gradient) + squared(gradient @ W.mT)
        state.a[l] = a - gradient / self._curvature(state, f"a{l}", gradient, bend)

    def _curvature(self, state: ADMMState, block: str, gradient: Tensor, bend: float) -> float:
        """Start at half of the last one and double until the quadratic model lies above the function."""
        last, size = state.curvature.get(block, 2.0), squared(gradient)
        if size == 0.0:  # any model fits: to halve it again and again would end in a division of zero by zero
            return last
        curvature = 0.5 * last
        for _ in range(DOUBLINGS):
            if bend <= curvature * size:
                break
            curvature *= 2.0
        state.curvature[block] = curvature
        return curvature


def product(a: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """``a W^T + b``."""
    return a @ W.mT if b is None else torch.addmm(b, a, W.mT)


def squared(tensor: Tensor) -> float:
    """The squared norm."""
    return float(torch.linalg.vector_norm(tensor).double().square())
