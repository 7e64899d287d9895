"""Certificates of optimality. They are told the objective only: no formula of a proximal operator is repeated here.

Everything is judged in float64, whatever the precision of the result, so that the judge does not share the rounding of
the judged. Candidates stand in a leading dimension: ``objective`` maps ``(K, *shape)`` to one number for every problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import contextmanager

import torch
from torch import Tensor

Objective = Callable[[Tensor], Tensor]

DOUBLE = torch.finfo(torch.float64).eps
WEIGHTS = [10.0**k for k in range(-6, 7)]
MAGNITUDES = [1e-3, 1e-2, 0.1, 0.5, 1.0, 2.5, 10.0, 100.0, 1e3, 1e4]
VALUES = sorted([0.0] + MAGNITUDES + [-m for m in MAGNITUDES])
PRECISIONS = [torch.float32, torch.float64]
BAD_NUMBERS = [math.nan, math.inf, -math.inf]
BAD_PRECISIONS = [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
BAD_WEIGHTS = [0.0, -1.0, math.nan, math.inf, -math.inf]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=seeded(seed), dtype=torch.float64)


def signed_magnitudes(n: int, seed: int, low: float = -3.0, high: float = 4.0) -> Tensor:
    """Either sign, every magnitude from ``10**low`` to ``10**high`` as likely as the next."""
    return 10.0 ** (low + (high - low) * uniform(n, seed=seed)) * normal(n, seed=seed + 1).sign()


def all_pairs(first: Iterable[float], second: Iterable[float], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    first, second = (torch.tensor(list(values), dtype=dtype) for values in (first, second))
    grids = torch.meshgrid(first, second, indexing="ij")
    return grids[0].flatten(), grids[1].flatten()


def both_signs(x: Tensor) -> Tensor:
    return torch.cat([-x.flip(0), x])


def wide_grid() -> Tensor:
    """Fine near the origin, where activations bend, and out to beyond the largest operand."""
    logarithmic = torch.logspace(-6, 4.3, 60, dtype=torch.float64)
    even = torch.linspace(-12.0, 12.0, 193, dtype=torch.float64)  # steps of 1/8: meets the kinks exactly
    return torch.cat([both_signs(logarithmic), even, torch.linspace(-1.5e4, 1.5e4, 61, dtype=torch.float64)])


def local_steps() -> Tensor:
    return both_signs(torch.logspace(-12, 1, 40, dtype=torch.float64))


def perturbations(shape: tuple[int, ...], seed: int) -> Tensor:
    """Random displacements on scales from 1e-9 to 1e3, a few on each."""
    scales = torch.logspace(-9, 3, 13, dtype=torch.float64).repeat(3)
    return scales.view(-1, *[1] * len(shape)) * normal(len(scales), *shape, seed=seed)


def change_within(objective: Objective, x: Tensor, distance: Tensor) -> Tensor:
    """How much the objective moves when ``x`` does by a few roundings: no result can be better than that."""
    here = objective(x)
    return torch.maximum((objective(x + distance) - here).abs(), (objective(x - distance) - here).abs())


def assert_lowest(objective: Objective, x: Tensor, candidates: Tensor, allowance: Tensor, what: str) -> None:
    values = objective(candidates)
    found = objective(x)
    assert bool(torch.isfinite(found).all()), f"{what}: the objective at the result is not finite"
    excess = found - values.amin(0) - allowance
    worst = int(excess.argmax())
    assert float(excess.flatten()[worst]) <= 0.0, (
        f"{what}: problem {worst}: a candidate reaches {float(values.amin(0).flatten()[worst])!r}, "
        f"the result {float(found.flatten()[worst])!r}, allowance {float(allowance.flatten()[worst])!r}"
    )


def slope(function: Objective, x: Tensor) -> Tensor:
    """The derivative of a function that treats every entry of ``x`` separately."""
    x = x.detach().clone().requires_grad_()
    (derivative,) = torch.autograd.grad(function(x).sum(), x)
    return derivative


def higher_slopes(function: Objective, x: Tensor, order: int) -> list[Tensor]:
    """The first ``order`` derivatives of a smooth function that treats every entry of ``x`` separately."""
    x = x.detach().clone().requires_grad_()
    derivatives, last = [], function(x)
    for _ in range(order):
        (last,) = torch.autograd.grad(last.sum(), x, create_graph=True)
        derivatives.append(last)
    return [derivative.detach() for derivative in derivatives]


def assert_all(condition: Tensor, what: str, **shown: Tensor) -> None:
    """``condition`` everywhere; otherwise name what it concerns, with the first offender's numbers."""
    if bool(condition.all()):
        return
    wrong = (~condition).flatten().nonzero()[:, 0]
    first = int(wrong[0])
    numbers = ", ".join(f"{name}={float(t.expand_as(condition).flatten()[first])!r}" for name, t in shown.items())
    raise AssertionError(f"{what}: {len(wrong)} of {condition.numel()} fail, the first at {first}: {numbers}")


@contextmanager
def left_alone(*tensors: Tensor):
    """The block neither writes into the tensors nor turns their gradients on or off."""
    before = [(tensor.detach().clone(), tensor._version, tensor.requires_grad) for tensor in tensors]
    yield
    for tensor, (values, version, requires_grad) in zip(tensors, before, strict=True):
        assert torch.equal(tensor.detach(), values)
        assert tensor._version == version
        assert tensor.requires_grad == requires_grad


def assert_fresh(result: Tensor, *arguments: Tensor) -> None:
    """The result is a plain tensor of its own: no graph, no memory shared with an argument."""
    assert result.grad_fn is None
    assert not result.requires_grad
    if result.numel():
        addresses = {argument.untyped_storage().data_ptr() for argument in arguments}
        assert result.untyped_storage().data_ptr() not in addresses


def global_minimum(objective: Objective, v: Tensor, radius: Tensor) -> Tensor:
    """The slow oracle: a dense grid around every problem, its four best valleys narrowed down 32-fold at a time.

    ``radius`` bounds the distance of the minimiser from ``v``. The grid is even between -60 and 60, where activations
    bend, even over the whole bracket, and ever denser towards ``v``. It is good to some 1e-8 in ``x`` (rounding of the
    objective hides more) and so to the last digits in the objective.
    """
    bend = torch.linspace(-60.0, 60.0, 961, dtype=torch.float64)[:, None].expand(-1, len(v))
    even = v + radius * torch.linspace(-1.0, 1.0, 161, dtype=torch.float64)[:, None]
    dense = v + radius * both_signs(torch.logspace(-12, 0, 97, dtype=torch.float64))[:, None]
    points = torch.cat([bend, even, dense, v[None]]).sort(0).values
    values = objective(points)
    wall = torch.full_like(v, math.inf)[None]
    left, right = torch.cat([wall, values[:-1]]), torch.cat([values[1:], wall])
    valleys = values.masked_fill((values > left) | (values > right), math.inf).topk(4, 0, largest=False).indices
    low, high = points.gather(0, (valleys - 1).clamp_min(0)), points.gather(0, (valleys + 1).clamp_max(len(points) - 1))
    best, lowest = points.gather(0, valleys), values.gather(0, valleys)
    fractions = torch.linspace(0.0, 1.0, 33, dtype=torch.float64)[:, None, None]
    for _ in range(10):
        points = low + (high - low) * fractions
        values = objective(points)
        index = values.argmin(0, keepdim=True)
        value, x = values.gather(0, index)[0], points.gather(0, index)[0]
        best, lowest = torch.where(value < lowest, x, best), torch.minimum(value, lowest)
        low, high = points.gather(0, (index - 1).clamp_min(0))[0], points.gather(0, (index + 1).clamp_max(32))[0]
    return best.gather(0, lowest.argmin(0, keepdim=True))[0]
