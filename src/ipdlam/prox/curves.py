"""Activations of today's networks: GELU, SiLU and Mish, which are not monotone, ELU and SELU, and Hardswish.

Where ``w`` is near ``sigma(v)``, :mod:`ipdlam.prox.newton` finds their proximal operators in two or three steps for a
whole tensor; elsewhere :mod:`ipdlam.prox.scan` does.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ipdlam.checks import check_number
from ipdlam.prox.newton import NARROW, Bounds, Curve
from ipdlam.prox.scan import Piece, minimise_pieces

ROOT_HALF = math.sqrt(0.5)
ROOT_TWO_PI = math.sqrt(2.0 * math.pi)
ROOT_TWO_OVER_PI = math.sqrt(2.0 / math.pi)


class Scanned(Curve):
    """A curve that is searched by a scan over its pieces; a subclass with kinks lists them."""

    def pieces(self) -> tuple[Piece, ...]:
        """From left to right, covering the real line."""
        return (Piece(self.slopes, self.bounds),)

    def _search(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        return minimise_pieces(self.pieces(), w, v, r)

    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        if r >= NARROW:
            return super()._prox(w, v, r)
        # A rounding of sigma is worth many of x here. What fits to the bit costs nothing, and stays.
        x = super()._prox(w.double(), v.double(), r).to(v.dtype)
        fits = self.value(v) == w
        x[fits] = v[fits]
        return x


def product(x: Tensor, s: Tensor, s1: Tensor, s2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``x s(x)`` and its first two derivatives, from those of ``s``."""
    return x * s, torch.addcmul(s, x, s1), torch.addcmul(2.0 * s1, x, s2)


@dataclass(frozen=True)
class GELU(Scanned):
    """``sigma(x) = x P(x)``, ``P`` the normal distribution function; ``approximate="tanh"`` is torch's formula for it.

    The prox is ``argmin_x (sigma(x) - w)^2 + r (x - v)^2``; ``sigma`` falls up to -0.75 and rises from there, so that a
    target below its minimum of -0.17 has two points that are nearest to it.

    >>> v = torch.tensor([-2.0, 0.5]); sigma = GELU()
    >>> torch.equal(sigma.prox(sigma.value(v), v, 2.0), v)  # a perfect fit stays
    True
    """

    module = nn.GELU
    approximate: str = "none"

    def __post_init__(self) -> None:
        if self.approximate not in ("none", "tanh"):
            raise ValueError(f"approximate must be 'none' or 'tanh', got {self.approximate!r}")

    @classmethod
    def from_module(cls, module: nn.Module) -> GELU:
        assert isinstance(module, nn.GELU)
        return cls(module.approximate)

    def value(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return nn.functional.gelu(x, approximate=self.approximate)
        # The same without a difference of numbers near 1, which leaves few digits of small values.
        if self.approximate == "tanh":
            return x * torch.sigmoid((2.0 * ROOT_TWO_OVER_PI) * x * (1.0 + 0.044715 * x * x))
        return x * (0.5 * torch.erfc(x * -ROOT_HALF))

    @property
    def bounds(self) -> Bounds:
        return Bounds(1.129, 0.798, 0.779)

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.approximate == "tanh":
            square = x * x
            inner = (2.0 * ROOT_TWO_OVER_PI) * x * (1.0 + 0.044715 * square)  # 2 u, so that P = s(2 u)
            inner1 = 2.0 * ROOT_TWO_OVER_PI + (6.0 * 0.044715 * ROOT_TWO_OVER_PI) * square
            s, rest = torch.sigmoid(inner), torch.sigmoid(-inner)
            bell = s * rest
            s1 = bell * inner1
            s2 = s1 * inner1 * (rest - s) + bell * ((12.0 * 0.044715 * ROOT_TWO_OVER_PI) * x)
            return product(x, s, s1, s2)
        # erfc, not 1 + erf, which loses the digits of small P.
        s = (x * -ROOT_HALF).erfc_().mul_(0.5)
        square = x * x
        s1 = (square * -0.5).exp_().mul_(1.0 / ROOT_TWO_PI)
        return x * s, torch.addcmul(s, x, s1), square.neg_().add_(2.0).mul_(s1)  # s'' = -x s'


@dataclass(frozen=True)
class SiLU(Scanned):
    """``sigma(x) = x / (1 + exp(-x))``, also called swish: its least value is -0.28, at -1.28.

    The prox is ``argmin_x (sigma(x) - w)^2 + r (x - v)^2``.

    >>> v = torch.tensor([-2.0, 0.5]); sigma = SiLU()
    >>> torch.equal(sigma.prox(sigma.value(v), v, 2.0), v)  # a perfect fit stays
    True
    """

    module = nn.SiLU

    def value(self, x: Tensor) -> Tensor:
        return nn.functional.silu(x)

    @property
    def bounds(self) -> Bounds:
        return Bounds(1.1, 0.5, 0.3082)

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = torch.sigmoid(x)
        s1 = torch.addcmul(s, s, s, value=-1.0)
        return product(x, s, s1, torch.addcmul(s1, s, s1, value=-2.0))


@dataclass(frozen=True)
class Mish(Scanned):
    """``sigma(x) = x tanh(log(1 + exp(x)))``: its least value is -0.31, at -1.19.

    The prox is ``argmin_x (sigma(x) - w)^2 + r (x - v)^2``. With ``u = exp(x)`` and ``D = u^2 + 2 u + 2`` the
    hyperbolic tangent is ``1 - 2 / D``.

    >>> v = torch.tensor([-2.0, 0.5]); sigma = Mish()
    >>> torch.allclose(sigma.prox(sigma.value(v), v, 2.0), v)  # a perfect fit stays
    True
    """

    module = nn.Mish
    straight: ClassVar[float] = 20.0  # beyond, 1 - tanh is below rounding

    def value(self, x: Tensor) -> Tensor:
        # torch's own mish rounds the last entries of a tensor in another way than those before them.
        return x * torch.tanh(nn.functional.softplus(x))

    @property
    def bounds(self) -> Bounds:
        return Bounds(1.0885, 0.6443, 0.5885)

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u = x.clamp_max(self.straight).exp_()
        n = torch.addcmul(2.0 * u, u, u)
        D = n + 2.0
        half = torch.addcmul(u, u, u)  # half of D'
        t = half / D
        t1 = t * 4.0 / D  # 2 D' / D^2
        t2 = t1 * ((1.0 + 2.0 * u) / (1.0 + u) - 4.0 * t)
        return product(x, n / D, t1, t2)


class ExponentialLinear(Scanned):
    """``scale x`` for ``x >= 0`` and ``scale alpha (exp(x) - 1)`` below."""

    scale: ClassVar[float] = 1.0

    @property
    @abstractmethod
    def left(self) -> float:
        """``scale alpha``."""

    @property
    def bounds(self) -> Bounds:
        return Bounds(max(self.scale, self.left), self.left, self.left)

    def to_kink(self, x: Tensor) -> Tensor:
        return x.abs()

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at = torch.expm1(x.clamp_max(0.0)).mul_(self.left)
        negative = torch.lt(x, 0.0, out=torch.empty_like(x))
        bend = (at + self.left).mul_(negative)
        slope = torch.add(bend, negative, alpha=-self.scale).add_(self.scale)
        return at.add_(x.clamp_min(0.0), alpha=self.scale), slope, bend

    def _left(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        slope = self.left * torch.exp(x)
        return self.left * torch.expm1(x), slope, slope

    def _right(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.scale * x, torch.full_like(x, self.scale), torch.zeros_like(x)

    def _turns(self, w: Tensor, r: float) -> tuple[Tensor, Tensor]:
        # With y = scale alpha exp(x) and c = w + scale alpha: k' = r - c y + 2 y^2.
        c = (w + self.left).clamp_min_(0.0)
        root = (c * c - 8.0 * r).clamp_min_(0.0).sqrt_()
        last = torch.log((c + root) / (4.0 * self.left))
        return torch.log((2.0 * r / self.left) / (c + root).clamp_min_(math.sqrt(8.0 * r))).minimum(last), last

    def pieces(self) -> tuple[Piece, ...]:
        left = Piece(self._left, self.bounds, high=0.0, turns=self._turns)
        return left, Piece(self._right, Bounds(self.scale, 0.0, 0.0), low=0.0)


@dataclass(frozen=True)
class ELU(ExponentialLinear):
    """``sigma(x) = x`` for ``x >= 0`` and ``alpha (exp(x) - 1)`` below, ``alpha > 0``.

    The prox is ``argmin_x (sigma(x) - w)^2 + r (x - v)^2``, the better of the minimisers on either side of 0.

    >>> sigma = ELU(0.5)
    >>> sigma.prox(torch.tensor([3.0]), torch.tensor([1.0]), 1.0)  # (w + r v) / (1 + r) on the right
    tensor([2.])
    """

    module = nn.ELU
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, low=0.0, strict=True)

    @classmethod
    def from_module(cls, module: nn.Module) -> ELU:
        assert isinstance(module, nn.ELU)
        return cls(float(module.alpha))

    @property
    def left(self) -> float:
        return self.alpha

    def value(self, x: Tensor) -> Tensor:
        return nn.functional.elu(x, self.alpha)


@dataclass(frozen=True)
class SELU(ExponentialLinear):
    """``sigma(x) = 1.0507 x`` for ``x >= 0`` and ``1.7581 (exp(x) - 1)`` below: both numbers as torch has them.

    The prox is ``argmin_x (sigma(x) - w)^2 + r (x - v)^2``, the better of the minimisers on either side of 0.

    >>> v = torch.tensor([-2.0, 0.5]); sigma = SELU()
    >>> torch.allclose(sigma.prox(sigma.value(v), v, 2.0), v)  # a perfect fit stays
    True
    """

    module = nn.SELU
    scale: ClassVar[float] = 1.0507009873554804934193349852946
    alpha: ClassVar[float] = 1.6732632423543772848170429916717

    @property
    def left(self) -> float:
        return self.scale * self.alpha

    def value(self, x: Tensor) -> Tensor:
        return nn.functional.selu(x)


@dataclass(frozen=True)
class Hardswish(Scanned):
    """``sigma(x) = 0`` up to -3, ``x (x + 3) / 6`` up to 3, and ``x`` beyond.

    The prox is ``argmin_x (sigma(x) - w)^2 + r (x - v)^2``, the best of the minimisers of the three pieces.

    >>> sigma = Hardswish()
    >>> sigma.prox(torch.tensor([7.0]), torch.tensor([5.0]), 1.0)  # (w + r v) / (1 + r) on the right
    tensor([6.])
    """

    module = nn.Hardswish

    def value(self, x: Tensor) -> Tensor:
        return nn.functional.hardswish(x)

    @property
    def bounds(self) -> Bounds:
        return Bounds(1.5, 1.0 / 3.0, 1e-30)

    def to_kink(self, x: Tensor) -> Tensor:
        return x.abs().sub_(3.0).abs_()

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = x.abs()
        bend = torch.lt(size, 3.0, out=size).mul_(1.0 / 3.0)
        part = (x * (1.0 / 6.0)).add_(0.5).clamp_(0.0, 1.0)
        return x * part, torch.addcmul(part, x, bend, value=0.5), bend

    @staticmethod
    def _middle(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * (x + 3.0) / 6.0, (2.0 * x + 3.0) / 6.0, torch.full_like(x, 1.0 / 3.0)

    @staticmethod
    def _middle_turns(w: Tensor, r: float) -> tuple[Tensor, Tensor]:
        root = (2.0 * w + (0.75 - 6.0 * r)).clamp_min_(0.0).sqrt_()  # of k' = x^2 / 6 + x / 2 + 1 / 4 + r - w / 3
        return -1.5 - root, root - 1.5

    @staticmethod
    def _flat(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        zero = torch.zeros_like(x)
        return zero, zero, zero

    @staticmethod
    def _straight(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, torch.ones_like(x), torch.zeros_like(x)

    def pieces(self) -> tuple[Piece, ...]:
        return (
            Piece(self._flat, Bounds(0.0, 0.0, 0.0), high=-3.0),
            Piece(self._middle, self.bounds, low=-3.0, high=3.0, turns=self._middle_turns),
            Piece(self._straight, Bounds(1.0, 0.0, 0.0), low=3.0),
        )
