"""Newton's method on whole tensors, where it is proved to end at the global minimiser; the shared path of all curves.

Write ``e = w - sigma(v)``. A global minimiser of ``(sigma(x) - w)^2 + r (x - v)^2`` is no worse than ``v``, so that
``|w - sigma(x)| <= |e|`` and ``r (x - v)^2 <= e^2``; and it is a root of

    k(x) = r (x - v) - (w - sigma(x)) sigma'(x),     hence also  r |x - v| <= |e| sup |sigma'|.

All global minimisers are therefore within ``rho = |e| min(1 / sqrt(r), sup |sigma'| / r)`` of ``v``. Up to a distance
``R`` of ``v`` the slope of ``k`` is at least ``m = r - sup |sigma''| (|e| + R sup |sigma'|)``. Where ``m > 0`` for some
``R >= rho``, ``k`` has one root there, which is the minimiser, and Newton's method that has stayed within ``R`` is
within ``|k| / m`` of it. With the third derivative, the size of the last step bounds the error that it leaves.

The suprema are numbers, so that the largest ``|e|``, distance and step of a tensor decide for all of its entries. No
entry is looked at by itself, unless it is not covered: then the search of its activation takes it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ipdlam.prox.base import Activation

CHUNK = 1 << 16  # entries for each thread at once: what one step needs then stays in the cache
STEPS = 6  # at most; near sigma(v) = w it takes two
SLACK = 0.75  # how much of r the curvature of sigma may use up at the start
NARROW = 1e-2  # below this weight, a rounding of sigma moves x by many


class Bounds(NamedTuple):
    """The largest absolute values of three derivatives of an activation, away from its kinks."""

    first: float
    second: float
    third: float


class Curve(Activation):
    """An activation with two derivatives, but for its kinks: its prox is quick near ``sigma(v) = w``."""

    @property
    @abstractmethod
    def bounds(self) -> Bounds:
        """Upper bounds of ``|sigma'|``, ``|sigma''|`` and ``|sigma'''|``; the sharper, the more entries are quick."""

    def to_kink(self, x: Tensor) -> Tensor | None:
        """How far ``x`` is from the nearest point where one of the three derivatives does not exist, if any."""
        del x
        return None

    @abstractmethod
    def slopes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``sigma``, ``sigma'`` and ``sigma''``."""

    @abstractmethod
    def _search(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        """The global minimisers for any operands, which are one-dimensional."""

    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        x = torch.empty_like(v, memory_format=torch.contiguous_format)
        flat, flat_w, flat_v = x.view(-1), w.reshape(-1), v.reshape(-1)
        size = CHUNK * (torch.get_num_threads() if v.device.type == "cpu" else 1 << 10)
        left_over = []
        for start in range(0, len(flat), size):
            rows = slice(start, start + size)
            for places in solve(self, flat_w[rows], flat_v[rows], r, flat[rows]):
                left_over.append(places + start)
        if left_over:
            places = torch.cat(left_over)
            flat[places] = self._search(flat_w[places], flat_v[places], r)
        return x


def largest(x: Tensor) -> float:
    """The largest absolute value; NaN if there is one."""
    low, high = torch.aminmax(x)
    return max(-float(low), float(high))


class Plan(NamedTuple):
    """What the bounds of an activation promise, for residuals ``|e|`` up to the largest."""

    reach: float  # R = 2 rho
    tolerance: float  # of the last step: it leaves an error of half a rounding of 1, or less


def farthest(bounds: Bounds, r: float) -> float:
    """``rho / |e|``: how far a minimiser can be."""
    return min(1.0 / math.sqrt(r), bounds.first / r)


def limit(bounds: Bounds, r: float) -> float:
    """The largest ``|e|`` that is covered, with ``R = 2 rho``."""
    return SLACK * r / (bounds.second * (1.0 + 2.0 * bounds.first * farthest(bounds, r)))


def plan(bounds: Bounds, r: float, e: float, eps: float) -> Plan:
    """How far Newton's method may go, and when it may end."""
    reach = 2.0 * farthest(bounds, r) * e
    residual = e + bounds.first * reach
    least = r - bounds.second * residual  # m
    most = r + bounds.second * residual + bounds.first * bounds.first  # of the slope of k
    turn = bounds.third * residual + 3.0 * bounds.first * bounds.second  # of its second derivative
    # A step s leaves at most turn / (2 m) times the square of the error before it, which is at most |s| most / m.
    return Plan(reach, least / most * math.sqrt(eps * least / turn))


def solve(sigma: Curve, w: Tensor, v: Tensor, r: float, out: Tensor) -> list[Tensor]:
    """Write ``argmin_x (sigma(x) - w)^2 + r (x - v)^2`` to ``out``; return the places that need a search instead."""
    at, slope, bend = sigma.slopes(v)
    e, fits = w - at, w
    e_most, away = largest(e), sigma.to_kink(v)
    searched = []
    if away is not None or not e_most <= limit(sigma.bounds, r):
        places = uncovered(sigma.bounds, e, away, r)
        if len(places) == len(v):
            return [places]
        if len(places):
            # A perfect fit instead of each of them: they stay at v, and say nothing of the others.
            e, fits = e.index_fill(0, places, 0.0), w.index_put((places,), at[places])
            e_most = largest(e)
            searched.append(places)
    reach, tolerance = plan(sigma.bounds, r, e_most, torch.finfo(v.dtype).eps)
    d = (e * slope).div_((slope * slope).addcmul_(e, bend, value=-1.0).add_(r))
    distance = e_most * sigma.bounds.first / (r - sigma.bounds.second * e_most)  # at least |d|
    for _ in range(STEPS):
        at, slope, bend = sigma.slopes(v + d)
        e = fits - at
        step = (e * slope).sub_(d, alpha=r).div_((slope * slope).addcmul_(e, bend, value=-1.0).add_(r))
        d.add_(step)
        last = largest(step)
        distance += last
        if last <= tolerance:
            break
    if not (last <= tolerance and distance <= reach):
        settled = (step.abs() <= tolerance) & (d.abs() <= reach)
        searched.append((~settled).nonzero()[:, 0])
    torch.add(v, d, out=out)
    return [places for places in searched if len(places)]


def uncovered(bounds: Bounds, e: Tensor, away: Tensor | None, r: float) -> Tensor:
    """The places of the entries whose residual is large, or that may meet a kink on their way."""
    distance = e.abs()
    margin = limit(bounds, r) - distance
    if away is not None:
        margin = torch.minimum(margin, away.sub_(distance, alpha=2.0 * farthest(bounds, r)))
    if margin.device.type != "cpu":
        return (~(margin > 0.0)).nonzero()[:, 0]
    return torch.from_numpy(np.flatnonzero(~(margin.numpy() > 0.0)))  # several times faster than torch's there
