"""The benchmark of several processes: its smallest run, and the fit of its model."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

import pytest

import costs
import forked
import networks
import scaling
import scaling_model
import scaling_ranks
from costs import Machine, iteration_cost
from programs import run

TRUE = Machine(7e10, 4e8, 2e10, 3e8, 1e8, bandwidth=8e8, latency=1e-4, overhead=0.002)
SLOWER = 1.2


def steps(machine, widths, samples, ranks):
    """What a machine that is exactly the model would be measured to do."""
    cost = iteration_cost(widths, samples, ranks, machine)
    gains = sum(costs.gain_flops(widths)) / machine.solves
    packing = costs.moment_numbers(widths) / machine.packing if ranks > 1 else 0.0
    found = {"seconds": cost.total, "samples": cost.samples, "gains": gains, "solves": cost.solves - gains}
    found |= {"packing": packing, "small": cost.small - packing, "communication": cost.communication}
    layers = [float(flops) for flops in costs.sample_flops(widths)]
    return [{**found, "bytes": costs.iteration_bytes(widths, ranks), "layers": layers}] * 3


def rows():
    both = scaling_model.shared(TRUE, SLOWER)
    found = []
    for widths, samples, _, held_out in scaling.SCALES["full"]["processes"]:
        row = {"part": "processes", "widths": widths, "samples": samples, "held_out": held_out}
        row |= {"one": steps(TRUE, widths, samples, 1), "half": steps(TRUE, widths, samples // 2, 1)}
        found.append({**row, "two": steps(both, widths, samples, 2), "apart": steps(both, widths, samples // 2, 1)})
    for ranks, rate, size in scaling.SCALES["full"]["collectives"]:
        own = scaling_model.behind(TRUE, rate, 0.0)
        row = {"part": "collectives", "ranks": ranks, "rate": rate, "bytes": size}
        row |= {
            "sum": [costs.allreduce_seconds(size, ranks, own)],
            "broadcast": [scaling_model.broadcast_seconds(size, ranks, own)],
        }
        found.append(row)
    for widths, samples, rate, milliseconds in scaling.SCALES["full"]["networks"]:
        own = scaling_model.behind(both, rate, milliseconds / 1000)
        row = {"part": "networks", "widths": widths, "samples": samples, "rate": rate, "delay": milliseconds / 1000}
        found.append({**row, "means": "veth", "two": steps(own, widths, samples, 2)})
    return found


def test_the_fit_finds_a_machine_that_is_the_model():
    found = scaling_model.conclusions(rows())
    for name, value in found["machine"].items():
        assert value == pytest.approx(getattr(TRUE, name), rel=0.01), name
    assert found["two_cores_slower"] == pytest.approx(SLOWER)
    assert statistics.median(abs(check["error"]) for check in found["checks"]) < 0.01
    assert max(abs(check["error"]) for check in found["checks"]) < 0.02
    assert {check["held_out"] for check in found["checks"]} == {True, False}
    assert all(case["same_bytes"] for case in found["efficiency"])


def test_equal_ranks_are_where_the_two_costs_meet():
    slow = dataclasses.replace(TRUE, bandwidth=1e7)
    ranks = scaling_model.equal_ranks((784, 1500, 1500, 10), 1e6, slow)
    before, there = (iteration_cost((784, 1500, 1500, 10), 1e6, p, slow) for p in (ranks - 1, ranks))
    assert before.communication < before.samples
    assert there.communication >= there.samples


def test_the_benchmark_measures_and_goes_on(tmp_path):
    output = tmp_path / "scaling.json"
    words = ("--scale", "smoke", "--output", str(output), "--parts", "processes", "collectives")
    printed = run("benchmarks/scaling.py", "measure", "fit", "draw", *words)
    assert printed.count(": measured in ") == 5
    result = json.loads(output.read_text())
    for case in result["efficiency"]:
        assert case["same_bytes"]
        assert case["bytes"] == costs.iteration_bytes(case["widths"], 2)
    for row in (row for row in result["rows"] if row["part"] == "processes"):
        for step in (*row["one"], *row["two"]):
            parts = sum(step[name] for name in ("samples", "gains", "solves", "packing", "small", "communication"))
            assert 0.0 < parts < 2.0 * step["seconds"]
            assert sum(step["layers"]) <= step["samples"]
            assert len(step["layers"]) == len(row["widths"]) - 1
    assert output.with_suffix(".png").stat().st_size > 10_000
    assert "measured in" not in forked.run("benchmarks/scaling.py", "measure", *words)  # it starts no processes now


def test_namespaces_delay_and_are_taken_down():
    reason = networks.why_not()
    if reason is not None:
        pytest.skip(reason)
    with networks.Network(2, rate=1e9, delay=0.005) as network:
        assert all(Path(f"/run/netns/{name}").exists() for name in network.names)
        with scaling_ranks.Ranks(2, network=network) as ranks:
            seconds = ranks.ask(scaling_ranks.collective, "sum", 48, 3)[0]
    assert min(seconds) > 4 * 0.005  # the two halves of a ring, each a word that a rank is ready and an answer
    assert not any(Path(f"/run/netns/{name}").exists() for name in (*network.names, network.hub))


def test_what_a_killed_run_has_left_is_taken_down():
    reason = networks.why_not()
    if reason is not None:
        pytest.skip(reason)
    left = f"{networks.PREFIX}-{2**22 + 1}-0"  # no process has this number
    networks.run("ip", "netns", "add", left)
    networks.remove_leftovers()
    assert not Path(f"/run/netns/{left}").exists()


@pytest.mark.parametrize(("ranks", "times"), [(1, 0), (2, 1), (3, 3), (4, 3), (8, 6), (64, 21)])
def test_a_tree_whose_branches_share_a_wire(ranks, times):
    exact = costs.Machine(1, 1, 1, 1, 1, bandwidth=1e8, latency=0.0)
    assert scaling_model.broadcast_seconds(1e8, ranks, exact) == pytest.approx(times)
