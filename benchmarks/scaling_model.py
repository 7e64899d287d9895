"""From the measurements of ``scaling.py`` to the model of ``costs``: its fit, its errors, what it predicts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import costs
from costs import Machine, iteration_cost

PAPER = (784, 1500, 1500, 10)
BILLION = 10**9
RATES = (1e9, 1e10, 1e11)  # of networks, in bits a second
LATENCY = 50e-6  # seconds, one way, of a network that nobody has measured
MEMORY, DISK = 512e9, 2e9  # of a machine that nobody has measured: bytes, bytes a second
NODE = {"products": 48, "elements": 48, "solves": 16}  # how much faster 64 cores are taken to be than one of these
DEEP = (784, *[1500] * 10, 10)


def median(steps: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.median(step[name] for step in steps)


def least_relative(columns: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """Non-negative factors with the least sum of squared relative errors: the best of those of all sets of columns."""
    A = np.array(columns, dtype=float).T / np.array(measured, dtype=float)[:, None]
    best, found = math.inf, [0.0] * A.shape[1]
    for count in range(1, A.shape[1] + 1):
        for chosen in itertools.combinations(range(A.shape[1]), count):
            factors = np.linalg.lstsq(A[:, chosen], np.ones(len(A)), rcond=None)[0]
            error = float(np.square(A[:, chosen] @ factors - 1.0).sum())
            if (factors >= 0.0).all() and error < best:
                best, found = error, [0.0] * A.shape[1]
                for place, factor in zip(chosen, factors, strict=True):
                    found[place] = float(factor)
    return found


def speed(seconds: float) -> float:
    """How many in a second; any number where one takes no time that could be seen."""
    return 1.0 / seconds if seconds > 0.0 else 1e15


def fit_machine(rows: Sequence[dict[str, Any]]) -> tuple[Machine, float]:
    """One core of the machine that was measured, and how much longer two cores take at a time than one."""
    cases = [row for row in rows if row["part"] == "processes" and not row["held_out"]]
    alone = [(row, row[kind], row["samples"] / share) for row in cases for kind, share in (("one", 1), ("half", 2))]
    products, elements = least_relative(
        [
            [n * sum(costs.sample_flops(row["widths"])) for row, _, n in alone],
            [n * sum(costs.sample_elements(row["widths"])) for row, _, n in alone],
        ],
        [median(steps, "samples") for _, steps, _ in alone],
    )
    (solves,) = least_relative(
        [[sum(costs.gain_flops(row["widths"])) + sum(costs.solve_flops(row["widths"])) for row, _, _ in alone]],
        [median(steps, "gains") + median(steps, "solves") for _, steps, _ in alone],
    )
    moments, overhead = least_relative(
        [[costs.moment_numbers(row["widths"]) for row, _, _ in alone], [1.0 for _ in alone]],
        [median(steps, "small") for _, steps, _ in alone],
    )
    (packing,) = least_relative(
        [[costs.moment_numbers(row["widths"]) for row in cases]], [median(row["two"], "packing") for row in cases]
    )
    machine = Machine(
        speed(products), speed(elements), speed(solves), speed(moments), speed(packing), 1.0, 0.0, overhead
    )
    slower = statistics.median(median(row["apart"], "samples") / median(row["half"], "samples") for row in cases)
    return fit_transport(machine, rows), slower


def fit_transport(machine: Machine, rows: Sequence[dict[str, Any]]) -> Machine:
    """The rate and the latency of gloo where there is no network in between, from its sums alone."""
    local = [row for row in rows if row["part"] == "collectives" and row["rate"] is None]
    smallest = min(local, key=lambda row: row["bytes"])
    latency = statistics.median(smallest["sum"]) / costs.allreduce_seconds(0.0, 2, at(machine, 1.0, 1.0))
    found, best = machine, math.inf
    for bandwidth in np.geomspace(1e7, 1e11, 2000):
        candidate, error = at(machine, float(bandwidth), latency), 0.0
        for row in local:
            if row is not smallest:
                predicted = costs.allreduce_seconds(row["bytes"], 2, candidate)
                error += math.log(predicted / statistics.median(row["sum"])) ** 2
        if error < best:
            found, best = candidate, error
    return found


def at(machine: Machine, bandwidth: float, latency: float) -> Machine:
    return dataclasses.replace(machine, bandwidth=bandwidth, latency=latency)


def shared(machine: Machine, slower: float) -> Machine:
    """A core while the other one works, too."""
    return dataclasses.replace(machine, products=machine.products / slower, elements=machine.elements / slower)


def behind(machine: Machine, rate: float | None, delay: float) -> Machine:
    """A machine whose messages go through a network: the slower of it and of gloo counts, and both delays."""
    bandwidth = machine.bandwidth if rate is None else min(machine.bandwidth, rate / 8)
    return at(machine, bandwidth, machine.latency + delay)


def checks(rows: Sequence[dict[str, Any]], machine: Machine, slower: float) -> list[dict[str, Any]]:
    """Measured and predicted seconds of every run."""
    found = []
    for row in rows:
        if row["part"] == "collectives":
            continue
        network = {"rate": row.get("rate"), "delay": row.get("delay", 0.0)}
        kinds = {"one": (1, row["samples"]), "half": (1, row["samples"] // 2), "two": (2, row["samples"])}
        for kind, (ranks, samples) in kinds.items():
            if kind not in row:
                continue
            own = behind(shared(machine, slower), **network) if ranks > 1 else machine
            cost = iteration_cost(row["widths"], samples, ranks, own)
            seconds = [step["seconds"] for step in row[kind]]
            found.append(
                {
                    "widths": row["widths"],
                    "samples": samples,
                    "ranks": ranks,
                    **network,
                    "held_out": row["part"] == "networks" or row["held_out"],
                    "measured": statistics.median(seconds),
                    "least": min(seconds),
                    "most": max(seconds),
                    "predicted": cost.total,
                    "error": cost.total / statistics.median(seconds) - 1.0,
                    "communication_measured": median(row[kind], "communication"),
                    "communication_predicted": cost.communication,
                }
            )
    return found


def broadcast_seconds(size: float, ranks: int, machine: Machine) -> float:
    """gloo's tree: who has the buffer sends it to all its children at once, through one wire."""
    rounds = (ranks - 1).bit_length()
    return rounds * (rounds + 1) / 2 * size / machine.bandwidth + 2 * rounds * machine.latency


def collectives(rows: Sequence[dict[str, Any]], machine: Machine) -> list[dict[str, Any]]:
    """gloo's sum and broadcast beside what its ring and its tree should take."""
    found = []
    for row in (row for row in rows if row["part"] == "collectives"):
        own = behind(machine, row["rate"], 0.0)
        for kind, model in (("sum", costs.allreduce_seconds), ("broadcast", broadcast_seconds)):
            same = {name: row[name] for name in ("ranks", "rate", "bytes")}
            seconds = statistics.median(row[kind])
            found.append(
                {**same, "kind": kind, "measured": seconds, "predicted": model(row["bytes"], row["ranks"], own)}
            )
    return found


def efficiency(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What two processes gain, beside what two cores can give."""
    found = []
    for row in (row for row in rows if row["part"] == "processes"):
        seconds = {kind: median(row[kind], "seconds") for kind in ("one", "two", "half", "apart")}
        spread = max(max(step["seconds"] for step in row[kind]) / seconds[kind] - 1.0 for kind in seconds)
        two, parts = row["two"], ("samples", "gains", "solves", "packing", "small", "communication")
        sent = {step["bytes"] for step in two}
        found.append(
            {
                "widths": row["widths"],
                "samples": row["samples"],
                "seconds": seconds,
                "speedup": seconds["one"] / seconds["two"],
                "strong": seconds["one"] / (2.0 * seconds["two"]),
                "weak": seconds["half"] / seconds["two"],
                "cores": seconds["half"] / seconds["apart"],
                "library": seconds["apart"] / seconds["two"],
                "spread": spread,
                "parts_of_two": {name: median(two, name) for name in parts},
                "bytes": max(sent),
                "formula": costs.iteration_bytes(row["widths"], 2),
                "same_bytes": sent == {costs.iteration_bytes(row["widths"], 2)},
            }
        )
    return found


def layers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How the work of a pass divides over layers, and what two groups of layers could gain at most by it."""
    found = []
    for row in (row for row in rows if row["part"] == "processes"):
        seconds = [statistics.median(column) for column in zip(*(step["layers"] for step in row["one"]), strict=True)]
        flops = costs.sample_flops(row["widths"])
        (cut,) = costs.contiguous(seconds, 2)
        crossover = costs.iteration_bytes(row["widths"], 2) / (4 * row["widths"][cut])
        found.append(
            {
                "widths": row["widths"],
                "samples": row["samples"],
                "seconds": seconds,
                "share_of_flops": [flop / sum(flops) for flop in flops],
                "cut": cut,
                "best_of_two_groups": sum(seconds) / max(sum(seconds[:cut]), sum(seconds[cut:])),
                "best_of_any": sum(seconds) / max(seconds),
                "data_parallel": median(row["one"], "seconds") / median(row["two"], "seconds"),
                "sent_layers": 4 * row["samples"] * row["widths"][cut],
                "sent_data": costs.iteration_bytes(row["widths"], 2),
                "crossover": crossover,
            }
        )
    return found


def node(machine: Machine) -> Machine:
    """64 cores as one rank: products and element-wise work scale, factorisations less, the rest not at all."""
    return dataclasses.replace(machine, **{name: getattr(machine, name) * times for name, times in NODE.items()})


def equal_ranks(widths: Sequence[int], samples: float, machine: Machine) -> int:
    """With how many ranks communication takes as long as the pass over the samples."""
    ranks = 1
    while ranks < 1 << 24:
        cost = iteration_cost(widths, samples, 2 * ranks, machine)
        if cost.communication >= cost.samples:
            break
        ranks *= 2
    low, high = ranks, 2 * ranks
    while high - low > 1:
        middle = (low + high) // 2
        cost = iteration_cost(widths, samples, middle, machine)
        low, high = (low, middle) if cost.communication >= cost.samples else (middle, high)
    return high


def predictions(machine: Machine) -> list[dict[str, Any]]:
    """64 machines and a billion samples."""
    found = []
    state = costs.state_bytes(PAPER, BILLION / 64)
    for name, own in (("one core", machine), ("64 cores", node(machine))):
        for rate in RATES:
            there = at(own, rate / 8, LATENCY)
            if state > MEMORY:
                there = dataclasses.replace(there, disk=DISK)
            in_memory = dataclasses.replace(there, disk=math.inf)
            cost, fast = (iteration_cost(PAPER, BILLION, 64, some) for some in (there, in_memory))
            serial = iteration_cost(PAPER, BILLION, 1, there)
            weights = costs.allreduce_seconds(4 * costs.weight_numbers(PAPER), 64, there)
            found.append(
                {
                    "machine": name,
                    "rate": rate,
                    "state": state,
                    "seconds": cost.total,
                    "seconds_in_memory": fast.total,
                    "communication": cost.communication,
                    "share": cost.communication / cost.total,
                    "share_in_memory": fast.communication / fast.total,
                    "of_weights": weights / cost.communication,
                    "efficiency": serial.total / (64 * cost.total),
                    "equal_ranks": equal_ranks(PAPER, BILLION, in_memory),
                    "equal_ranks_60000": equal_ranks(PAPER, 60000, in_memory),
                }
            )
    return found


def improved(widths: Sequence[int], samples: float, ranks: int, machine: Machine) -> float:
    """Samples divided as the library does not do it: a layer's moments go to the rank that solves for it, and no other.

    That rank works out the gain, too, which has as many numbers as the weights, and gives both to all. Adding up for
    one rank, and giving to all, are each half of the ring of a sum. Everything is packed, and only what is a rank's
    own unpacked.
    """
    owners = costs.solve_owners(widths, ranks)
    work = [gain + solve for gain, solve in zip(costs.gain_flops(widths), costs.solve_flops(widths), strict=True)]
    largest = max(sum(work[l - 1] for l in owners if owners[l] == rank) for rank in set(owners.values()))
    halves = (8 * costs.moment_numbers(widths), 4 * costs.weight_numbers(widths), 4 * costs.weight_numbers(widths))
    sent = sum(costs.allreduce_seconds(size, ranks, machine) / 2 for size in halves)
    sent += 3 * costs.allreduce_seconds(costs.meeting_bytes(ranks), ranks, machine)
    small = machine.overhead + costs.moment_numbers(widths) * (1.0 / machine.moments + 0.5 / machine.packing)
    return costs.pass_seconds(widths, samples / ranks, machine) + largest / machine.solves + small + sent


def groups(machine: Machine) -> list[dict[str, Any]]:
    """Samples or layers divided: predicted seconds where the one or the other should be better."""
    found = []
    for name, rank, rate in (("one core", machine, RATES[0]), ("64 cores", node(machine), RATES[1])):
        own = at(rank, rate / 8, LATENCY)
        for widths in (PAPER, DEEP):
            ranks = len(widths) - 1
            sent = costs.communication_seconds(widths, ranks, at(own, rate / 8, 0.0)) * rate / 8
            ends = max(below + above for below, above in itertools.pairwise((0, *widths[1:-1], 0)))
            for samples in (1000, 10000, 60000, 10**6):
                found.append(
                    {
                        "machine": name,
                        "widths": list(widths),
                        "samples": samples,
                        "ranks": ranks,
                        "rate": rate,
                        "one": iteration_cost(widths, samples, 1, own).total,
                        "samples_divided": iteration_cost(widths, samples, ranks, own).total,
                        "fixed": iteration_cost(widths, 0, ranks, own).total,
                        "samples_improved": improved(widths, samples, ranks, own),
                        "layers_divided": costs.layer_groups_seconds(widths, samples, ranks, own),
                        "crossover": sent / (4 * ends),
                    }
                )
    return found


def conclusions(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Everything that follows from the measurements."""
    machine, slower = fit_machine(rows)
    fitted = {name: value for name, value in dataclasses.asdict(machine).items() if name != "disk"}
    return {
        "machine": fitted,
        "two_cores_slower": slower,
        "checks": checks(rows, machine, slower),
        "collectives": collectives(rows, machine),
        "efficiency": efficiency(rows),
        "layers": layers(rows),
        "predictions": predictions(machine),
        "groups": groups(machine),
    }


def errors(found: Sequence[dict[str, Any]], held_out: bool) -> list[float]:
    return sorted(abs(check["error"]) for check in found if check["held_out"] == held_out)


def summary(result: dict[str, Any]) -> list[str]:
    """In a few lines."""
    lines = [f"{name:12} {value:.3g}" for name, value in result["machine"].items()]
    lines.append(f"a core beside a busy one takes {result['two_cores_slower']:.3f} of the time")
    for held_out in (False, True):
        found = errors(result["checks"], held_out)
        if found:
            name = "held out" if held_out else "fitted"
            lines.append(f"{name}: {len(found)} runs, error {statistics.median(found):.1%}, at most {found[-1]:.1%}")
    return lines


def draw(result: dict[str, Any], path: Path) -> Path:
    """Measured against predicted; what networks cost; what is predicted for more ranks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ipdlam.training.plots import house_style, save
    from scaling_picture import draw_checks, draw_networks, draw_predictions

    with house_style():
        figure = Figure(figsize=(12.0, 5.0), layout="constrained")
        FigureCanvasAgg(figure)
        left, middle, right = figure.subplots(1, 3)
        draw_checks(left, result["checks"])
        draw_networks(middle, result)
        draw_predictions(right, Machine(**result["machine"]))
        return save(figure, path)
