"""A batch: what it must be, and means over its rows, of which every process may hold some.

A process alone holds the whole batch, and every mean has the bits of a plain one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ipdlam.defaults import BATCH_SIZE, BATCH_SIZE_OF_FEW, FEW_SAMPLES
from ipdlam.distributed.group import SERIAL, Group
from ipdlam.network.graph import Graph
from ipdlam.network.samples import INTEGERS, ArrayLike, Loader, Samples, as_tensor, as_words


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
        columns = max(1, math.prod(x.shape[1:]))
        if self.share is None:  # norms, not squares: these may be too small for the precision
            cells = max(1, self.rows) * columns
            return Measure(float(torch.linalg.vector_norm(x)), lambda norms: math.hypot(*norms) / math.sqrt(cells))
        squares = float(torch.linalg.vector_norm(x.flatten(1), dim=1).square() @ self.share)
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

    def thinned(self, rows: int, batch: int) -> tuple[slice | Tensor, Part]:
        """So many rows of a batch that has twice as many, or all: which of those here are among them, and their means.

        They are drawn, by the number of the ``batch`` alone, so that all processes draw the same ones: rows that come
        in turns, a class each, would be seen in part by any rule.
        """
        if self.rows < 2 * rows:
            return slice(None), self
        drawn = torch.randperm(self.rows, generator=torch.Generator().manual_seed(batch))[:rows].sort().values
        if self.positions is None:
            chosen, positions = drawn, None
        else:
            places = torch.full((self.rows,), -1).index_copy_(0, drawn, torch.arange(rows)).to(self.positions.device)
            own = places[self.positions]
            chosen = (own >= 0).nonzero().squeeze(1)
            positions = own[chosen]
        return chosen, Part.made(None if self.share is None else self.share[chosen], rows, self.group, positions)

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


def unit_of(weight: Tensor, group: Group = SERIAL) -> float:
    """The weight that counts as one sample: the smallest, or a hundredth of the mean where that is tiny.

    Samples of weight zero, of which there are none here, do not count.
    """
    own = (float(weight.min()), float(weight.mean())) if len(weight) else (float("inf"), 0.0)
    given = group.numbers(*own, float(len(weight)))
    samples = sum(count for _, _, count in given)
    smallest = weight.new_tensor(min(least for least, _, _ in given))
    mean = weight.new_tensor(sum(mean * (count / samples) for _, mean, count in given))
    return float(torch.maximum(smallest, 0.01 * mean))


@dataclass(frozen=True)
class NoSamples(Samples):
    """What a run has for samples where its batches come from elsewhere."""

    loader: Loader | None = None  # an iterable of batches; None where ``step`` is given them


def no_samples(network: Graph, loader: Loader | None = None) -> NoSamples:
    """What a run, or a process in one batch, has where there are none."""
    weight = network.weight(1)
    X = weight.new_zeros(0, *network.sample_shape)
    return NoSamples(
        X.long() if network.takes_words else X, weight.new_zeros(0, network.known_outputs), None, loader=loader
    )


def check_loader(X: Any, y: Any, sample_weight: Any) -> None:
    """Refuse what is no iterable of batches that can be gone through again and again."""
    if y is not None or sample_weight is not None:
        raise TypeError(
            f"X must be a torch tensor or a numpy array, got {type(X).__name__}; an iterable of batches is given "
            "alone, with y and weights in the batches"
        )
    if not isinstance(X, Iterable) or isinstance(X, (str, bytes, Iterator)):
        hint = "; an iterator is empty after one epoch, give what it iterates over" if isinstance(X, Iterator) else ""
        raise TypeError(f"X must be an array or an iterable of batches (x, y), got {type(X).__name__}{hint}")


def check_batch_parts(batch: Any) -> tuple[Any, ...]:
    """What a loader gives for a batch, if it is two or three things."""
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        of = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise TypeError(f"a batch must be (x, y) or (x, y, sample_weight), got {type(batch).__name__}{of}")
    return tuple(batch)


def check_kinds(network: Graph, x: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> dict[str, Tensor]:
    """The parts of a batch as tensors, in the model's precision and on its device; only pixels are converted."""
    given = {"x": as_tensor("x", x), "y": as_tensor("y", y)}
    if sample_weight is not None:
        given["sample_weight"] = as_tensor("sample_weight", sample_weight)
    for name, tensor in given.items():
        if name == "x" and network.takes_words:
            given[name] = tensor = as_words(name, tensor)
        elif name == "x" and tensor.dtype in INTEGERS:  # pixels, as fit takes them
            given[name] = tensor = tensor.to(network.dtype)
        if tensor.dtype != network.dtype and tensor.is_floating_point():
            raise TypeError(f"{name} is {tensor.dtype}, but the model is {network.dtype}; convert one of them")
        if tensor.device != network.device:
            raise ValueError(f"{name} is on {tensor.device}, but the model is on {network.device}; move one of them")
    return given


def default_batch_size(samples: int) -> int:
    """Samples to a batch when the user does not say: enough batches to an epoch, where there are few samples."""
    return BATCH_SIZE if samples >= FEW_SAMPLES else BATCH_SIZE_OF_FEW


def length_of(loader: Loader) -> int | None:
    """How many batches it has, where it knows; a DataLoader of a stream has a ``len`` that fails."""
    try:
        return max(1, len(loader))  # type: ignore[arg-type]
    except TypeError:
        return None
