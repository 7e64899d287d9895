"""How long the steps of the mini-batch method are, batch after batch."""

from __future__ import annotations

from dataclasses import dataclass

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
