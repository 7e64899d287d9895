"""A safeguarded, vectorised search for the global minimiser of a scalar problem, as smooth activations pose it.

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
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from ipdlam.prox.base import as_mask, select

Function = Callable[[Tensor], tuple[Tensor, Tensor]]
T = TypeVar("T", bound="Rising")

# With the direction, and the comparison of two candidates, no element is evaluated more than 20 times.
QUICK_STEPS = 5
SINGLE_STEPS = 12
LEFT_STEPS = 7  # at most, with two more logarithms for the inflection of softplus
RIGHT_STEPS = 8
BISECTIONS = 5  # of a bracket of some 30 units these leave one, the scale on which the functions here vary
WIDE = 1.0


def tiny(like: Tensor) -> float:
    """The smallest positive number of a tensor's precision."""
    return torch.finfo(like.dtype).tiny


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


@dataclass(frozen=True)
class Rising(ABC):
    """Problems whose minimisers lie at or above ``v``, one for each element: what the search needs to know of ``k``."""

    w: Tensor
    v: Tensor
    r: float

    @abstractmethod
    def k(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Half the derivative of the objective, and its slope."""

    @abstractmethod
    def objective(self, x: Tensor) -> Tensor:
        """What is minimised."""

    @abstractmethod
    def inflection(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``c``, where ``phi`` is steepest, and the value, slope and third derivative of ``k`` there."""

    @abstractmethod
    def reach(self) -> Tensor:
        """A simple upper bound of the minimisers."""

    @abstractmethod
    def bracket_end(self) -> Tensor:
        """A sharp upper bound of the minimisers, at or above ``v``."""

    @abstractmethod
    def far_start(self, high: Tensor) -> Tensor:
        """A start for minimisers that are far from ``c``."""

    @abstractmethod
    def is_convex(self) -> Tensor:
        """A quick, sufficient test that ``k`` increases everywhere."""

    def take(self, mask: Tensor) -> Self:
        """The problems in ``mask``."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **{name: tensor[mask] for name, tensor in tensors.items()})


def minimise_rising(problems: Rising) -> Tensor:
    """The global minimisers: one search where there is one minimum, two where there may be two."""
    two = ~problems.is_convex()
    if bool(two.any()):
        c, _, slope, _ = problems.inflection()
        two &= (problems.v < c) & (slope < 0)
    return solve_by_case(two, two_sided, one_sided, problems)


def one_sided(problems: Rising) -> Tensor:
    """The minimisers of problems with one minimum: quickly, and carefully where that does not settle."""
    x, settled = quick_root(problems.k, problems.v, problems.v, problems.reach())
    if not bool(settled.all()):
        x[~settled] = carefully(problems.take(~settled))
    return x


def carefully(problems: Rising) -> Tensor:
    """The minimisers of problems with one minimum, inside a bracket."""
    v, high = problems.v, problems.bracket_end()
    _, start = roots_near(*problems.inflection(), v, problems.far_start(high))
    return increasing_root(problems.k, clamp(start, v, high), v, high, SINGLE_STEPS, first=False)


def two_sided(problems: Rising) -> Tensor:
    """The better of the minimisers on either side of ``c``, the right one among equals."""
    v, high, at_c = problems.v, problems.bracket_end(), problems.inflection()
    c, (left, right) = at_c[0], roots_near(*at_c, v, problems.far_start(high))
    left = increasing_root(problems.k, clamp(left, v, c), v, c, LEFT_STEPS)
    c = torch.minimum(c, high)
    right = increasing_root(problems.k, clamp(right, c, high), c, high, RIGHT_STEPS, first=False)
    better = problems.objective(right) <= problems.objective(left)
    return select(as_mask(better, like=left), right, left)


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``x`` moved into ``[low, high]``."""
    return torch.minimum(torch.maximum(x, low), high)


def solve_by_case(case: Tensor, solve: Callable[[T], Tensor], otherwise: Callable[[T], Tensor], problems: T) -> Tensor:
    """``solve`` of the problems where ``case`` holds, ``otherwise`` of them elsewhere."""
    chosen = int(case.sum())
    if chosen == 0:
        return otherwise(problems)
    if chosen == case.numel():
        return solve(problems)
    result = torch.empty(case.shape, dtype=problems.v.dtype, device=problems.v.device)
    result[case] = solve(problems.take(case))
    result[~case] = otherwise(problems.take(~case))
    return result
