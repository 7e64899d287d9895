"""Which of torch's two routines multiplies float32 matrices on the CPU: the faster one, where it is as exact.

torch takes oneDNN's only where it may round to bfloat16 (``torch.set_float32_matmul_precision("medium")``), and else
MKL's. On processors without bfloat16 matrix units oneDNN rounds nothing, and on some of those, such as AMD's with
AVX-512, it takes half of the time. Both are measured here, once in a process, and a run keeps what it began with: its
bits depend on it, also after a resume.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ipdlam.network.model import ModelView

USUAL, FAST = "usual", "fast"
ROUTINES = (USUAL, FAST)  # MKL's, and oneDNN's
TORCH_NAMES = {USUAL: "highest", FAST: "medium"}

LEAST_WEIGHT = 1 << 16  # numbers of the largest matrix of a layer: with smaller ones the fast routine gains nothing
SIDES = (256, 512)  # of the matrices that are timed
ROUNDS = 6
FASTER = 1.2  # times as fast as the usual routine has to be exceeded: noise must not decide
EXACT = 4.0  # times the usual routine's error, which differs by the order of summation alone; bfloat16 has thousands


def routine_for(network: ModelView) -> str:
    """The routine for a new run of such a model."""
    if network.dtype != torch.float32 or network.device.type != "cpu":
        return USUAL
    largest = max(network.weight(l).numel() // network.blocks(l) for l in network.numbers)
    if largest < LEAST_WEIGHT or not _is_untouched():
        return USUAL
    return FAST if fast_is_exact() and speed_up(torch.get_num_threads()) > FASTER else USUAL


def usable(routine: str) -> str:
    """The routine that a run began with, elsewhere perhaps, if this machine has it."""
    if routine not in ROUTINES:
        raise ValueError(f"its products were taken by {routine!r}, which is none of {', '.join(ROUTINES)}")
    return routine if routine == USUAL or (_is_untouched() and fast_is_exact()) else USUAL


class _Switch:
    """The setting of torch, which all threads share: the first one that enters turns it, the last one turns it back."""

    def __init__(self) -> None:
        self.lock, self.inside = threading.Lock(), 0

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                torch.set_float32_matmul_precision(TORCH_NAMES[FAST])

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                torch.set_float32_matmul_precision(TORCH_NAMES[USUAL])


_switch = _Switch()


@contextmanager
def multiplying(routine: str) -> Iterator[None]:
    """Take float32 products by a routine; who has told torch otherwise is left alone."""
    if routine == USUAL or not _is_untouched():
        yield
        return
    _switch.enter()
    try:
        yield
    finally:
        _switch.leave()


def _is_untouched() -> bool:
    """Whether torch takes float32 products as it does by default, or as :func:`multiplying` made it."""
    if _switch.inside:
        return True
    try:
        return torch.get_float32_matmul_precision() == TORCH_NAMES[USUAL]
    except RuntimeError:  # settings by backend, which torch does not want mixed with this one
        return False


@functools.cache
def fast_is_exact() -> bool:
    """Whether the fast routine has float32's digits here, whichever operand is transposed."""
    rows, side = SIDES
    A, B, C = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 0.5 for shape in _shapes(rows, side))
    products: list[tuple[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor]] = [
        (torch.mm, A, B), (lambda x, y: x @ y.mT, A, B), (lambda x, y: x.mT @ y, A, C),
    ]  # fmt: skip
    for product, x, y in products:
        exact = product(x.double(), y.double())
        usual = torch.linalg.matrix_norm(product(x, y) - exact)
        with multiplying(FAST):
            error = torch.linalg.matrix_norm(product(x, y) - exact)
        if not error <= EXACT * usual:
            return False
    return True


@functools.cache
def speed_up(threads: int) -> float:
    """The time of the usual routine over that of the fast one with so many threads: some milliseconds, once."""
    del threads  # torch's own, by which this is cached
    rows, side = SIDES
    A, B = torch.ones(rows, side), torch.ones(side, side)
    best = dict.fromkeys(ROUTINES, float("inf"))
    for _ in range(ROUNDS):  # in turn, so that a slow moment of the machine hits both
        for routine in ROUTINES:
            with multiplying(routine):
                started = time.perf_counter()
                torch.mm(A, B)
                best[routine] = min(best[routine], time.perf_counter() - started)
    return best[USUAL] / best[FAST]


def _shapes(rows: int, side: int) -> tuple[tuple[int, int], ...]:
    return (rows, side), (side, side), (rows, side)
