"""Columns of numbers a second time, in pieces between their quantiles: where targets bend need not be learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ipdlam.estimators.scaling import Array, Scaling, SmoothClip, quantiles, some_rows

HEIGHT = 0.5  # of a piece; the scaled columns beside them have deviations of about 1


@dataclass(frozen=True)
class Pieces:
    """The scaled columns, and behind them for every piece from ``lower`` to ``lower + 2 half_length`` of a raw column

        HEIGHT (clip((x - lower) / (2 half_length), 0, 1) - mean).

    So a piece rises from its lower to its upper quantile and is level elsewhere, and a function with a bend at every
    quantile is a linear function of the pieces (the piecewise linear encoding of Gorishniy et al., 2022). A column of
    fewer than three values has none.
    """

    scaling: Scaling | SmoothClip | None  # of the columns themselves; None where they stay as they are
    column: Array  # where a piece is of
    lower: Array
    half_length: Array  # halves do not overflow
    mean: Array

    @classmethod
    def of(cls, X: Array, weight: Array | None, count: int, scaling: Scaling | SmoothClip | None) -> Pieces:
        """``count`` pieces to a column, between quantiles at equal distances; fewer where quantiles are the same."""
        knots = quantiles(X, weight, np.linspace(0.0, 1.0, count + 1).tolist())
        lower, half = knots[:-1].T, (knots[1:] / 2 - knots[:-1] / 2).T  # a row for each column
        kept = half > 10 * np.finfo(X.dtype).eps * np.abs(lower)
        kept &= kept.sum(1, keepdims=True) > 1  # a single piece says what the column says
        column = np.nonzero(kept)[0]
        found = cls(scaling, column, lower[kept], half[kept], np.zeros(len(column), X.dtype))
        rows, weights = some_rows(X, weight)
        mean = (weights / weights.sum()) @ found._risen(rows)
        return cls(scaling, column, found.lower, found.half_length, mean.astype(X.dtype))

    def __call__(self, X: Array) -> Array:
        """A wider copy."""
        scaled = X if self.scaling is None else self.scaling(X)
        return np.concatenate([scaled, HEIGHT * (self._risen(X) - self.mean)], axis=1, dtype=scaled.dtype)

    def _risen(self, X: Array) -> Array:
        """How much of each piece is passed, from 0 to 1."""
        with np.errstate(over="ignore"):  # far out is far out
            risen = (X[:, self.column] / 2 - self.lower / 2) / self.half_length
        return np.clip(risen, 0.0, 1.0, out=risen)

    def put_before(self, module: nn.Sequential) -> nn.Sequential:
        """A network that was trained on the wider copies as one of raw inputs."""
        return nn.Sequential(InPieces(self), *module)


class InPieces(nn.Module):
    """:class:`Pieces` as the first module of a network."""

    column: Tensor
    lower: Tensor
    half_length: Tensor
    mean: Tensor

    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self.scaling = nn.Identity() if pieces.scaling is None else pieces.scaling.as_module()
        for name in ("column", "lower", "half_length", "mean"):
            self.register_buffer(name, torch.tensor(getattr(pieces, name)))

    def forward(self, x: Tensor) -> Tensor:
        risen = ((x[:, self.column] / 2 - self.lower / 2) / self.half_length).clamp(0.0, 1.0)
        return torch.cat([self.scaling(x), HEIGHT * (risen - self.mean)], 1)
