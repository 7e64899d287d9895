"""Symmetric positive definite systems, the gain of the a update, and rows that start on cache lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ipdlam.errors import SolveError

CACHE_LINE = 64  # bytes
BLOCK_ELEMENTS = 1 << 18  # numbers that element-wise work takes at a time: its temporaries then fit the cache
ROUNDING_OF_SUMS = 1e-12  # of float64, relative: only features that are zero in all samples have smaller eigenvalues
JITTERS = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4)  # in units of the rounding error of the matrix


def aligned_empty(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised matrix whose rows all start on a cache line.

    MKL's products run markedly faster on such rows, oneDNN's as fast on others: see the benchmark of an iteration.
    """
    return torch.empty(rows, padded_width(columns, dtype), dtype=dtype, device=device)[:, :columns]


def padded_width(columns: int, dtype: torch.dtype) -> int:
    """How many numbers apart rows start that all start on a cache line."""
    step = CACHE_LINE // dtype.itemsize
    return -(-columns // step) * step


def row_blocks(matrix: Tensor) -> Iterator[slice]:
    """All rows, in blocks for element-wise work: on whole chunks it would spend most of its time in page faults."""
    rows = max(1, BLOCK_ELEMENTS // max(1, matrix.shape[1]))
    return (slice(start, start + rows) for start in range(0, matrix.shape[0], rows))


def cholesky(matrix: Tensor, rounding: float, name: str) -> Tensor:
    """The lower Cholesky factor of a positive definite matrix whose entries carry a relative error of ``rounding``.

    Where rounding has made the matrix indefinite, a growing multiple of that error is added to the diagonal.
    """
    size = float(matrix.diagonal().mean())
    for jitter in JITTERS:
        shifted = (
            matrix
            if jitter == 0.0
            else matrix + torch.diag(matrix.new_full(matrix.shape[:1], jitter * rounding * size))
        )
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not bool(failed):
            return torch.as_tensor(factor)
    raise SolveError(
        f"{name} is not positive definite, even with {JITTERS[-1] * rounding:.1e} of its mean diagonal ({size:.3g}) "
        "added; "
        "use a larger proximity or a ridge regulariser, scale the inputs, or train in float64"
    )


class Gram:
    """``G = A^T A`` in float64, and the solves the W update needs of it.

    ``rounding`` is the relative error of the entries of ``G``, i.e. the precision its products were taken in. The last
    factor is kept: the input layer's matrix never changes, so with a constant shift it is factorised once in a run.
    """

    def __init__(self, matrix: Tensor, rounding: float, name: str) -> None:
        self.matrix = matrix
        self.rounding = rounding
        self.name = name
        self._factor: tuple[float, Tensor] | None = None
        self._pseudo_inverse: tuple[Tensor, Tensor] | None = None

    def solve(self, B: Tensor, shift: float, known: Tensor | None = None) -> Tensor:
        """``X`` with ``X (G + shift I) = B``; for ``shift = 0`` the one of minimum norm, whatever the rank of ``G``.

        Along eigenvectors that rounding hides from ``G``, the minimum norm has nothing. They may matter all the same:
        given a ``known`` solution of an earlier system, ``X`` keeps what that has along them.
        """
        if shift > 0.0:
            return torch.cholesky_solve(B.mT, self._cholesky(shift)).mT
        inverse, hidden = self._inverse_on_range()
        return B @ inverse if known is None else B @ inverse + (known.double() @ hidden) @ hidden.mT

    def shifted(self, shift: float) -> Tensor:
        """``G + shift I``."""
        shifted = self.matrix.clone()
        shifted.diagonal().add_(shift)
        return shifted

    def _cholesky(self, shift: float) -> Tensor:
        if self._factor is not None and self._factor[0] == shift:
            return self._factor[1]
        self._factor = (shift, cholesky(self.shifted(shift), self.rounding, f"the Gram matrix of {self.name}"))
        return self._factor[1]

    def _inverse_on_range(self) -> tuple[Tensor, Tensor]:
        """The pseudo-inverse, and the eigenvectors that rounding hides.

        Those are left out of the first, and are not of features that are zero in all samples.
        """
        if self._pseudo_inverse is None:
            values, vectors = torch.linalg.eigh(self.matrix)
            # Eigenvalues below the rounding error of the largest one cannot be told from zero.
            kept = values > 10.0 * self.rounding * values[-1].clamp_min(0.0)
            inverse = torch.where(kept, values, torch.inf).reciprocal()
            hidden = ~kept & (values.abs() > ROUNDING_OF_SUMS * values[-1])
            self._pseudo_inverse = (vectors * inverse) @ vectors.mT, vectors[:, hidden]
        return self._pseudo_inverse


def gain(W: Tensor, c: float, name: str) -> Tensor:
    """``K = W (W^T W + c I)^-1 = (W W^T + c I)^-1 W``, factorising whichever of the two is smaller.

    With ``a0`` the minimiser of the terms without ``W``, the minimiser of ``c ||a - a0||^2 + ||t - a W^T||^2`` is
    ``a0 + (t - a0 W^T) K``: two products of the size of ``W``, however narrow it is, and no loss of digits when the
    residual is small.
    """
    exact = W.double()
    rows, columns = exact.shape
    small = symmetric_product(exact.mT if rows <= columns else exact)
    small.diagonal().add_(c)
    factor = cholesky(small, torch.finfo(torch.float64).eps, f"the matrix W W^T + {c:g} I of {name}")
    if rows <= columns:
        return torch.cholesky_solve(exact, factor).to(W.dtype)
    return torch.cholesky_solve(exact.mT, factor).mT.to(W.dtype)


def all_finite(matrix: Tensor) -> bool:
    """Whether no entry is NaN or infinite (nor so large that the sum of all overflows)."""
    return math.isfinite(float(matrix.sum()))


def strips(width: int, count: int = 8) -> list[int]:
    """Where to cut ``width`` columns into strips for a symmetric product: at cache lines, at least 128 wide."""
    count = max(1, min(count, width // 128))
    step = CACHE_LINE // 4
    return [min(width, math.ceil(i * width / count / step) * step) for i in range(count)] + [width]


def add_symmetric_product(total: Tensor, A: Tensor, B: Tensor) -> None:
    """``total += A^T B`` for a symmetric product, upper triangle only (in strips): little more than half the work."""
    cuts = strips(A.shape[1])
    for start, stop in pairwise(cuts):
        block = total[start:stop, start:]
        torch.addmm(block, A[:, start:stop].mT, B[:, start:], out=block)


def symmetric_product(A: Tensor) -> Tensor:
    """``A^T A``."""
    total = A.new_zeros(A.shape[1], A.shape[1])
    add_symmetric_product(total, A, A)
    return complete_symmetric(total)


def symmetric_times(total: Tensor, B: Tensor) -> Tensor:
    """``S B``, where ``total`` holds the upper triangle of ``S`` as :func:`add_symmetric_product` leaves it."""
    found = torch.zeros_like(B)
    for start, stop in pairwise(strips(total.shape[1])):
        found[start:stop].addmm_(total[start:stop, start:], B[start:])
        found[stop:].addmm_(total[start:stop, stop:].mT, B[start:stop])
    return found


def complete_symmetric(total: Tensor) -> Tensor:
    """Fill in, in place, the lower blocks that :func:`add_symmetric_product` leaves out."""
    for start, stop in pairwise(strips(total.shape[1])):
        total[stop:, start:stop] = total[start:stop, stop:].mT
    return total


def upper_half(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix, row by row: what there is to send of it."""
    return torch.cat([row[i:] for i, row in enumerate(matrix)])


def fill_symmetric(matrix: Tensor, half: Tensor) -> None:
    """Make a matrix, in place, the symmetric one of this :func:`upper_half`."""
    matrix.triu_()  # products leave some of the lower triangle
    for i, row in enumerate(torch.split(half, list(range(matrix.shape[0], 0, -1)))):
        matrix[i, i:] = row
    matrix += matrix.triu(1).mT
