"""The 1797 handwritten digits of 8 x 8 pixels that come with the library: there is always something to train on.

Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, licensed under
CC BY 4.0; the part of it that is distributed with scikit-learn, in the same order.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

TRAINING = 1347  # three quarters
SHAPE = (1, 8, 8)  # colours, height, width


def path() -> Path:
    """Where the embedded file is."""
    return Path(str(resources.files("ipdlam.datasets").joinpath("digits.npz")))


def read() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pixels in [0, 1] and labels: of the first 1347 images for training, and of the last 450 for the test."""
    place = resources.files("ipdlam.datasets").joinpath("digits.npz")
    with place.open("rb") as file, np.load(file, allow_pickle=False) as content:
        images, labels = content["images"], content["labels"]
    X, y = images.astype(np.float32) / 16, labels.astype(np.int64)
    # torch.tensor copies: the memory is then torch's own, and aligned as its kernels like it.
    return (
        torch.tensor(X[:TRAINING]),
        torch.tensor(y[:TRAINING]),
        torch.tensor(X[TRAINING:]),
        torch.tensor(y[TRAINING:]),
    )
