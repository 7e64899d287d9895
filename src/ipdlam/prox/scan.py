"""The global minimiser of a scalar problem by a scan, for curves that are not monotone: right first, then fast.

    argmin_x (sigma(x) - w)^2 + r (x - v)^2    over low <= x <= high

A minimiser is no worse than the point ``c`` of ``[low, high]`` that is nearest to ``v``, which gives a bracket around
``v``. The derivative ``2 k`` is worked out on a grid over the bracket: even where activations bend, with ``v`` and the
minimiser of a line on either side of that. A cell where ``k`` becomes positive holds a minimum. That cell and its
neighbours are divided by eight, which tells apart minimisers that are about to merge, and Newton's method ends in each
part where ``k`` becomes positive. The lowest result is returned, the right one among equals. All of this is in float64.

A piece may know between which two points ``k`` can fall: then there is a minimiser on either side, and no scan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ipdlam.prox.base import as_mask, select
from ipdlam.prox.newton import Bounds
from ipdlam.prox.search import clamp

Slopes = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]

ROWS = 1 << 12  # problems at once
BEND = 10.0  # activations bend within this distance of 0,
STRAIGHT = 45.0  # and are straight lines to the last digit beyond this one
FINE, COARSE = 0.25, 0.5
DIVISIONS = 8
POLISHES = 40  # at most; a bisection ends in 60, and Newton's method seldom needs more than 6


@dataclass(frozen=True)
class Piece:
    """A part of an activation that has three derivatives: ``sigma``, ``sigma'`` and ``sigma''`` on ``[low, high]``."""

    slopes: Slopes
    bounds: Bounds
    low: float = -math.inf
    high: float = math.inf
    turns: Callable[[Tensor, float], tuple[Tensor, Tensor]] | None = None  # of w and r: k falls at most between these


def minimise_pieces(pieces: tuple[Piece, ...], w: Tensor, v: Tensor, r: float) -> Tensor:
    """``argmin_x (sigma(x) - w)^2 + r (x - v)^2`` for an activation made of pieces, from left to right.

    A minimiser at the kink of two pieces belongs to both, so the other piece is at least as good, however little
    rounding shows of it.
    """
    fits, stays = w.double(), v.double()
    best = best_objective = None
    for piece in pieces:
        parts = [slice(start, start + ROWS) for start in range(0, len(w), ROWS)]
        x = torch.cat([minimise(piece, fits[rows], stays[rows], r) for rows in parts])
        objective = value(piece, x, fits, stays, r)
        if best is None or best_objective is None:
            best, best_objective = x, objective
            continue
        better = as_mask(((objective <= best_objective) & (x != piece.low)) | (best == piece.low), like=x)
        best, best_objective = select(better, x, best), select(better, objective, best_objective)
    assert best is not None
    return best.to(v.dtype)


def value(piece: Piece, x: Tensor, w: Tensor, v: Tensor, r: float) -> Tensor:
    """The objective."""
    return (piece.slopes(x)[0] - w).square_().add_((x - v).square_(), alpha=r)


def minimise(piece: Piece, w: Tensor, v: Tensor, r: float) -> Tensor:
    """The minimiser on one piece: one search where there is one minimum, two or a scan where there may be more."""
    nearest = v.clamp(piece.low, piece.high)
    radius = (value(piece, nearest, w, v, r) / r).sqrt_().mul_(1.0 + 1e-12)
    low, high = (v - radius).clamp_(piece.low, piece.high), (v + radius).clamp_(piece.low, piece.high)
    low, high = torch.minimum(low, nearest), torch.maximum(high, nearest)
    residual = (piece.slopes(nearest)[0] - w).abs_().add_(high - low, alpha=piece.bounds.first)
    several = (~(piece.bounds.second * residual < r)).nonzero()[:, 0]
    search = scan if piece.turns is None else on_both_sides
    if len(several) == len(v):
        return search(piece, w, v, r, low, high)
    x = polish(piece, nearest, w, v, r, low, high)
    if len(several):
        x[several] = search(piece, w[several], v[several], r, low[several], high[several])
    return x


def on_both_sides(piece: Piece, w: Tensor, v: Tensor, r: float, low: Tensor, high: Tensor) -> Tensor:
    """The better of the minimisers before and after ``k`` falls, the right one among equals."""
    assert piece.turns is not None
    first, last = (clamp(turn, low, high) for turn in piece.turns(w, r))
    left = polish(piece, torch.lerp(low, first, 0.5), w, v, r, low, first)
    right = polish(piece, torch.lerp(last, high, 0.5), w, v, r, last, high)
    better = value(piece, right, w, v, r) <= value(piece, left, w, v, r)
    # A result at a turn is no minimiser, and a side of no width is a part of the other, however little rounding shows.
    no_left = ((left == first) & (first > low) & (first < high)) | (last <= low)
    no_right = ((right == last) & (last < high) & (last > low)) | (first >= high)
    better = (better | no_left) & (no_left | ~no_right)
    return select(as_mask(better, like=left), right, left)


def pull(piece: Piece, x: Tensor, w: Tensor, v: Tensor, r: float) -> tuple[Tensor, Tensor]:
    """``k``, half the derivative of the objective, and its slope."""
    at, slope, bend = piece.slopes(x)
    e = w - at
    return (r * (x - v)).addcmul_(e, slope, value=-1.0), (slope * slope).addcmul_(e, bend, value=-1.0).add_(r)


def polish(piece: Piece, x: Tensor, w: Tensor, v: Tensor, r: float, low: Tensor, high: Tensor) -> Tensor:
    """A root of ``k`` where it increases, or the end that it pulls to: Newton's method from ``x``, else bisection."""
    eps = torch.finfo(x.dtype).eps
    ends = low, high
    for _ in range(POLISHES):
        k, slope = pull(piece, x, w, v, r)
        right = as_mask(k < 0, like=x)
        low, high = select(right, x, low), select(right, high, x)
        newton = clamp(x - k / slope, *ends)
        usable = (slope > 0).logical_and_(newton >= low).logical_and_(newton <= high)
        moved = select(as_mask(usable, like=x), newton, torch.lerp(low, high, 0.5))
        # Newton's error is of the order of the square of its last step: a small step leaves an error below rounding.
        small = (moved - x).abs_() <= eps ** (2 / 3) * moved.abs() + 2.0 * eps
        closed = high - low <= 2.0 * eps * moved.abs()
        x = moved
        if bool(usable.logical_and_(small).logical_or_(closed).all()):
            break
    return x


def grid(low: float, high: float) -> Tensor:
    """The common points of all brackets of a scan, between their ends."""
    points = torch.cat(
        [
            torch.arange(-STRAIGHT, -BEND, COARSE, dtype=torch.float64),
            torch.arange(-BEND, BEND, FINE, dtype=torch.float64),
            torch.arange(BEND, STRAIGHT + COARSE, COARSE, dtype=torch.float64),
        ]
    )
    return points[(points > low) & (points < high)]


def scan(piece: Piece, w: Tensor, v: Tensor, r: float, low: Tensor, high: Tensor) -> Tensor:
    """The lowest of all minima of a piece that is flat on the left and of slope 1 on the right, and has no ends."""
    if not bool(torch.isfinite(low).all() and torch.isfinite(high).all()):
        low, high = (torch.nan_to_num(end, nan=0.0, posinf=STRAIGHT, neginf=-STRAIGHT) for end in (low, high))
    common = grid(float(low.min()), float(high.max())).to(v.device)[:, None].expand(-1, len(v))
    line = (w + r * v) / (1.0 + r)
    rows = [low[None], v.clamp_max(-STRAIGHT)[None], common, line.clamp_min(STRAIGHT)[None], high[None]]
    points = clamp(torch.cat(rows), low, high)
    rising = pull(piece, points, w, v, r)[0] >= 0
    rising[0], rising[-1] = False, True  # no minimiser is beyond the bracket
    found = rising[1:] & ~rising[:-1]
    near = found.clone()
    near[1:] |= found[:-1]
    near[:-1] |= found[1:]
    cell, entry = near.nonzero().unbind(1)
    parts = torch.linspace(0.0, 1.0, DIVISIONS + 1, dtype=w.dtype, device=w.device)[:, None]
    fine = torch.lerp(points[cell, entry], points[cell + 1, entry], parts)
    k = pull(piece, fine, w[entry], v[entry], r)[0]
    rising = k >= 0
    rising[0] &= cell != 0
    rising[-1] |= cell == len(points) - 2
    part, column = (rising[1:] & ~rising[:-1]).nonzero().unbind(1)
    entry = entry[column]
    w, v, left, right = w[entry], v[entry], fine[part, column], fine[part + 1, column]
    start = torch.where(k[part, column].abs() < k[part + 1, column].abs(), left, right)
    x = polish(piece, start, w, v, r, left, right)
    return lowest(value(piece, x, w, v, r), x, entry, low)


def lowest(values: Tensor, x: Tensor, entry: Tensor, like: Tensor) -> Tensor:
    """The ``x`` of the lowest value of every entry, the largest among equals."""
    least = torch.full_like(like, math.inf).scatter_reduce(0, entry, values, "amin")
    winners = values == least[entry]
    return torch.full_like(like, -math.inf).scatter_reduce(0, entry[winners], x[winners], "amax")
