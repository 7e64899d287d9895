"""CIFAR-10 in its binary layout: whatever is damaged is refused by file and byte.

A file holds records of 3073 bytes: a label from 0 to 9, then the red, the green and the blue plane of an image of
32 x 32 pixels, row by row. Five files are for training and one for the test.

A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ipdlam.datasets.idx import Parts, opened, scaled
from ipdlam.errors import DataError

TRAINING = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = "test_batch.bin"
SHAPE = (3, 32, 32)  # colours, height, width
RECORD = 1 + 3 * 32 * 32
HIGHEST_LABEL = 9


def find_files(folder: Path) -> dict[str, Path]:
    """The files of the layout that a folder holds, by their names."""
    return {name: folder / name for name in (*TRAINING, TEST) if (folder / name).is_file()}


def read_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images of a file as rows of bytes, red before green before blue, and their labels."""
    with opened(path) as stream:
        content = np.frombuffer(stream.read(), np.uint8)
    if not content.size or content.size % RECORD:
        raise DataError(
            f"{path} has {content.size} bytes, which is not a whole number of records of {RECORD} (a label and 3072 "
            "pixels). Copy or download it again"
        )
    records = content.reshape(-1, RECORD)
    labels = records[:, 0]
    wrong = np.flatnonzero(labels > HIGHEST_LABEL)
    if wrong.size:
        raise DataError(
            f"{path}, byte {int(wrong[0]) * RECORD}: label {labels[wrong[0]]} is not in 0 ... {HIGHEST_LABEL}. Copy or "
            "download it again"
        )
    return records[:, 1:], labels


def read_folder(folder: Path) -> Parts:
    """The images, scaled to [0, 1], and labels of a folder that holds all six files."""
    files = find_files(folder)
    missing = [name for name in (*TRAINING, TEST) if name not in files]
    if missing:
        raise DataError(f"{folder} has no file {', '.join(missing)}; copy it there, or download the data set again")
    X, y = read_part([files[name] for name in TRAINING])
    return Parts(X, y, *read_part([files[TEST]]))


def read_part(paths: list[Path]) -> tuple[Tensor, Tensor]:
    """Some files, one after the other."""
    images, labels = zip(*map(read_file, paths), strict=True)
    return torch.cat([scaled(part) for part in images]), torch.tensor(np.concatenate(labels).astype(np.int64))
