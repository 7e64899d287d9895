"""Phi term by term, the constraint gaps, and the Lyapunov value, summed chunk by chunk."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ipdlam.network.linalg import row_blocks


@dataclass(frozen=True)
class Objective:
    """``Phi_rho`` at one iterate.

    Gaps are squared norms over all samples, layer by layer, without the factor ``rho / 2``.
    """

    penalty: float  # rho
    loss: float  # L(Y, z_L)
    regularization: float  # sum R_l(W_l)
    linear_gap: tuple[float, ...]  # ||z_l - a_(l-1) W_l^T - b_l||^2, l = 1 ... L
    activation_gap: tuple[float, ...]  # ||a_l - sigma_l(z_l)||^2, l = 1 ... L-1
    inertial_energy: float  # delta (alpha ||dz||^2 + gamma ||da||^2) + beta (delta_W ||dW||^2 + delta_b ||db||^2)

    @property
    def value(self) -> float:
        """``Phi``."""
        return self.loss + self.regularization + 0.5 * self.penalty * (sum(self.linear_gap) + sum(self.activation_gap))

    @property
    def lyapunov(self) -> float:
        """``xi = Phi + (rho / 2) inertial_energy``, never increasing at a fixed ``rho`` (docs/method/theory.md)."""
        return self.value + 0.5 * self.penalty * self.inertial_energy

    def terms(self) -> dict[str, Any]:
        """What a record holds of it."""
        return {
            "penalty": self.penalty,
            "objective": self.value,
            "loss": self.loss,
            "regularization": self.regularization,
            "linear_gap": self.linear_gap,
            "activation_gap": self.activation_gap,
            "lyapunov": self.lyapunov,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Objective:
        """From its fields, also after a trip through JSON, which turns tuples into lists."""
        gaps: dict[str, Any] = {name: tuple(fields[name]) for name in ("linear_gap", "activation_gap")}
        return cls(**{**fields, **gaps})

    @property
    def is_finite(self) -> bool:
        """Whether the variables are finite. (A constraint on W may well be violated, and R infinite, at the start.)"""
        return math.isfinite(self.loss + sum(self.linear_gap) + sum(self.activation_gap) + self.inertial_energy)


def weighted_sum(values: Tensor, weight: Tensor | None) -> float:
    """The float64 sum of one value for every sample, each counted with its weight."""
    exact = values.double()
    return float(exact.sum() if weight is None else exact @ weight.double())


def squared_distance(x: Tensor, y: Tensor, weight: Tensor | None, f: Callable[[Tensor], Tensor] | None = None) -> float:
    """``sum_i weight_i ||x_i - f(y_i)||^2`` over the rows; ``f`` is the identity unless given."""
    distances = [
        torch.linalg.vector_norm(x[rows] - (y[rows] if f is None else f(y[rows])), dim=1) for rows in row_blocks(x)
    ]
    return weighted_sum(torch.cat(distances).double().square(), weight)


@dataclass
class Tally:
    """Sums over the chunks of a pass; keys are layers."""

    loss: float = 0.0
    linear_gap: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    activation_gap: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    z_change: float = 0.0
    a_change: float = 0.0
    n: float = 0.0  # how much the samples count together

    def numbers(self, layers: int) -> list[float]:
        """All of it, to be summed over processes."""
        gaps = [self.linear_gap[l] for l in range(1, layers + 1)] + [self.activation_gap[l] for l in range(1, layers)]
        return [self.loss, self.z_change, self.a_change, self.n, *gaps]

    @classmethod
    def from_numbers(cls, numbers: list[float], layers: int) -> Tally:
        """The inverse of :meth:`numbers`."""
        loss, z_change, a_change, n, *gaps = numbers
        linear = dict(enumerate(gaps[:layers], start=1))
        return cls(loss, linear, dict(enumerate(gaps[layers:], start=1)), z_change, a_change, n)


def change_of(pairs: Iterable[tuple[Tensor | None, Tensor | None]]) -> float:
    """The squared norm of the differences of pairs of tensors."""
    return sum(
        float((new.double() - old.double()).square().sum()) for new, old in pairs if new is not None and old is not None
    )
