"""Columns of features and targets brought to one size, and the way back: scaling that ends up inside a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import diags, issparse
from sklearn.utils.sparsefuncs import mean_variance_axis, min_max_axis
from torch import nn

Array = np.ndarray[Any, Any]
NUMBERS = 1 << 20  # to a chunk: sums in float64 never copy the whole array
QUARTILE_ROWS = 20000  # that quartiles are taken from: some at random, where there are more
FAR = 1e6  # units: from there on, a number is where the clip ends, and its square might overflow
BEND = 3.0  # units from the median, where the clip begins to be felt; nothing gets further than this


@dataclass(frozen=True)
class Scaling:
    """``(x - mean) / deviation``, column by column."""

    mean: Array
    deviation: Array

    @classmethod
    def of(cls, X: Any, weight: Array | None) -> Scaling:
        """As the samples say; a column that does not vary keeps its unit."""
        if issparse(X):
            least, most = (np.nan_to_num(ends) for ends in min_max_axis(X, 0, ignore_nan=True))
            unit = power_of_two(np.maximum(most, -least))
            mean, variance = mean_variance_axis(X.astype(np.float64) @ diags(1.0 / unit), 0, weights=weight)
            return cls._made(np.nan_to_num(mean), np.sqrt(np.nan_to_num(variance)), unit, X.dtype)
        # The squares of huge and of tiny numbers overflow, so columns are divided by a power of two of their size.
        unit = power_of_two(np.maximum(X.max(0), -X.min(0)))
        mean = column_means(X, weight, unit)
        deviation = np.sqrt(column_means(X, weight, unit, about=mean))
        return cls._made(mean, deviation, unit, X.dtype)

    @classmethod
    def _made(cls, mean: Array, deviation: Array, unit: Array, dtype: Any) -> Scaling:
        # What rounding makes of a constant column is no variation.
        constant = deviation <= 10 * np.finfo(dtype).eps * np.abs(mean)
        return cls((mean * unit).astype(dtype), np.where(constant, 1.0, deviation * unit).astype(dtype))

    def __call__(self, X: Array) -> Array:
        """A scaled copy."""
        scaled = np.subtract(X, self.mean)
        scaled /= self.deviation
        return scaled

    def undo(self, X: Array) -> Array:
        """Back from scaled to raw."""
        return X * self.deviation + self.mean

    @property
    def usual(self) -> Array:
        """What is scaled to zero."""
        return self.mean

    def as_module(self) -> nn.Module:
        """The same for tensors."""
        return Affine(torch.as_tensor(self.mean), torch.as_tensor(self.deviation))

    @torch.no_grad()
    def put_before(self, module: nn.Sequential) -> nn.Sequential:
        """A network that was trained on scaled inputs as one of raw inputs; its first layer is changed in place."""
        layer = module[0]
        assert isinstance(layer, nn.Linear)
        layer.weight.div_(torch.as_tensor(self.deviation))
        shift = layer.weight.double() @ torch.as_tensor(self.mean).double()  # it may be far larger than what is left
        layer.bias.copy_(layer.bias.double() - shift)
        return module

    @torch.no_grad()
    def take_into_outputs(self, layer: nn.Linear) -> None:
        """Let a layer that was trained on scaled targets give raw ones."""
        deviation = torch.as_tensor(self.deviation)
        layer.weight.mul_(deviation.unsqueeze(1))
        layer.bias.mul_(deviation).add_(torch.as_tensor(self.mean))


@dataclass(frozen=True)
class SmoothClip:
    """``z / sqrt(1 + (z / 3)^2)`` with ``z = (x - median) / (upper quartile - lower quartile)``, column by column.

    What lies far out, in training or later, comes no further than 3 units. Where more than half of a column is one
    value, as in one of 0 and 1, half of its range is the unit.
    """

    median: Array
    unit: Array

    @classmethod
    def of(cls, X: Array, weight: Array | None) -> SmoothClip:
        """As the samples say; a column that does not vary keeps its unit."""
        lower, median, upper = quantiles(X, weight, (0.25, 0.5, 0.75))
        half = upper / 2 - lower / 2  # halves do not overflow
        unit = 2 * np.minimum(half, np.finfo(X.dtype).max / 2)
        unit = np.where(unit > 0, unit, X.max(0) / 2 - X.min(0) / 2)
        constant = unit <= 10 * np.finfo(X.dtype).eps * np.abs(median)
        return cls(median, np.where(constant, 1.0, unit).astype(X.dtype))

    def __call__(self, X: Array) -> Array:
        """A scaled copy."""
        scaled = np.multiply(X, 0.5, dtype=np.result_type(X, self.median))  # halves do not overflow
        scaled -= self.median / 2
        scaled /= self.unit / 2
        for start in range(0, len(scaled), size := max(1, NUMBERS // scaled.shape[1])):
            rows = scaled[start : start + size]
            rows /= np.hypot(1.0, rows / BEND)
        return scaled

    @property
    def usual(self) -> Array:
        """What is scaled to zero."""
        return self.median

    def as_module(self) -> nn.Module:
        """The same for tensors."""
        return Clip(torch.as_tensor(self.median), torch.as_tensor(self.unit))

    def put_before(self, module: nn.Sequential) -> nn.Sequential:
        """A network that was trained on scaled inputs as one of raw inputs."""
        return nn.Sequential(self.as_module(), *module)


class Affine(nn.Module):
    """:class:`Scaling` as a module."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, mean: torch.Tensor, deviation: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("deviation", deviation.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.deviation


class Clip(nn.Module):
    """:class:`SmoothClip` as the first module of a network."""

    median: torch.Tensor
    unit: torch.Tensor

    def __init__(self, median: torch.Tensor, unit: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("median", median.clone())
        self.register_buffer("unit", unit.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = ((x / 2 - self.median / 2) / (self.unit / 2)).clamp(-FAR, FAR)
        return z / torch.sqrt(1.0 + (z / BEND).square())


class Clamp(nn.Module):
    """Outputs that stay between a least and a most, column by column."""

    least: torch.Tensor
    most: torch.Tensor

    def __init__(self, least: torch.Tensor, most: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("least", least.clone())
        self.register_buffer("most", most.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(torch.maximum(x, self.least), self.most)


def some_rows(X: Array, weight: Array | None) -> tuple[Array, Array]:
    """Rows that quantiles are taken from, and their weights: all of them, or some at random where there are many."""
    if len(X) > QUARTILE_ROWS:
        random = np.random.default_rng(0)
        some = np.sort(random.choice(len(X), QUARTILE_ROWS, replace=False))
        X, weight = X[some], None if weight is None else weight[some]
    return X, np.ones(len(X)) if weight is None else weight.astype(np.float64)


def quantiles(X: Array, weight: Array | None, levels: Sequence[float]) -> Array:
    """What these parts of the weight are not above, a row for each level and a column for each of ``X``.

    They are values of ``X`` itself: the same for weights and for repetitions.
    """
    rows, weights = some_rows(X, weight)
    found = np.empty((len(levels), X.shape[1]), X.dtype)
    for column in range(X.shape[1]):
        order = np.argsort(rows[:, column])
        reached = np.cumsum(weights[order])
        places = np.searchsorted(reached, np.asarray(levels) * reached[-1] * (1.0 - 1e-12))
        found[:, column] = rows[order[places], column]
    return found


def power_of_two(sizes: Array) -> Array:
    """The power of two below each size: dividing by it costs no digit."""
    found: Array = np.ldexp(1.0, np.frexp(sizes.astype(np.float64))[1] - 1)
    return found


def column_means(X: Array, weight: Array | None, unit: Array, about: Array | None = None) -> Array:
    """The mean of every column of ``X / unit``, or with ``about`` of its squared distances from there, in float64."""
    total, count = np.zeros(X.shape[1]), 0.0
    size = max(1, NUMBERS // X.shape[1])
    for start in range(0, len(X), size):
        rows = X[start : start + size].astype(np.float64)
        rows /= unit
        if about is not None:
            rows -= about
            rows *= rows
        some = np.ones(len(rows)) if weight is None else weight[start : start + size].astype(np.float64)
        total += some @ rows
        count += some.sum()
    return total / count
