"""Regularisers of the weights. They act in moment space, where nothing depends on the number of samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ipdlam.checks import check_number
from ipdlam.prox.base import Regularizer


@dataclass(frozen=True)
class Ridge(Regularizer):
    """``R(W) = (strength / 2) ||W||^2``: adds to the diagonal of the Gram matrix, so the W update stays one solve.

    >>> Ridge(1.0, relative=False).prox(torch.tensor([3.0]), 2.0)
    tensor([2.])
    """

    strength: float = 1e-5
    relative: bool = True

    def __post_init__(self) -> None:
        check_number("strength", self.strength, low=0.0)

    @property
    def curvature(self) -> float:  # type: ignore[override]
        return self.strength

    @property
    def is_quadratic(self) -> bool:
        return True

    def value(self, W: Tensor) -> Tensor:
        return 0.5 * self.strength * W.square().sum()

    def _prox(self, v: Tensor, r: float | Tensor) -> Tensor:
        return v * (r / (r + self.strength))


@dataclass(frozen=True)
class L1(Regularizer):
    """``R(W) = strength sum |W_ij|``: sparse weights. The prox is the soft threshold at ``strength / r``."""

    strength: float = 1e-5
    relative: bool = True

    def __post_init__(self) -> None:
        check_number("strength", self.strength, low=0.0)

    def value(self, W: Tensor) -> Tensor:
        return self.strength * W.abs().sum()

    def _prox(self, v: Tensor, r: float | Tensor) -> Tensor:
        return v.sign() * (v.abs() - self.strength / r).clamp_min_(0.0)


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """``R(W) = l1 sum |W_ij| + (ridge / 2) ||W||^2``."""

    l1: float = 1e-5
    ridge: float = 1e-5
    relative: bool = True

    def __post_init__(self) -> None:
        check_number("l1", self.l1, low=0.0)
        check_number("ridge", self.ridge, low=0.0)

    @property
    def curvature(self) -> float:  # type: ignore[override]
        return self.ridge

    def value(self, W: Tensor) -> Tensor:
        return self.l1 * W.abs().sum() + 0.5 * self.ridge * W.square().sum()

    def _prox(self, v: Tensor, r: float | Tensor) -> Tensor:
        return self._prox_of_rest(v, r) * (r / (r + self.ridge))

    def _prox_of_rest(self, v: Tensor, r: float | Tensor) -> Tensor:
        return v.sign() * (v.abs() - self.l1 / r).clamp_min_(0.0)


@dataclass(frozen=True)
class NonNegative(Regularizer):
    """``R(W) = 0`` where ``W >= 0`` everywhere and infinite elsewhere: the prox is the projection."""

    relative: bool = False

    def value(self, W: Tensor) -> Tensor:
        outside = bool((W < 0).any())
        return torch.full((), float("inf") if outside else 0.0, dtype=W.dtype, device=W.device)

    def _prox(self, v: Tensor, r: float | Tensor) -> Tensor:
        del r
        return v.clamp_min(0.0)


REGULARIZERS: dict[str, type[Regularizer]] = {
    "ridge": Ridge,
    "l1": L1,
    "elastic_net": ElasticNet,
    "non_negative": NonNegative,
}
"""Name to regulariser. Add a subclass of :class:`Regularizer` here and ``IPDLAM(model, regularizer=name)`` uses it."""
