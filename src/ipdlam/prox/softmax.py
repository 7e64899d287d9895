"""Softmax cross-entropy and its proximal operator: Newton's method on every row, or on one number for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ipdlam.prox.base import Loss
from ipdlam.prox.newton import largest

STEADY = 0.25  # from this r on, the slopes that Newton's method meets in x differ by so little that it converges
NEWTON_STEPS = 10  # at most; five or six do in float64
STEPS = 100  # upper limits: the loops end when every row has converged
INNER_STEPS = 50
ROUNDING = 1e-15


def log_probability(c: Tensor, log_r: float, start: Tensor) -> Tensor:
    """The root ``s`` of ``s + exp(s - log_r) = c``, increasing and convex: Newton from above is monotone."""
    s = start
    for _ in range(INNER_STEPS):
        weight = torch.exp(s - log_r)
        residual = s + weight - c
        s = s - residual / (1.0 + weight)
        if bool((residual.abs() <= ROUNDING * (s.abs() + weight + c.abs())).all()):
            break
    return s


def newton(targets: Tensor, v: Tensor, r: float, tolerance: float) -> Tensor | None:
    """``x - v`` by Newton's method from ``x = v``; None if the last step of some sample exceeds the tolerance.

    Samples are columns here: sums over some classes are then sums of a few long rows, which is far quicker. The matrix
    is ``diag(p + r) - p p^T``, whose inverse is known (Sherman and Morrison). As ``p`` sums to 1, what it divides by is
    ``r`` times the sum of ``b = p / (p + r)``.
    """
    d = torch.zeros_like(v)
    for _ in range(NEWTON_STEPS):
        p = torch.softmax(v + d, 0)
        down = (targets - p).sub_(d, alpha=r)
        p_r = p + r
        b = p.div_(p_r)
        shared = (b * down).sum(0).div_(b.sum(0).mul_(r))
        step = down.div_(p_r).addcmul_(b, shared)
        d += step
        if v.numel() == 0 or largest(step) <= tolerance:
            return d
    return None


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """``L(y, x) = logsumexp(x) - <y, x>`` for one-hot ``y`` (class indices) or rows of probabilities.

    The minimiser satisfies ``r (x - v) = y - p`` with ``p = softmax(x)``. Newton's matrix is a diagonal plus a matrix
    of rank one. Where ``r`` is at least 1/4, some steps of :func:`newton` from ``v`` do. Elsewhere, eliminating the
    diagonal part exactly leaves one unknown for every row, ``lam = logsumexp(x)``: with ``u = v + y / r``,

        log p_i + p_i / r = u_i - lam    and    sum_i p_i = 1.

    The sum is a convex, decreasing function of ``lam``, and ``logsumexp(u) - 1 / r`` is never above the root, so
    Newton's method climbs to it from there without a line search, for logits of any size. (Below ``r`` of some 1e-12
    the digits of ``v`` are lost beside ``1 / r``.)

    >>> y, v = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> x = CrossEntropy().prox(y, v, 0.5)
    >>> torch.allclose(0.5 * (x - v), y - x.softmax(-1))
    True
    """

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        # Shifted by the largest logit, so that a loss near zero keeps its digits beside logits of 1e4.
        largest = x.amax(dim=-1, keepdim=True)
        shifted = x - largest
        # Rows of probabilities sum to one only up to rounding; what is missing multiplies the shift.
        missing = (1.0 - targets.sum(-1)) * largest.squeeze(-1)
        return shifted.logsumexp(-1) - (targets * shifted).sum(-1) + missing

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        if r >= STEADY:
            # The error after a step is of the order of its square over r; all is in float64.
            tolerance = math.sqrt(0.01 * torch.finfo(v.dtype).eps * min(r, 1.0))
            columns, stays = (given.movedim(-1, 0).contiguous().double() for given in (targets, v))
            d = newton(columns, stays, r, tolerance)
            if d is not None:
                return d.add_(stays).to(v.dtype).movedim(0, -1).contiguous()
        return self._prox_by_row(targets, v, r)

    def _prox_by_row(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        """The prox for any ``r``, with one unknown for every row."""
        log_r = math.log(r)
        u = v.double() + targets.double() / r
        shift = u.amax(dim=-1, keepdim=True)
        u = u - shift
        lam = u.logsumexp(-1, keepdim=True) - 1.0 / r
        s = u
        for _ in range(STEPS):
            c = u - lam
            # min(c, log(r c)) bounds s from above; log p <= 0 does too.
            start = torch.minimum(c, torch.log((r * c).clamp_min(1e-300))).where(c > 0.0, c)
            s = log_probability(c, log_r, start.clamp_max(0.0))
            p = torch.exp(s)
            slope = (p / (1.0 + torch.exp(s - log_r))).sum(-1, keepdim=True)
            step = (p.sum(-1, keepdim=True) - 1.0) / slope
            lam = lam + step
            if bool((step.abs() <= 4.0 * ROUNDING * (1.0 + lam.abs())).all()):
                break
        return (shift + (lam + s)).to(v.dtype)

    def check_targets(self, targets: Tensor) -> None:
        total = targets.sum(-1)
        if bool((targets < 0).any()) or bool(((total - 1.0).abs() > 1e-4).any()):
            if targets.shape[-1] == 1:
                raise ValueError(
                    "CrossEntropy needs an output for every class, and the model has one; give it two or more, or use "
                    "the loss logistic for two classes, or squared for real targets"
                )
            raise ValueError(
                "CrossEntropy needs rows of probabilities (non-negative, summing to 1), or class indices as integers"
            )
