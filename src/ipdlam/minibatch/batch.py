"""A batch of which every process holds some rows: means over all of them, from what each process has of its own.

A process alone holds the whole batch, and every mean has the bits of a plain one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ipdlam.distributed.group import SERIAL, Group
from ipdlam.network.samples import Samples


@dataclass(frozen=True)
class Measure:
    """A number over all rows of a batch: what the rows here give, and how it follows from what each process gave."""

    own: float
    of_all: Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Part:
    """The rows of a batch that are held here; in rank order or by :attr:`positions`, the processes hold all of it."""

    rows: int  # of the whole batch
    share: Tensor | None = None  # of the rows here in its means; equal ones where None
    count: float = 0.0  # the samples of the whole batch, or the sum of their weights
    group: Group = SERIAL
    positions: Tensor | None = None  # of the rows here in the whole batch, ascending; None where all are here

    @classmethod
    def made(cls, weight: Tensor | None, rows: int, group: Group = SERIAL, positions: Tensor | None = None) -> Part:
        """That of rows with such weights, of a batch with so many rows on all processes."""
        if weight is None:
            return cls(rows, None, float(rows), group, positions)
        count = sum(own for (own,) in group.numbers(float(weight.sum())))
        return cls(rows, weight / weight.new_tensor(count), count, group, positions)

    def complete(self, *measures: Measure) -> tuple[float, ...]:
        """The measures over all rows, the same bits on all processes, in one round."""
        given = self.group.numbers(*(measure.own for measure in measures))
        return tuple(measure.of_all(own) for measure, own in zip(measures, zip(*given, strict=True), strict=True))

    def mean_of(self, values: Tensor) -> Measure:
        """The mean of one number a row."""
        return Measure(float(self._own_mean(values)), sum)

    def size_of(self, x: Tensor) -> Measure:
        """The root mean square of all entries; rows count by their share."""
        columns = max(1, x.shape[1])
        if self.share is None:  # norms, not squares: these may be too small for the precision
            cells = max(1, self.rows) * columns
            return Measure(float(torch.linalg.vector_norm(x)), lambda norms: math.hypot(*norms) / math.sqrt(cells))
        squares = float(torch.linalg.vector_norm(x, dim=1).square() @ self.share)
        return Measure(squares, lambda parts: math.sqrt(sum(parts) / columns))

    def size(self, x: Tensor) -> float:
        """:meth:`size_of` in a round of its own."""
        return self.complete(self.size_of(x))[0]

    def mean_row(self, x: Tensor) -> Tensor:
        """The mean over the rows, in a round of its own."""
        mean = self._own_mean(x)
        self.group.sum_(mean)
        return mean

    def unweighted(self) -> Part:
        """The same with equal shares."""
        return dataclasses.replace(self, share=None)

    def leading(self, rows: int) -> tuple[int, Part]:
        """The first so many rows of the batch: how many of those here are among them, and means over them."""
        rows = min(rows, self.rows)
        here = rows if self.positions is None else int((self.positions < rows).sum())
        positions = None if self.positions is None else self.positions[:here]
        return here, Part.made(None if self.share is None else self.share[:here], rows, self.group, positions)

    def of_others(self, x: Tensor) -> Tensor:
        """For every row here that of another sample, half a batch away."""
        if self.positions is None:
            return x.roll(self.rows // 2, 0)
        whole = x.new_zeros(self.rows, x.shape[1])
        whole[self.positions] = x
        self.group.sum_(whole)
        return whole.roll(self.rows // 2, 0)[self.positions]

    def _own_mean(self, x: Tensor) -> Tensor:
        """What the rows here add to the mean over all."""
        if self.share is not None:
            return self.share @ x
        return x.mean(0) if x.shape[0] == self.rows else x.sum(0) / self.rows


@dataclass(frozen=True)
class Batch(Samples):
    """The samples of a batch that are held here."""

    part: Part = field(kw_only=True)


def part_of(batch: Samples) -> Part:
    """The means over a batch; samples that are no part of anything are all of it."""
    return batch.part if isinstance(batch, Batch) else Part.made(batch.weight, len(batch))
