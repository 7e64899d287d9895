"""The sums over samples that the W and b updates need, and nothing else of the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipdlam.network.linalg import (
    Gram,
    add_symmetric_product,
    aligned_empty,
    complete_symmetric,
    fill_symmetric,
    upper_half,
)

FOLD_ROWS = 8192  # so many rows are summed in the working precision before they are added to the float64 sums


@dataclass(frozen=True)
class Moments:
    """Sums over samples for one layer, in float64; every sample counts with its weight.

    They live in buffers that the sums of the next iteration reuse.
    """

    ZtA: Tensor
    AtA: Gram
    At1: Tensor
    Zt1: Tensor
    n: float


class RunningSum:
    """A float64 sum of working-precision matrices, folded in now and then: conversions cost more than additions."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self.partial = aligned_empty(rows, columns, dtype, device).zero_()
        self.total = torch.zeros(rows, columns, dtype=torch.float64, device=device)
        self.taken = torch.zeros_like(self.total)

    def fold(self) -> None:
        """Move the partial sum into the total."""
        self.total += self.partial
        self.partial.zero_()

    def take(self) -> Tensor:
        """The sum so far, valid until the next call; the next one starts from zero, in another buffer."""
        self.fold()
        self.total, self.taken = self.taken.zero_(), self.total
        return self.taken


class MomentSums:
    """Accumulates the moments of one layer chunk by chunk."""

    def __init__(
        self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, *, name: str, constant_input: bool
    ) -> None:
        self._ZtA = RunningSum(outputs, inputs, dtype, device)
        self._AtA = RunningSum(inputs, inputs, dtype, device)
        self._At1 = torch.zeros(inputs, dtype=torch.float64, device=device)
        self._Zt1 = torch.zeros(outputs, dtype=torch.float64, device=device)
        self._name = name
        self._rounding = torch.finfo(dtype).eps
        self._constant_input = constant_input
        self._known_input: tuple[Gram, Tensor] | None = None
        self._n = 0.0
        self._rows = 0

    def add(self, z: Tensor, a: Tensor, weight: Tensor | None) -> None:
        """Add the rows of one chunk."""
        weighted = a if weight is None else a * weight.unsqueeze(1)
        self._ZtA.partial.addmm_(z.mT, weighted)
        self._Zt1 += z.sum(0) if weight is None else weight @ z
        self._n += float(a.shape[0]) if weight is None else float(weight.double().sum())
        if self._known_input is None:
            add_symmetric_product(self._AtA.partial, a, weighted)
            self._At1 += weighted.sum(0)
        self._rows += a.shape[0]
        if self._rows >= FOLD_ROWS:
            self._ZtA.fold()
            if self._known_input is None:
                self._AtA.fold()
            self._rows = 0

    def take(self) -> Moments:
        """The moments of all rows since the last call."""
        if self._known_input is None:
            AtA, At1 = Gram(complete_symmetric(self._AtA.take()), self._rounding, self._name), self._At1.clone()
            if self._constant_input:  # the data themselves: summed and factorised once in a run
                self._known_input = (AtA, At1)
        else:
            AtA, At1 = self._known_input
        moments = Moments(self._ZtA.take(), AtA, At1, self._Zt1.clone(), self._n)
        self._At1.zero_()
        self._Zt1.zero_()
        self._n, self._rows = 0.0, 0
        return moments

    def parts(self) -> list[Tensor]:
        """Everything that was added since the last :meth:`take`, to be summed over processes, in float64.

        Of the symmetric ``A^T A`` it is the upper triangle.
        """
        self._ZtA.fold()
        found = [self._ZtA.total, self._Zt1, self._Zt1.new_tensor([self._n])]
        if self._known_input is None:
            self._AtA.fold()
            found += [upper_half(self._AtA.total), self._At1]
        self._rows = 0
        return found

    def put_back(self, parts: list[Tensor]) -> None:
        """Take the :meth:`parts` over all processes for what was added here."""
        ZtA, Zt1, n, *of_input = parts
        self._ZtA.total.copy_(ZtA)
        self._Zt1.copy_(Zt1)
        self._n = float(n)
        if self._known_input is None:
            half, At1 = of_input
            fill_symmetric(self._AtA.total, half)
            self._At1.copy_(At1)

    def tensors(self) -> dict[str, Tensor]:
        """The sums themselves, by name: with :meth:`counters`, all that a saved run needs of them."""
        found = {"ZtA.partial": self._ZtA.partial, "ZtA.total": self._ZtA.total, "Zt1": self._Zt1}
        if self._known_input is not None:
            return {**found, "input.AtA": self._known_input[0].matrix, "input.At1": self._known_input[1]}
        return {**found, "AtA.partial": self._AtA.partial, "AtA.total": self._AtA.total, "At1": self._At1}

    def counters(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"n": self._n, "rows": self._rows, "known_input": self._known_input is not None}

    def restore(self, counters: dict[str, Any]) -> None:
        """Make :meth:`tensors` those of a run with these counters, to be filled."""
        self._n, self._rows = float(counters["n"]), int(counters["rows"])
        self._known_input = None
        if counters["known_input"]:
            self._known_input = (Gram(self._AtA.taken, self._rounding, self._name), torch.zeros_like(self._At1))
