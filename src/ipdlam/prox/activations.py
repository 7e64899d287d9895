"""Activations and their exact proximal operators: the piecewise-linear ones in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ipdlam.checks import check_number
from ipdlam.prox.base import Activation, as_mask, select
from ipdlam.prox.curves import ELU, GELU, SELU, Hardswish, Mish, SiLU
from ipdlam.prox.smooth import Sigmoid, Softplus, Tanh


@dataclass(frozen=True)
class Identity(Activation):
    """``sigma(x) = x``: the prox is the weighted mean ``(w + r v) / (1 + r)``.

    >>> Identity().prox(torch.tensor([3.0]), torch.tensor([0.0]), 2.0)
    tensor([1.])
    """

    module = nn.Identity

    def value(self, x: Tensor) -> Tensor:
        return x

    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        return torch.lerp(v, w, 1.0 / (1.0 + r))


@dataclass(frozen=True)
class ReLU(Activation):
    """``sigma(x) = max(x, 0)``: one expression instead of the paper's comparison of three candidates.

    With ``kappa = sqrt(1 + 1/r) - 1``: ``x = max(0, (w + r v) / (1 + r))`` where ``v >= -kappa max(w, 0)``, else
    ``x = v``. On the boundary both are minimisers and the first is returned.

    >>> ReLU().prox(torch.tensor([1.0, 1.0]), torch.tensor([-0.4, -0.5]), 1.0)  # kappa = 0.414
    tensor([ 0.3000, -0.5000])
    """

    module = nn.ReLU

    def value(self, x: Tensor) -> Tensor:
        return x.clamp_min(0.0)

    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        kappa = 1.0 / (r * (math.sqrt(1.0 + 1.0 / r) + 1.0))  # sqrt(1 + 1/r) - 1 without cancellation
        active = torch.lerp(v, w, 1.0 / (1.0 + r)).clamp_min_(0.0)
        threshold = w.clamp_min(0.0).mul_(-kappa)
        return select(torch.ge(v, threshold, out=threshold), active, v)


class PiecewiseLinear(Activation):
    """Any continuous activation made of linear pieces; subclasses list them.

    On a piece ``sigma(x) = slope x + intercept`` the objective is a parabola, so its minimiser there is known; the
    best of the pieces is the global minimiser. Among equals the leftmost piece wins. A minimiser at the kink of two
    pieces belongs to both, so the other piece is at least as good, however little rounding shows of it.
    """

    def pieces(self) -> tuple[tuple[float, float, float, float], ...]:
        """``(low, high, slope, intercept)`` from left to right, covering the real line."""
        raise TypeError(f"{type(self).__name__} must list its pieces")

    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        best = best_objective = None
        for low, high, slope, intercept in self.pieces():
            minimiser = (slope * (w - intercept) + r * v).div_(slope * slope + r).clamp_(low, high)
            if slope == 0.0:
                minimiser = v.clamp(low, high)  # the same without rounding: far out, v itself is the answer
            objective = (slope * minimiser + (intercept - w)).square_().add_((minimiser - v).square_(), alpha=r)
            if best is None or best_objective is None:
                best, best_objective = minimiser, objective
                continue
            better = (objective < best_objective).logical_and_(minimiser != low).logical_or_(best == low)
            best = select(as_mask(better, like=w), minimiser, best)
            best_objective = select(as_mask(better, like=w), objective, best_objective)
        assert best is not None
        return best


@dataclass(frozen=True)
class LeakyReLU(PiecewiseLinear):
    """``sigma(x) = x`` for ``x >= 0`` and ``slope x`` below, ``0 <= slope < 1``."""

    module = nn.LeakyReLU
    slope: float = 0.01

    def __post_init__(self) -> None:
        check_number("slope", self.slope, low=0.0)
        if self.slope >= 1.0:
            raise ValueError(f"slope must be in [0, 1), got {self.slope!r}; use Identity for a slope of 1")

    @classmethod
    def from_module(cls, module: nn.Module) -> LeakyReLU:
        assert isinstance(module, nn.LeakyReLU)
        return cls(float(module.negative_slope))

    def value(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(x, self.slope)

    def pieces(self) -> tuple[tuple[float, float, float, float], ...]:
        return (-math.inf, 0.0, self.slope, 0.0), (0.0, math.inf, 1.0, 0.0)


@dataclass(frozen=True)
class Hardtanh(PiecewiseLinear):
    """``sigma(x) = min(max(x, low), high)``."""

    module = nn.Hardtanh
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_number("low", self.low)
        check_number("high", self.high)
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got low={self.low!r} and high={self.high!r}")

    @classmethod
    def from_module(cls, module: nn.Module) -> Hardtanh:
        assert isinstance(module, nn.Hardtanh)
        return cls(float(module.min_val), float(module.max_val))

    def value(self, x: Tensor) -> Tensor:
        return x.clamp(self.low, self.high)

    def pieces(self) -> tuple[tuple[float, float, float, float], ...]:
        return (
            (-math.inf, self.low, 0.0, self.low),
            (self.low, self.high, 1.0, 0.0),
            (self.high, math.inf, 0.0, self.high),
        )


@dataclass(frozen=True)
class ReLU6(Hardtanh):
    """``sigma(x) = min(max(x, 0), 6)``."""

    module = nn.ReLU6  # type: ignore[assignment]
    low: float = 0.0
    high: float = 6.0


ACTIVATIONS: dict[str, type[Activation]] = {
    "identity": Identity,
    "relu": ReLU,
    "leaky_relu": LeakyReLU,
    "hardtanh": Hardtanh,
    "relu6": ReLU6,
    "sigmoid": Sigmoid,
    "tanh": Tanh,
    "softplus": Softplus,
    "gelu": GELU,
    "silu": SiLU,
    "mish": Mish,
    "elu": ELU,
    "selu": SELU,
    "hardswish": Hardswish,
}
"""Name to activation.

Add a subclass of :class:`Activation` here, and models that hold its ``module`` can be trained.
"""
