"""One run in several processes: the sums over samples become sums over the samples of all of them.

Each process (rank) holds the z and a of its own samples, and everything else is the same on all ranks. Whatever they do
together begins with a meeting: one small sum, of the same shape wherever it happens, in which every rank has a slot for
an error, one for what it has come for and one for a number. A rank that fails, anywhere, goes to the next meeting with
its error, and all ranks raise it there. A rank that dies or hangs is missed by the others: what torch then reports (at
once where a connection breaks, after the timeout of the process group otherwise) becomes a
:class:`ipdlam.DistributedError`.

Traffic: with p ranks, a meeting takes 24 p bytes. A pass over the samples is one meeting and one flat buffer of float64

    sum over the layers l whose moments it takes:  d_l d_(l-1) + d_l + 1   (Z^T A, Z^T 1, n)
        and, but for layer 1 after the first pass: d_(l-1) (d_(l-1) + 1) / 2 + d_(l-1)   (half of A^T A, A^T 1)
    and, where it measures the objective:          2 L + 3   (loss, gaps, changes, n)

numbers, whatever the number of samples. The solves between two passes are one meeting and the d_l d_(l-1) + d_l new
weights and biases of every layer, in the model's precision. All layers' sums are complete with the last chunk of a pass
and the solves need them at once, so there is nothing to overlap the sum with.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ipdlam.errors import CheckpointError, DistributedError, StopTraining

T = TypeVar("T")

KNOWN = "_known_to_all_ranks"  # marks what was raised by a meeting: it needs no telling
GATHERED = ("gather", "start a run", "go on with a run", "save", "load")  # what ranks give something of theirs for
PURPOSES = ("agree", "sum", "give a number", "give numbers", "compare", "spread", *GATHERED)  # what ranks meet for
FINE, STOPPED, INTERRUPTED, NOT_SAVED, FAILED = range(5)  # what a rank says at a meeting, the worst last


@dataclass(frozen=True)
class Span:
    """Which of all samples a rank holds: in rank order, the ranks hold consecutive blocks of the whole list."""

    first: int
    held: int
    total: int

    @classmethod
    def of_rank(cls, rank: int, counts: Sequence[int]) -> Span:
        """That of a rank, where the ranks hold so many samples."""
        return cls(sum(counts[:rank]), counts[rank], sum(counts))

    @classmethod
    def even(cls, rank: int, size: int, total: int) -> Span:
        """A block of about the same size for every rank."""
        edges = [number * total // size for number in range(size + 1)]
        return cls(edges[rank], edges[rank + 1] - edges[rank], total)

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.held)


class Group:
    """The processes that train one model. This is the group of one: nothing to sum, nobody to agree with."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints and writes what all of them have in common."""
        return self.rank == 0

    def sum_(self, *parts: Tensor) -> None:
        """Replace tensors of one precision by their sums over the ranks, the same bits on each."""

    def total(self, *numbers: float) -> tuple[float, ...]:
        """The sums of numbers over the ranks."""
        return numbers

    def numbers(self, *own: float) -> list[tuple[float, ...]]:
        """The numbers that each rank gave, by rank; one of them takes a meeting and nothing else."""
        return [own]

    def first_number(self, number: float) -> float:
        """The number of rank 0."""
        return self.numbers(number)[0][0]

    def everyones(self, value: T, purpose: str = "gather") -> list[T]:
        """What each rank gave, by rank; small things, now and then."""
        return [value]

    def first_does(self, work: Callable[[], T]) -> T:
        """What rank 0 got from its work; the others have nothing to do."""
        return work()

    def same_(self, tensors: Iterable[Tensor]) -> None:
        """Make tensors those of rank 0, where they differ in a bit."""

    def spread_(self, tensors: Mapping[int, Sequence[Tensor]]) -> None:
        """Make tensors, given by the rank that has worked them out, the same on all ranks."""

    def agree(self) -> None:
        """Meet: if any rank has failed or wants to stop, all raise it."""

    @contextmanager
    def telling(self) -> Iterator[None]:
        """What is raised in the block is raised on all ranks: the others hear of it when they next meet."""
        yield

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Ctrl-C does not part this rank from the others half-way; it is told at the next meeting."""
        yield


SERIAL = Group()


class Processes(Group):
    """The default process group of ``torch.distributed``."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        self.bytes = 0  # that this rank has given to sums so far
        self.is_broken = False
        self._interrupted = False  # Ctrl-C that came in the middle of a meeting, to be told at the next

    def sum_(self, *parts: Tensor) -> None:
        self._sum_for("sum", parts, parts)

    def total(self, *numbers: float) -> tuple[float, ...]:
        sums = torch.tensor(numbers, dtype=torch.float64)
        self.sum_(sums)
        return tuple(sums.tolist())

    def numbers(self, *own: float) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        with self.in_step():
            if len(own) == 1:
                return [(number,) for number in self._exchange("give a number", number=own[0])]
            self._exchange("give numbers")
            table = torch.zeros(self.size, len(own), dtype=torch.float64, device=self.device)
            table[self.rank] = torch.tensor(own, dtype=torch.float64)
            self._all_reduce(table)
            found = [tuple(numbers) for numbers in table.tolist()]
        return found

    def everyones(self, value: T, purpose: str = "gather") -> list[T]:
        found: list[T] = []
        with self.in_step():
            self._exchange(purpose)
            found = self._gather(value)
        return found

    def first_does(self, work: Callable[[], T]) -> T:
        value = None
        if self.is_first:
            try:
                value = work()
            except BaseException as error:  # its own error, as in one process, and not what the others make of it
                with suppress(BaseException), self.telling():
                    raise
                setattr(error, KNOWN, True)
                raise
        return self.everyones(value)[0]  # type: ignore[return-value]

    def same_(self, tensors: Iterable[Tensor]) -> None:
        given, marks = list(tensors), [0.0]
        with self.in_step():
            marks = self._exchange("compare", number=fingerprint(given))
        if len(set(marks)) > 1:
            self.spread_({0: given})

    def spread_(self, tensors: Mapping[int, Sequence[Tensor]]) -> None:
        # One sum, to which all but the owner give zeros: it sends a number about twice, with any number of ranks. A
        # broadcast goes along a tree, whose root sends everything once for each of its levels.
        owned = [(owner, tensor) for owner in sorted(tensors) for tensor in tensors[owner]]
        given = [tensor if owner == self.rank else torch.zeros_like(tensor) for owner, tensor in owned]
        self._sum_for("spread", given, [tensor for _, tensor in owned])

    def agree(self) -> None:
        with self.in_step():
            self._exchange("agree")

    @contextmanager
    def telling(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not (self.is_broken or hasattr(error, KNOWN)):
                with uninterrupted():
                    self._exchange("agree", error)
            raise

    @contextmanager
    def in_step(self) -> Iterator[None]:
        try:
            with uninterrupted():
                yield
        except KeyboardInterrupt as error:
            if hasattr(error, KNOWN):
                raise
            self._interrupted = True

    def _exchange(self, purpose: str, error: BaseException | None = None, number: float = 0.0) -> list[float]:
        """Meet the others, with an error if there is one; the numbers of all ranks, unless one of them failed."""
        if error is None and self._interrupted:
            error = KeyboardInterrupt()
        self._interrupted = False
        slots = torch.zeros(3, self.size, dtype=torch.float64, device=self.device)
        own = (severity(error), PURPOSES.index(purpose), number)
        slots[:, self.rank] = torch.tensor(own, dtype=torch.float64)
        self._all_reduce(slots)
        said, purposes, numbers = slots.tolist()
        common = self._common([int(word) for word in said], [PURPOSES[int(place)] for place in purposes], error)
        if common is None:
            return list(numbers)
        setattr(common, KNOWN, True)
        if error is None or common is error:
            raise common
        raise common from error

    def _common(
        self, said: Sequence[int], purposes: Sequence[str], error: BaseException | None
    ) -> BaseException | None:
        """What all ranks raise after a meeting; None where nobody had an error and all met for the same purpose."""
        if not any(said):
            other = next((rank for rank, purpose in enumerate(purposes) if purpose != purposes[0]), None)
            return None if other is None else out_of_step(other, purposes)
        told = self._gather(None if error is None else (type(error).__name__, str(error)))
        kinds = {None if words is None else words[0] for words in told}
        if error is not None and len(kinds) == 1 and max(said) == min(said):
            return error  # the same happened to all, as it would have in one process
        worst = max(said)
        going_on = {(word, purpose) for word, purpose in zip(said, purposes, strict=True) if word != NOT_SAVED}
        if worst == NOT_SAVED and going_on - {(FINE, "gather")}:  # not all of them were saving
            worst = FAILED
        rank = said.index(max(said))
        kind, text = told[rank] or ("", "")
        if worst == STOPPED:
            return StopTraining(text)
        if worst == INTERRUPTED:
            return KeyboardInterrupt()
        others = [str(other) for other, word in enumerate(said) if word >= NOT_SAVED and other != rank]
        also = f" (and failed on rank {', '.join(others)})" if others else ""
        message = f"rank {rank} of {self.size} failed: {kind}: {text}{also}"
        return CheckpointError(message) if worst == NOT_SAVED else DistributedError(message)

    def _all_reduce(self, tensor: Tensor) -> None:
        self.bytes += tensor.numel() * tensor.element_size()
        self._call(partial(dist.all_reduce, tensor))

    def _sum_for(self, purpose: str, given: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Fill ``tensors``, of one precision, with the sums of those ``given``, in one buffer."""
        flat = torch.cat([tensor.reshape(-1).to(self.device) for tensor in given])  # or fail before the others wait
        with self.in_step():
            self._exchange(purpose)
            self._all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def _gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.size
        self._call(partial(dist.all_gather_object, found, value))
        return found

    def _call(self, collective: Callable[[], Any]) -> None:
        """Whatever torch says here means that the others are no longer there."""
        started = time.monotonic()
        try:
            collective()
        except (RuntimeError, ValueError) as error:
            self.is_broken = True
            reason = (str(error).split(". This is typically")[0].splitlines() or [type(error).__name__])[0]
            waited = time.monotonic() - started
            lost = DistributedError(
                f"rank {self.rank} of {self.size} lost the other processes, after waiting {waited:.1f} s: one of them "
                f"has died, or did not answer within the timeout of the process group ({reason}). "
                "Start all of them again; with checkpoints the run goes on from the last one"
            )
            lost.lost = True
            setattr(lost, KNOWN, True)  # whoever else looks after the group must not wait for them again
            raise lost from error


def divide_work(costs: Mapping[int, float], size: int) -> dict[int, int]:
    """Which rank does which piece of work, so that they are done at about the same time: the largest pieces first.

    >>> divide_work({1: 5.0, 2: 6.0, 3: 1.0}, 2)
    {2: 0, 1: 1, 3: 1}
    """
    loads = [0.0] * size
    owners = {}
    for piece in sorted(costs, key=lambda piece: -costs[piece]):
        owners[piece] = rank = loads.index(min(loads))
        loads[rank] += costs[piece]
    return owners


def current_group() -> Group:
    """The processes of the default process group, or this one alone where none was initialised."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Processes()
    return SERIAL


def out_of_step(rank: int, purposes: Sequence[str]) -> DistributedError:
    """What to raise where ranks meet that have been told to do different things."""
    return DistributedError(
        f"rank 0 came to {purposes[0]} and rank {rank} to {purposes[rank]}: all processes must call fit, step, load "
        "and save alike, with callbacks that save on every rank"
    )


def severity(error: BaseException | None) -> int:
    """How bad it is."""
    if error is None:
        return FINE
    kinds = ((StopTraining, STOPPED), (KeyboardInterrupt, INTERRUPTED), (CheckpointError, NOT_SAVED))
    return next((level for kind, level in kinds if isinstance(error, kind)), FAILED)


def fingerprint(tensors: Iterable[Tensor]) -> float:
    """48 bits that tell tensors apart, as a number that a float64 holds exactly."""
    found = hashlib.blake2b(digest_size=6)
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().data)
    return float(int.from_bytes(found.digest(), "little"))


class Waiting:
    """A handler of Ctrl-C that keeps it for later, unless ``waits`` says that it need not wait."""

    def __init__(self, before: Any, waits: Callable[[], bool] | None) -> None:
        self.before, self.waits = before, waits
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.waits is not None and callable(self.before) and not self.waits():
            self.before(number, frame)
        else:
            self.came = True


@contextmanager
def uninterrupted(waits: Callable[[], bool] | None = None) -> Iterator[None]:
    """Ctrl-C waits until the block is done, unless ``waits`` says that it need not when it comes.

    In the middle of the block some would be a step ahead of others.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():  # nothing that could be put back
        yield
        return
    if isinstance(before, Waiting) and before.waits is None:  # a block around this one waits for longer
        yield
        return
    handler = Waiting(before, waits)
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if handler.came:
        signal.raise_signal(signal.SIGINT)
