"""The model of what an iteration costs counts what the engine does."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import costs
import ipdlam
import ipdlam.fullbatch.trainer
from costs import Machine
from ipdlam.distributed.group import divide_work
from ipdlam.fullbatch.passes import access_of
from problems import make_data, make_model

NETWORKS = [(5, 7, 6, 3), (4, 2), (9, 300, 11, 2), (3, 20, 400, 20, 5)]
MACHINE = Machine(1e10, 1e9, 1e9, 1e8, 1e8, bandwidth=1e8, latency=0.001)


def started(widths, samples=30, **settings):
    trainer = ipdlam.IPDLAM(make_model(widths, dtype=torch.float32), **settings)
    X, y = make_data(samples, widths[0], widths[-1], "squared", dtype=torch.float32)
    trainer.start(X, y)
    trainer.step(evaluate=False)  # the first iteration factorises what the others keep
    return trainer


def product(total, A, B, out_shape=None, **more):
    """FLOP, from shapes."""
    return 2 * A[0] * A[1] * B[1]


@pytest.mark.parametrize("widths", NETWORKS, ids=str)
@pytest.mark.parametrize("order", ["reverse", "increase"])
def test_the_products_of_an_iteration(widths, order):
    trainer = started(widths, chunk_size=7, order=order)
    in_place = {torch.ops.aten.addmm_: product}  # which torch does not count by itself
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        trainer.step(evaluate=False)
    of_gains = sum(max(pair) * costs.gram_flops(min(pair)) for pair in itertools.pairwise(widths[1:]))
    assert counter.get_total_flops() == 30 * sum(costs.sample_flops(widths)) + of_gains


def test_the_formula_for_products_at_the_size_of_the_paper():
    # What benchmarks/iteration.py calls unavoidable; the strips of the symmetric products add a little.
    assert 1.64e12 < 60000 * sum(costs.sample_flops((784, 1500, 1500, 10))) < 1.7e12


@pytest.mark.parametrize("widths", NETWORKS, ids=str)
def test_the_state(widths):
    trainer = started(widths)
    shard = trainer._state.variables.shard
    tensors = [*shard.current.values(), *shard.previous.values(), trainer._state.samples.X]
    assert costs.state_bytes(widths, 30) == 4 * sum(tensor.numel() for tensor in tensors)
    access = access_of(trainer.plan, trainer.plan.stages[-1].visit, shard.places())
    moved = sum(shard.widths[place.block] for place in (*access.reads, *access.writes)) + widths[0]
    assert costs.disk_bytes(widths, 30) == 4 * 30 * moved


@pytest.mark.parametrize("widths", NETWORKS, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_layers_are_given_to_the_ranks_that_solve_for_them(widths, ranks, monkeypatch):
    given = {}
    monkeypatch.setattr(
        ipdlam.fullbatch.passes, "divide_work", lambda work, size: given.update(work) or divide_work(work, size)
    )
    started(widths)
    assert costs.solve_owners(widths, ranks) == divide_work(given, ranks)


def test_a_ring_sends_almost_twice_the_buffer():
    for ranks in (2, 3, 8, 64):
        seconds = costs.allreduce_seconds(1e9, ranks, Machine(1, 1, 1, 1, 1, bandwidth=1e8, latency=0.0))
        assert seconds == pytest.approx(2 * (ranks - 1) / ranks * 10.0)
    assert costs.allreduce_seconds(1e9, 1, MACHINE) == 0.0


def test_a_small_sum_is_four_messages_for_each_other_rank():
    for ranks in (2, 3, 8):
        assert costs.allreduce_seconds(0, ranks, MACHINE) == pytest.approx(4 * (ranks - 1) * 0.001)


def test_what_does_not_depend_on_samples_limits_the_ranks():
    widths = (784, 1500, 1500, 10)
    one = costs.iteration_cost(widths, 1e6, 1, MACHINE)
    assert one.communication == 0.0
    assert one.total == one.samples + one.solves + one.small
    many = [costs.iteration_cost(widths, 1e6, ranks, MACHINE) for ranks in (2, 4, 64)]
    assert [one.samples / cost.samples for cost in many] == pytest.approx([2, 4, 64])
    communication = [cost.communication for cost in many]
    assert communication == sorted(communication)
    assert communication == [
        cost.communication for cost in (costs.iteration_cost(widths, 1, p, MACHINE) for p in (2, 4, 64))
    ]
    on_disk = Machine(1e10, 1e9, 1e9, 1e8, 1e8, 1e8, 0.001, disk=1e6)
    assert costs.pass_seconds(widths, 1e3, on_disk) == costs.disk_bytes(widths, 1e3) / 1e6


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 9])
def test_groups_of_layers_are_the_best_there_are(groups):
    pieces = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    count = min(groups, len(pieces)) - 1

    def largest(cuts):
        return max(sum(pieces[a:b]) for a, b in itertools.pairwise((0, *cuts, len(pieces))))

    cuts = costs.contiguous(pieces, groups)
    assert len(cuts) == count
    assert largest(cuts) == min(map(largest, itertools.combinations(range(1, len(pieces)), count)))


def test_layers_as_ranks_send_the_samples():
    widths = (100, 200, 200, 10)
    free = Machine(1e30, 1e30, 1e30, 1e30, 1e30, bandwidth=1e6, latency=0.0)
    # The layer in the middle of three ranks sends at both its ends.
    assert costs.layer_groups_seconds(widths, 1000, 3, free) == pytest.approx(4 * 1000 * (200 + 200) / 1e6)
    assert costs.layer_groups_seconds(widths, 1000, 1, free) < 1e-9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"widths": (5,)}, "widths must be"),
        ({"widths": (5, -1)}, "a width must be"),
        ({"samples": -1}, "samples must be"),
        ({"ranks": 0}, "ranks must be"),
        ({"machine": {"bandwidth": 0.0}}, "bandwidth must be"),
        ({"machine": {"latency": float("nan")}}, "latency must be"),
    ],
)
def test_sizes_and_machines_that_cannot_be_are_refused(change, said):
    given = {"widths": (5, 4), "samples": 10, "ranks": 2, "machine": {}, **change}

    def ask():
        machine = dataclasses.replace(MACHINE, **given["machine"])
        return costs.iteration_cost(given["widths"], given["samples"], given["ranks"], machine)

    with pytest.raises(ValueError, match=said):
        ask()
