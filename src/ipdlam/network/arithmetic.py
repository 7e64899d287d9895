"""In which precision large products are taken: the one place where operands are narrowed.

A product with bfloat16 operands has their 8 bits and float32's range, and is summed in float32. Torch rounds what comes
out to bfloat16 once more; it is then converted to float32. Weights, moves, metrics, norms and proximal operators never
leave float32.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
"""What a user may ask for, and what operands are then narrowed to."""

# Of a weight's two sides: narrower ones gain nothing, and a model's outputs, on which the loss depends, are among them.
LEAST_SIDE = 32
TIMED_SIDE, TIMED_ROUNDS = 384, 4
SLOWER = 1.1  # times the time of float32 from which on it is worth a warning


@dataclass(frozen=True)
class Products:
    """How products are taken: with operands as they are, or ``narrow`` ones."""

    narrow: torch.dtype | None = None

    def of(self, W: Tensor) -> Products:
        """How those with this weight are taken; ``W`` alone decides, so that all processes and batches do alike."""
        if self.narrow is None or W.dtype != torch.float32 or min(len(W), W[0].numel()) < LEAST_SIDE:
            return PLAIN
        return self

    def operand(self, x: Tensor) -> Tensor:
        """``x`` as it is multiplied; itself where it is that already."""
        return x if self.narrow is None else x.to(self.narrow)

    def result(self, x: Tensor) -> Tensor:
        """What a product gave, in full precision again."""
        return x if self.narrow is None else x.float()

    def mm(self, A: Tensor, B: Tensor) -> Tensor:
        """``A B``."""
        return self.result(self.operand(A) @ self.operand(B))

    def add_mm(self, total: Tensor, A: Tensor, B: Tensor, keep: float, new: float) -> None:
        """``total <- keep total + new A B``, in place; of matrices, or of one for each block."""
        if self.narrow is None and total.ndim == 2:
            total.addmm_(A, B, beta=keep, alpha=new)
        elif self.narrow is None:
            total.baddbmm_(A, B, beta=keep, alpha=new)
        else:
            total.mul_(keep).add_(self.operand(A) @ self.operand(B), alpha=new)

    def affine(self, f: Callable[..., Tensor], x: Tensor, W: Tensor, b: Tensor | None, after: int = 0) -> Tensor:
        """``f(x, W, b)``, which is linear in each; units of ``b`` have so many dimensions ``after`` them."""
        if self.narrow is None:
            return f(x, W, b)
        z = f(self.operand(x), self.operand(W), None)
        return self.result(z) if b is None else z + b.view(-1, *(1,) * after)


PLAIN = Products()


def surrounding(device: torch.device) -> torch.dtype | None:
    """What ``torch.autocast`` of the caller narrows operands to; None where it is switched off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def products_for(precision: str, dtype: torch.dtype, device: torch.device) -> Products:
    """The products of a model of this ``dtype``, as the setting or a surrounding ``torch.autocast`` asks for.

    Autocast leaves float64 alone here as it does in torch. Wishes are as small as gradients: float16, which has not
    their range, is refused.
    """
    refuse_precision(precision, dtype)
    around = surrounding(device)
    if around not in (None, torch.float32, torch.bfloat16) and dtype == torch.float32:
        raise ValueError(
            f"torch.autocast is switched on with {around}, which cannot hold numbers as small as the steps are made "
            f'of; use torch.autocast("{device.type}", dtype=torch.bfloat16), or switch it off'
        )
    narrow = PRECISIONS[precision] or (torch.bfloat16 if around is torch.bfloat16 else None)
    return PLAIN if narrow is None or dtype != torch.float32 else Products(narrow)


def check_precision(precision: str) -> str:
    """A precision that there is."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    return precision


def refuse_precision(precision: str, dtype: torch.dtype) -> None:
    """Refuse narrow products of a model that is not in float32: its numbers would not be what they say."""
    if PRECISIONS[precision] is not None and dtype != torch.float32:
        raise ValueError(
            f"precision is {precision!r}, but the model is {dtype}: narrow products need a model in float32; convert "
            'it with model.float(), or leave precision at "float32", which takes products in the model\'s own'
        )


def warn_where_idle(precision: str, weights: Iterable[Tensor]) -> None:
    """Say so where a setting changes nothing, because no layer is large enough."""
    narrow = Products(PRECISIONS[precision])
    if narrow != PLAIN and all(narrow.of(W) is PLAIN for W in weights):
        warnings.warn(
            f"precision={precision!r} changes nothing: every layer has fewer than {LEAST_SIDE} inputs or outputs",
            UserWarning,
            stacklevel=3,
        )


def warn_where_slow(W: Tensor) -> None:
    """Say so where bfloat16 products with the weight ``W`` take longer than full ones; of a small one, nothing.

    A processor without instructions for them converts every operand again and again.
    """
    if W.device.type != "cpu" or W.numel() < TIMED_SIDE**2:
        return
    ratio = time_ratio(torch.get_num_threads())
    if ratio > SLOWER:
        warnings.warn(
            f"products in bfloat16 take {ratio:.1f} times the time of float32 on this processor, which seems to have "
            'no instructions for them; precision="float32" (and no torch.autocast) is faster here',
            UserWarning,
            stacklevel=3,
        )


@functools.cache
def time_ratio(threads: int) -> float:
    """The time of a product of bfloat16 matrices on the CPU, over that of float32: some milliseconds, once."""
    full = torch.ones(TIMED_SIDE, TIMED_SIDE)
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for _ in range(TIMED_ROUNDS):  # in turn, so that a slow moment of the machine hits both
        for dtype in best:
            A = full.to(dtype)
            started = time.perf_counter()
            torch.mm(A, A)
            best[dtype] = min(best[dtype], time.perf_counter() - started)
    return best[torch.bfloat16] / best[torch.float32]
