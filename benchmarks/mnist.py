"""MNIST and Fashion-MNIST where they are at hand, as pairs of inputs and labels; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch

from ipdlam import datasets
from ipdlam.datasets import sources
from ipdlam.errors import DataError

Part = tuple[torch.Tensor, torch.Tensor]


def find(name: str) -> Path | None:
    """The folder of a data set, or None where it is not at hand."""
    return sources.find(name)


def load(name: str) -> tuple[Part, Part]:
    """Training and test data: pixels in [0, 1] as float32 rows, and labels."""
    try:
        data = datasets.load(name, offline=True)
    except DataError as error:
        raise SystemExit(str(error)) from None
    return (data.X, data.y), (data.X_test, data.y_test)
