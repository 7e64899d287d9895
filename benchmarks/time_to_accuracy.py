"""Wall-clock to an accuracy: the mini-batch method with its defaults against tuned optimizers.

784-1500-1500-10, PyTorch's initialisation, batches of 512, all methods on the same batches in the same order. They take
turns of a quarter of an epoch, so that a noisy machine is noisy for all; the clock stops while they are evaluated.
Steps rise and descend over a planned number of epochs. Every method is run with each plan; its time to an accuracy is
that of the plan that gets there first.

    IPDLAM_DATA=... python benchmarks/time_to_accuracy.py tune      # rates, on held-out training samples
    IPDLAM_DATA=... python benchmarks/time_to_accuracy.py measure   # three seeds; writes results/time_to_accuracy.json
    python benchmarks/time_to_accuracy.py tune measure --scale smoke --output /tmp/time.json    # digits, seconds

An optimizer's rate follows the schedule of the mini-batch method; for Adam constant rates are tried too. The rate is
chosen that needs the fewest steps to the middle target on 5000 held-out training samples (seed 100), or has the best
accuracy where none gets there. The mini-batch method is not tuned. Everything is written as it is made, and not made
again by the next call.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import ipdlam
from ipdlam.minibatch.schedule import StepSchedule
from ipdlam.network.initialise import mlp
from ipdlam.runs.environment import environment

TARGETS = {"mnist": (0.97, 0.98, 0.984), "fashion-mnist": (0.88, 0.89, 0.90), "digits": (0.8, 0.9, 0.95)}
PLANS = {"mnist": (1, 3), "fashion-mnist": (4,), "digits": (2, 4)}  # epochs
TUNING_EPOCHS = {"mnist": 2, "fashion-mnist": 2, "digits": 2}
TURNS = 4  # to an epoch
SEEDS, TUNING_SEED = (0, 1, 2), 100
HELD_OUT = 5000

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], str, tuple[float, ...]]] = {
    "adam": (torch.optim.Adam, "squared", (0.0005, 0.001, 0.002, 0.004)),
    "adam, cross-entropy": (torch.optim.Adam, "cross_entropy", (0.0005, 0.001, 0.002, 0.004, 0.008)),
    "amsgrad": (functools.partial(torch.optim.Adam, amsgrad=True), "squared", (0.0005, 0.001, 0.002, 0.004, 0.008)),
    "adamw": (torch.optim.AdamW, "squared", (0.0005, 0.001, 0.002, 0.004, 0.008)),
    "rmsprop": (torch.optim.RMSprop, "squared", (0.0001, 0.0003, 0.001, 0.002)),
    "sgd with momentum": (functools.partial(torch.optim.SGD, momentum=0.9), "squared", (0.03, 0.1, 0.3, 1.0, 3.0)),
}
SCHEDULES = ("linear", "constant")  # constant rates are tried for Adam alone: in so few epochs they lose
SCHEDULE = StepSchedule()  # the one that the mini-batch method has built in
OURS = "minibatch"


class Contestant:
    """A method at work on its own copy of the network; :attr:`seconds` counts its training alone."""

    def __init__(self, name: str, seed: int, widths: tuple[int, ...], steps: int, rate: float, schedule: str) -> None:
        self.name, self.seconds, self.steps = name, 0.0, 0
        self.curve: list[tuple[int, float, float]] = []  # steps, seconds, accuracy
        self.model = mlp(widths, "relu", "torch", seed, torch.float32, "cpu")
        self.step = self.ours(steps) if name == OURS else self.descent(steps, rate, schedule)

    def ours(self, steps: int) -> Callable[[Tensor, Tensor], object]:
        return ipdlam.MiniBatchIPDLAM(self.model, horizon=steps).step

    def descent(self, steps: int, rate: float, schedule: str) -> Callable[[Tensor, Tensor], object]:
        kind, loss, _ = OPTIMIZERS[self.name]
        optimizer = kind(self.model.parameters(), lr=rate)
        outputs = [module for module in self.model if isinstance(module, nn.Linear)][-1].out_features
        count = 0

        def step(x: Tensor, y: Tensor) -> None:
            nonlocal count
            if schedule == "linear":
                optimizer.param_groups[0]["lr"] = rate * SCHEDULE.at(count, count / steps)
            optimizer.zero_grad()
            z = self.model(x)
            if loss == "cross_entropy":
                value = cross_entropy(z, y)
            else:
                value = 0.5 * (z - one_hot(y, outputs).to(z.dtype)).square().sum(1).mean()
            value.backward()
            optimizer.step()
            count += 1

        return step

    def turn(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        started = time.perf_counter()
        for x, y in batches:
            self.step(x, y)
        self.seconds += time.perf_counter() - started
        self.steps += len(batches)

    def score(self, X: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            right = sum(
                int((self.model(X[i : i + 5000]).argmax(1) == y[i : i + 5000]).sum()) for i in range(0, len(X), 5000)
            )
        self.curve.append((self.steps, self.seconds, right / len(X)))

    def reached(self, target: float) -> tuple[int, float] | None:
        """Steps and seconds at the first score of at least ``target``."""
        return next(((steps, seconds) for steps, seconds, accuracy in self.curve if accuracy >= target), None)


def race(
    contestants: list[Contestant], X: Tensor, y: Tensor, test: tuple[Tensor, Tensor], seed: int, plan: dict
) -> None:
    """Train all of them on the same batches, in turns, until all have reached the last target or the plan ends."""
    generator = torch.Generator().manual_seed(seed)
    last = max(plan["targets"])
    contestants = list(contestants)
    for _ in range(plan["epochs"]):
        rows = torch.randperm(len(X), generator=generator).split(plan["batch"])
        cut = math.ceil(len(rows) / TURNS)
        for first in range(0, len(rows), cut):
            batches = [(X[which], y[which]) for which in rows[first : first + cut]]
            for contestant in contestants:
                contestant.turn(batches)
                contestant.score(*test)
            contestants = [*contestants[1:], *contestants[:1]]  # nobody is always first
            contestants = [contestant for contestant in contestants if not contestant.reached(last)]


def problem(name: str, tuning: bool, epochs: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], dict[str, Any]]:
    data = ipdlam.datasets.load(name)
    X, y = data.X, data.y
    held = min(HELD_OUT, len(X) // 5)
    if tuning or data.X_test is None or data.y_test is None:
        X, y, test = X[:-held], y[:-held], (X[-held:], y[-held:])
    else:
        test = (data.X_test, data.y_test)
    batch = 64 if name == "digits" else 512
    hidden = (50, 50) if name == "digits" else (1500, 1500)
    plan = {"batch": batch, "epochs": epochs, "targets": TARGETS[name], "steps": epochs * math.ceil(len(X) / batch)}
    return X, y, test, {**plan, "widths": (X.shape[1], *hidden, 10)}


def tune(name: str, rows: list[dict], save: Callable[[], None]) -> None:
    X, y, test, plan = problem(name, True, TUNING_EPOCHS[name])
    for method, (_, _, rates) in OPTIMIZERS.items():
        for schedule in SCHEDULES if method == "adam" else SCHEDULES[:1]:
            for rate in rates:
                spec = {"part": "tune", "data": name, "method": method, "rate": rate, "schedule": schedule}
                if any(row.items() >= spec.items() for row in rows):
                    continue
                one = Contestant(method, TUNING_SEED, plan["widths"], plan["steps"], rate, schedule)
                race([one], X, y, test, TUNING_SEED, {**plan, "targets": plan["targets"][:2]})
                reached = one.reached(plan["targets"][1])
                best = max(accuracy for _, _, accuracy in one.curve)
                rows.append({**spec, "epochs": plan["epochs"], "steps": reached and reached[0], "best": best})
                print(f"{name}, {method} {rate:g} {schedule}: {rows[-1]['steps']} steps, best {best:.4f}", flush=True)
                save()


def chosen(name: str, method: str, rows: list[dict]) -> tuple[float, str]:
    """The rate and the schedule that tuning found best."""
    tuned = [row for row in rows if row["part"] == "tune" and row["data"] == name and row["method"] == method]
    if not tuned:
        raise SystemExit(f"{method} on {name} has not been tuned: run the part tune first")
    best = min(tuned, key=lambda row: (row["steps"] or math.inf, -row["best"]))
    return best["rate"], best["schedule"]


def measure(name: str, rows: list[dict], save: Callable[[], None], seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        for epochs in PLANS[name]:
            spec = {"part": "measure", "data": name, "seed": seed, "epochs": epochs}
            if not any(row.items() >= spec.items() for row in rows):
                rows += measured(name, seed, epochs, rows, spec)
                save()


def measured(name: str, seed: int, epochs: int, rows: list[dict], spec: dict) -> list[dict]:
    """One race of all methods."""
    X, y, test, plan = problem(name, False, epochs)
    settings = {OURS: (0.0, ""), **{method: chosen(name, method, rows) for method in OPTIMIZERS}}
    contestants = [
        Contestant(method, seed, plan["widths"], plan["steps"], rate, schedule)
        for method, (rate, schedule) in settings.items()
    ]
    race(contestants, X, y, test, seed, plan)
    found = []
    for one in contestants:
        rate, schedule = settings[one.name]
        reached = {f"{target:g}": one.reached(target) for target in plan["targets"]}
        tuned = {} if one.name == OURS else {"rate": rate, "schedule": schedule}
        speed = 1000 * one.seconds / one.steps
        found.append(
            {
                **spec,
                "method": one.name,
                **tuned,
                "reached": reached,
                "curve": one.curve,
                "milliseconds_per_step": speed,
            }
        )
        print(f"{name}, seed {seed}, {epochs} epochs, {one.name}: {reached}, {one.curve[-1]}", flush=True)
    return found


def first_time(runs: list[dict], target: str) -> tuple[int, float, int] | None:
    """Steps, seconds and plan of the run that reaches a target in the shortest time."""
    times = [(*row["reached"][target], row["epochs"]) for row in runs if row["reached"][target]]
    return min(times, key=lambda time: time[1], default=None)


def summary(rows: list[dict]) -> list[dict]:
    """Medians over the seeds, and the median of the seeds' ratios to Adam."""
    races = [row for row in rows if row["part"] == "measure"]
    found = []
    for data in dict.fromkeys(row["data"] for row in races):
        own = [row for row in races if row["data"] == data]
        seeds = list(dict.fromkeys(row["seed"] for row in own))
        for target in own[0]["reached"]:
            times = {
                (method, seed): first_time([r for r in own if (r["method"], r["seed"]) == (method, seed)], target)
                for method in dict.fromkeys(row["method"] for row in own)
                for seed in seeds
            }
            for method in dict.fromkeys(row["method"] for row in own):
                mine = [time for seed in seeds if (time := times[method, seed])]
                seconds, whole = [time[1] for time in mine], len(mine) == len(seeds)
                ratios = [
                    ours[1] / adams[1]
                    for seed in seeds
                    if (ours := times[method, seed]) and (adams := times["adam", seed])
                ]
                found.append(
                    {
                        "data": data,
                        "target": float(target),
                        "method": method,
                        "runs": len(seeds),
                        "reached": len(mine),
                        "median_seconds": statistics.median(seconds) if whole else None,
                        "least": min(seconds, default=None),
                        "most": max(seconds, default=None),
                        "median_steps": statistics.median(time[0] for time in mine) if whole else None,
                        "plans": [time[2] for time in mine],
                        "median_ratio_to_adam": statistics.median(ratios) if len(ratios) == len(seeds) else None,
                    }
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("tune", "measure"))
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--data", nargs="+", choices=("mnist", "fashion-mnist"), default=["mnist", "fashion-mnist"])
    parser.add_argument("--output", type=Path, help="[default: results/time_to_accuracy.json]")
    options = parser.parse_args()
    if options.scale == "smoke" and options.output is None:
        parser.error("--scale smoke needs an --output of its own: its runs are no results")
    options.output = options.output or Path("results/time_to_accuracy.json")
    smoke = options.scale == "smoke"
    rows = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    command = f"python benchmarks/time_to_accuracy.py tune measure{' --scale smoke' if smoke else ''}"
    where = environment()

    def save() -> None:
        result = {"command": command, "environment": where, "summary": summary(rows), "rows": rows}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")

    for name in ["digits"] if smoke else options.data:
        if "tune" in options.parts:
            tune(name, rows, save)
        if "measure" in options.parts:
            measure(name, rows, save, SEEDS[:1] if smoke else SEEDS)


if __name__ == "__main__":
    main()
