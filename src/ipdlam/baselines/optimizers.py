"""The classical optimizers, by back-propagation, on the models, losses, clock and records of the method itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ipdlam.baselines.protocol import Baseline, State
from ipdlam.checkpoint.format import RowStore
from ipdlam.checks import LARGEST_RATE, check_integer, check_number, check_seed
from ipdlam.defaults import BATCH_SIZE, LEARNING_RATES, LOSS, OPTIMIZER
from ipdlam.network.graph import Graph
from ipdlam.network.model import ModelView
from ipdlam.network.objective import Objective
from ipdlam.network.samples import Samples
from ipdlam.network.trace import as_in_training
from ipdlam.prox import Loss
from ipdlam.training.history import Record
from ipdlam.training.trainer import CountsEpochs

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "amsgrad": functools.partial(torch.optim.Adam, amsgrad=True),
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}
"""Name to optimizer, called with the parameters and ``lr``; all else is torch's default. Open to users."""


@dataclass
class Descent(State):
    """What an optimizer remembers; its moments cannot be taken back once an epoch is under way."""

    optimizer: Optimizer
    order: Tensor  # the state of the generator of the order of the samples
    loss: float = 0.0  # of the last epoch, each sample's as it was met

    def moments(self) -> dict[str, Tensor]:
        """What the optimizer keeps for every parameter, by name; numbers as vectors of one element."""
        found = {}
        for number, parameter in enumerate(parameters_of(self.optimizer)):
            for name, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"moments{number}.{name}"] = value.view(1) if value.ndim == 0 else value
        return found

    def tensors(self) -> dict[str, RowStore]:
        return {**super().tensors(), **self.moments(), "order": self.order}

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), "has_moments": bool(self.moments())}

    def restore(self, counters: dict[str, Any], network: ModelView) -> None:
        super().restore(counters, network)
        if counters["has_moments"]:
            allocate_moments(self.optimizer)

    def check_filled(self) -> None:
        super().check_filled()
        try:
            torch.Generator().set_state(self.order)
        except RuntimeError as error:
            raise ValueError(f"its order of the samples cannot be read: {str(error).splitlines()[0]}") from error


def resolve_optimizer(given: str | Callable[..., Optimizer]) -> tuple[Callable[..., Optimizer], str]:
    """What makes an optimizer, and its name; one of the registry keeps its name there."""
    if isinstance(given, str) and given in OPTIMIZERS:
        return OPTIMIZERS[given], given
    if callable(given):
        known = (name for name, make in OPTIMIZERS.items() if make is given)
        plain = getattr(given, "func", given)  # of a partial
        return given, next(known, getattr(plain, "__name__", type(plain).__name__).lower())
    raise ValueError(
        f"optimizer must be one of {', '.join(OPTIMIZERS)}, or a function of the parameters and lr, got {given!r}"
    )


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """What an optimizer changes, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def allocate_moments(optimizer: Optimizer) -> None:
    """Give an optimizer that has made no step what it keeps after one: torch makes it in the first step.

    The step is that of a twin with copies of the parameters and no gradient, so that nothing else changes.
    """
    parameters = parameters_of(optimizer)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    for copy in copies:
        copy.grad = torch.zeros_like(copy)
    settings = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    kind: Any = type(optimizer)
    twin = kind([{**settings, "params": copies}])
    twin.step()
    for parameter, copy in zip(parameters, copies, strict=True):
        optimizer.state[parameter] = twin.state[copy]


class BackPropagation(CountsEpochs[State], Baseline):
    """Trains ``model`` in place by a gradient method, with the interface of :class:`ipdlam.IPDLAM`.

    For every batch of the shuffled samples it takes one step of the optimizer down the gradient of

        sum_i weight_i L(y_i, model(x_i)) / sum_i weight_i

    over the batch; an epoch is an iteration. Where ``L`` has a kink, torch chooses the subgradient.

    Parameters
    ----------
    model
        What :class:`ipdlam.IPDLAM` trains: an ``nn.Sequential`` of Linear layers and activations, the last one Linear.
    optimizer
        A name in ``OPTIMIZERS``, a class of ``torch.optim``, or any function of the parameters and ``lr`` that returns
        an optimizer, such as ``functools.partial(torch.optim.SGD, momentum=0.9)``. What is to be saved has to be in
        ``OPTIMIZERS``: a checkpoint holds its name.
    loss
        A name in ``ipdlam.prox.LOSSES`` or a ``Loss``.
    learning_rate
        ``lr`` in torch. One rate does not suit all: adadelta is made for 1, sgd likes 0.1, adam 0.001.
    batch_size
        The samples to a step; the last batch of an epoch holds what is left.
    seed
        Of the order of the samples, and of nothing else: the model's weights are taken as they are.
    chunk_size
        How many samples are evaluated at a time; by default as many as suit the cache.

    >>> model = nn.Sequential(nn.Linear(2, 1))
    >>> trainer = BackPropagation(model, "sgd", learning_rate=0.1)
    >>> history = trainer.fit(torch.eye(2), torch.ones(2), epochs=3)
    >>> history[2].objective < history[0].objective
    True
    """

    saved_as = "BackPropagation"
    view = Graph
    start_is_training = False  # the first optimizer of a process makes torch load modules, which takes a second or two

    def __init__(
        self,
        model: nn.Module,
        optimizer: str | Callable[..., Optimizer] = OPTIMIZER,
        *,
        loss: str | Loss = LOSS,
        learning_rate: float = LEARNING_RATES[OPTIMIZER],
        batch_size: int = BATCH_SIZE,
        seed: int = 0,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(model, loss, chunk_size)
        self.optimizer: str
        self.make_optimizer, self.optimizer = resolve_optimizer(optimizer)
        self.learning_rate = check_number("learning_rate", learning_rate, 0.0, LARGEST_RATE, strict=True)
        self.remedy = f"Use a learning_rate below {self.learning_rate:g}, or scale the inputs"
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.seed = check_seed(seed)

    def _own_settings(self) -> dict[str, Any]:
        if OPTIMIZERS.get(self.optimizer) is not self.make_optimizer:
            raise ValueError(
                f"optimizer {self.optimizer} is in no registry, so it cannot be saved; give it a name: "
                f"ipdlam.baselines.OPTIMIZERS[{self.optimizer!r}] = ..., and use that"
            )
        names = ("optimizer", "learning_rate", "batch_size", "seed")
        return {name: getattr(self, name) for name in names}

    def step(self, *, evaluate: bool = True) -> Record:
        """One epoch, otherwise as :meth:`ipdlam.IPDLAM.step`."""
        return super()._next(evaluate)

    def _next(self, evaluate: bool) -> Record:
        return self.step(evaluate=evaluate)

    def _begin(self, samples: Samples, validation: Samples | None) -> Descent:
        """A new optimizer, and the seed's first order."""
        optimizer = self.make_optimizer(self._trained(), lr=self.learning_rate)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer {self.optimizer} must make a torch.optim.Optimizer, got {optimizer!r}")
        order = torch.Generator().manual_seed(self.seed).get_state()
        return Descent(samples.counted(), validation, self.network.read(), optimizer, order)

    def _advance(self, state: State) -> None:
        assert isinstance(state, Descent)
        try:
            with as_in_training(self.network.core), self._draws(state):
                state.loss = self._epoch(state)
        finally:
            self.model.zero_grad(set_to_none=True)

    def _measure(self, state: State) -> Objective:
        """The constraints of the method hold by construction, so its objective is the loss."""
        assert isinstance(state, Descent)
        layers = len(self.network)
        return Objective(0.0, state.loss, 0.0, (0.0,) * layers, (0.0,) * (layers - 1), 0.0)

    @contextmanager
    def _draws(self, state: Descent) -> Iterator[None]:
        """What Dropout draws depends on the seed and the epoch alone, so that a resumed run draws the same."""
        if not self.network.draws:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + (state.iteration << 20))
            yield

    def _trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.enable_grad()
    def _epoch(self, run: Descent) -> float:
        """Every sample once, in a new order; the sum of the losses, each as it was met."""
        samples, total = run.samples, torch.zeros((), dtype=torch.float64, device=self.network.device)
        generator = torch.Generator()
        generator.set_state(run.order)
        order = torch.randperm(len(samples), generator=generator).to(self.network.device)
        run.order = generator.get_state()
        for rows in samples.rows(self.batch_size):
            batch = samples.picked(order[rows])
            run.optimizer.zero_grad(set_to_none=True)
            outputs = self.model(batch.X)
            targets = batch.targets(self.loss, slice(None), outputs.shape[1], outputs.dtype)
            losses = self.loss.value(targets, outputs)
            mean = losses.mean() if batch.weight is None else losses @ (batch.weight / batch.weight.sum())
            mean.backward()  # type: ignore[no-untyped-call]
            run.optimizer.step()
            losses = losses.detach().double()
            total += losses.sum() if batch.weight is None else losses @ batch.weight.double()
        return float(total)
