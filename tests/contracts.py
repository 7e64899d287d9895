"""What holds for every trainer: the list of them, and what the contracts in ``tests/training`` do with each.

A trainer that is added to ``TRAINERS`` is tested by all of them, as an activation by its line in ``ACTIVATIONS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ipdlam.training.evaluation
from ipdlam import DLAM, IPDLAM, MiniBatchIPDLAM, StopTraining
from ipdlam.baselines import BCD, DLADMM, BackPropagation, BatchByBatch
from problems import make_data, make_model

N, HELD_OUT = 60, 25
WIDTHS = [5, 8, 7, 3]
X, Y = make_data(N, 5, 3, "cross_entropy")
X_NEW, Y_NEW = make_data(HELD_OUT, 5, 3, "cross_entropy", seed=1)
VALIDATION = (X_NEW, Y_NEW)
TARGETS = make_data(N, 5, 3, "squared")[1]
WEIGHT = torch.arange(N) % 4 * 0.5  # some of them zero


@dataclass(frozen=True)
class Trainer:
    """A trainer, and how its interface differs from that of the others."""

    kind: type
    settings: dict[str, Any] = field(default_factory=dict)
    unit: str = "iterations"  # what fit counts
    whole: dict[str, Any] = field(default_factory=dict)  # settings that make one batch of all samples
    takes_weights: bool = True
    steps: bool = True  # step() is another iteration; otherwise it is one batch of a loop of the user's
    back_propagates: bool = False
    seeded: bool = False
    takes_loaders: bool = False
    saved_as: str | None = None  # whose run a checkpoint is called, if not that of the class itself

    def make(self, model=None, **changes):
        return self.kind(network() if model is None else model, **{**self.settings, **changes})

    def fit(self, trainer, number, inputs=X, targets=Y, **others):
        return trainer.fit(inputs, targets, **{self.unit: number}, **others)

    def go_on(self, trainer, number, **others):
        return trainer.continue_fit(**{self.unit: number}, **others)

    def fit_until(self, trainer, planned, done, inputs=X, targets=Y, callbacks=(), **others):
        """Plan so many iterations, and stop after some of them."""
        return self.fit(trainer, planned, inputs, targets, callbacks=[*callbacks, stop_at(done)], **others)


EPOCHS = {"unit": "epochs", "seeded": True}
TRAINERS = {
    "ipdlam": Trainer(IPDLAM, {"regularizer": "ridge", "chunk_size": 16}),
    "ipdlam-increase": Trainer(IPDLAM, {"order": "increase"}),
    "ipdlam-nested": Trainer(IPDLAM, {"order": "nested-reverse", "chunk_size": 25}),
    "dlam": Trainer(DLAM, saved_as="IPDLAM"),
    "minibatch": Trainer(
        MiniBatchIPDLAM, {"batch_size": 16}, **EPOCHS, whole={"batch_size": 1000}, steps=False, takes_loaders=True
    ),
    "bcd": Trainer(BCD, {"chunk_size": 16}),
    "dladmm": Trainer(DLADMM, {"penalty": 0.1}, takes_weights=False),
    "batch-by-batch": Trainer(BatchByBatch, {"batch_size": 25}, whole={"batch_size": 1000}),
    "sgd": Trainer(
        BackPropagation,
        {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 16},
        **EPOCHS,
        whole={"batch_size": 1000},
        back_propagates=True,
    ),
    "adam": Trainer(
        BackPropagation,
        {"optimizer": "adam", "learning_rate": 0.01, "batch_size": 16},
        **EPOCHS,
        whole={"batch_size": 1000},
        back_propagates=True,
    ),
}
# One of each class, where nothing depends on the order of blocks or on the optimizer.
CLASSES = [name for name in TRAINERS if name not in ("ipdlam-increase", "ipdlam-nested", "sgd")]


def each(*names):
    """Run the test for these trainers, or for all of them."""
    return pytest.mark.parametrize("trainer", [TRAINERS[name] for name in names or TRAINERS], ids=names or TRAINERS)


def those(condition: Callable[[Trainer], bool], among=None):
    return each(*(name for name in among or TRAINERS if condition(TRAINERS[name])))


every_trainer = each()
every_class = each(*CLASSES)


def network(seed=0, dtype=torch.float64):
    return make_model(WIDTHS, seed=seed, dtype=dtype)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(first, second):
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def is_finite(tensors):
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def says(*parts):
    """A pattern for messages that hold all the parts, in any order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts)


class Snapshots:
    """A callback that keeps the model's weights after every iteration; those before the first are number 0."""

    def __init__(self, model):
        self.model = model
        self.weights = {0: weights(model)}

    def __call__(self, record):
        self.weights[record.iteration] = weights(self.model)


def raise_at(iteration, error):
    """A callback that raises in one iteration."""

    def callback(record):
        if record.iteration == iteration:
            raise error

    return callback


def stop_at(iteration):
    return raise_at(iteration, StopTraining())


def script(monkeypatch, training=(), validation=(), accuracies=True):
    """Evaluations give these accuracies in turn, or these losses, so that a test knows which iteration is the best."""
    scripts = {N: iter(training), HELD_OUT: iter(validation)}

    def evaluate(model, loss, samples, chunk_size):
        given = next(scripts[len(samples)], 0.0 if accuracies else 1.0)
        found = ipdlam.training.evaluation.Evaluation
        return found(1.0, given) if accuracies else found(given, None)

    monkeypatch.setattr(ipdlam.training.evaluation, "evaluate", evaluate)


@contextmanager
def no_stray_interrupt():
    """A KeyboardInterrupt that gets out is a failed test, not the end of the whole test run."""
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail("KeyboardInterrupt was not caught")


class Operators(TorchDispatchMode):
    """Counts what torch computes once it is armed, and does something at one of the operators."""

    def __init__(self, number=None, act=None):
        super().__init__()
        self.armed, self.seen, self.number, self.act = False, 0, number, act

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.armed:
            self.seen += 1
            if self.seen == self.number:
                self.act()
        return func(*args, **(kwargs or {}))

    def arm_after(self, iteration):
        """A callback after which operators count; those of the iteration after that are not meant."""

        def callback(record):
            self.armed = record.iteration == iteration

        return callback
