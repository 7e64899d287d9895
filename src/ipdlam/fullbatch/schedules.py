"""The penalty over the iterations, and the step size over the batches."""

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


WARMUP_BATCHES = 20
WARMUP_PART = 0.1  # of the planned training, where that is shorter


@dataclass(frozen=True)
class StepSchedule:
    """The part of its full size that a step has: a linear rise over the first batches, then a linear descent to zero.

    ``progress`` is how much of the planned training is done, from 0 to 1; it stays 0 where nothing is planned.

    >>> [round(StepSchedule().at(batch, 0.001 * batch), 3) for batch in (0, 9, 19, 500)]
    [0.05, 0.495, 0.981, 0.5]
    """

    warmup_batches: int = WARMUP_BATCHES
    warmup_part: float = WARMUP_PART

    def at(self, batch: int, progress: float) -> float:
        """For the batch of this number, counted from 0."""
        risen = max((batch + 1) / self.warmup_batches, progress / self.warmup_part)
        return min(1.0, risen) * (1.0 - min(max(progress, 0.0), 1.0))
