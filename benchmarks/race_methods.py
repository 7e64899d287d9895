"""Who races in ``benchmarks/race.py``: optimizers made of published packages, each with what may be tuned, and ours.

All peers share :class:`Descent`: forward and backward pass, a schedule, and the steps of one or two optimizers. A peer
whose package is not installed is named and left out, not imitated.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import ipdlam
from ipdlam import defaults
from ipdlam.minibatch.levelling import level
from ipdlam.minibatch.schedule import StepSchedule
from ipdlam.network.arithmetic import time_ratio
from race_problems import CROSS_ENTROPY, Problem

Settings = dict[str, Any]
LINEAR = StepSchedule()  # the one that our method has built in
EVERY = 10  # batches from one curvature of K-FAC to the next
RISING = 0.3  # of a cycle
LOWEST = 1 / 25  # part of the rate that a cycle begins with


def part_of_rate(schedule: str, batch: int, progress: float) -> float:
    """What the rate is multiplied by; a constant one rises over the first batches, too."""
    if schedule == "linear":
        return LINEAR.at(batch, progress)
    if schedule == "constant":
        return LINEAR.at(batch, 0.0)
    if progress < RISING:
        return LOWEST + (1.0 - LOWEST) * (1.0 - math.cos(math.pi * progress / RISING)) / 2.0
    return (1.0 + math.cos(math.pi * (progress - RISING) / (1.0 - RISING))) / 2.0


class Descent:
    """Back-propagation and optimizers."""

    def __init__(
        self, problem: Problem, model: nn.Module, settings: Settings, steps: int, *optimizers: torch.optim.Optimizer
    ) -> None:
        self.problem, self.model, self.settings, self.steps, self.optimizers = (
            problem,
            model,
            settings,
            steps,
            optimizers,
        )
        self.rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        self.count = 0

    def step(self, x: Tensor, y: Tensor) -> None:
        part = part_of_rate(self.settings["schedule"], self.count, self.count / self.steps)
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * part
        self.model.zero_grad()
        value = self.problem.loss(self.settings["loss"], self.model(x), y)
        value.backward()
        self.before(x, y)
        for optimizer in self.optimizers:
            optimizer.step()
        self.count += 1

    def before(self, x: Tensor, y: Tensor) -> None:
        """What is done to the gradients."""

    def rest(self) -> None:
        """Before an evaluation."""

    def go_on(self) -> None:
        """After it."""


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Leave the running statistics of norms as they are, whatever passes are made."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])


class ScheduleFree(Descent):
    """Its average of the weights is what is evaluated; running statistics of norms are taken anew for it."""

    RECENT = 8  # batches that they are taken of

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: deque[Tensor] = deque(maxlen=self.RECENT)
        self.statistics: dict[str, Tensor] = {}

    def before(self, x: Tensor, y: Tensor) -> None:
        self.seen.append(x)

    def rest(self) -> None:
        for optimizer in self.optimizers:
            optimizer.eval()  # type: ignore[attr-defined]
        self.statistics = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        if self.statistics:
            self.model.train()
            with torch.no_grad():
                for x in self.seen:
                    self.model(x)
            self.model.eval()

    def go_on(self) -> None:
        for optimizer in self.optimizers:
            optimizer.train()  # type: ignore[attr-defined]
        for name, buffer in self.model.named_buffers():
            if name in self.statistics:
                buffer.copy_(self.statistics[name])


class Muon(Descent):
    """``torch.optim.Muon`` for matrices, and convolutions flattened to matrices; Adam for the rest.

    All but the last layer, whose matrix Adam trains, as its author says. Torch iterates in bfloat16; where the
    processor emulates that slowly, it iterates in float32 here.
    """

    def __init__(self, problem: Problem, model: nn.Module, settings: Settings, steps: int) -> None:
        *hidden, _ = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
        self.weights = [module.weight for module in hidden]
        self.flat = [nn.Parameter(weight.detach().flatten(1).clone()) for weight in self.weights]
        known = {id(weight) for weight in self.weights}
        others = [parameter for parameter in model.parameters() if id(parameter) not in known]
        muon = torch.optim.Muon(self.flat, lr=settings["rate"], weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        super().__init__(problem, model, settings, steps, muon, adam(others, settings["adam_rate"]))

    def before(self, x: Tensor, y: Tensor) -> None:
        for flat, weight in zip(self.flat, self.weights, strict=True):
            assert weight.grad is not None
            flat.grad = weight.grad.flatten(1)

    def step(self, x: Tensor, y: Tensor) -> None:
        full = mock.patch("torch.optim._muon._zeropower_via_newtonschulz", lambda move, *_: level(move))
        with nullcontext() if time_ratio(torch.get_num_threads()) < 1.0 else full:
            super().step(x, y)
        with torch.no_grad():
            for flat, weight in zip(self.flat, self.weights, strict=True):
                weight.copy_(flat.view(weight.shape))


class ForwardOnly(Descent):
    """K-FAC with input covariances alone (FOOF), by ``curvlinops``; momentum and steps by SGD.

    Every few batches the operator is made anew of the last ``BATCHES`` batches.
    """

    BATCHES = 4

    def __init__(self, problem: Problem, model: nn.Module, settings: Settings, steps: int) -> None:
        sgd = torch.optim.SGD(model.parameters(), lr=settings["rate"], momentum=0.9)
        super().__init__(problem, model, settings, steps, sgd)
        self.seen: deque[tuple[Tensor, Tensor]] = deque(maxlen=self.BATCHES)
        self.inverse: Any = None
        layers = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
        self.parameters = [parameter for layer in layers for parameter in layer.parameters()]

    def before(self, x: Tensor, y: Tensor) -> None:
        import curvlinops

        self.seen.append((x, y))
        gradients = [parameter.grad for parameter in self.parameters]
        if self.count % EVERY == 0:
            entropy = self.settings["loss"] == CROSS_ENTROPY
            with statistics_kept(self.model):
                covariances = curvlinops.KFACLinearOperator(
                    self.model,
                    nn.CrossEntropyLoss() if entropy else nn.MSELoss(),
                    self.parameters,
                    [(x, y if entropy else self.problem.numbers(y)) for x, y in self.seen],
                    fisher_type=curvlinops.FisherType.FORWARD_ONLY,
                    check_deterministic=False,
                    separate_weight_and_bias=False,
                )
            self.inverse = curvlinops.KFACInverseLinearOperator(covariances, damping=self.settings["damping"])
        for parameter, natural in zip(self.parameters, self.inverse @ gradients, strict=True):
            parameter.grad = natural


class Ours:
    """The mini-batch method; without settings it is what a user gets."""

    def __init__(self, problem: Problem, model: nn.Module, settings: Settings, steps: int) -> None:
        given = {"step" if name == "rate" else name: value for name, value in settings.items() if name != "schedule"}
        self.step = ipdlam.MiniBatchIPDLAM(model, horizon=steps, **given).step

    def rest(self) -> None:
        """Nothing has to be changed for an evaluation."""

    go_on = rest


Maker = Callable[[Problem, nn.Module, Settings, int], Any]


def descent(
    make: Callable[[list[nn.Parameter], Settings], torch.optim.Optimizer], kind: type[Descent] = Descent
) -> Maker:
    """A peer of one optimizer for all parameters."""
    return lambda problem, model, settings, steps: kind(
        problem, model, settings, steps, make(list(model.parameters()), settings)
    )


def published(package: str, name: str, **fixed: Any) -> Callable[[list[nn.Parameter], Settings], torch.optim.Optimizer]:
    """An optimizer of a package that may not be installed."""

    def make(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
        found: torch.optim.Optimizer = getattr(importlib.import_module(package), name)(
            parameters, lr=settings["rate"], **fixed
        )
        return found

    return make


def kfac(problem: Problem, model: nn.Module, settings: Settings, steps: int) -> Descent:
    from singd.optim.optimizer import SINGD

    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    known = [parameter for layer in layers for parameter in layer.parameters()]
    rest = [parameter for parameter in model.parameters() if all(parameter is not other for other in known)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # norms are not its own: SGD trains them
        optimizers: list[torch.optim.Optimizer] = [
            SINGD(model, known, lr=settings["rate"], momentum=0.9, damping=settings["damping"],
                  T=EVERY, lr_cov=settings["covariance_rate"], kfac_like=True)
        ]  # fmt: skip
    if rest:
        optimizers.append(sgd(rest, settings))
    return Descent(problem, model, settings, steps, *optimizers)


def adam(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate, fused=True)


def adamw(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=settings["rate"], weight_decay=settings["weight_decay"], fused=True)


def sgd(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=settings["rate"], momentum=0.9, nesterov=True, fused=True)


@dataclass(frozen=True)
class Method:
    """How a method is made, the package that it needs, and what is tuned.

    ``rates`` and ``also`` are bounds of log-uniform draws; ``schedules`` are those of the first trials.
    """

    make: Maker
    rates: tuple[float, float] | None = None
    also: dict[str, tuple[float, float]] = field(default_factory=dict)
    package: str | None = None
    schedules: tuple[str, ...] = ("linear", "one-cycle")
    last: tuple[Settings, ...] = ({"schedule": "constant"},)  # variations of the best that close the search

    def installed(self) -> bool:
        if self.make is Muon:
            return hasattr(torch.optim, "Muon")  # in torch since 2.9
        return self.package is None or importlib.util.find_spec(self.package) is not None

    def space(self) -> dict[str, list[float]]:
        """What is drawn from, to be kept with a trial."""
        return {name: list(bounds) for name, bounds in {"rate": self.rates or (1.0, 1.0), **self.also}.items()}


DAMPING = (1e-3, 1.0)
OURS, OURS_TUNED = "ours", "ours, tuned"
METHODS = {
    OURS: Method(Ours),
    OURS_TUNED: Method(
        Ours, (0.1, 1.0), {"proximity": (0.5, 8.0)}, schedules=("linear",), last=({"inertia": 0.9}, {"inertia": 0.0})
    ),
    "Adam": Method(descent(lambda parameters, settings: adam(parameters, settings["rate"])), (3e-4, 2e-2)),
    "AdamW": Method(descent(adamw), (3e-4, 2e-2), {"weight_decay": (1e-3, 1.0)}),
    "SGD": Method(descent(sgd), (1e-2, 2.0)),
    "schedule-free AdamW": Method(
        descent(published("schedulefree", "AdamWScheduleFree"), ScheduleFree),
        (1e-3, 3e-2),
        package="schedulefree",
        schedules=("constant",),
        last=(),
    ),
    "Muon": Method(Muon, (1e-3, 5e-2), {"adam_rate": (3e-4, 1e-2)}),
    "SOAP": Method(
        descent(published("pytorch_optimizer", "SOAP", weight_decay=0.0)), (1e-3, 3e-2), package="pytorch_optimizer"
    ),
    "PSGD-Kron": Method(descent(published("pytorch_optimizer", "Kron")), (1e-3, 1e-1), package="pytorch_optimizer"),
    "K-FAC": Method(kfac, (3e-3, 1.0), {"damping": DAMPING, "covariance_rate": (0.02, 0.5)}, package="singd"),
    "K-FAC, forward-only": Method(ForwardOnly, (1e-3, 1.0), {"damping": DAMPING}, package="curvlinops"),
}


def trial_settings(method: Method, problem: Problem, budget: int, made: Iterable[tuple[Settings, float]]) -> Settings:
    """The settings of the next trial of so many, from those made so far with their scores.

    All but the last third are log-uniform draws, one to each part of the range, of both losses and schedules in turn;
    the others vary the best one.
    """
    made = list(made)
    number, varied = len(made), budget // 3
    if number < budget - varied:
        draws = torch.Generator().manual_seed(0)
        strata = budget - varied
        found: Settings = {}
        for name, bounds in {"rate": method.rates or (1.0, 1.0), **method.also}.items():
            order = torch.randperm(strata, generator=draws)
            place = (float(order[number]) + torch.rand(strata, generator=draws)[number].item()) / strata
            found[name] = bounds[0] * (bounds[1] / bounds[0]) ** place
        schedules, losses = method.schedules, problem.losses
        schedule = schedules[number // len(losses) % len(schedules)]
        return {**found, "schedule": schedule, "loss": losses[number % len(losses)]}
    best = max(made, key=lambda trial: trial[1])[0]
    factors = [{"rate": best["rate"] * factor} for factor in (1.6, 1 / 1.6, 1.25, 0.8)]
    variations = [*method.last, *factors]
    tried = [settings for settings, _ in made]
    return next({**best, **new} for new in variations if {**best, **new} not in tried)


def untuned(problem: Problem) -> Settings:
    """What ours is told by a user who tunes nothing: the loss, where the problem has no choice of it."""
    return {} if defaults.LOSS in problem.losses else {"loss": problem.losses[0]}
