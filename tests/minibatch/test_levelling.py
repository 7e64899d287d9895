"""Levelled moves: the iteration, in either form, and what it is said to cost."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ipdlam.minibatch.levelling import LEVEL_STEPS, WIDE, level, level_cost

SHAPES = [(12, 12), (12, 16), (12, 60), (60, 12), (1, 30), (30, 1)]


def spread(shape, most, dtype):
    """A matrix whose singular values go from 1 down to 10^-most."""
    generator = torch.Generator().manual_seed(0)
    short = min(shape)
    U, V = (torch.linalg.qr(torch.randn(n, short, generator=generator, dtype=torch.float64)).Q for n in shape)
    return ((U * torch.logspace(0, -most, short, dtype=torch.float64)) @ V.mT).to(dtype)


def by_singular_values(move):
    """The quintic of every singular value by itself."""
    U, values, V = torch.linalg.svd(move, full_matrices=False)
    values = values / torch.linalg.vector_norm(values)
    for _ in range(LEVEL_STEPS):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return (U * values) @ V


@pytest.mark.parametrize("most", [0, 2, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_quintic_of_the_singular_values(shape, most):
    move = spread(shape, most, torch.float64)
    assert torch.allclose(level(move), by_singular_values(move), rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("most", [0, 2, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_single_precision_is_enough(shape, most):
    """Also where the Gram matrix cannot tell the small singular values apart: all of them grow alike."""
    move = spread(shape, most, torch.float32)
    assert torch.allclose(level(move).double(), by_singular_values(move.double()), rtol=0.0, atol=5e-3)


def test_a_move_of_nothing_stays():
    assert not level(torch.zeros(3, 20)).any()
    assert not level(torch.zeros(3, 3)).any()


@pytest.mark.parametrize("shape", [(64, 64), (64, 100), (64, 128), (64, 600), (600, 64)])
def test_it_costs_what_decides_where_it_is_used(shape):
    with FlopCounterMode(display=False) as counted:
        level(torch.ones(shape))
    short, long = sorted(shape)
    assert counted.get_total_flops() == level_cost(short, long)
    assert level_cost(short, long) <= (4.0 * short * short * long + 2.0 * short**3) * LEVEL_STEPS
    assert (long > WIDE * short) == (
        level_cost(short, long) < (4.0 * short * short * long + 2.0 * short**3) * LEVEL_STEPS
    )
