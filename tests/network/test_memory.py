"""Temporaries find the memory that others left: freed memory is not given back to the system."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

from ipdlam.network.linalg import keep_freed_memory

ROUNDS, PIECES, NUMBERS = 10, 10, 3 << 18  # of 3 MB each, freed together
PAGES = ROUNDS * PIECES * NUMBERS * 4 // resource.getpagesize()


def faults():
    """How many pages the system hands out while temporaries come and go."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        held = [torch.zeros(NUMBERS) for _ in range(PIECES)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_freed_memory_is_kept():
    keep_freed_memory()
    faults()  # the first ones are new to the process
    assert faults() < PAGES / 4
