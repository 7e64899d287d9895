"""``argmin_W <W H, W> / 2 - <B, W> + R(W)`` for a non-smooth ``R``, in moment space."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

MAX_ITERATIONS = 5000


def tolerance_for(dtype: torch.dtype) -> float:
    """The stated tolerance: the optimality residual relative to the largest entry of ``B``."""
    return 1e-6 if dtype == torch.float32 else 1e-12


def accelerated_proximal_gradient(
    H: Tensor, B: Tensor, prox: Callable[[Tensor, Tensor], Tensor], start: Tensor, tolerance: float, name: str
) -> Tensor:
    """The minimiser, by accelerated proximal gradient steps with adaptive restart, from ``start``.

    The step metric is diagonal: the row sums of ``|H|``, which dominate ``H``. ``prox(v, r)`` takes one weight a
    column. The result's residual ``r (W - prox(W - (W H - B) / r, r))`` is at most ``tolerance`` times the largest
    entry of ``B``. The cost depends on the size of ``W`` alone, not on the number of samples.
    """
    r = H.abs().sum(dim=0).clamp_min(torch.finfo(H.dtype).tiny)
    goal = tolerance * max(float(B.abs().max()), torch.finfo(H.dtype).tiny)
    W = ahead = start
    momentum = 1.0
    residual = math.inf
    for _ in range(MAX_ITERATIONS):
        new = prox(ahead - (ahead @ H - B) / r, r)
        move = (ahead - new) * r
        residual = float(move.abs().max())
        if residual <= goal:
            return new
        if float((move * (new - W)).sum()) > 0.0:
            momentum = 1.0  # the momentum points uphill: forget it
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead = new + ((momentum - 1.0) / following) * (new - W)
        W, momentum = new, following
    warnings.warn(
        f"the regularised weights of {name} have a residual of {residual / goal * tolerance:.1e} instead of "
        f"{tolerance:.1e} after {MAX_ITERATIONS} iterations; a larger proximity makes them better conditioned",
        RuntimeWarning,
        stacklevel=2,
    )
    return W
