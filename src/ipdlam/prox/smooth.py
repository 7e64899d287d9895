"""Smooth activations. Their proximal operators are the searches of :mod:`ipdlam.prox.search`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ipdlam.checks import check_number
from ipdlam.prox.base import as_mask, select
from ipdlam.prox.newton import Bounds, Curve
from ipdlam.prox.search import (
    BISECTIONS,
    SINGLE_STEPS,
    Rising,
    increasing_root,
    minimise_rising,
    quick_root,
    solve_by_case,
    tiny,
)


def steepest_point_of_cubic(w: Tensor) -> Tensor:
    """The ``p`` in (0, 0.22) where ``(w - p) p (1 - p)``, as a function of ``logit(p)``, is steepest, for ``w > 0``.

    It is the first root of ``-12 p^3 + (15 + 6 w) p^2 - (4 + 6 w) p + w``; Newton from below never overshoots it.
    """
    p = w / (4.0 + w * (6.0 / (3.0 - math.sqrt(3.0)))) * 0.9  # exact for w near 0 and for w large, up to the factor
    for _ in range(4):
        value = ((-12.0 * p + (15.0 + 6.0 * w)) * p - (4.0 + 6.0 * w)) * p + w
        slope = (-36.0 * p + (30.0 + 12.0 * w)) * p - (4.0 + 6.0 * w)
        p = p - value / slope
    return p


@dataclass(frozen=True)
class RisingLogistic(Rising):
    """``(s(x) - level)^2 + r (x - v)^2``, ``s`` the logistic function, ``level > 0``; mirrored where ``sign`` is -1.

    ``w`` is the operand before the mirror, and less 1/2 where ``centred``, so that no digits are lost.
    """

    sign: Tensor
    level: Tensor
    centred: bool

    def excess(self, x: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """``level - s(x)``, without subtracting numbers near 1 from each other."""
        if self.centred:
            return self.sign * self.w - 0.5 * torch.tanh(0.5 * x)
        return select(0.5 * self.sign + 0.5, self.w - p, q - self.w)

    def k(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p, q = torch.sigmoid(x), torch.sigmoid(-x)
        excess, bell = self.excess(x, p, q), p * q
        return self.r * (x - self.v) - excess * bell, self.r + bell * (bell - excess * (q - p))

    def objective(self, x: Tensor) -> Tensor:
        return self.excess(x, torch.sigmoid(x), torch.sigmoid(-x)).square() + self.r * (x - self.v).square()

    def inflection(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        level, p = self.level, steepest_point_of_cubic(self.level).clamp(tiny(self.v), 0.5)
        c, bell = torch.logit(p), p * (1.0 - p)
        value = self.r * (c - self.v) - (level - p) * bell
        slope = self.r - bell * (3.0 * p * p - 2.0 * (1.0 + level) * p + level)
        return c, value, slope, bell * bell * (36.0 * p * p - (30.0 + 12.0 * level) * p + (4.0 + 6.0 * level))

    def reach(self) -> Tensor:
        return self.v + 0.25 * self.level / self.r  # phi <= level / 4

    def bracket_end(self) -> Tensor:
        # phi <= level exp(-x) too; and x stops where s(x) = level.
        tail = torch.maximum(self.v + 1.0, torch.log((self.level / self.r).clamp_min(tiny(self.v))))
        bound = torch.minimum(self.reach(), tail)
        eps = torch.finfo(self.v.dtype).eps
        reached = torch.logit(self.level.clamp(tiny(self.v), 1.0 - eps))
        reached = reached + 4.0 * eps * (1.0 + reached.abs())  # rounding may have put it a little too low
        bound = select(as_mask(self.level < 1.0, like=bound), torch.minimum(bound, reached), bound)
        return torch.maximum(bound, self.v)

    def far_start(self, high: Tensor) -> Tensor:
        # For large x, with y = exp(-x): phi = y (level - 1 + y), so r (x - v) = phi is a quadratic in y.
        above, x = self.level - 1.0, self.v.clamp_min(0.0)
        for _ in range(3):
            pull = (self.r * (x - self.v)).clamp_min(self.r)
            root = torch.sqrt(above.square() + 4.0 * pull)
            y = torch.where(above > 0, 2.0 * pull / (above + root).clamp_min(tiny(x)), 0.5 * (root - above))
            x = -torch.log(y.clamp_min(tiny(x)))
        return x

    def is_convex(self) -> Tensor:
        return self.level.clamp_min(1.0) * (1.0 / (6.0 * math.sqrt(3.0))) <= self.r  # |s''| <= 1 / (6 sqrt(3))


def logistic_prox(w: Tensor, v: Tensor, r: float, centred: bool) -> Tensor:
    """``argmin_x (s(x) - w)^2 + r (x - v)^2`` with ``s`` the logistic function.

    ``centred`` says that the caller gives ``w - 1/2``, which keeps the digits of a small ``w`` for an odd activation.
    """
    at_v = 0.5 * torch.tanh(0.5 * v) if centred else torch.sigmoid(v)
    # s(-x) = 1 - s(x): where s(v) > w the mirrored problem rises.
    sign = 2.0 * as_mask(at_v <= w, like=w) - 1.0
    level = sign * (w if centred else w - 0.5) + 0.5
    return sign * minimise_rising(RisingLogistic(w, sign * v, r, sign, level, centred))


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, without overflow and without the linear cut of ``nn.Softplus`` at 20 (2e-9 away)."""
    return torch.logaddexp(x, torch.zeros_like(x))


@dataclass(frozen=True)
class RisingSoftplus(Rising):
    """``(softplus(x) - w)^2 + r (x - v)^2``, with ``at_v = softplus(v)``."""

    at_v: Tensor

    def k(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p, excess = torch.sigmoid(x), self.w - softplus(x)
        return self.r * (x - self.v) - excess * p, self.r + p * (p - excess * torch.sigmoid(-x))

    def objective(self, x: Tensor) -> Tensor:
        return (softplus(x) - self.w).square() + self.r * (x - self.v).square()

    def inflection(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w = self.w.clamp_min(tiny(self.w))
        p = w / (4.0 + 2.0 * w)  # (w - softplus) (1 - 2 p) = 3 p: this start is right for w near 0 and for w large
        for _ in range(2):
            excess = w + torch.log1p(-p)
            p = p + (excess * (1.0 - 2.0 * p) - 3.0 * p) / (2.0 * excess + (1.0 - 2.0 * p) / (1.0 - p) + 3.0)
        p = p.clamp(tiny(w), 0.5)
        c, bell, excess = torch.logit(p), p * (1.0 - p), w + torch.log1p(-p)
        third = bell * (3.0 * bell + p * (1.0 - 2.0 * p) + 2.0 * excess * bell)
        return c, self.r * (c - self.v) - excess * p, self.r + p * p - excess * bell, third

    def reach(self) -> Tensor:
        return self.v + (self.w - self.at_v) / self.r

    def bracket_end(self) -> Tensor:
        return torch.maximum(torch.minimum(self.level_point(), self.reach()), self.v)

    def level_point(self) -> Tensor:
        """Where ``softplus(x) = w``, for ``w > 0``."""
        return self.w + torch.log(-torch.expm1(-self.w.clamp_min(tiny(self.w))))

    def far_start(self, high: Tensor) -> Tensor:
        return high  # k is convex from c up to here: Newton's method descends to the root without overshooting

    def is_convex(self) -> Tensor:
        return self.w <= 4.0 * self.r  # phi' <= (w - softplus) / 4


def falling_softplus(problems: RisingSoftplus) -> Tensor:
    """The minimisers where ``softplus(v) >= w``: they lie at or below ``v``, and the objective is convex there."""
    v = problems.v
    x, settled = quick_root(problems.k, v, problems.reach(), v)
    if not bool(settled.all()):
        x[~settled] = falling_softplus_carefully(problems.take(~settled))
    return x


def falling_softplus_carefully(problems: RisingSoftplus) -> Tensor:
    """The same, inside a bracket."""
    w, v, r, drop = problems.w, problems.v, problems.r, problems.at_v - problems.w
    # Bounds from softplus ~ x on the right and ~ exp(x) on the left.
    linear = (r * v + w - math.log(2.0)) / (1.0 + r)
    high = torch.minimum(v, torch.maximum(linear + 1.0, 3.0 + 1.2 * torch.log1p(w.abs())))
    low = torch.maximum(problems.reach(), torch.minimum(v - 1.0, torch.log(r / drop.clamp_min(1e-30))))
    low = torch.maximum(low, torch.where(linear > 0, linear, low))
    low = torch.minimum(torch.maximum(low, torch.where(w > 0, problems.level_point(), low)), high)
    return increasing_root(problems.k, torch.lerp(low, high, 0.5), low, high, SINGLE_STEPS, bisections=BISECTIONS)


def softplus_prox(w: Tensor, v: Tensor, r: float) -> Tensor:
    """``argmin_x (softplus(x) - w)^2 + r (x - v)^2``."""
    problems = RisingSoftplus(w, v, r, softplus(v))
    return solve_by_case(problems.at_v < w, minimise_rising, falling_softplus, problems)


@dataclass(frozen=True)
class Sigmoid(Curve):
    """``sigma(x) = 1 / (1 + exp(-x))``."""

    module = nn.Sigmoid

    def value(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    @property
    def bounds(self) -> Bounds:
        return Bounds(0.25, 1.0 / (6.0 * math.sqrt(3.0)), 0.125)

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = torch.sigmoid(x)
        bell = torch.addcmul(p, p, p, value=-1.0)
        return p, bell, torch.addcmul(bell, p, bell, value=-2.0)

    def _search(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        return logistic_prox(w, v, r, centred=False)


@dataclass(frozen=True)
class Tanh(Curve):
    """``sigma(x) = tanh(x)``, solved as the logistic function it is: ``tanh(x) = 2 s(2 x) - 1``."""

    module = nn.Tanh

    def value(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    @property
    def bounds(self) -> Bounds:
        return Bounds(1.0, 4.0 / (3.0 * math.sqrt(3.0)), 2.0)

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = torch.tanh(x)
        slope = (t * t).neg_().add_(1.0)
        return t, slope, (t * slope).mul_(-2.0)

    def _search(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        return 0.5 * logistic_prox(0.5 * w, 2.0 * v, r / 16.0, centred=True)


@dataclass(frozen=True)
class Softplus(Curve):
    """``sigma(x) = log(1 + exp(beta x)) / beta``, reduced to ``beta = 1`` by scaling ``x``, ``w`` and ``v``."""

    module = nn.Softplus
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_number("beta", self.beta, low=0.0, strict=True)

    @classmethod
    def from_module(cls, module: nn.Module) -> Softplus:
        assert isinstance(module, nn.Softplus)
        if module.threshold < 20:
            raise ValueError(
                f"threshold must be at least 20, where the linear cut is below rounding, got {module.threshold}"
            )
        return cls(float(module.beta))

    def value(self, x: Tensor) -> Tensor:
        return softplus(self.beta * x) / self.beta

    @property
    def bounds(self) -> Bounds:
        return Bounds(1.0, self.beta / 4.0, self.beta**2 / (6.0 * math.sqrt(3.0)))

    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = torch.sigmoid(self.beta * x)
        return self.value(x), p, torch.addcmul(p, p, p, value=-1.0).mul_(self.beta)

    def _search(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        scaled = self.beta * v
        return v + (softplus_prox(self.beta * w, scaled, r) - scaled) / self.beta  # keeps an unmoved v to the bit
