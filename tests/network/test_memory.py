"""Temporaries find the memory that others left: freed memory is not given back to the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from ipdlam.network.memory import is_set_up

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")

SCRIPT = """
import resource
import torch
from torch import nn
import ipdlam

COUNT, NUMBERS = {count}, {numbers}  # temporaries that are freed together

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        held = [torch.zeros(NUMBERS) for _ in range(COUNT)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

layers = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)] if {pictures} else [nn.Linear(16, 2)]
model, x = nn.Sequential(*layers), torch.randn(8, 1, 4, 4) if {pictures} else torch.randn(8, 16)
ipdlam.MiniBatchIPDLAM(model, batch_size=8).step(x, torch.arange(8) % 2)
faults()  # the first ones are new to the process
print(faults() / (4 * COUNT * NUMBERS * 4 / resource.getpagesize()))
"""


def part_that_faults(count, numbers, *, pictures, **variables):
    """Of the pages of temporaries, after a step of the mini-batch method in a process of its own."""
    script = SCRIPT.format(count=count, numbers=numbers, pictures=pictures)
    given = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    found = subprocess.run(
        [sys.executable, "-c", script], env={**given, **variables}, capture_output=True, text=True, check=True
    )
    return float(found.stdout)


@glibc
@pytest.mark.parametrize("pictures", [False, True])
def test_temporaries_of_3_mb_are_kept(pictures):
    assert part_that_faults(10, 3 << 18, pictures=pictures) < 0.25


@glibc
def test_temporaries_of_48_mb_are_kept_where_a_model_takes_pictures():
    assert part_that_faults(2, 12 << 20, pictures=True) < 0.25
    assert part_that_faults(2, 12 << 20, pictures=False) > 0.75


@glibc
def test_who_has_set_up_malloc_is_left_alone():
    assert part_that_faults(2, 12 << 20, pictures=True, MALLOC_ARENA_MAX="4") > 0.75


def test_what_counts_as_set_up():
    assert is_set_up({"MALLOC_TRIM_THRESHOLD_": "1000000"})
    assert is_set_up({"GLIBC_TUNABLES": "glibc.malloc.mmap_max=4"})
    assert not is_set_up({"GLIBC_TUNABLES": "glibc.pthread.rseq=0", "HOME": "/root"})
