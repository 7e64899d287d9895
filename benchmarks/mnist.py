"""MNIST and Fashion-MNIST from the IDX files in ``$IPDLAM_DATA/{mnist,fashion-mnist}``."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch


def read_idx(path: Path) -> np.ndarray:
    """An array of unsigned bytes in IDX format, gzipped."""
    content = gzip.decompress(path.read_bytes())
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def find(name: str) -> Path | None:
    """The folder of a data set, or None where it is not at hand."""
    folder = Path(os.environ.get("IPDLAM_DATA", "")) / name
    return folder if "IPDLAM_DATA" in os.environ and (folder / "train-images-idx3-ubyte.gz").exists() else None


def load(name: str) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Training and test data: pixels in [0, 1] as float32 rows, and labels."""
    folder = find(name)
    if folder is None:
        raise SystemExit(
            f"{name} was not found: set IPDLAM_DATA to a folder that holds {name}/train-images-idx3-ubyte.gz"
        )

    def part(prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
        pixels = images.reshape(len(images), -1).astype(np.float32) / 255.0
        return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))

    return part("train"), part("t10k")
