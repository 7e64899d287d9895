"""The memories of a layer's inputs and wishes, and the metric they give its weights: mini-batches' proximal term."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ipdlam.network.linalg import add_symmetric_product, fill_symmetric, symmetric_times, upper_half

REMEMBERED_BATCHES = 20  # how many of the batches that are looked at the memory reaches back
REMEMBERED_SAMPLES = 4096  # and no fewer samples than these, however small the batches
WISHES_NEEDED = 8  # for every direction that a metric of them knows
OUTPUT_DAMPING = 0.1  # of the mean square of the wishes for an output
SHIFT = 1e-4  # of the variance: keeps columns from being rounding errors where the covariance lacks full rank
FLOOR = 1e-3  # of the mean square: the least damping, where the inputs do not vary (a single sample)


class InputMemory:
    """A running mean ``mean`` and second moment of a layer's inputs ``a``, and the metric

        M = U diag(e - t) U^T + damping I,        damping = delta mean(diag(C)) + t

    made of the leading eigenpairs ``(e, U)`` of their covariance ``C``; ``t`` is the mean of the eigenvalues that
    ``rank`` leaves out. ``M`` is ``C + delta mean(diag(C)) I`` with those eigenvalues all made equal, and ``M^-1``
    costs two thin products, or one with ``M^-1`` as a matrix where the inputs are few. A layer without bias cannot make
    up for a mean, so it is not ``centred``: its ``mean`` stays zero, and ``C`` is the second moment.
    """

    def __init__(
        self, width: int, rank: int, proximity: float, centred: bool, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rank = min(rank, width)
        self.proximity = proximity  # delta
        self.centred = centred
        like = torch.empty(0, dtype=dtype, device=device)
        self.samples = 0.0  # that the running averages stand for
        self.freedom = 0.0  # the trace of C M^-1: how many directions the inputs vary in, as the metric sees them
        self.mean = like.new_zeros(width)
        self.second = like.new_zeros(width, width)  # upper triangle, in strips
        start = torch.randn(width, self.rank, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
        self.U = torch.linalg.qr(start.to(device)).Q.to(dtype)
        self.shrink = like.new_zeros(self.rank)  # 1 - damping times the eigenvalues of M^-1
        self.damping = like.new_ones(1)
        self._inverse: Tensor | None = None  # M^-1 as a matrix, once it was asked for

    def tensors(self) -> dict[str, Tensor]:
        """All that it remembers, but for :attr:`samples`."""
        return {name: getattr(self, name) for name in ("mean", "second", "U", "shrink", "damping")}

    def remember(
        self,
        a: Tensor,
        share: Tensor | None,
        samples: float | None = None,
        *,
        rows: int | None = None,
        past: bool = True,
    ) -> None:
        """Take a batch into the running averages; ``share`` are the samples' parts of it, equal ones where None.

        It counts for so many ``samples``, by default for its rows; where samples have weights, for their sum. Of
        several processes, which hold some of its ``rows`` each, one has a ``past``: the :meth:`sums` of all of them
        are then the averages.
        """
        rows = len(a) if rows is None else rows
        samples = float(rows) if samples is None else samples
        most = max(REMEMBERED_BATCHES * samples, REMEMBERED_SAMPLES)
        new = samples / (self.samples + samples)
        self.samples = min(self.samples + samples, most)
        keep = 1.0 - new if past else 0.0
        weighted = a * (new / rows) if share is None else a * (new * share).unsqueeze(1)
        if self.centred:
            self.mean.mul_(keep).add_(weighted.sum(0))
        self.second.mul_(keep)
        add_symmetric_product(self.second, weighted, a)

    def sums(self) -> list[Tensor]:
        """What is to be summed over processes after :meth:`remember`."""
        half = upper_half(self.second)
        return [self.mean, half] if self.centred else [half]

    def put_back(self, sums: list[Tensor]) -> None:
        """Take the :meth:`sums` over all processes for the averages; the mean is in its place."""
        fill_symmetric(self.second, sums[-1])

    def refresh(self) -> None:
        """Make the metric anew from the averages, with one product by ``C``.

        The Nystroem approximation of ``C`` by its products with the last eigenvectors, ``C U (U^T C U)^-1 (C U)^T``,
        has the eigenvectors of a step of subspace iteration.
        """
        mean, width, squares = self.mean, len(self.mean), self.second.diagonal()
        mean_square, variance = float(squares.mean()), float((squares - mean.square()).mean())
        scale = max(variance, FLOOR * mean_square)
        precision = torch.finfo(self.U.dtype)
        tiny = precision.tiny  # inputs that are all zero have no metric, and need none
        damping = max(self.proximity * scale, tiny)
        # No less than the rounding of the products: where the mean is large, that is more than the variance.
        shift = max(SHIFT * scale, precision.eps * width * mean_square, tiny)
        image = symmetric_times(self.second, self.U).addr_(mean, mean @ self.U, alpha=-1.0).add_(self.U, alpha=shift)
        projected = (self.U.mT @ image).double()
        e, V = torch.linalg.eigh(0.5 * (projected + projected.mT))
        Q, R = torch.linalg.qr(image)
        known = e > 0.5 * shift  # the others are rounding errors
        root = R.double() @ (V * torch.where(known, e, torch.inf).rsqrt())
        values, vectors = torch.linalg.eigh(root @ root.mT)
        torch.mm(Q, vectors.to(Q.dtype), out=self.U)
        # Inputs that never vary shrink by 1e4 each time. Numbers near the least there is make products slow.
        self.U.masked_fill_(self.U.abs() < math.sqrt(tiny), 0.0)
        values = (values - shift).clamp_min_(0.0)
        left_out = width - self.rank
        rest = max(0.0, width * variance - float(values.sum()))
        t = rest / left_out if left_out else 0.0
        self._inverse = None
        self.damping.fill_(damping + t)
        self.shrink.copy_(1.0 - (damping + t) / (values + damping))
        self.freedom = float((values / (values + damping)).sum()) + rest / (damping + t)

    @property
    def is_narrow(self) -> bool:
        """Whether one product with ``M^-1`` costs no more than two with ``U``."""
        return len(self.mean) <= 2 * self.rank

    def inverse(self) -> Tensor:
        """``M^-1`` as a matrix, made once for every metric."""
        if self._inverse is None:
            U, unit = self.U.double(), torch.eye(len(self.U), dtype=torch.float64, device=self.U.device)
            whole = torch.addmm(unit, U * self.shrink.double(), U.mT, alpha=-1.0) / self.damping.double()
            self._inverse = whole.to(self.U.dtype)
        return self._inverse

    def image(self, B: Tensor) -> Tensor:
        """What :meth:`solve` and :meth:`leverage` share: ``B M^-1`` where the inputs are few, else ``B U``."""
        return B @ (self.inverse() if self.is_narrow else self.U)

    def solve(self, B: Tensor, image: Tensor | None = None) -> Tensor:
        """``B M^-1``, given the :meth:`image` of ``B`` where it is known."""
        image = self.image(B) if image is None else image
        if self.is_narrow:
            return image
        scale = 1.0 / float(self.damping)
        return torch.addmm(B, image * self.shrink, self.U.mT, beta=scale, alpha=-scale)

    def leverage(self, a: Tensor, image: Tensor) -> Tensor:
        """``a_i M^-1 a_i`` of every row, which is :attr:`freedom` on average: how unusual rows are."""
        if self.is_narrow:
            return (a * image).sum(1)
        whole: Tensor = torch.linalg.vector_norm(a, dim=1)
        return whole.square_().sub_(image.square() @ self.shrink).div_(self.damping)


class WishMemory(InputMemory):
    """A running second moment of the wishes for a hidden layer's outputs, and the root of the metric ``D`` it gives.

    Outputs whose wishes go together pull in few directions, and all else the layer could learn is left behind. The
    other side of the metric of its weights, ``D^(1/2)``, evens that out half-way.
    """

    def __init__(self, width: int, rank: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(width, rank, OUTPUT_DAMPING, False, dtype, device)

    def evened(self, wishes: Tensor) -> Tensor:
        """``wishes D^(-1/2)``, but for a factor: the length of steps is measured. The wishes, where few were seen."""
        if self.samples < WISHES_NEEDED * self.rank:
            return wishes
        less = 1.0 - (1.0 - self.shrink).sqrt()  # along U; shrink is 1 less a ratio of eigenvalues, and so below 1
        return torch.addmm(wishes, (wishes @ self.U) * less, self.U.mT, alpha=-1.0)


class BlockMemory:
    """An :class:`InputMemory` for each block of a layer's inputs; ``B`` and ``a`` have a matrix for each of them."""

    def __init__(
        self,
        blocks: int,
        width: int,
        rank: int,
        proximity: float,
        centred: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.each = [InputMemory(width, rank, proximity, centred, dtype, device) for _ in range(blocks)]
        self.centred, self.is_narrow = centred, self.each[0].is_narrow
        self.freedom = 0.0  # of a block, on average
        self.stacked = {
            name: torch.stack([one.tensors()[name] for one in self.each]) for name in self.each[0].tensors()
        }
        self._inverse: Tensor | None = None
        self._share()

    def _share(self) -> None:
        """What one memory holds is a part of what all of them hold, in place."""
        for name, tensor in self.stacked.items():
            for one, own in zip(self.each, tensor, strict=True):
                setattr(one, name, own)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Out of a pickle, parts come as tensors of their own."""
        self.__dict__.update(state)
        self._share()

    @property
    def samples(self) -> float:
        """What the running averages stand for, of every block alike."""
        return self.each[0].samples

    @samples.setter
    def samples(self, samples: float) -> None:
        for one in self.each:
            one.samples = samples

    @property
    def mean(self) -> Tensor:
        """The mean inputs of each block."""
        return self.stacked["mean"]

    def tensors(self) -> dict[str, Tensor]:
        """All that it remembers, but for :attr:`samples`."""
        return self.stacked

    def remember(
        self, a: Tensor, share: Tensor | None, samples: float | None = None, *, rows: int, past: bool = True
    ) -> None:
        """As :meth:`InputMemory.remember`, block by block."""
        for one, own in zip(self.each, a, strict=True):
            one.remember(own, share, samples, rows=rows, past=past)

    def sums(self) -> list[Tensor]:
        """What is to be summed over processes after :meth:`remember`."""
        return [tensor for one in self.each for tensor in one.sums()]

    def put_back(self, sums: list[Tensor]) -> None:
        """Take the :meth:`sums` over all processes for the averages."""
        count = len(sums) // len(self.each)
        for number, one in enumerate(self.each):
            one.put_back(sums[number * count : (number + 1) * count])

    def refresh(self) -> None:
        """Make all metrics anew."""
        for one in self.each:
            one.refresh()
        self.freedom = sum(one.freedom for one in self.each) / len(self.each)
        self._inverse = None

    def inverse(self) -> Tensor:
        """Every ``M^-1`` as a matrix."""
        if self._inverse is None:
            self._inverse = torch.stack([one.inverse() for one in self.each])
        return self._inverse

    def image(self, B: Tensor) -> Tensor:
        """As :meth:`InputMemory.image`."""
        return torch.bmm(B, self.inverse() if self.is_narrow else self.stacked["U"])

    def solve(self, B: Tensor, image: Tensor | None = None) -> Tensor:
        """As :meth:`InputMemory.solve`."""
        image = self.image(B) if image is None else image
        if self.is_narrow:
            return image
        known = torch.bmm(image * self.stacked["shrink"].unsqueeze(1), self.stacked["U"].mT)
        return (B - known).div_(self.stacked["damping"].unsqueeze(1))

    def leverage(self, a: Tensor, image: Tensor) -> Tensor:
        """As :meth:`InputMemory.leverage`."""
        if self.is_narrow:
            return (a * image).sum(2)
        whole: Tensor = torch.linalg.vector_norm(a, dim=2).square_()
        known = (image.square() @ self.stacked["shrink"].unsqueeze(2)).squeeze(2)
        return whole.sub_(known).div_(self.stacked["damping"])


class WordMemory:
    """How often each word occurs, and the metric of an Embedding: its frequency plus delta times the mean frequency.

    A one-hot row for every word has this second moment. Rare words then go a shorter way than their own mean wish says.
    """

    def __init__(self, words: int, proximity: float, dtype: torch.dtype, device: torch.device) -> None:
        self.proximity = proximity  # delta
        self.samples = 0.0
        self.freedom = 0.0
        self.frequency = torch.zeros(words, dtype=dtype, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """All that it remembers, but for :attr:`samples`."""
        return {"frequency": self.frequency}

    def remember(self, words: Tensor, share: Tensor | None, samples: float, *, rows: int, past: bool = True) -> None:
        """Take a batch into the running average, as :meth:`InputMemory.remember` does."""
        most = max(REMEMBERED_BATCHES * samples, REMEMBERED_SAMPLES)
        new = samples / (self.samples + samples)
        self.samples = min(self.samples + samples, most)
        each = torch.full_like(words, new / rows, dtype=self.frequency.dtype) if share is None else new * share
        self.frequency.mul_(1.0 - new if past else 0.0).index_add_(0, words, each)

    def sums(self) -> list[Tensor]:
        """What is to be summed over processes after :meth:`remember`."""
        return [self.frequency]

    def put_back(self, sums: list[Tensor]) -> None:
        """The sums are in their place."""

    def refresh(self) -> None:
        """The metric is the frequency itself."""

    def solve(self, B: Tensor) -> Tensor:
        """``M^-1 B``, one row a word."""
        damping = self.proximity * float(self.frequency.mean())
        return B / (self.frequency + max(damping, torch.finfo(B.dtype).tiny)).unsqueeze(1)
