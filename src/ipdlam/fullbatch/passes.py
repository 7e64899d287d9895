"""A visit of the samples, chunk by chunk (z and a updates, the objective, the moments), and the solves between two."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ipdlam.distributed.group import Group, divide_work
from ipdlam.errors import SolveError
from ipdlam.fullbatch.memory import Access, Chunk, Place
from ipdlam.fullbatch.moments import Moments
from ipdlam.fullbatch.orders import Block, Plan, Visit
from ipdlam.fullbatch.settings import Settings
from ipdlam.fullbatch.state import Variables
from ipdlam.fullbatch.updates import aim_z, update_a, update_b, update_hidden_z, update_output_z, update_W
from ipdlam.network.linalg import all_finite, gain
from ipdlam.network.mlp import Network
from ipdlam.network.objective import Objective, Tally, change_of, squared_distance, weighted_sum


class NotFiniteError(ArithmeticError):
    """The variables have become NaN or infinite: nothing can be solved for any more."""


def pass_over(
    variables: Variables, network: Network, settings: Settings, plan: Plan, visit: Visit, rho: float, next_rho: float
) -> Tally:
    """Visit every chunk once; updates after the objective belong to the next iteration and take its penalty."""
    shard, tally = variables.shard, Tally(n=variables.shard.samples.count)
    gains = gains_of(variables, settings, visit)
    with contextlib.closing(shard.chunks(access_of(plan, visit, shard.places()))) as chunks:
        for chunk in chunks:
            for block in visit.before:
                update(variables, network, settings, plan, chunk, block, rho, gains)
            if visit.measures:
                for l in network.numbers:
                    P = variables.preactivation(chunk, l)
                    measure(network, settings, chunk, l, P, tally)
                    if l in plan.foreseen:  # line 1: the next z update reads the same product
                        aim_z(P, chunk.z(l), chunk.previous[Block("z", l)], settings.inertia.z, settings.proximity)
            for block in visit.after:
                update(variables, network, settings, plan, chunk, block, next_rho, gains)
            for l in visit.moments:
                variables.sums[l].add(chunk.z(l), chunk.a(l - 1), chunk.weight)
    shard.swap((*visit.before, *visit.after))
    return tally


def gains_of(variables: Variables, settings: Settings, visit: Visit) -> dict[int, Tensor]:
    """What the a updates of a visit share over all samples, by layer."""
    c = 1.0 + settings.proximity
    layers = [l for kind, l in (*visit.before, *visit.after) if kind == "a"]
    try:
        return {l: gain(variables.W[l + 1], c, f"layer {l + 1}") for l in layers}
    except SolveError as error:  # W W^T + c I is positive definite unless it overflows
        raise NotFiniteError(str(error)) from error


def update(
    variables: Variables,
    network: Network,
    settings: Settings,
    plan: Plan,
    chunk: Chunk,
    block: Block,
    rho: float,
    gains: dict[int, Tensor],
) -> None:
    """The z or a update of one layer on one chunk: lines 4, 5 and 7, with the inertial points of lines 1 and 3."""
    l, delta = block.layer, settings.proximity
    previous = chunk.previous[block]
    if block.kind == "a":
        update_a(
            network.activation(l),
            chunk.z(l),
            chunk.a(l),
            previous,
            z_next=chunk.z(l + 1),
            W=variables.W[l + 1],
            b=variables.b[l + 1],
            K=gains[l],
            gamma=settings.inertia.a,
            delta=delta,
        )
    else:
        V = previous
        if l not in plan.foreseen:
            V = aim_z(variables.preactivation(chunk, l), chunk.z(l), previous, settings.inertia.z, delta)
        if l < len(network):
            update_hidden_z(network.activation(l), chunk.a(l), V, delta)
        else:
            targets = variables.shard.samples.targets(settings.loss, chunk.rows, network.outputs)
            update_output_z(settings.loss, targets, V, rho, delta)
    chunk.swap(block)


def measure(network: Network, settings: Settings, chunk: Chunk, l: int, P: Tensor, tally: Tally) -> None:
    """Add what a chunk and a layer give to the objective; ``P = a_(l-1) W_l^T + b_l``."""
    weight, z = chunk.weight, chunk.z(l)
    moving = settings.proximity > 0.0 and max(settings.inertia) > 0.0
    tally.linear_gap[l] += squared_distance(z, P, weight)
    if moving:
        tally.z_change += squared_distance(z, chunk.previous[Block("z", l)], weight)
    if l < len(network):
        a = chunk.a(l)
        tally.activation_gap[l] += squared_distance(a, z, weight, network.activation(l).value)
        if moving:
            tally.a_change += squared_distance(a, chunk.previous[Block("a", l)], weight)
    else:
        targets = chunk.samples.targets(settings.loss, chunk.rows, z.shape[1])
        tally.loss += weighted_sum(settings.loss.value(targets, z), weight)


def access_of(plan: Plan, visit: Visit, everything: frozenset[Place]) -> Access:
    """What a visit reads and writes: what :func:`measure`, :func:`update` and the moments take and give."""
    changed = {*visit.before, *visit.after}
    if visit.measures:
        changed |= {Block("z", l) for l in plan.foreseen}  # where the next z update starts from
    writes = frozenset(Place("previous", block) for block in changed)
    if visit.measures:
        return Access(everything, writes)
    read = {Block(kind, layer) for l in visit.moments for kind, layer in (("z", l), ("a", l - 1))}
    for kind, l in changed:
        read |= {Block("z", l), Block("a", l), Block("z", l + 1) if kind == "a" else Block("a", l - 1)}
    return Access(writes | {Place("current", block) for block in read} & everything, writes)


def sum_over(group: Group, variables: Variables, visit: Visit, tally: Tally) -> Tally:
    """Make the sums of a pass those over the samples of all processes: the moments in their place, and the tally."""
    if group.size == 1:
        return tally
    layers = len(variables.W)
    parts = {l: variables.sums[l].parts() for l in visit.moments}
    numbers = torch.tensor(tally.numbers(layers) if visit.measures else [], dtype=torch.float64)
    group.sum_(numbers, *(part for layer in parts.values() for part in layer))
    for l, summed in parts.items():
        variables.sums[l].put_back(summed)
    return Tally.from_numbers(numbers.tolist(), layers) if visit.measures else tally


def solve_layers(
    group: Group, variables: Variables, settings: Settings, layers: Sequence[int], rho: float, first: bool
) -> None:
    """The W updates of some layers, and after each its b update; no layer reads another's.

    A layer is solved for by one process, which gives its weights to the others: that is faster than if all of them
    solved for all, and the weights are the same to the bit whatever machines they are.
    """
    W, b = variables.W, variables.b
    owners = divide_work({l: W[l].shape[1] ** 2 * sum(W[l].shape) for l in layers}, group.size)
    new: dict[int, list[Tensor]] = defaultdict(list)
    for l in layers:
        moments = variables.sums[l].take()
        if not (all_finite(moments.ZtA) and all_finite(moments.AtA.matrix)):
            raise NotFiniteError(f"the sums over the samples of layer {l}")
        W_before, b_before = W[l], b[l]
        if owners[l] == group.rank:
            W[l], b[l] = solve_weights(variables, settings, l, moments, rho, first)
        else:
            W[l], b[l] = torch.empty_like(W_before), None if b_before is None else torch.empty_like(b_before)
        if group.size > 1:
            W[l] = W[l].contiguous()  # laid out alike on all ranks, for equal bits after a resume
        variables.W_previous[l], variables.b_previous[l] = W_before, b_before
        new[owners[l]] += [tensor for tensor in (W[l], b[l]) if tensor is not None]
    group.spread_(new)
    for l in layers:
        if not all_finite(W[l]):
            raise NotFiniteError(f"the weights of layer {l}")


def solve_weights(
    variables: Variables, settings: Settings, l: int, moments: Moments, rho: float, first: bool
) -> tuple[Tensor, Tensor | None]:
    """The W update of one layer, and its b update with the new W: lines 2 and 6; ``first`` after a start."""
    beta, (delta_W, delta_b) = settings.inertia.weights, settings.deltas_of_weights(moments.n)
    W, b, b_previous = variables.W[l], variables.b[l], variables.b_previous[l]
    known = None if first else W  # the weights of the start are no solution of an earlier system
    new = update_W(moments, W, variables.W_previous[l], b, beta, delta_W, rho, settings.regularizers[l - 1], known)
    if b is None or b_previous is None:
        return new, None
    return new, update_b(moments, new, b, b_previous, beta, delta_b)


def objective_of(variables: Variables, settings: Settings, tally: Tally, rho: float) -> Objective:
    """Phi after a pass: what the samples gave, and the terms of the weights."""
    W, b, inertia = variables.W, variables.b, settings.inertia
    regularization = math.fsum(
        R.scale(rho, tally.n) * float(R.value(W[l].double()))
        for l, R in enumerate(settings.regularizers, start=1)
        if R is not None
    )
    delta_W, delta_b = settings.deltas_of_weights(tally.n)
    energy = settings.proximity * (inertia.z * tally.z_change + inertia.a * tally.a_change)
    energy += inertia.weights * delta_W * change_of((W[l], variables.W_previous[l]) for l in W)
    energy += inertia.weights * delta_b * change_of((b[l], variables.b_previous[l]) for l in b)
    layers = sorted(W)
    return Objective(
        rho,
        tally.loss,
        regularization,
        tuple(tally.linear_gap[l] for l in layers),
        tuple(tally.activation_gap[l] for l in layers[:-1]),
        energy,
    )
