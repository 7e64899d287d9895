"""Memory that temporaries leave is kept for the next ones: giving it back to the system and asking anew takes time.

Each page of 4 KB that the system hands out costs a fault. Without this they are a tenth of a step of a wide network,
and up to half of one of a convolutional network. Only glibc is told; other C libraries have rules of their own.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Mapping

import torch

KEPT_BLOCK = (32 << 20) - (64 << 10)  # bytes: just below the most that glibc learns from
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
MOST_KEPT = (1 << 31) - 1  # bytes at the end of the heap; an int


@functools.cache
def keep_freed_memory(large: bool) -> None:
    """Have glibc keep what is freed, once in a process.

    It gives memory back beyond twice the largest block that it has mapped and freed. A block of nearly 32 MB raises
    that to its most. Nothing is written to the block, so that it takes no memory. ``large`` blocks, what convolutions
    give a whole batch, are beyond it: for them none is mapped on its own any more. The process then keeps what it has
    used, but for what exceeds 2 GB at the end of its heap. Who has set up malloc by its environment variables is left
    alone.
    """
    if large and platform.libc_ver()[0] == "glibc" and not is_set_up(os.environ):
        malloc = ctypes.CDLL(None)
        if malloc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT):
            malloc.mallopt(M_MMAP_MAX, 0)
    else:
        torch.empty(KEPT_BLOCK, dtype=torch.uint8)


def is_set_up(variables: Mapping[str, str]) -> bool:
    """Whether the user has told malloc what to do."""
    return any(name.startswith("MALLOC_") for name in variables) or "glibc.malloc" in variables.get(
        "GLIBC_TUNABLES", ""
    )
