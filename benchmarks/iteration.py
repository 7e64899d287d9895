"""What one iteration costs, beside what its matrix products cost.

The unavoidable products of an iteration in order reverse, for widths d_0 ... d_L and N samples (a product of m x k by
k x n counts 2 m k n):

    A_(l-1) W_l^T              2 N d_(l-1) d_l   l = 1 ... L      the z update and the objective share it
    Z_l^T A_(l-1)              2 N d_(l-1) d_l   l = 1 ... L      the W update
    A_(l-1)^T A_(l-1)            N d_(l-1)^2     l = 2 ... L      symmetric: half; that of the input is taken once
    the a update               4 N d_l d_(l+1)   l = 1 ... L-1    the residual and the gain

For 784-1500-1500-10 and N = 60000 that is 1.64 TFLOP. Times on a shared machine drift, so everything is a ratio to the
SGEMM rate measured between the iterations of the same run, by the faster of torch's two routines
(:mod:`ipdlam.network.matmul`), which the engine and the slow engine take, too. Each figure is measured in a process of
its own, so that peak memory means something.

    python benchmarks/iteration.py                      # the size of the paper; writes results/iteration.json
    python benchmarks/iteration.py --scale smoke        # seconds, nothing to be concluded from it
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

import ipdlam
from ipdlam.network.linalg import aligned_empty
from ipdlam.network.matmul import multiplying, routine_for
from ipdlam.network.mlp import Network
from ipdlam.runs.environment import environment, peak_memory
from whole_array import WholeArrayIPDLAM

SCALES = {
    "paper": {
        "widths": [784, 1500, 1500, 10],
        "samples": 60000,
        "fewer": 15000,
        "iterations": 7,
        "square": 4096,
        "rate_seconds": 2.0,
        "threads": 2,
    },
    "smoke": {
        "widths": [20, 32, 32, 4],
        "samples": 400,
        "fewer": 100,
        "iterations": 2,
        "square": 128,
        "rate_seconds": 0.05,
        "threads": 1,
    },
}
PARTS = ("reverse", "linearity", "nested-reverse", "whole-array", "alignment")


def flops(widths: list[int], samples: int) -> float:
    """The unavoidable floating-point operations of one iteration, as counted above."""
    pairs = list(itertools.pairwise(widths))
    products = sum(4 * before * after for before, after in pairs)
    gram = sum(before * before for before, _ in pairs[1:])
    activations = sum(4 * before * after for before, after in pairs[1:])
    return float(samples * (products + gram + activations))


def state_bytes(widths: list[int], samples: int) -> int:
    """Two generations of z and a, and X and Y, in float32."""
    hidden, outputs = sum(widths[1:-1]), widths[-1]
    return 4 * samples * (2 * (2 * hidden + outputs) + widths[0] + outputs)


def sgemm_rate(size: int, seconds: float) -> float:
    """FLOP/s of square products by the routine in use, over about so many seconds."""
    A, B, C = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)
    torch.mm(A, B, out=C)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        torch.mm(A, B, out=C)
        count += 1
    return 2.0 * count * size**3 / (time.perf_counter() - started)


def make_problem(widths: list[int], samples: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Random data: an iteration costs the same whatever the numbers are."""
    generator = torch.Generator().manual_seed(0)
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        modules += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = ipdlam.initialise(nn.Sequential(*modules[:-1]), "paper", seed=0)
    X = torch.rand(samples, widths[0], generator=generator)
    return model, X, torch.randint(0, widths[-1], (samples,), generator=generator)


def measure_alignment(width: int, rows: int = 2000, repeats: int = 15) -> dict[str, object]:
    """Seconds of one product of the engine, on rows that start on cache lines and on packed ones."""
    seconds: dict[str, list[float]] = {"aligned": [], "packed": []}
    W = torch.rand(width, width)
    pairs = {
        "aligned": [aligned_empty(rows, width, torch.float32, torch.device("cpu")).fill_(0.5) for _ in range(2)],
        "packed": [torch.full((rows, width), 0.5) for _ in range(2)],
    }
    for _ in range(repeats):  # in turn, so that a slow moment of the machine hits both
        for name, (A, out) in pairs.items():
            started = time.perf_counter()
            torch.mm(A, W, out=out)
            seconds[name].append(time.perf_counter() - started)
    return {"part": "alignment", "width": width, "seconds": seconds}


def measure_linearity(widths: list[int], sizes: tuple[int, int], iterations: int) -> dict[str, object]:
    """Seconds of iterations at two numbers of samples, in turn, so that a slow moment of the machine hits both."""
    trainers, seconds = {}, {samples: [] for samples in sizes}
    for samples in sizes:
        model, X, y = make_problem(widths, samples)
        trainers[samples] = ipdlam.IPDLAM(model, penalty_growth=1.0, regularizer=None)
        trainers[samples].start(X, y)
    for _ in range(iterations):
        for samples, trainer in trainers.items():
            started = time.perf_counter()
            trainer.step(evaluate=False)
            seconds[samples].append(time.perf_counter() - started)
    return {"part": "linearity", "samples": list(sizes), "seconds": [seconds[samples] for samples in sizes]}


def measure(part: str, scale: str) -> dict[str, object]:
    """Seconds of every iteration of one part, with the SGEMM rate around each."""
    size = SCALES[scale]
    torch.set_num_threads(size["threads"])
    if part == "alignment":
        return measure_alignment(size["widths"][1])
    widths, samples = size["widths"], size["samples"]
    if part == "linearity":
        return measure_linearity(widths, (samples, size["fewer"]), size["iterations"])
    model, X, y = make_problem(widths, samples)
    routine = routine_for(Network(model))
    with multiplying(routine):
        return {**measure_iterations(part, size, model, X, y), "products": routine}


def measure_iterations(
    part: str, size: dict[str, object], model: nn.Sequential, X: torch.Tensor, y: torch.Tensor
) -> dict[str, object]:
    """The engine's iterations, or those of the slow one."""
    widths, iterations, samples = size["widths"], size["iterations"], size["samples"]
    rates, seconds, objectives = [sgemm_rate(size["square"], size["rate_seconds"])], [], []
    if part == "whole-array":
        linears = [module for module in model if isinstance(module, nn.Linear)]
        W, b = ([getattr(linear, name).detach().clone() for linear in linears] for name in ("weight", "bias"))
        Y = nn.functional.one_hot(y, widths[-1]).float()
        whole = WholeArrayIPDLAM(W, b, X, Y, inertia=0.7, delta=1.0, rho=0.1)
        iterations = min(iterations, 2)
    else:
        order = "nested-reverse" if part == "nested-reverse" else "reverse"
        trainer = ipdlam.IPDLAM(model, order=order, penalty_growth=1.0, regularizer=None)
        trainer.start(X, y)
    for _ in range(iterations):
        started = time.perf_counter()
        with torch.no_grad():
            objectives.append(whole.step() if part == "whole-array" else trainer.step(evaluate=False).objective)
        seconds.append(time.perf_counter() - started)
        rates.append(sgemm_rate(size["square"], size["rate_seconds"]))
    ideal = [flops(widths, samples) / (0.5 * (before + after)) for before, after in itertools.pairwise(rates)]
    return {
        "part": part,
        "samples": samples,
        "seconds": seconds,
        "sgemm_gflops": [rate / 1e9 for rate in rates],
        "ratio_to_products": [spent / least for spent, least in zip(seconds, ideal, strict=True)],
        "gflops": [flops(widths, samples) / spent / 1e9 for spent in seconds],
        "peak_bytes": peak_memory(),
        "state_bytes": state_bytes(widths, samples),
        "objective": objectives,
    }


def summarise(parts: dict[str, dict[str, object]], scale: str) -> dict[str, float]:
    """The figures that are promised, as ratios."""
    rated = ("reverse", "nested-reverse", "whole-array")
    median = {name: statistics.median(parts[name]["ratio_to_products"]) for name in rated}
    linearity = parts["linearity"]
    per_sample = [
        statistics.median(spent) / samples
        for samples, spent in zip(linearity["samples"], linearity["seconds"], strict=True)
    ]
    reverse, products = parts["reverse"], parts["alignment"]["seconds"]
    return {
        "teraflop_per_iteration": flops(SCALES[scale]["widths"], SCALES[scale]["samples"]) / 1e12,
        "seconds_per_iteration": statistics.median(reverse["seconds"]),
        "gflops": statistics.median(reverse["gflops"]),
        "gflops_nested_reverse": statistics.median(parts["nested-reverse"]["gflops"]),
        "sgemm_gflops": statistics.median(reverse["sgemm_gflops"]),
        "fraction_of_sgemm": 1.0 / median["reverse"],
        "fraction_of_sgemm_nested_reverse": 1.0 / median["nested-reverse"],
        "ratio_to_products": median["reverse"],
        "ratio_to_products_nested_reverse": median["nested-reverse"],
        "speedup_over_whole_arrays": median["whole-array"] / median["reverse"],
        "seconds_per_sample_ratio": per_sample[0] / per_sample[1],
        "aligned_rows_speedup": statistics.median(products["packed"]) / statistics.median(products["aligned"]),
        "peak_over_state": reverse["peak_bytes"] / reverse["state_bytes"],
        "peak_gigabytes": reverse["peak_bytes"] / 1e9,
        "allowed_gigabytes": (1.15 * reverse["state_bytes"] + 0.7e9) / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="paper")
    parser.add_argument("--output", type=Path, default=Path("results/iteration.json"))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(measure(options.part, options.scale)))
        return
    parts = {}
    for part in PARTS:
        command = [sys.executable, __file__, "--part", part, "--scale", options.scale]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        parts[part] = json.loads(answer.stdout)
        print(f"{part}: measured", flush=True)
    summary = summarise(parts, options.scale)
    for name, value in summary.items():
        print(f"{name:36} {value:10.3f}")
    result = {"command": f"python benchmarks/iteration.py --scale {options.scale}", "environment": environment()}
    result |= {"scale": options.scale, "summary": summary, "parts": parts}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
