"""Data sets by name or by path, as tensors that are ready to train on.

>>> data = load("digits")
>>> tuple(data.X.shape), tuple(data.X_test.shape), data.classes[:3]
((1347, 64), (450, 64), ('0', '1', '2'))
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ipdlam.datasets import digits, idx, sources, tables
from ipdlam.datasets.idx import map_idx
from ipdlam.datasets.tables import read_inputs
from ipdlam.errors import DataError

__all__ = ["Dataset", "Entry", "listing", "load", "map_idx", "read_inputs"]

NAMES = ("digits", *sources.CATALOGUE)
FORMATS = "a folder of IDX files, an .npz file with X and y, or a .csv or .tsv table (also .gz)"


@dataclass(frozen=True)
class Dataset:
    """Samples for training, and for the test where the data set has its own."""

    name: str  # as it was asked for
    X: Tensor  # (N, d) float32
    y: Tensor  # (N,) int64 class indices, or (N, k) float32 real targets
    X_test: Tensor | None
    y_test: Tensor | None
    classes: tuple[str, ...] | None  # the names of the classes; None for real targets
    kind: str  # "images" or "table"
    source: str  # where it was found, for people
    columns: tuple[str, ...] | None = None  # the names of the features of a table with a header


class Entry(NamedTuple):
    """A data set with a name: where it was found, or what to do."""

    name: str
    description: str
    found: Path | None
    remedy: str


def load(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    *,
    offline: bool = False,
    label: str | int | None = None,
    task: str = "auto",
    progress: bool = False,
) -> Dataset:
    """A data set by name ("digits", "mnist", "fashion-mnist"), or a folder of IDX files, .npz, .csv or .tsv by path.

    A name is looked for in ``data_dir``, ``$IPDLAM_DATA``, the user's cache and the system's folders, and then
    downloaded into the cache unless ``offline``, with a bar on stderr if ``progress``; a folder that is given and does
    not exist is an error. ``label`` is the column of a text table that holds the labels, by name or number from 0
    (negative from the end); the last one if None. ``task`` says what labels are: "classification", "regression", or
    "auto", where text and at most 100 different whole numbers are classes.
    """
    if task not in tables.TASKS:
        raise ValueError(f"task must be one of {', '.join(tables.TASKS)}, got {task!r}")
    given = os.fspath(name)
    path = Path(given).expanduser()
    table = given not in NAMES and is_table(given, path)
    if label is not None and (not table or path.suffix.lower() == ".npz"):
        raise ValueError(f"label is for the columns of a .csv or .tsv table, but {given} has none; leave it out")
    if table:
        X, y, X_test, y_test, classes, columns = tables.read_table(path, label, task)
        return Dataset(given, X, y, X_test, y_test, classes, "table", str(path), columns)
    if task == "regression":
        raise ValueError(f"task is 'regression', but the labels of {given} are classes")
    if given == "digits":
        return Dataset(given, *digits.read(), tuple("0123456789"), "images", "embedded in ipdlam")
    known = sources.CATALOGUE.get(given)
    folder = path if known is None else sources.locate(given, data_dir, offline=offline, progress=progress)
    parts = idx.read_folder(folder)
    highest = max(int(part.max()) for part in (parts.y, parts.y_test) if part is not None)
    classes = tuple(str(index) for index in range(highest + 1))
    if known is not None and len(classes) <= len(known.classes):
        classes = known.classes
    return Dataset(given, *parts, classes, "images", str(folder))


def is_table(given: str, path: Path) -> bool:
    """Whether an existing path is a table rather than a folder; an error if it is neither."""
    if path.is_dir():
        return False
    if path.exists():
        if path.suffix.lower() == ".npz" or tables.separator(path) is not None:
            return True
        raise DataError(f"{given} is of no known format; known are {FORMATS}. Of IDX files, give their folder")
    if path.suffix or path.name != given:
        raise DataError(f"{given} does not exist. Give one of the names {', '.join(NAMES)}, or {FORMATS}")
    close = difflib.get_close_matches(given.lower(), NAMES, 1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise DataError(
        f"{given!r} is neither the name of a data set ({', '.join(NAMES)}) nor a path that exists.{hint} "
        f"A path may be {FORMATS}"
    )


def listing(data_dir: str | os.PathLike[str] | None = None) -> list[Entry]:
    """The data sets with a name, and where each was found or what to do."""
    embedded = Entry("digits", "handwritten digits, 1347 + 450 images of 8 x 8 pixels", digits.path(), "")
    named = [
        Entry(name, source.description, *sources.status(name, data_dir)) for name, source in sources.CATALOGUE.items()
    ]
    return [embedded, *named]
