"""Smooth activations: a safeguarded, vectorised scalar solve for the global minimiser.

Write ``phi(x) = (w - sigma(x)) sigma'(x)``. A minimiser of ``(sigma(x) - w)^2 + r (x - v)^2`` is a root of

    k(x) = r (x - v) - phi(x)

where ``k`` increases. By symmetry let ``sigma(v) < w``, so that ``x >= v``. ``phi`` is a bump: convex up to a point
``c`` that depends on ``w`` alone, where it is steepest. If ``r`` exceeds that steepest slope, ``k`` increases
everywhere and has one root. If not, there are at most two minimisers, one on each side of ``c``: left of ``c`` ``k``
is concave, and Newton's method from ``v`` climbs to the first root without ever stepping over it; right of ``c`` a
bracket is known in closed form. Both are found and the better one is returned (the right one among equals). An attempt
that finds no root ends at a point that is no minimiser, and therefore loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ipdlam.checks import check_number
from ipdlam.prox.base import Activation, as_mask, select

Function = Callable[[Tensor], tuple[Tensor, Tensor]]

# With the direction, and the comparison of two candidates, no element is evaluated more than 20 times.
QUICK_STEPS = 5
SINGLE_STEPS = 12
LEFT_STEPS = 7
RIGHT_STEPS = 10
BISECTIONS = 5  # of a bracket of some 30 units these leave one, the scale on which the functions here vary
WIDE = 1.0


def increasing_root(
    k: Function, x: Tensor, low: Tensor, high: Tensor, steps: int, *, first: bool = True, bisections: int = 0
) -> Tensor:
    """The root of ``k`` in ``[low, high]`` where ``k`` increases: Newton's method from ``x`` in a shrinking bracket.

    ``k`` returns its value and slope. Where it falls somewhere in between, ``first`` tells which of its rising parts is
    meant: the first one (before the fall) or the last one (after it). The first ``bisections`` steps halve wide
    brackets.
    """
    eps, smallest = torch.finfo(x.dtype).eps, torch.finfo(x.dtype).tiny
    outer_low, outer_high = low, high
    for step in range(steps):
        value, slope = k(x)
        rising = as_mask(slope > 0, like=x)
        positive = as_mask(value >= 0, like=x)
        passed = torch.maximum(positive, 1.0 - rising) if first else positive * rising
        high = select(passed, x, high)
        low = select(passed, low, x)
        # Roots often lie at an end of the first bracket: a step past an end that was never tried goes to that end.
        newton = (x - value / slope.clamp_min(smallest)).clamp_(outer_low, outer_high)
        usable = (newton >= low).logical_and_(newton <= high).logical_and_(slope > 0)
        if step < bisections:
            usable = usable.logical_and_(high - low <= WIDE)
        moved = select(as_mask(usable, like=x), newton, torch.lerp(low, high, 0.5))
        # Newton's error is of the order of the square of its last step: a small step leaves an error below rounding.
        small = (moved - x).abs_() <= eps ** (2 / 3) * moved.abs() + 2.0 * eps
        closed = high - low <= 4.0 * eps * moved.abs()
        x = moved
        if bool(usable.logical_and_(small).logical_or_(closed).all()):
            break
    return x


def quick_root(k: Function, x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """A few plain Newton steps from ``x``, and where they have settled: enough for nearly all elements, and cheap."""
    eps = torch.finfo(x.dtype).eps
    settled = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(QUICK_STEPS):
        value, slope = k(x)
        moved = (x - value / slope).clamp_(low, high)
        settled = ((moved - x).abs_() <= eps ** (2 / 3) * moved.abs() + 2.0 * eps).logical_and_(slope > 0)
        x = moved
        if bool(settled.all()):
            break
    return x, settled


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


def roots_near(
    c: Tensor, value: Tensor, slope: Tensor, third: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Better starts than ``left`` and ``right`` for the roots of ``k`` within one unit of its inflection ``c``.

    There ``k`` is close to ``value + slope d + third d^3 / 6``, ``d = x - c``, whose roots are known. Where ``slope``
    is nearly zero Newton's method alone would crawl.
    """
    A, B = 2.0 * slope / third, 3.0 * value / third  # d^3 + 3 A d + 2 B = 0
    discriminant = A * A * A + B * B
    t = (B.abs() + discriminant.clamp_min(0.0).sqrt()).clamp_min(torch.finfo(c.dtype).tiny).pow(1.0 / 3.0)
    single = -torch.where(B < 0, -1.0, 1.0) * (t - A / t)
    radius = (-A).clamp_min(0.0).sqrt()
    angle = torch.acos((-B / (radius * radius * radius).clamp_min(torch.finfo(c.dtype).tiny)).clamp(-1.0, 1.0)) / 3.0
    three = discriminant < 0
    first = torch.where(three, 2.0 * radius * torch.cos(angle + 2.0 * math.pi / 3.0), single)
    last = torch.where(three, 2.0 * radius * torch.cos(angle), single)
    left = torch.where((first.abs() < 1.0) & (first < 0), c + first, left)
    return left, torch.where((last.abs() < 1.0) & ((last > 0) | ~three), c + last, right)


def best_of(candidates: tuple[Tensor, Tensor], objective: Callable[[Tensor], Tensor]) -> Tensor:
    """The candidate of the lower objective, the second one among equals."""
    first, second = candidates
    return select(as_mask(objective(second) <= objective(first), like=first), second, first)


def solve_by_case(
    case: Tensor, solve: Callable[..., Tensor], otherwise: Callable[..., Tensor], *operands: Tensor
) -> Tensor:
    """``solve`` of the operands where ``case`` holds, ``otherwise`` of them elsewhere."""
    chosen = int(case.sum())
    if chosen == 0:
        return otherwise(*operands)
    if chosen == case.numel():
        return solve(*operands)
    result = torch.empty_like(operands[0], memory_format=torch.contiguous_format)
    result[case] = solve(*(operand[case] for operand in operands))
    result[~case] = otherwise(*(operand[~case] for operand in operands))
    return result


def logistic_prox(w: Tensor, v: Tensor, r: float, centred: bool) -> Tensor:
    """``argmin_x (s(x) - w)^2 + r (x - v)^2`` with ``s`` the logistic function.

    ``centred`` says that the caller gives ``w - 1/2``, which keeps the digits of a small ``w`` for an odd activation.
    """
    middle = 0.0 if centred else 0.5
    smallest = torch.finfo(w.dtype).tiny

    def s(x: Tensor) -> Tensor:
        return 0.5 * torch.tanh(0.5 * x) if centred else torch.sigmoid(x)

    # s(-x) = 1 - s(x): from here on x >= v and w > 0, with ``sign`` to undo the mirror. ``level`` is the mirrored w.
    sign = 2.0 * as_mask(s(v) <= w, like=w) - 1.0
    v = sign * v
    level = sign * (w - middle) + 0.5

    def k_for(w: Tensor, v: Tensor, sign: Tensor) -> Function:
        upward = 0.5 * sign + 0.5

        def k(x: Tensor) -> tuple[Tensor, Tensor]:
            p, q = torch.sigmoid(x), torch.sigmoid(-x)
            # sign (w - s(sign x)) without subtracting numbers near 1 from each other.
            excess = sign * w - 0.5 * torch.tanh(0.5 * x) if centred else select(upward, w - p, q - w)
            bell = p * q
            return r * (x - v) - excess * bell, r + bell * (bell - excess * (q - p))

        return k

    def upper_bound(level: Tensor, v: Tensor) -> Tensor:
        # phi <= level/4 and phi <= level exp(-x); and x stops where s(x) = level.
        tail = torch.maximum(v + 1.0, torch.log((level / r).clamp_min(smallest)))
        bound = torch.minimum(v + 0.25 * level / r, tail)
        reached = torch.logit(level.clamp(smallest, 1.0 - torch.finfo(w.dtype).eps))
        # Rounding may put the exact end a little too low, so it is moved up by more than that.
        reached = reached + 4.0 * torch.finfo(w.dtype).eps * (1.0 + reached.abs())
        return torch.maximum(select(as_mask(level < 1.0, like=w), torch.minimum(bound, reached), bound), v)

    def tail_root(level: Tensor, v: Tensor) -> Tensor:
        # For large x, with y = exp(-x): phi = y (level - 1 + y), so r (x - v) = phi is a quadratic in y.
        above = level - 1.0
        x = v.clamp_min(0.0)
        for _ in range(3):
            pull = (r * (x - v)).clamp_min(r)
            root = torch.sqrt(above.square() + 4.0 * pull)
            y = select(
                as_mask(above > 0, like=w), 2.0 * pull / (above + root).clamp_min(smallest), 0.5 * (root - above)
            )
            x = -torch.log(y.clamp_min(smallest))
        return x

    def one_sided(w: Tensor, v: Tensor, sign: Tensor, level: Tensor) -> Tensor:
        x, settled = quick_root(k_for(w, v, sign), v, v, v + 0.25 * level / r)
        return solve_by_case(settled, lambda x, *_: x, lambda x, *rest: carefully(*rest), x, w, v, sign, level)

    def inflection(level: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where ``phi`` is steepest, and the value, slope and third derivative of ``k`` there."""
        p = steepest_point_of_cubic(level).clamp(smallest, 0.5)
        c, bell = torch.logit(p), p * (1.0 - p)
        value = r * (c - v) - (level - p) * bell
        slope = r - bell * (3.0 * p * p - 2.0 * (1.0 + level) * p + level)
        return c, value, slope, bell * bell * (36.0 * p * p - (30.0 + 12.0 * level) * p + (4.0 + 6.0 * level))

    def carefully(w: Tensor, v: Tensor, sign: Tensor, level: Tensor) -> Tensor:
        high = upper_bound(level, v)
        _, start = roots_near(*inflection(level, v), v, tail_root(level, v))
        start = torch.minimum(torch.maximum(start, v), high)
        return increasing_root(k_for(w, v, sign), start, v, high, SINGLE_STEPS, first=False)

    def two_sided(w: Tensor, v: Tensor, sign: Tensor, level: Tensor) -> Tensor:
        k, high = k_for(w, v, sign), upper_bound(level, v)
        at_c = inflection(level, v)
        c, (start_left, start_right) = at_c[0], roots_near(*at_c, v, tail_root(level, v))
        left = increasing_root(k, torch.minimum(torch.maximum(start_left, v), c), v, c, LEFT_STEPS)
        c = torch.minimum(c, high)
        start_right = torch.minimum(torch.maximum(start_right, c), high)
        right = increasing_root(k, start_right, c, high, RIGHT_STEPS, first=False)
        return best_of((left, right), lambda x: (s(sign * x) - w).square() + r * (x - v).square())

    # |s''| <= 1 / (6 sqrt(3)) bounds the slope of phi: a quick way to know that one side is enough.
    two = level.clamp_min(1.0) * (1.0 / (6.0 * math.sqrt(3.0))) > r
    if bool(two.any()):
        c, _, slope, _ = inflection(level, v)
        two = (v < c) & (slope < 0)
    return sign * solve_by_case(two, two_sided, one_sided, w, v, sign, level)


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, without overflow and without the linear cut of ``nn.Softplus`` at 20 (2e-9 away)."""
    return torch.logaddexp(x, torch.zeros_like(x))


def softplus_prox(w: Tensor, v: Tensor, r: float) -> Tensor:
    """``argmin_x (softplus(x) - w)^2 + r (x - v)^2``."""
    at_v = softplus(v)

    def k_for(w: Tensor, v: Tensor) -> Function:
        def k(x: Tensor) -> tuple[Tensor, Tensor]:
            p, excess = torch.sigmoid(x), w - softplus(x)
            return r * (x - v) - excess * p, r + p * (p - excess * torch.sigmoid(-x))

        return k

    def reached(w: Tensor) -> Tensor:
        """Where ``softplus(x) = w``, for ``w > 0``."""
        return w + torch.log(-torch.expm1(-w.clamp_min(torch.finfo(w.dtype).tiny)))

    def downward(w: Tensor, v: Tensor, at_v: Tensor) -> Tensor:
        # softplus > w here: the objective is convex. Bounds from softplus ~ x on the right and ~ exp(x) on the left.
        linear = (r * v + w - math.log(2.0)) / (1.0 + r)
        high = torch.minimum(v, torch.maximum(linear + 1.0, 3.0 + 1.2 * torch.log1p(w.abs())))
        low = torch.maximum(v - (at_v - w) / r, torch.minimum(v - 1.0, torch.log(r / (at_v - w).clamp_min(1e-30))))
        low = torch.maximum(low, select(as_mask(linear > 0, like=v), linear, low))
        low = torch.maximum(low, select(as_mask(w > 0, like=v), reached(w), low))
        low = torch.minimum(low, high)
        return increasing_root(k_for(w, v), torch.lerp(low, high, 0.5), low, high, SINGLE_STEPS, bisections=BISECTIONS)

    def one_sided(w: Tensor, v: Tensor, at_v: Tensor) -> Tensor:
        x, settled = quick_root(k_for(w, v), v, v - (at_v - w).clamp_min(0.0) / r, v + (w - at_v).clamp_min(0.0) / r)
        return solve_by_case(settled, lambda x, *_: x, lambda x, *rest: carefully(*rest), x, w, v, at_v)

    def carefully(w: Tensor, v: Tensor, at_v: Tensor) -> Tensor:
        return solve_by_case(at_v < w, upward, downward, w, v, at_v)

    def upward(w: Tensor, v: Tensor, at_v: Tensor) -> Tensor:
        high = upper_bound(w, v, at_v)
        _, start = roots_near(*inflection(w, v), v, high)
        start = torch.minimum(torch.maximum(start, v), high)
        return increasing_root(k_for(w, v), start, v, high, SINGLE_STEPS, first=False)

    def upper_bound(w: Tensor, v: Tensor, at_v: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(reached(w), v + (w - at_v) / r), v)

    def inflection(w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where ``phi`` is steepest, and the value, slope and third derivative of ``k`` there; for ``w > 0``."""
        p = w / (4.0 + 2.0 * w)  # (w - softplus) (1 - 2 p) = 3 p: this start is right for w near 0 and for w large
        for _ in range(2):
            excess = w + torch.log1p(-p)
            p = p + (excess * (1.0 - 2.0 * p) - 3.0 * p) / (2.0 * excess + (1.0 - 2.0 * p) / (1.0 - p) + 3.0)
        p = p.clamp(torch.finfo(w.dtype).tiny, 0.5)
        c, bell, excess = torch.logit(p), p * (1.0 - p), w + torch.log1p(-p)
        third = bell * (3.0 * bell + p * (1.0 - 2.0 * p) + 2.0 * excess * bell)
        return c, r * (c - v) - excess * p, r + p * p - excess * bell, third

    def two_sided(w: Tensor, v: Tensor, at_v: Tensor) -> Tensor:
        k, high, at_c = k_for(w, v), upper_bound(w, v, at_v), inflection(w, v)
        c, (start_left, start_right) = at_c[0], roots_near(*at_c, v, high)
        left = increasing_root(k, torch.minimum(torch.maximum(start_left, v), c), v, c, LEFT_STEPS)
        c = torch.minimum(c, high)
        start_right = torch.minimum(torch.maximum(start_right, c), high)
        right = increasing_root(k, start_right, c, high, RIGHT_STEPS - 3, first=False)
        return best_of((left, right), lambda x: (softplus(x) - w).square() + r * (x - v).square())

    # phi' <= (w - softplus) / 4: a quick way to know that one side is enough.
    two = w > torch.maximum(at_v, torch.full_like(w, 4.0 * r))
    if bool(two.any()):
        c, _, slope, _ = inflection(w.clamp_min(torch.finfo(w.dtype).tiny), v)
        two &= (v < c) & (slope < 0)
    return solve_by_case(two, two_sided, one_sided, w, v, at_v)


@dataclass(frozen=True)
class Sigmoid(Activation):
    """``sigma(x) = 1 / (1 + exp(-x))``."""

    module = nn.Sigmoid

    def value(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        return logistic_prox(w, v, r, centred=False)


@dataclass(frozen=True)
class Tanh(Activation):
    """``sigma(x) = tanh(x)``, solved as the logistic function it is: ``tanh(x) = 2 s(2 x) - 1``."""

    module = nn.Tanh

    def value(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        return 0.5 * logistic_prox(0.5 * w, 2.0 * v, r / 16.0, centred=True)


@dataclass(frozen=True)
class Softplus(Activation):
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

    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        scaled = self.beta * v
        return v + (softplus_prox(self.beta * w, scaled, r) - scaled) / self.beta  # keeps an unmoved v to the bit
