"""Samples that stay where they are, in a file or in another type, and are read and converted some rows at a time.

The numbers that a pass gets, and where in a cache line they start, are those of the same samples held in memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipdlam.network.linalg import CACHE_LINE
from ipdlam.network.mlp import Network
from ipdlam.network.samples import (
    ArrayLike,
    RowSource,
    Samples,
    as_tensor,
    check_kind,
    check_shapes,
    check_weight,
    digest,
    has_labels,
    real_targets,
    to_labels,
    to_model,
)
from ipdlam.prox import Loss

ROWS_AT_A_TIME = 4096  # when all samples are looked at before a run


class MappedRows:
    """The rows of an array, converted by ``convert(rows, first)`` when they are asked for; ``first`` is their number.

    What was read last of a memory-mapped file is given back to the system's cache, and what comes next is read ahead.
    """

    def __init__(self, name: str, array: ArrayLike, convert: Callable[[Tensor, int], Tensor]) -> None:
        self.name, self.array, self.convert = name, array, convert
        self._last: slice | None = None

    def __getitem__(self, rows: slice) -> Tensor:
        if self._last is not None and self._last != rows:
            advise(self.array, self._last, "MADV_DONTNEED")
        self._last = rows
        advise(self.array, slice(rows.stop, 2 * rows.stop - rows.start), "MADV_WILLNEED")
        given = as_tensor(self.name, self.array[rows])
        ready = self.convert(given, rows.start)
        shared = isinstance(self.array, (Tensor, np.ndarray)) and ready.data_ptr() == address(self.array[rows])
        return ready if shared else placed(ready, rows.start)

    def __iter__(self) -> Iterator[Tensor]:
        """All rows, some at a time."""
        length = self.array.shape[0]
        for start in range(0, length, ROWS_AT_A_TIME):
            yield self[slice(start, min(start + ROWS_AT_A_TIME, length))]
        if self._last is not None:
            advise(self.array, self._last, "MADV_DONTNEED")


@dataclass(frozen=True)
class MappedSamples(Samples):
    """Samples whose ``X``, and real targets ``y``, have a shape and a type here, and their numbers elsewhere."""

    X_rows: MappedRows
    y_rows: MappedRows | None  # None where y is in memory: class indices
    _digests: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def inputs(self, rows: slice) -> Tensor:
        return self.X_rows[rows]

    def goals(self, rows: slice) -> Tensor:
        return self.y[rows] if self.y_rows is None else self.y_rows[rows]

    def fingerprint(self) -> dict[str, str | None]:
        if not self._digests:  # a pass over all data
            self._digests.update(
                X=digest(self.X, self.X_rows),
                y=digest(self.y, self.y_rows),
                sample_weight=None if self.weight is None else digest(self.weight),
            )
        return dict(self._digests)


def map_samples(
    network: Network,
    loss: Loss,
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    prefix: str = "",
    *,
    part: bool = False,
) -> Samples:
    """:func:`check_samples` without a copy of the data: they are looked at some rows at a time."""
    X, y = as_given(f"{prefix}X", X), as_given(f"{prefix}y", y)
    check_shapes(network, X, y, prefix, part=part)
    X_rows = MappedRows(f"{prefix}X", X, lambda rows, first: to_model(f"{prefix}X", rows, network, first))
    for _ in X_rows:  # NaN and infinity are refused now
        pass
    weight = None
    if sample_weight is not None:
        weight = check_weight(f"{prefix}sample_weight", sample_weight, X.shape, network, part=part)
    inputs = torch.empty(*X.shape, dtype=network.dtype, device="meta")
    if has_labels(y, loss, network.outputs):
        labels = to_labels(f"{prefix}y", as_tensor(f"{prefix}y", y), loss, network)
        return MappedSamples(inputs, labels, weight, X_rows, None)

    def convert(rows: Tensor, first: int) -> Tensor:
        return real_targets(f"{prefix}y", rows, network, first)

    y_rows = MappedRows(f"{prefix}y", y, convert)
    for rows in y_rows:
        loss.check_targets(rows)
    targets = torch.empty(X.shape[0], network.outputs, dtype=network.dtype, device="meta")
    return MappedSamples(inputs, targets, weight, X_rows, y_rows)


def as_given(name: str, array: ArrayLike) -> ArrayLike:
    """The array without a copy, if it is one; a tensor without its graph."""
    check_kind(name, array)
    return as_tensor(name, array) if isinstance(array, Tensor) else array


def address(array: Any) -> int:
    """Where the numbers of an array start."""
    return int(array.data_ptr()) if isinstance(array, Tensor) else int(array.ctypes.data)


def placed(rows: Tensor, first: int) -> Tensor:
    """The rows, starting within a cache line where row ``first`` of the whole array would, were it in memory.

    Products may depend on it in their last bits.
    """
    wanted = first * rows[:1].numel() * rows.element_size() % CACHE_LINE
    if rows.data_ptr() % CACHE_LINE == wanted or not rows.is_contiguous():
        return rows
    room = torch.empty(rows.numel() + 2 * CACHE_LINE // rows.element_size(), dtype=rows.dtype, device=rows.device)
    skip = (wanted - room.data_ptr()) % CACHE_LINE // rows.element_size()
    return room[skip : skip + rows.numel()].view(rows.shape).copy_(rows)


def advise(array: ArrayLike, rows: slice, advice: str) -> None:
    """Tell the system about the pages of some rows, where the array is a memory-mapped file and the system listens."""
    if isinstance(array, RowSource):
        array = array.mapped
    # The pages of a private map (mode "c") may hold what its file does not.
    if not isinstance(array, np.memmap) or array.mode == "c" or not hasattr(mmap, advice):
        return
    part = array[rows]
    pages: Any = array
    while isinstance(pages, np.ndarray):
        pages = pages.base
    if not isinstance(pages, mmap.mmap) or not part.flags.c_contiguous or not part.nbytes:
        return
    start = address(part) - np.frombuffer(pages, np.uint8).ctypes.data
    first = start - start % mmap.PAGESIZE
    pages.madvise(getattr(mmap, advice), first, start + part.nbytes - first)
