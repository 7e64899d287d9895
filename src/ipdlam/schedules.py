"""The penalty over the iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipdlam.checks import check_number


@dataclass(frozen=True)
class PenaltySchedule:
    """``rho_(k+1) = min(growth rho_k, maximum)`` from ``initial``: line 8 of Algorithm 1.

    >>> [round(PenaltySchedule(0.1, 2.0, 0.5).at(k), 3) for k in (1, 2, 3, 4, 100000)]
    [0.1, 0.2, 0.4, 0.5, 0.5]
    """

    initial: float  # rho_0 in the paper
    growth: float  # theta
    maximum: float  # rho bar

    def __post_init__(self) -> None:
        check_number("penalty", self.initial, low=0.0, strict=True)
        check_number("penalty_growth", self.growth, low=1.0)
        check_number("penalty_max", self.maximum, low=0.0, strict=True)
        if self.maximum < self.initial:
            raise ValueError(
                f"penalty_max must be at least penalty, got penalty_max={self.maximum!r} and penalty={self.initial!r}"
            )

    def at(self, iteration: int) -> float:
        """The penalty of an iteration; the first one is 1."""
        exponent = max(iteration - 1, 0)
        if exponent * math.log(self.growth) >= math.log(self.maximum / self.initial):
            return self.maximum if self.growth > 1.0 else self.initial
        return float(self.initial * self.growth**exponent)
