"""Changes of the mini-batch method that others' successes suggest, each tried by itself, on held-out training samples.

    IPDLAM_DATA=... python benchmarks/race_leads.py        # two seeds; writes results/race_leads.json

Averaged weights (Defazio et al., 2024): steps do not descend, they start from between the last weights and their
average, and the average is the result. Other output sides of the metric than ours (a root of low rank): none, and the
wishes for the outputs of hidden layers times a power of the inverse of their whole second moment, as K-FAC has it.
Levelled moves, as Muon has them and as we have them in
convolutions: the singular values of hidden layers' moves are made equal. Another reach: how far the targets of
activations lie. Batches that grow: in the first half of the plan every batch is two.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import ipdlam
from ipdlam.minibatch import step as stepping
from ipdlam.minibatch import sweep as sweeping
from ipdlam.minibatch.schedule import WARMUP_BATCHES
from race import METHODS, Contestant, race, read, steps_of, write
from race_methods import Method, Ours, Settings, untuned
from race_problems import PROBLEMS, SMOKE, Problem, perceptron

RESULTS = Path(__file__).parent.parent / "results" / "race_leads.json"
SEEDS = (100, 101)
MOST = 20000  # training samples


class Averaged:
    """Steps without descent from ``W + (1 - share) (Z - W)``, where ``Z`` are the last weights, ``W`` their average."""

    def __init__(self, problem: Problem, model: nn.Module, settings: Settings, steps: int) -> None:
        self.share = settings.pop("share")
        self.trainer = ipdlam.MiniBatchIPDLAM(model, inertia=0.0, **settings)
        self.weights = [parameter.data for parameter in model.parameters()]
        self.ahead: list[Tensor] | None = None  # Z - W
        self.batches, self.total = 0, 0.0

    def step(self, x: Tensor, y: Tensor) -> None:
        if self.ahead is None:  # the first step also scales the layers: there is nothing to average yet
            self.trainer.step(x, y)
            self.ahead = [torch.zeros_like(weight) for weight in self.weights]
            return
        average = [weight.clone() for weight in self.weights]
        torch._foreach_add_(self.weights, self.ahead, alpha=1.0 - self.share)
        before = [weight.clone() for weight in self.weights]
        self.trainer.step(x, y)
        torch._foreach_add_(self.ahead, self.weights)
        torch._foreach_sub_(self.ahead, before)
        self.batches += 1
        weight = min(1.0, self.batches / WARMUP_BATCHES) ** 2  # those of the rise count for less
        self.total += weight
        torch._foreach_copy_(self.weights, average)
        torch._foreach_add_(self.weights, self.ahead, alpha=weight / self.total)
        torch._foreach_mul_(self.ahead, 1.0 - weight / self.total)

    def rest(self) -> None:
        """The model holds the average between steps."""

    go_on = rest


class Changed(Ours):
    """Ours, but for something in a step."""

    def __init__(self, problem: Problem, model: nn.Module, settings: Settings, steps: int) -> None:
        super().__init__(problem, model, settings, steps)
        self.plain_step, self.step = self.step, self.changed_step  # type: ignore[method-assign]

    def changed_step(self, x: Tensor, y: Tensor) -> object:
        raise NotImplementedError


class OutputMetric(Changed):
    """Wishes of hidden layers times ``(D / mean + damping)^-power``, with ``D`` their remembered second moment."""

    EVERY, REFRESH, KEEP = 8, 48, 0.95

    def __init__(self, problem: Problem, model: nn.Module, settings: Settings, steps: int) -> None:
        self.power, self.damping = settings.pop("power"), settings.pop("damping")
        super().__init__(problem, model, settings, steps)
        self.moments: dict[int, Tensor] = {}
        self.factors: dict[int, Tensor] = {}

    def changed_step(self, x: Tensor, y: Tensor) -> object:
        real = stepping.Stepper._direction

        def direction(stepper: Any, l: int, wish: Tensor, *rest: Any) -> Any:
            if l != stepper.network.last:
                if stepper.batches < 4 or stepper.batches % self.EVERY == 0:
                    self.remember(l, wish, stepper.batches)
                wish = wish @ self.factors[l]
            return real(stepper, l, wish, *rest)

        with mock.patch.object(stepping.Stepper, "_direction", direction):
            return self.plain_step(x, y)

    def remember(self, l: int, wish: Tensor, batch: int) -> None:
        wish = wish / wish.square().mean().sqrt().clamp_min(1e-30)
        moment = wish.mT @ wish / len(wish)
        self.moments[l] = torch.lerp(moment, self.moments.get(l, moment), self.KEEP)
        if batch <= self.REFRESH or batch % self.REFRESH == 0:
            values, vectors = torch.linalg.eigh(self.moments[l])
            values = values.clamp_min(0.0) / values.mean() + self.damping
            self.factors[l] = (vectors * values.pow(-self.power)) @ vectors.mT


class Levelled(Changed):
    """All hidden layers' moves levelled."""

    def changed_step(self, x: Tensor, y: Tensor) -> object:
        with mock.patch.object(stepping, "affordable", lambda graph, *_: [l for l in graph.numbers if l != graph.last]):
            return self.plain_step(x, y)


class Reaching(Changed):
    """Targets of activations at another distance."""

    def __init__(self, problem: Problem, model: nn.Module, settings: Settings, steps: int) -> None:
        self.reach = settings.pop("reach")
        super().__init__(problem, model, settings, steps)

    def changed_step(self, x: Tensor, y: Tensor) -> object:
        with mock.patch.object(sweeping, "REACH", self.reach):
            return self.plain_step(x, y)


class Growing(Changed):
    """Two steps a batch in the first half of the plan."""

    def __init__(self, problem: Problem, model: nn.Module, settings: Settings, steps: int) -> None:
        self.left = steps // 2
        super().__init__(problem, model, settings, steps + self.left)

    def changed_step(self, x: Tensor, y: Tensor) -> None:
        parts = 2 if self.left > 0 else 1
        self.left -= 1
        for some, wanted in zip(x.chunk(parts), y.chunk(parts), strict=True):
            self.plain_step(some, wanted)


NOTHING = "nothing"
LEADS: dict[str, tuple[Callable[..., Any], Settings]] = {
    NOTHING: (Ours, {}),
    "inertia 0": (Ours, {"inertia": 0.0}),
    "step 1": (Ours, {"rate": 1.0}),
    "step 1, proximity 1": (Ours, {"rate": 1.0, "proximity": 1.0}),
    "averaged weights, share 0.9": (Averaged, {"share": 0.9}),
    "averaged weights, share 0.9, step 1": (Averaged, {"share": 0.9, "step": 1.0}),
    "no output side": (Ours, {"output_rank": 0}),
    "output side of every direction": (OutputMetric, {"power": 0.5, "damping": 0.1, "output_rank": 0}),
    "the inverse instead of its root": (OutputMetric, {"power": 1.0, "damping": 1.0, "output_rank": 0}),
    "levelled moves": (Levelled, {}),
    "reach 0.005": (Reaching, {"reach": 0.005}),
    "reach 0.08": (Reaching, {"reach": 0.08}),
    "batches that grow": (Growing, {}),
}


def smaller(key: str, *hidden: int) -> Problem:
    """A problem of pictures with a smaller network and 20000 samples."""
    return dataclasses.replace(
        PROBLEMS[key], title=f"{key}, {len(hidden)} x {hidden[0]}", network=perceptron(784, *hidden, 10),
        plans=(2,), batch=256,
    )  # fmt: skip


def cases() -> dict[str, Problem]:
    return {
        "mnist": smaller("mnist", 300, 300),
        "fashion": smaller("fashion", 300, 300),
        "deep": smaller("mnist", *[100] * 10),
        "letters": dataclasses.replace(PROBLEMS["letters"], title="letters", plans=(10,)),
        "friedman": dataclasses.replace(PROBLEMS["friedman"], title="Friedman", plans=(5,)),
    }


def measure(problem: Problem, lead: str, seed: int) -> dict[str, Any]:
    """Scores turn by turn, and seconds."""
    make, settings = LEADS[lead]
    data = problem.split(tuning=True)
    data = tuple(rows[:MOST] for rows in data)
    steps = steps_of(len(data[0]), problem.batch, problem.plans[0])
    with mock.patch.dict(METHODS, {lead: Method(make)}):
        one = Contestant(lead, problem, {**untuned(problem), **settings}, seed, steps)
        race(
            [one], data, problem.batch, problem.plans[0], seed, targets=(2.0,)
        )  # one that nobody reaches: all curves are whole
    return {"scores": [score for _, _, score in one.curve], "seconds": one.seconds, "failed": one.failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=("full", "smoke"), default="full")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    smoke = options.scale == "smoke"
    rows = read(options.output)
    for problem in [SMOKE] if smoke else cases().values():
        for lead in LEADS:
            for seed in SEEDS[:1] if smoke else SEEDS:
                spec = {"problem": problem.title, "lead": lead, "seed": seed}
                if any(row.items() >= spec.items() for row in rows):
                    continue
                rows.append({**spec, **measure(problem, lead, seed)})
                print(f"{problem.title}, {lead}, seed {seed}: {rows[-1]['scores'][-1]:.4f}", flush=True)
                write(options.output, "python benchmarks/race_leads.py", rows)


if __name__ == "__main__":
    main()
