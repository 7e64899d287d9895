"""Data sets by name or by path, as tensors that are ready to train on.

``sources`` finds and downloads those with a name, ``idx`` and ``cifar`` read images, ``tables`` and ``columns`` read
text tables.
Imported here: ``network`` and ``checkpoint``. Begin with :func:`load`.

>>> data = load("digits")
>>> tuple(data.X.shape), tuple(data.X_test.shape), data.classes[:3]
((1347, 64), (450, 64), ('0', '1', '2'))
>>> tuple(data.images[0].shape)
(1347, 1, 8, 8)
"""

from __future__ import annotations

import difflib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ipdlam.datasets import digits, idx, sources, tables
from ipdlam.datasets.columns import Column
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
    X: Tensor  # (N, d) float32, or what a table was asked for in
    y: Tensor  # (N,) int64 class indices, or (N, k) real targets of the same type
    X_test: Tensor | None
    y_test: Tensor | None
    classes: tuple[str, ...] | None  # the names of the classes; None for real targets
    kind: str  # "images" or "table"
    source: str  # where it was found, for people
    columns: tuple[str, ...] | None = None  # the names of the features of a table with a header
    encoding: tuple[Column, ...] | None = None  # how the features of a text table became the columns of X
    label: str | None = None  # the name of the label column of a table with a header
    image_shape: tuple[int, int, int] | None = None  # colours, height and width of an image with a name; else None

    @property
    def images(self) -> tuple[Tensor, Tensor | None]:
        """``X`` and ``X_test`` as images of the shape (N, colours, height, width): views, nothing is copied."""
        if self.image_shape is None:
            raise ValueError(f"{self.name} is not known to hold images; reshape X as its {self.X.shape[1]} columns are")
        return tuple(None if part is None else part.view(-1, *self.image_shape) for part in (self.X, self.X_test))  # type: ignore[return-value]

    @property
    def inputs(self) -> list[str]:
        """The columns of X, as messages call them."""
        if self.encoding is not None and self.columns is not None:
            return [repr(name) for column in self.encoding for name in column.names]
        return [f"column {place} (from 0)" for place in range(self.X.shape[1])]


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
    dtype: torch.dtype = torch.float32,
    drop: Sequence[str] = (),
    gaps: bool = False,
    encoding: Sequence[Column] | None = None,
    categories: Sequence[str] = (),
) -> Dataset:
    """A data set by name ("digits", "mnist", "fashion-mnist", "cifar10"), or a folder of IDX files, .npz, .csv or .tsv.

    A name is looked for in ``data_dir``, ``$IPDLAM_DATA``, the user's cache and the system's folders, and then
    downloaded into the cache unless ``offline``, with a bar on stderr if ``progress``; a folder that is given and does
    not exist is an error. ``label`` is the column of a text table that holds the labels, by name or number from 0
    (negative from the end); the last one if None. ``task`` says what labels are: "classification", "regression", or
    "auto", where text and at most 100 different whole numbers are classes. ``dtype`` is that of the numbers of a
    table: in float64 they are those of the file, and large ones with small differences, such as times, should be
    standardised in it. Images are float32.

    The cells of a text table may be parted by commas, semicolons or tabs. The columns to ``drop`` are left out. A
    column of texts becomes a column of zeros and ones for each of at most 100 categories. A gap in a column of numbers
    is refused by place or, with ``gaps``, NaN. ``encoding`` is that of another data set, to be used here, too. The
    columns in ``categories`` are taken for texts, whatever they hold.
    """
    if task not in tables.TASKS:
        raise ValueError(f"task must be one of {', '.join(tables.TASKS)}, got {task!r}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")
    given = os.fspath(name)
    path = Path(os.path.expanduser(given))  # a user that does not exist is a name like any other
    has_rows = given not in NAMES and is_table(given, path)
    for option, value in (("label", label), ("drop", drop or None), ("categories", categories or None)):
        if value is not None and (not has_rows or path.suffix.lower() == ".npz"):
            raise ValueError(f"{option} is for the columns of a .csv or .tsv table, but {given} has none; leave it out")
    if has_rows:
        columns = {"drop": drop, "categories": categories, "encoding": encoding}
        table = tables.read_table(path, label, task, gaps=gaps, **columns)  # type: ignore[arg-type]
        exact = Dataset(given, *table[:5], "table", str(path), table.columns, table.encoding, table.label)
        return exact if dtype == torch.float64 else converted(exact, dtype)
    if task == "regression":
        raise ValueError(f"task is 'regression', but the labels of {given} are classes")
    if given == "digits":
        names = tuple("0123456789")
        return Dataset(given, *digits.read(), names, "images", "embedded in ipdlam", image_shape=digits.SHAPE)
    known = sources.CATALOGUE.get(given)
    folder = path if known is None else sources.locate(given, data_dir, offline=offline, progress=progress)
    parts = idx.read_folder(folder) if known is None else sources.read(given, folder)
    highest = max(int(part.max()) for part in (parts.y, parts.y_test) if part is not None)
    classes = tuple(str(index) for index in range(highest + 1))
    if known is not None and len(classes) <= len(known.classes):
        classes = known.classes
    # A local file of a name may hold other images than the known ones.
    shape = known.shape if known is not None and math.prod(known.shape) == parts.X.shape[1] else None
    return Dataset(given, *parts, classes, "images", str(folder), image_shape=shape)


def converted(data: Dataset, dtype: torch.dtype) -> Dataset:
    """A table with its numbers in another type; columns that lose all differences are warned about."""

    def ready(part: Tensor | None) -> Tensor | None:
        return part if part is None or not part.is_floating_point() else part.to(dtype)

    parts = {name: ready(getattr(data, name)) for name in ("X", "y", "X_test", "y_test")}
    made = replace(data, **parts)  # type: ignore[arg-type]
    warn_of_constants(data, data.X, made.X, "read them with dtype=torch.float64 and standardise them before")
    return made


def warn_of_constants(data: Dataset, before: Tensor, after: Tensor, remedy: str) -> None:
    """Warn of features that differ from sample to sample before a conversion, and no longer after it."""
    lost = (varying(before) & ~varying(after[:, : before.shape[1]])).nonzero().flatten().tolist()
    if not lost:
        return
    names = [data.inputs[place] for place in lost[:5]]
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    kind = str(after.dtype).removeprefix("torch.")
    warnings.warn(
        f"{data.name}: the values of {', '.join(names)}{more} vary, but are all the same in {kind}; {remedy}",
        UserWarning,
        stacklevel=4,
    )


def varying(X: Tensor) -> Tensor:
    """For every column, whether it holds different numbers."""
    return X.amin(0) < X.amax(0)


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
