"""One pass over the samples: chunk by chunk, the z and a updates of a visit, the objective, and the moments."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor

from ipdlam.distributed.group import Group
from ipdlam.fullbatch.memory import Access, Chunk, Place
from ipdlam.fullbatch.moments import Moments
from ipdlam.fullbatch.orders import Block, Plan, Visit
from ipdlam.fullbatch.settings import Settings
from ipdlam.fullbatch.state import Run
from ipdlam.fullbatch.updates import aim_z, update_a, update_b, update_hidden_z, update_output_z, update_W
from ipdlam.network.linalg import gain
from ipdlam.network.mlp import Network
from ipdlam.network.objective import Objective, Tally, change_of, squared_distance, weighted_sum


def pass_over(
    run: Run, network: Network, settings: Settings, plan: Plan, visit: Visit, rho: float, next_rho: float
) -> Tally:
    """Visit every chunk once; updates after the objective belong to the next iteration and take its penalty."""
    tally = Tally(n=run.shard.samples.count)
    c = 1.0 + settings.proximity
    # What the a updates share over all samples.
    gains = {l: gain(run.W[l + 1], c, f"layer {l + 1}") for kind, l in (*visit.before, *visit.after) if kind == "a"}
    with contextlib.closing(run.shard.chunks(access_of(plan, visit, run.shard.places()))) as chunks:
        for chunk in chunks:
            for block in visit.before:
                update(run, network, settings, plan, chunk, block, rho, gains)
            if visit.measures:
                measure(run, network, settings, plan, chunk, tally)
            for block in visit.after:
                update(run, network, settings, plan, chunk, block, next_rho, gains)
            for l in visit.moments:
                run.sums[l].add(chunk.z(l), chunk.a(l - 1), chunk.weight)
    run.shard.swap((*visit.before, *visit.after))
    return tally


def sum_over(group: Group, run: Run, visit: Visit, tally: Tally) -> Tally:
    """Make the sums of a pass those over the samples of all processes: the moments in their place, and the tally."""
    if group.size == 1:
        return tally
    parts = {l: run.sums[l].parts() for l in visit.moments}
    numbers = torch.tensor(tally.numbers(len(run.W)) if visit.measures else [], dtype=torch.float64)
    group.sum_(numbers, *(part for layer in parts.values() for part in layer))
    for l, summed in parts.items():
        run.sums[l].put_back(summed)
    return Tally.from_numbers(numbers.tolist(), len(run.W)) if visit.measures else tally


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


def update(
    run: Run,
    network: Network,
    settings: Settings,
    plan: Plan,
    chunk: Chunk,
    block: Block,
    rho: float,
    gains: dict[int, Tensor],
) -> None:
    """The z or a update of one layer on one chunk."""
    l, delta = block.layer, settings.proximity
    previous = chunk.previous[block]
    if block.kind == "a":
        update_a(
            network.activation(l),
            chunk.z(l),
            chunk.a(l),
            previous,
            z_next=chunk.z(l + 1),
            W=run.W[l + 1],
            b=run.b[l + 1],
            K=gains[l],
            gamma=settings.inertia.a,
            delta=delta,
        )
    else:
        V = previous
        if l not in plan.foreseen:
            V = aim_z(run.preactivation(chunk, l), chunk.z(l), previous, settings.inertia.z, delta)
        if l < len(network):
            update_hidden_z(network.activation(l), chunk.a(l), V, delta)
        else:
            targets = run.shard.samples.targets(settings.loss, chunk.rows, network.outputs)
            update_output_z(settings.loss, targets, V, rho, delta)
    chunk.swap(block)


def solve_weights(run: Run, settings: Settings, l: int, moments: Moments, rho: float) -> tuple[Tensor, Tensor | None]:
    """The W update of one layer, and its b update with the new W: lines 2 and 6."""
    beta, (delta_W, delta_b) = settings.inertia.weights, settings.deltas_of_weights(moments.n)
    W, b, b_previous = run.W[l], run.b[l], run.b_previous[l]
    known = None if run.iteration == 0 else W  # the weights of the start are no solution of an earlier system
    new = update_W(moments, W, run.W_previous[l], b, beta, delta_W, rho, settings.regularizers[l - 1], known)
    if b is None or b_previous is None:
        return new, None
    return new, update_b(moments, new, b, b_previous, beta, delta_b)


def measure(run: Run, network: Network, settings: Settings, plan: Plan, chunk: Chunk, tally: Tally) -> None:
    """Add a chunk's share of the objective, and prepare the z updates that read the same products."""
    samples, weight = run.shard.samples, chunk.weight
    moving = settings.proximity > 0.0 and max(settings.inertia) > 0.0
    for l in network.numbers:
        z, z_previous = chunk.z(l), chunk.previous[Block("z", l)]
        P = run.preactivation(chunk, l)
        tally.linear_gap[l] += squared_distance(z, P, weight)
        if moving:
            tally.z_change += squared_distance(z, z_previous, weight)
        if l < len(network):
            a = chunk.a(l)
            tally.activation_gap[l] += squared_distance(a, z, weight, network.activation(l).value)
            if moving:
                tally.a_change += squared_distance(a, chunk.previous[Block("a", l)], weight)
        else:
            losses = settings.loss.value(samples.targets(settings.loss, chunk.rows, z.shape[1]), z)
            tally.loss += weighted_sum(losses, weight)
        if l in plan.foreseen:
            aim_z(P, z, z_previous, settings.inertia.z, settings.proximity)


def objective_of(run: Run, settings: Settings, tally: Tally, rho: float) -> Objective:
    """Phi after a pass: what the samples gave, and the terms of the weights."""
    inertia = settings.inertia
    regularization = math.fsum(
        R.scale(rho, tally.n) * float(R.value(run.W[l].double()))
        for l, R in enumerate(settings.regularizers, start=1)
        if R is not None
    )
    delta_W, delta_b = settings.deltas_of_weights(tally.n)
    energy = settings.proximity * (inertia.z * tally.z_change + inertia.a * tally.a_change)
    energy += inertia.weights * delta_W * change_of((run.W[l], run.W_previous[l]) for l in run.W)
    energy += inertia.weights * delta_b * change_of((run.b[l], run.b_previous[l]) for l in run.b)
    layers = sorted(run.W)
    return Objective(
        rho,
        tally.loss,
        regularization,
        tuple(tally.linear_gap[l] for l in layers),
        tuple(tally.activation_gap[l] for l in layers[:-1]),
        energy,
    )
