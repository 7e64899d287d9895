"""How an iteration of the full-batch method divides over processes, and a model that says how it would over more.

    python benchmarks/scaling.py measure fit draw       # some 15 minutes on two idle cores; results/scaling.json, .png
    python benchmarks/scaling.py measure fit draw --scale smoke --output /tmp/scaling.json     # seconds
    python benchmarks/scaling.py measure --parts processes              # one part of what is measured
    python benchmarks/scaling.py fit draw                               # from what has been measured

``measure`` has three parts. **processes**: for several networks, in turn, an iteration of one process on N samples, of
two processes on N / 2 each, of one process on N / 2, and of two processes on N / 2 each that know nothing of each
other, which tells what two cores lose to each other from what the library loses. All have one thread, on one core.
Random data: an iteration costs the same. **collectives**: gloo's sum and broadcast alone, between 2, 4 and 8 processes.
**networks**: two processes in network namespaces, with limited rates and with delays (``networks.py``; for root).

``fit`` makes the model of ``costs`` fit the measurements that are not held out, compares it with all of them,
and predicts. Rows are written as they are made, and not made again by the next call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import networks
import scaling_model
import scaling_ranks
from ipdlam.runs.environment import environment
from scaling_ranks import Ranks

PARTS = ("processes", "collectives", "networks")
PAPER = [784, 1500, 1500, 10]
SMALL = [784, 500, 500, 10]
MEGABIT = 1e6  # bits a second
SHORT = 1 << 20  # bytes

SCALES: dict[str, dict[str, Any]] = {
    "full": {
        # widths, samples, iterations after the first, held out from the fit
        "processes": [
            (SMALL, 20000, 5, False),
            ([784, 1000, 10], 20000, 5, False),
            ([256, 128, 128, 10], 60000, 5, False),
            ([100, 300, 300, 300, 300, 10], 20000, 5, False),
            (PAPER, 5000, 4, False),
            (PAPER, 20000, 3, False),
            ([300, 800, 200, 800, 5], 20000, 5, True),
            ([784, 1000, 1000, 10], 20000, 3, True),
            ([50, 64, 64, 64, 64, 2], 100000, 5, True),
            (PAPER, 60000, 2, True),
        ],
        # ranks, rate, sizes in bytes
        "collectives": [
            *((ranks, None, size) for ranks in (2,) for size in (48, 1 << 20, 1 << 23, 45_000_000)),
            *((ranks, 100 * MEGABIT, size) for ranks in (2, 4, 8) for size in (24 * ranks, 1 << 22)),
        ],
        # widths, samples, rate, milliseconds of delay
        "networks": [
            *((SMALL, 20000, rate, delay) for rate in (None, 1000 * MEGABIT, 100 * MEGABIT) for delay in (0, 1, 10)),
            (PAPER, 5000, 1000 * MEGABIT, 1),
            (PAPER, 5000, 100 * MEGABIT, 0),
        ],
        "iterations": 3,  # in networks
    },
    "smoke": {
        "processes": [([20, 32, 32, 4], 400, 2, False), ([30, 16, 4], 300, 2, False), ([20, 40, 4], 400, 2, True)],
        "collectives": [(2, None, 48), (2, None, 1 << 20)],
        "networks": [([20, 32, 32, 4], 400, 100 * MEGABIT, 0), ([20, 32, 32, 4], 400, 100 * MEGABIT, 1)],
        "iterations": 2,
    },
}


def measure_processes(widths: list[int], samples: int, iterations: int) -> dict[str, Any]:
    """Iterations of the four kinds in turn, so that a slow moment of the machine hits all of them."""
    half = samples // 2
    kinds = {"one": (1, samples, True), "two": (2, half, True), "half": (1, half, True), "apart": (2, half, False)}
    found: dict[str, Any] = {name: [] for name in kinds}
    with contextlib.ExitStack() as stack:
        ranks = {name: stack.enter_context(Ranks(size, group=group)) for name, (size, _, group) in kinds.items()}
        for name, (_, own, _) in kinds.items():
            ranks[name].ask(scaling_ranks.start, widths, own)
        for number in range(iterations + 1):
            for name in kinds:
                answers = ranks[name].ask(scaling_ranks.step)
                if number:  # the first one factorises what the others keep
                    found[name].append(scaling_ranks.together(answers))
    return found


def measure_network(
    widths: list[int], samples: int, rate: float | None, delay: float, iterations: int
) -> dict[str, Any]:
    with networks.Network(2, rate, delay) as network, Ranks(2, network=network) as ranks:
        ranks.ask(scaling_ranks.start, widths, samples // 2)
        steps = [scaling_ranks.together(ranks.ask(scaling_ranks.step)) for _ in range(iterations + 1)]
    return {"means": network.means, "two": steps[1:]}


def measure_collectives(ranks: int, rate: float | None, size: int) -> dict[str, Any]:
    repeats = 3 if rate is not None and size > SHORT else 50  # a short one is as good as the wake-up of a process
    with contextlib.ExitStack() as stack:
        network = None if rate is None else stack.enter_context(networks.Network(ranks, rate))
        group = stack.enter_context(Ranks(ranks, network=network))
        kinds = ("sum", "broadcast")
        return {kind: group.ask(scaling_ranks.collective, kind, size, repeats)[0] for kind in kinds}


def plan(scale: str, parts: list[str]) -> list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """Every row, by what defines it, and how it is made."""
    size = SCALES[scale]
    found: list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = []
    for widths, samples, iterations, held_out in size["processes"]:
        spec = {"part": "processes", "widths": widths, "samples": samples, "held_out": held_out}
        found.append((spec, partial(measure_processes, widths, samples, iterations)))
    for ranks, rate, bytes_ in size["collectives"]:
        spec = {"part": "collectives", "ranks": ranks, "rate": rate, "bytes": bytes_}
        found.append((spec, partial(measure_collectives, ranks, rate, bytes_)))
    for widths, samples, rate, milliseconds in size["networks"]:
        delay = milliseconds / 1000
        spec = {"part": "networks", "widths": widths, "samples": samples, "rate": rate, "delay": delay}
        found.append((spec, partial(measure_network, widths, samples, rate, delay, size["iterations"])))
    return [(spec, make) for spec, make in found if spec["part"] in parts]


def measure(scale: str, parts: list[str], result: dict[str, Any], save: Callable[[], None]) -> None:
    rows, reason = result["rows"], networks.why_not()
    result["networks"] = {"missing": reason, "netem": reason is None and networks.has_netem()}
    if reason is not None:
        print(f"no network namespaces: {reason}; what needs them is left out")
    for spec, make in plan(scale, parts):
        words = ", ".join(f"{name} {value}" for name, value in spec.items())
        needs = spec["part"] == "networks" or spec.get("rate") is not None
        if any(row.items() >= spec.items() for row in rows):
            continue
        if needs and reason is not None:
            print(f"left out: {words}")
            continue
        started = time.perf_counter()
        rows.append({**spec, **make()})
        print(f"{words}: measured in {time.perf_counter() - started:.0f} s", flush=True)
        save()
    save()


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt  # namespaces are taken down on the way out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="+", choices=("measure", "fit", "draw"))
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="of what is measured")
    parser.add_argument("--output", type=Path, help="[default: results/scaling.json]")
    options = parser.parse_args()
    if options.scale == "smoke" and options.output is None:
        parser.error("--scale smoke needs an --output of its own: its runs are no results")
    output = options.output or Path("results/scaling.json")
    signal.signal(signal.SIGTERM, interrupted)
    torch.set_num_threads(1)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # namespaces have no names of hosts, of which torch warns
    result: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {"rows": []}

    def save() -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=1) + "\n")

    if "measure" in options.commands:
        smoke = " --scale smoke" if options.scale == "smoke" else ""
        result = {"command": f"python benchmarks/scaling.py measure fit draw{smoke}"} | result
        result["environment"] = environment()
        measure(options.scale, options.parts, result, save)
    if "fit" in options.commands:
        result |= scaling_model.conclusions(result["rows"])
        save()
        print("\n".join(scaling_model.summary(result)))
    if "draw" in options.commands:
        print(f"drawn: {scaling_model.draw(result, output.with_suffix('.png'))}")


if __name__ == "__main__":
    main()
