"""What narrow products gain and lose: mini-batches in float32 and in bfloat16, side by side on the same batches.

    IPDLAM_DATA=... python benchmarks/precision.py    # the wide problems of race.py; writes results/precision.json

Both take turns of an eighth of an epoch, on one thread, with the defaults; the clock stops while they are evaluated.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
from pathlib import Path

import torch

from ipdlam.network.graph import Graph
from ipdlam.network.matmul import multiplying, routine_for
from ipdlam.network.memory import keep_freed_memory
from ipdlam.runs.environment import environment
from race import Contestant, Rows, race, read, steps_of, write
from race_methods import OURS, untuned
from race_problems import PROBLEMS, SMOKE, Problem

RESULTS = Path(__file__).parent.parent / "results" / "precision.json"
PRECISIONS = ("float32", "bfloat16")
SEEDS = (0, 1, 2)


def measure(key: str, problem: Problem, seed: int) -> Rows:
    """A training in each precision, over the longest plan."""
    data, epochs = problem.split(tuning=False), problem.plans[-1]
    steps = steps_of(len(data[0]), problem.batch, epochs)
    with multiplying(routine_for(Graph(problem.network(0)))):
        both = {
            precision: Contestant(OURS, problem, {**untuned(problem), "precision": precision}, seed, steps)
            for precision in PRECISIONS
        }
        race(list(both.values()), data, problem.batch, epochs, seed)
    spec = {"problem": key, "seed": seed, "epochs": epochs}
    return [
        {
            **spec,
            "precision": precision,
            "score": one.curve[-1][2],
            "milliseconds": 1000 * one.seconds / one.steps,
            "environment": environment(),
        }
        for precision, one in both.items()
    ]


def table(result: dict) -> list[str]:
    """For each problem the accuracies, their difference, and the ratio of the times."""
    lines = ["| problem | float32 | bfloat16 | difference | time of a step |", "|---|---:|---:|---:|---:|"]
    for key in dict.fromkeys(row["problem"] for row in result["rows"]):
        own = {
            precision: [row for row in result["rows"] if (row["problem"], row["precision"]) == (key, precision)]
            for precision in PRECISIONS
        }
        full, narrow = (100 * statistics.fmean(row["score"] for row in rows) for rows in own.values())
        times = [b["milliseconds"] / a["milliseconds"] for a, b in zip(*own.values(), strict=True)]
        cells = [PROBLEMS[key].title, f"{full:.2f} %", f"{narrow:.2f} %", f"{narrow - full:+.2f}"]
        lines.append(f"| {' | '.join(cells)} | x {statistics.median(times):.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=["mnist", "fashion"])
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--output", type=Path, help="[default: results/precision.json]")
    options = parser.parse_args()
    smoke = options.scale == "smoke"
    if smoke and options.output is None:
        parser.error("--scale smoke needs an --output of its own: its runs are no results")
    problems = {"digits": SMOKE} if smoke else {key: PROBLEMS[key] for key in options.problems}
    output = options.output or RESULTS
    rows = read(output)
    torch.set_num_threads(1)
    keep_freed_memory(large=True)
    for key, problem in problems.items():
        for seed in SEEDS[:1] if smoke else SEEDS:
            if any((row["problem"], row["seed"]) == (key, seed) for row in rows):
                continue
            rows += measure(key, problem, seed)
            write(output, "python benchmarks/precision.py", rows)
            for row in rows[-2:]:
                print(
                    f"{key}, seed {seed}, {row['precision']}: {row['score']:.4f}, {row['milliseconds']:.1f} ms a step"
                )


if __name__ == "__main__":
    main()
