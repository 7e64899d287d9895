"""Batches that are made when they are needed: of sparse samples, and of samples that are drawn by their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipdlam.estimators.scaling import Array


class DrawnBatches:
    """The batches of an epoch, in another order in each: what ``MiniBatchIPDLAM.fit`` takes as a loader.

    ``inputs(rows)`` gives the inputs of some rows as the network takes them, so that sparse samples are never dense all
    at once. With ``chances``, an epoch holds as many samples as there are, each as often as its chance says, up to
    one: a rare class with a large weight comes up in every batch. A step cannot make up for it by its length.
    """

    def __init__(
        self,
        inputs: Callable[[Array], Array],
        targets: Tensor,
        weight: Array | None,
        size: int,
        seed: int,
        chances: Array | None = None,
    ) -> None:
        self.inputs, self.targets, self.weight, self.size = inputs, targets, weight, size
        self.random = np.random.default_rng(seed)
        self.ends = None if chances is None else np.cumsum(chances / chances.sum())

    def __len__(self) -> int:
        return -(-len(self.targets) // self.size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        order = self._order()
        for start in range(0, len(order), self.size):
            rows = order[start : start + self.size]
            x, y = torch.from_numpy(self.inputs(rows)), self.targets[torch.from_numpy(rows)]
            yield (x, y) if self.weight is None else (x, y, torch.from_numpy(self.weight[rows]))

    def _order(self) -> Array:
        samples = len(self.targets)
        if self.ends is None:
            return self.random.permutation(samples)
        # Equal steps along the chances: a sample comes up as often as it should, but for less than one.
        marks = (np.arange(samples) + self.random.random()) / samples
        drawn = np.searchsorted(self.ends, marks).clip(max=samples - 1)
        return self.random.permutation(drawn)
