"""Columns brought to mean 0 and deviation 1, and the way back: scaling that ends up inside a network's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils.sparsefuncs import mean_variance_axis
from torch import nn

Array = np.ndarray[Any, Any]
NUMBERS = 1 << 20  # to a chunk: sums in float64 never copy the whole array


@dataclass(frozen=True)
class Scaling:
    """``(x - mean) / deviation``, column by column."""

    mean: Array
    deviation: Array

    @classmethod
    def of(cls, X: Any, weight: Array | None) -> Scaling:
        """As the samples say; a column that does not vary keeps its unit."""
        if issparse(X):
            mean, variance = mean_variance_axis(X, 0, weights=weight)
            return cls._made(mean, np.sqrt(variance), np.ones_like(mean), X.dtype)
        # The squares of huge and of tiny numbers overflow, so columns are divided by a power of two of their size.
        largest = np.maximum(X.max(0), -X.min(0)).astype(np.float64)
        unit = np.ldexp(1.0, np.frexp(largest)[1] - 1)
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

    @torch.no_grad()
    def take_into_inputs(self, layer: nn.Linear) -> None:
        """Let a layer that was trained on scaled inputs take raw ones."""
        layer.weight.div_(torch.as_tensor(self.deviation))
        shift = layer.weight.double() @ torch.as_tensor(self.mean).double()  # it may be far larger than what is left
        layer.bias.copy_(layer.bias.double() - shift)

    @torch.no_grad()
    def take_into_outputs(self, layer: nn.Linear) -> None:
        """Let a layer that was trained on scaled targets give raw ones."""
        deviation = torch.as_tensor(self.deviation)
        layer.weight.mul_(deviation.unsqueeze(1))
        layer.bias.mul_(deviation).add_(torch.as_tensor(self.mean))


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
