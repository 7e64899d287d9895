"""What an iteration of the full-batch method costs in one process or in several: a model, nothing is measured here.

It counts the work of an order of one pass (reverse, increase) for widths ``d_0 ... d_L`` and N samples on p ranks:

    sums over samples   N / p times the products of a pass (:func:`sample_flops`), and element-wise work on z and a
    solves              :func:`solve_flops` of the layers, divided over ranks as the trainer does; gains on every rank
    small work          what goes through all weights and moments once, whatever N is; packing them where p > 1
    communication       :func:`iteration_bytes` through gloo's ring, below

gloo sums a buffer of B bytes in a ring: it is cut into S segments of at most 1 MiB, at least 2 p and a multiple of p of
them, and every rank sends ``2 (S - S / p)`` segments, two of them at a time, each when its receiver has said that it
is ready for it. So a segment takes the longer of its time on the wire, ``s``, and ``latency + s / 2``.
docs/results/scaling.md compares all of this with measurements.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ipdlam.checks import check_integer, check_number
from ipdlam.distributed.group import divide_work
from ipdlam.network.linalg import strips

SEGMENT = 1 << 20  # bytes that gloo sends at a time


@dataclass(frozen=True)
class Machine:
    """What one process has to work with; everything in a second, but for the latency."""

    products: float  # FLOP of the products over samples, in the model's precision
    elements: float  # numbers of z and a that go through all element-wise work of a pass
    solves: float  # FLOP of factorisations and solves, in float64
    moments: float  # numbers of the weights and moments that go through all small work
    packing: float  # numbers that go into and out of the buffer of a sum
    bandwidth: float  # bytes each way
    latency: float  # seconds, one way, of one message
    overhead: float = 0.0  # seconds of an iteration, whatever the sizes
    disk: float = math.inf  # bytes read or written, where z and a are on one

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name in ("latency", "overhead"):
                check_number(item.name, value, low=0.0)
            elif not (item.name == "disk" and value == math.inf):
                check_number(item.name, value, low=0.0, strict=True)


@dataclass(frozen=True)
class Cost:
    """Seconds of one iteration on the rank that is done last."""

    samples: float  # the pass over the samples
    solves: float
    small: float  # moments, packing and overhead
    communication: float

    @property
    def total(self) -> float:
        return self.samples + self.solves + self.small + self.communication


def layers_of(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Inputs and outputs of layers 1 ... L."""
    if len(widths) < 2:
        raise ValueError(f"widths must be those of the inputs and of one layer or more, got {tuple(widths)!r}")
    for width in widths:
        check_integer("a width", width, 1)
    return list(itertools.pairwise(widths))


def gram_flops(width: int) -> int:
    """Of the symmetric product ``A^T A`` for each row of ``A``: strips that cover the upper triangle."""
    cuts = strips(width)
    return sum(2 * (stop - start) * (width - start) for start, stop in itertools.pairwise(cuts))


def sample_flops(widths: Sequence[int]) -> list[int]:
    """Of the products of a pass for each sample, by layer.

    ``A_(l-1) W_l^T`` and ``Z_l^T A_(l-1)`` of every layer; the Gram matrix and the two products of the update of
    ``a_(l-1)`` of every layer but the first, whose input is constant.

    >>> sample_flops((4, 3, 2))
    [48, 66]
    """
    return [
        4 * inputs * outputs + (gram_flops(inputs) + 4 * inputs * outputs if l > 1 else 0)
        for l, (inputs, outputs) in enumerate(layers_of(widths), start=1)
    ]


def sample_elements(widths: Sequence[int]) -> list[int]:
    """Numbers of ``z_l`` and ``a_(l-1)`` for each sample, by layer; the inputs are no variables."""
    return [outputs + (inputs if l > 1 else 0) for l, (inputs, outputs) in enumerate(layers_of(widths), start=1)]


def gain_flops(widths: Sequence[int]) -> list[float]:
    """Of what the update of ``a_(l-1)`` needs of ``W_l`` (:func:`ipdlam.network.linalg.gain`), by layer."""
    found = [0.0]
    for inputs, outputs in layers_of(widths)[1:]:
        small, large = sorted((inputs, outputs))
        found.append(large * gram_flops(small) + small**3 / 3 + 2.0 * small * small * large)
    return found


def solve_flops(widths: Sequence[int]) -> list[float]:
    """Of the W updates without L1: a Cholesky factor, for layer 1 once in a run, and its solves, by layer."""
    return [
        2.0 * inputs * inputs * outputs + (inputs**3 / 3 if l > 1 else 0.0)
        for l, (inputs, outputs) in enumerate(layers_of(widths), start=1)
    ]


def weight_numbers(widths: Sequence[int]) -> int:
    """Weights and biases."""
    return sum(inputs * outputs + outputs for inputs, outputs in layers_of(widths))


def moment_numbers(widths: Sequence[int]) -> int:
    """What the ranks add up after a pass, the terms of the objective included (ipdlam.distributed.group)."""
    found = 2 * (len(widths) - 1) + 3
    for l, (inputs, outputs) in enumerate(layers_of(widths), start=1):
        found += inputs * outputs + outputs + 1
        if l > 1:
            found += inputs * (inputs + 1) // 2 + inputs
    return found


def meeting_bytes(ranks: int) -> int:
    """Of a meeting of the ranks."""
    return 24 * ranks


def iteration_bytes(widths: Sequence[int], ranks: int, *, itemsize: int = 4, passes: int = 1) -> int:
    """What every rank gives to the sums of an iteration; ``itemsize`` of the model's numbers.

    Two meetings a pass, one for the seconds of rank 0, the sums in float64 and the new weights. Evaluations come on
    top of it.
    """
    if ranks == 1:
        return 0
    return (2 * passes + 1) * meeting_bytes(ranks) + 8 * moment_numbers(widths) + itemsize * weight_numbers(widths)


def state_bytes(widths: Sequence[int], samples: float, *, itemsize: int = 4) -> float:
    """Two generations of z and a, and the inputs."""
    return itemsize * samples * (2 * sum(sample_elements(widths)) + widths[0])


def disk_bytes(widths: Sequence[int], samples: float, *, itemsize: int = 4) -> float:
    """What a pass reads and writes where z and a are on a disk: everything is read, one generation is written."""
    return state_bytes(widths, samples, itemsize=itemsize) + itemsize * samples * sum(sample_elements(widths))


def allreduce_seconds(size: float, ranks: int, machine: Machine) -> float:
    """gloo's ring, for a buffer of so many bytes."""
    if ranks == 1:
        return 0.0
    segments = ranks * max(2, math.ceil(math.ceil(size / SEGMENT) / ranks))
    wire = size / segments / machine.bandwidth
    return 2 * (segments - segments // ranks) * max(wire, machine.latency + wire / 2)


def solve_owners(widths: Sequence[int], ranks: int) -> dict[int, int]:
    """Which rank solves for which layer."""
    costs = {l: inputs**2 * (inputs + outputs) for l, (inputs, outputs) in enumerate(layers_of(widths), start=1)}
    return divide_work({l: float(costs[l]) for l in reversed(costs)}, ranks)


def communication_seconds(widths: Sequence[int], ranks: int, machine: Machine, *, itemsize: int = 4) -> float:
    """The sums, the new weights, and three meetings."""
    if ranks == 1:
        return 0.0
    buffers = (8 * moment_numbers(widths), itemsize * weight_numbers(widths), *[meeting_bytes(ranks)] * 3)
    return sum(allreduce_seconds(size, ranks, machine) for size in buffers)


def pass_seconds(widths: Sequence[int], samples: float, machine: Machine, *, itemsize: int = 4) -> float:
    """A pass of one rank over its own samples; reading ahead and writing behind hide the shorter of work and disk."""
    work = samples * (sum(sample_flops(widths)) / machine.products + sum(sample_elements(widths)) / machine.elements)
    return max(work, disk_bytes(widths, samples, itemsize=itemsize) / machine.disk)


def iteration_cost(widths: Sequence[int], samples: float, ranks: int, machine: Machine, *, itemsize: int = 4) -> Cost:
    """Seconds of one iteration, the samples divided evenly over ranks that are all such machines.

    >>> slow = Machine(1e11, 1e9, 4e10, 1e8, 1e8, bandwidth=1.25e8, latency=1e-4)
    >>> [round(iteration_cost((784, 1500, 1500, 10), 60000, ranks, slow).total, 1) for ranks in (1, 4, 16)]
    [17.7, 5.6, 2.6]
    """
    check_number("samples", samples, low=0.0)
    check_integer("ranks", ranks, 1)
    gains, solves, owners = sum(gain_flops(widths)), solve_flops(widths), solve_owners(widths, ranks)
    loads = [sum(solves[l - 1] for l in owners if owners[l] == rank) for rank in set(owners.values())]
    small = machine.overhead + moment_numbers(widths) / machine.moments
    if ranks > 1:
        small += moment_numbers(widths) / machine.packing
    return Cost(
        samples=pass_seconds(widths, samples / ranks, machine, itemsize=itemsize),
        solves=(gains + max(loads)) / machine.solves,
        small=small,
        communication=communication_seconds(widths, ranks, machine, itemsize=itemsize),
    )


def contiguous(pieces: Sequence[float], groups: int) -> tuple[int, ...]:
    """Where to cut pieces into at most so many groups of neighbours, so that the largest sum is the least.

    >>> contiguous([1.0, 4.0, 2.0, 2.0], 2)
    (2,)
    """
    groups = min(groups, len(pieces))
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
    for stop in range(1, len(pieces) + 1):
        best[1, stop] = (sum(pieces[:stop]), ())
    for group in range(2, groups + 1):
        for stop in range(group, len(pieces) + 1):
            best[group, stop] = min(
                (max(best[group - 1, cut][0], sum(pieces[cut:stop])), (*best[group - 1, cut][1], cut))
                for cut in range(group - 1, stop)
            )
    return best[groups, len(pieces)][1]


def layer_groups_seconds(
    widths: Sequence[int], samples: float, ranks: int, machine: Machine, *, itemsize: int = 4
) -> float:
    """At best, what an iteration would take with the layers divided over ranks, and not the samples.

    Layer l has ``a_(l-1)``, ``z_l`` and ``W_l``: every product is then one rank's own. Where two ranks meet, at
    ``d_l``, the one below needs the new ``a_l`` for the update of ``z_l``, and the one above ``z_l`` for that of
    ``a_l``: N ``d_l`` numbers each way in every pass. All of that is taken to be hidden behind the products, as far
    as it is not longer. The library does not do it; docs/results/scaling.md says why.
    """
    flops, elements = sample_flops(widths), sample_elements(widths)
    fixed = [gain + solve for gain, solve in zip(gain_flops(widths), solve_flops(widths), strict=True)]
    work = [
        samples * (flop / machine.products + element / machine.elements) + once / machine.solves
        for flop, element, once in zip(flops, elements, fixed, strict=True)
    ]
    cuts = (0, *contiguous(work, ranks), len(work))
    slowest = 0.0
    for start, stop in itertools.pairwise(cuts):
        sent = itemsize * samples * sum(widths[cut] for cut in (start, stop) if 0 < cut < len(work))
        slowest = max(slowest, sum(work[start:stop]), sent / machine.bandwidth)
    return slowest + moment_numbers(widths) / (len(cuts) - 1) / machine.moments + machine.overhead
