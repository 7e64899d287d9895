"""Tables of samples: ``.npz`` archives and ``.csv`` or ``.tsv`` text, plain or gzipped; a bad cell is named by place"""

from __future__ import annotations

import csv
import difflib
import io
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ipdlam.datasets.columns import MOST_CATEGORIES, Census, Column
from ipdlam.datasets.idx import opened, pixels, read_idx
from ipdlam.errors import DataError

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TRIED = {",": (";", "\t", ","), "\t": ("\t", ";", ",")}  # what may stand between cells, by what the name says
LOOKED_AT = 1 << 16  # characters of a file that tell what stands between its cells
NUMERAL = re.compile(r"[+-]?\d[\d., \u00a0']*")  # digits, points, commas and blanks: no name of anything
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
TASKS = ("auto", "classification", "regression")
MOST_CLASSES = 100  # whole numbers with more values than these are taken for real targets
Rows = Iterator[tuple[int, list[str]]]  # the number of the line and the cells of every row
LARGEST = float(np.finfo(np.float32).max)
SHOWN = 10  # names of columns in a message
GAPS = ("", "NA", "na", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "none", "?", "-", "--", ".")
"""What stands in a table for a number that is not known; it is no name of a column by itself."""


class Table(NamedTuple):
    """Samples in float64, with the names of their classes (None for real targets) and features (None without a header).

    No number beyond float32 is among them, so that each can be converted.
    """

    X: Tensor
    y: Tensor
    X_test: Tensor | None
    y_test: Tensor | None
    classes: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    encoding: tuple[Column, ...] | None = None  # how the features of a text table became X
    label: str | None = None  # the name of the label column, where there is a header


@dataclass(frozen=True)
class Layout:
    """Which columns of a text table are which."""

    header: tuple[str, ...] | None
    width: int
    features: tuple[int, ...]
    label: int | None

    def name(self, place: int) -> str:
        """The name of a column, or its number."""
        return str(place) if self.header is None else self.header[place]

    def column(self, place: int) -> str:
        """A column as messages call it."""
        return f"column {place} (from 0)" if self.header is None else f"column {self.header[place]!r}"


def separator(path: Path) -> str | None:
    """What stands between the cells of a text table, by the name of the file; None for another kind of file."""
    return SEPARATORS.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def read_table(
    path: Path,
    label: str | int | None = None,
    task: str = "auto",
    *,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    gaps: bool = False,
    encoding: Sequence[Column] | None = None,
) -> Table:
    """The samples of an ``.npz``, ``.csv`` or ``.tsv`` file; ``label`` is a column of a text table, else its last.

    Of a text table, the columns to ``drop`` are left out, a column of texts, or one that is named in ``categories``,
    becomes one for each of its categories, and a gap in a column of numbers is NaN, or refused unless there may be
    ``gaps``. An ``encoding`` is that of another table, whose columns are to be found in this one.
    """
    if path.suffix.lower() == ".npz":
        return read_npz(path, task)
    line, first = next(read_rows(path))
    layout = layout_of(path, line, first, label, drop)
    if encoding is not None and layout.header is not None and not all(each.name.isdigit() for each in encoding):
        names = list(layout.header)
        places = tuple(name_place(path, names, each.name, "feature") for each in encoding)
        if layout.label in places:
            raise DataError(
                f"{path}: the label is column {names[layout.label or 0]!r}, which the model takes as an input; say "
                "which column holds the labels"
            )
        layout = replace(layout, features=places)
    declared = {column_place(path, layout, name, "take for categories", drop) for name in categories}
    found = parse(path, layout, encoding, declared, gaps=gaps)
    numbers = [number(text) for text in found.labels]
    others = [cell.strip() for place, cell in enumerate(first) if place != layout.label]
    if layout.header is None and is_numbered_header(others, found.labels):
        layout = replace(layout, header=tuple(cell.strip() for cell in first))
        found, numbers = parse(path, layout, encoding, declared, gaps=gaps), numbers[1:]
    y, classes = text_targets(path, layout, found.lines, found.labels, numbers, task)
    columns = layout.header and tuple(layout.header[place] for place in layout.features)
    label_name = None if layout.header is None or layout.label is None else layout.header[layout.label]
    return Table(torch.tensor(found.X), y, None, None, classes, columns, found.encoding, label_name)


def read_inputs(
    path: Path,
    columns: Sequence[str] | None = None,
    label: str | int | None = None,
    *,
    gaps: bool = False,
    encoding: Sequence[Column] | None = None,
    drop: Sequence[str] = (),
) -> Tensor:
    """Inputs without their labels, for prediction: a text table, the ``X`` of an ``.npz`` file, or IDX images.

    Of a text table with a header, the ``columns`` that were trained on are taken in their order, or else all but one
    that is named ``label``. Those of tables are float64: what standardises them needs all digits. ``gaps`` and
    ``encoding`` are as in :func:`read_table`; without an encoding all columns are numbers. A table without a header
    holds the inputs alone or, where the training was to ``drop`` some, all columns, with or without the labels.
    """
    if path.suffix.lower() == ".npz":
        return matrix(path, "X", read_arrays(path, ("X",))["X"])
    if separator(path) is None:
        return pixels(path, read_idx(path))
    line, first = next(read_rows(path))
    names = [cell.strip() for cell in first]
    if columns is None and drop and encoding is not None and len(first) != len(encoding):
        labels, inputs = places_by_number(path, len(first), label, drop, encoding)
        layout = Layout(tuple(names) if is_header(path, line, first, labels) else None, len(first), inputs, None)
        return torch.tensor(parse(path, layout, encoding, (), gaps=gaps).X)
    known = columns is not None and set(columns) <= set(names)
    header = known or is_header(path, line, first)
    places = [place for place, name in enumerate(names) if not header or name != label]
    if header and columns is not None and [names[place] for place in places] != list(columns):
        places = [name_place(path, names, name, "feature") for name in columns]
    if columns is not None and len(places) != len(columns):
        raise DataError(f"{path} has {len(places)} columns and no header; trained on were {', '.join(columns)}")
    if not places:
        raise DataError(f"{path} has no column but {label!r}, the label")
    layout = Layout(tuple(names) if header else None, len(first), tuple(places), None)
    numeric = tuple(Column(layout.name(place)) for place in places)
    return torch.tensor(parse(path, layout, numeric if encoding is None else encoding, (), gaps=gaps).X)


def places_by_number(
    path: Path, width: int, label: str | int | None, drop: Sequence[str], encoding: Sequence[Column]
) -> tuple[int | None, tuple[int, ...]]:
    """Where the labels, if there are any, and the inputs are in a table like the one that was trained on."""
    for missing in (0, 1):  # whether this table lacks the column of the labels
        with suppress(DataError):
            whole = layout_of(path, 1, ["0"] * (width + missing), label, drop)
            if [whole.name(place) for place in whole.features] == [column.name for column in encoding]:
                assert whole.label is not None
                inputs = tuple(place - missing * (place > whole.label) for place in whole.features)
                return None if missing else whole.label, inputs
    raise DataError(
        f"{path} has {width} columns and no header; give the inputs that the model was trained on, columns "
        f"{', '.join(column.name for column in encoding)} (from 0) of its table, alone or all columns of such a table"
    )


def read_rows(path: Path) -> Rows:
    """The number of the line and the cells of every row that is not blank."""
    with opened(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        line, empty = 1, True
        try:
            start = text.read(LOOKED_AT)
            between = found_separator(start, separator(path) or ",")
            reader = csv.reader(chain(complete_lines(start, text), text), delimiter=between, strict=True)
            for cells in reader:
                if len(cells) > 1 or (cells and cells[0].strip()):
                    empty = False
                    yield line, cells if between == "," else [with_point(cell) for cell in cells]
                line = reader.line_num + 1  # a quoted cell may hold the end of a line
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text, in or after line {line}: {error}. Save it as UTF-8") from None
        except csv.Error as error:
            raise DataError(f"{path}, line {line}: {error}. Mend the quotes of this row") from None
        if empty:
            raise DataError(f"{path} is empty; a table has one row a sample")


def sample_rows(path: Path, layout: Layout) -> Rows:
    """The rows below the header, if there is one; each has as many cells as the first."""
    rows = read_rows(path)
    if layout.header is not None:
        next(rows)
    for line, cells in rows:
        if len(cells) != layout.width:
            raise DataError(f"{path}, line {line} has {len(cells)} cells, but the first row has {layout.width}")
        yield line, cells


def complete_lines(start: str, text: io.TextIOWrapper) -> Iterator[str]:
    """What has been read, line by line, with the rest of its last line."""
    lines = io.StringIO(start, newline="").readlines()  # str.splitlines would break at other characters, too
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += text.readline()
    return iter(lines)


def found_separator(start: str, usual: str) -> str:
    """What stands between the cells, by the first lines: as many times in each; what the name says where none does."""
    read = io.StringIO(start, newline="").readlines()
    lines = [line for line in read[:-1] or read if line.strip()][:10]
    for candidate in TRIED[usual]:
        try:
            widths = {len(cells) for cells in csv.reader(lines, delimiter=candidate)}
        except csv.Error:
            continue
        if len(widths) == 1 and widths != {1}:
            return candidate
    return usual


def with_point(cell: str) -> str:
    """A number that is written with a decimal comma, where no comma parts the cells, with a point."""
    return cell.replace(",", ".") if "," in cell and DECIMAL_COMMA.fullmatch(cell.strip()) else cell


def number(text: str) -> int | float | None:
    """The number that a cell spells, exact if it is whole; None if it spells none."""
    if "_" in text:  # Python reads 1_000 as a number; a table does not mean it
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    if not value.is_integer() or abs(value) >= 2**63:
        return value
    try:
        return int(text)
    except ValueError:  # 1e3 and 1.0
        return int(value)


def is_name(cell: str) -> bool:
    """Whether a cell of the first row may be the name of a column: it is neither a number nor a gap."""
    return cell.strip() not in GAPS and number(cell) is None


def is_header(path: Path, line: int, first: list[str], label: int | None = None) -> bool:
    """Whether the first row names the features; one that holds names and numbers is refused, for it may be a sample."""
    cells = {place: cell.strip() for place, cell in enumerate(first) if place != label}
    names = [place for place, cell in cells.items() if is_name(cell)]
    numbers = [place for place, cell in cells.items() if number(cell) is not None]
    if names and numbers:
        raise DataError(
            f"{path}, line {line} may be a header or a sample: {cells[names[0]]!r} in column {names[0]} (from 0) is "
            f"text, and {cells[numbers[0]]!r} in column {numbers[0]} is a number. Replace or remove the text if it is "
            "a sample; name every column by text, or label by its name, if it is a header"
        )
    return bool(names)


def is_numbered_header(features: list[str], labels: Sequence[str]) -> bool:
    """Whether the first row names columns, as pandas does, 0, 1, 2, ...: only the name of the labels can show it.

    It is a text, and all labels below are numbers; or it is none of the texts below, of which each has two samples or
    more. So it is no sample, unless that is the only one of its class and its features happen to count from 0.
    """
    name, *others = labels
    if features != list(map(str, range(len(features)))) or number(name) is not None:
        return False
    if all(number(label) is not None for label in others):
        return bool(others)
    counts = Counter(others)
    return len(features) > 1 and is_name(name) and name not in counts and min(counts.values()) > 1


def name_place(path: Path, names: list[str], name: str, what: str) -> int:
    """The one column of this name."""
    if names.count(name) == 1:
        return names.index(name)
    how = f"{names.count(name)} columns" if name in names else "no column"
    raise DataError(f"{path} has {how} {name!r} for the {what}; {listed(names, name)}")


def listed(names: Sequence[str], wanted: str = "") -> str:
    """The columns of a table in words: those that are called much like the one that is wanted, and a few others."""
    close = difflib.get_close_matches(wanted, names[:10_000], 1)
    hint = f"did you mean {brief(close[0])!r}? " if close and close[0] != wanted else ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{hint}its columns are {', '.join(map(brief, names[:SHOWN]))}{more}"


def brief(name: str) -> str:
    """A name that does not fill the screen."""
    return name if len(name) <= 40 else f"{name[:37]}..."


def layout_of(path: Path, line: int, first: list[str], label: str | int | None, drop: Sequence[str] = ()) -> Layout:
    """Where the labels and features are, and whether the first row is their header."""
    names, width = [cell.strip() for cell in first], len(first)
    if width < 2:
        raise DataError(f"{path} has one column; features and labels are two or more, with {separator(path)!r} between")
    some = any(map(is_name, first))
    named = isinstance(label, str) and (number(label) is None or (label in names and some))
    if named:
        if not some:
            raise DataError(f"{path} has no header row with {label!r}; give label as a number in 0 ... {width - 1}")
        place = name_place(path, names, str(label), "label")
    else:
        value = -1 if label is None else number(str(label))
        if not isinstance(value, int) or not -width <= value < width:
            raise DataError(f"{path} has no column {label!r}, only 0 ... {width - 1}; {listed(names)}")
        place = value % width
    header = tuple(names) if named or is_header(path, line, first, place) else None
    if header and names.count(names[place]) > 1:
        raise DataError(f"{path} has {names.count(names[place])} columns {names[place]!r}; the label must be alone")
    if header is not None:
        refuse_doubles(path, header)
    every = Layout(header, width, (), place)
    left_out = {column_place(path, every, name, "drop") for name in drop}
    features = tuple(other for other in range(width) if other != place and other not in left_out)
    if not features:
        raise DataError(f"{path} has no column left but the label; drop fewer than {', '.join(drop)}")
    return Layout(header, width, features, place)


def column_place(path: Path, layout: Layout, name: str, purpose: str, dropped: Sequence[str] = ()) -> int:
    """The column of features that an option names, or numbers."""
    if layout.header is not None and name in layout.header:
        place = layout.header.index(name)
    else:
        value = number(name)
        if not isinstance(value, int) or not -layout.width <= value < layout.width:
            known = f"only 0 ... {layout.width - 1}" if layout.header is None else listed(layout.header, name)
            raise DataError(f"{path} has no column {name!r} to {purpose}; {known}")
        place = value % layout.width
    if place == layout.label:
        raise DataError(f"{path}: {name!r} is the column to {purpose}, but it is the label; give another label")
    if dropped and place not in layout.features:
        raise DataError(f"{path}: {name!r} is the column to {purpose}, but it is dropped; leave out one of them")
    return place


def refuse_doubles(path: Path, names: Sequence[str]) -> None:
    """Refuse columns of one name: a model of them could not tell which is which in another table."""
    double = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if double is not None:
        raise DataError(f"{path} has {names.count(double)} columns {double!r}; give each column a name of its own")


class Parsed(NamedTuple):
    """The features as numbers, and the line and the label of every row."""

    X: np.ndarray
    lines: list[int]
    labels: list[str]
    encoding: tuple[Column, ...]


def parse(
    path: Path, layout: Layout, encoding: Sequence[Column] | None, declared: Collection[int], *, gaps: bool
) -> Parsed:
    """Read a table; without an ``encoding`` it is read once more where it holds texts, to see which columns do.

    The columns that were ``declared`` to hold categories do, whatever stands there.
    """
    if encoding is None:
        try:
            if declared:
                raise TextFound
            return parse_as(path, layout, tuple(Column(layout.name(place)) for place in layout.features), gaps=gaps)
        except TextFound:
            encoding = find_columns(path, layout, declared)
    if len(encoding) != len(layout.features):
        raise DataError(f"{path} has {len(layout.features)} features, but the model takes {len(encoding)}")
    return parse_as(path, layout, tuple(encoding), gaps=gaps)


class TextFound(DataError):
    """A cell that is no number stands in a column of numbers."""


def parse_as(path: Path, layout: Layout, columns: tuple[Column, ...], *, gaps: bool) -> Parsed:
    """The table, if its columns are these."""
    content, lines, labels = bytearray(), [], []
    texts: dict[int, list[str]] = {place: [] for place, column in enumerate(columns) if column.categories is not None}
    places = [place for number, place in enumerate(layout.features) if number not in texts]
    for line, cells in sample_rows(path, layout):
        values = as_numbers([cells[place] for place in places])
        content += (numbers_or_gaps(path, line, layout, places, cells, gaps) if values is None else values).tobytes()
        for number, found in texts.items():
            found.append(text_of(cells[layout.features[number]]))
        lines.append(line)
        if layout.label is not None:
            labels.append(cells[layout.label].strip())
    if not lines:
        raise DataError(f"{path} has a header but no rows; a table has one row a sample")
    numbers = np.frombuffer(content, np.float64).reshape(len(lines), -1)
    if not texts:
        return Parsed(numbers, lines, labels, columns)
    single = iter(numbers.T)
    parts = [
        column.encode(texts[number], str(path)) if number in texts else next(single)[:, None]
        for number, column in enumerate(columns)
    ]
    return Parsed(np.concatenate(parts, axis=1), lines, labels, columns)


def numbers_or_gaps(
    path: Path, line: int, layout: Layout, places: Sequence[int], cells: Sequence[str], gaps: bool
) -> np.ndarray:
    """The numbers of a row, with NaN for its gaps; a cell that is neither is refused by place."""
    found = np.empty(len(places))
    for position, place in enumerate(places):
        values, gap = as_numbers([cells[place]]), is_gap(cells[place])
        if values is None and not (gap and gaps):
            kind = DataError if gap or number(cells[place]) is not None else TextFound
            raise kind(
                f"{path}, line {line}, {layout.column(place)}: {cells[place]!r} is not a finite number; replace it or "
                "remove the row"
            )
        found[position] = np.nan if values is None else values[0]
    return found


def find_columns(path: Path, layout: Layout, declared: Collection[int] = ()) -> tuple[Column, ...]:
    """Which columns hold texts, and what categories these are; a text among many numbers is refused by place."""
    counts = [Census() for _ in layout.features]
    for line, cells in sample_rows(path, layout):
        for census, place in zip(counts, layout.features, strict=True):
            gap = is_gap(cells[place])
            census.add(line, text_of(cells[place]), not gap and number(cells[place]) is not None, gap)
    found = []
    for census, place in zip(counts, layout.features, strict=True):
        name, is_text = layout.name(place), census.is_text or place in declared
        if census.first is not None and not is_text:
            line, text = census.first
            raise DataError(
                f"{path}, line {line}, {layout.column(place)}: {text!r} is not a finite number, as most of the column "
                f"are; replace it, leave it empty, leave the column out (--drop {name}), or take all of it for "
                f"categories (--categories {name})"
            )
        if is_text and place not in declared and all(NUMERAL.fullmatch(text) for text in census.categories if text):
            raise DataError(
                f"{path}, {layout.column(place)} holds {max(census.categories)!r} and the like, which may be numbers; "
                "write them with a decimal point and nothing between the digits, or say that they are names "
                f"(--categories {name})"
            )
        if is_text and len(census.categories) > MOST_CATEGORIES:
            raise DataError(
                f"{path}, {layout.column(place)} holds more than {MOST_CATEGORIES} different texts, such as "
                f"{sorted(census.categories)[0]!r}; one input for each would be too many. Leave the column out (--drop "
                f"{name}), or replace the texts by fewer, or by numbers"
            )
        found.append(Column(name, tuple(sorted(census.categories)) if is_text else None))
    return tuple(found)


def is_gap(cell: str) -> bool:
    """Whether a cell stands for what is not known."""
    text = cell.strip()
    return text in GAPS or text.lower() == "nan"


def text_of(cell: str) -> str:
    """The category of a cell; all gaps are one."""
    return "" if is_gap(cell) else cell.strip()


def as_numbers(cells: list[str]) -> np.ndarray | None:
    """Cells as numbers, or None if one of them is not a number that float32 holds, too."""
    if "_" in "".join(cells):
        return None
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None
    return values if bool((np.abs(values) <= LARGEST).all()) else None


def text_targets(
    path: Path, layout: Layout, lines: list[int], labels: list[str], numbers: list[int | float | None], task: str
) -> tuple[Tensor, tuple[str, ...] | None]:
    """Class indices with the names of the classes, or a column of real targets."""
    whole = all(isinstance(value, int) for value in numbers) and len(set(numbers)) <= MOST_CLASSES
    real = task == "regression" or (task == "auto" and None not in numbers and not whole)
    for line, text, value in zip(lines, labels, numbers, strict=True):
        # A label "nan" is a missing one, whatever the task.
        if not text or (real and value is None) or not abs(value or 0) <= (LARGEST if real else sys.float_info.max):
            name, what = layout.column(layout.label or 0), "finite number" if real else "label"
            raise DataError(f"{path}, line {line}, {name}: {text!r} is not a {what}; replace it or remove the row")
    if real:
        return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1), None
    keys: list[Any] = labels if None in numbers else numbers
    ordered = sorted(set(keys))
    return encode(keys, ordered), tuple(map(str, ordered))


def encode(labels: Sequence[Any], ordered: Sequence[Any]) -> Tensor:
    """The places of labels among the classes."""
    places = {label: place for place, label in enumerate(ordered)}
    return torch.tensor([places[label] for label in labels])


def read_npz(path: Path, task: str) -> Table:
    """The arrays ``X`` and ``y``, and ``X_test`` and ``y_test`` where they are; features are not scaled."""
    arrays = read_arrays(path, ("X", "y"), ("X_test", "y_test"))
    pairs = [("X", "y"), ("X_test", "y_test")][: len(arrays) // 2]
    inputs = [matrix(path, X, arrays[X]) for X, _ in pairs]
    classes = None
    if task == "regression" or (task == "auto" and arrays["y"].dtype.kind == "f"):
        targets = [matrix(path, y, arrays[y][:, None] if arrays[y].ndim == 1 else arrays[y]) for _, y in pairs]
    else:
        labels = [class_labels(path, y, arrays[y]) for _, y in pairs]
        try:
            ordered = sorted(set().union(*labels))
        except TypeError:
            raise DataError(f"{path}: of y and y_test, one holds text and the other numbers") from None
        targets, classes = [encode(part, ordered) for part in labels], tuple(map(str, ordered))
    for (X, y), rows, goals in zip(pairs, inputs, targets, strict=True):
        if len(rows) != len(goals):
            raise DataError(f"{path}: {X} has {len(rows)} rows, but {y} has {len(goals)}; they must be as many")
    for name, parts in (("X", inputs), ("y", targets)):
        if len({part.shape[1:] for part in parts}) > 1:
            raise DataError(f"{path}: {name} and {name}_test differ in the number of columns")
    X_test, y_test = (inputs[1], targets[1]) if len(pairs) == 2 else (None, None)
    return Table(inputs[0], targets[0], X_test, y_test, classes, None)


def read_arrays(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Arrays of an ``.npz`` file; the optional ones are all there or none. Nothing is ever unpickled."""
    arrays: dict[str, np.ndarray] = {}
    try:
        with opened(path) as stream, np.load(stream, allow_pickle=False) as content:
            there = list(content.files)
            for name in (*needed, *optional):
                stored = name if name in there else name.lower()
                if stored in there:
                    arrays[name] = np.asarray(content[stored])
    except Exception as error:  # zipfile, zlib and numpy's parser of headers have a dozen ways to say "damaged"
        raise DataError(
            f"{path} cannot be read as an .npz archive: {error or type(error).__name__}. Write it with "
            "numpy.savez(path, X=..., y=...); labels may be numbers or text, but not Python objects"
        ) from None
    wanted = (*needed, *optional) if any(name in arrays for name in optional) else needed
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise DataError(f"{path} has no array {' and '.join(missing)}; it holds {', '.join(there) or 'nothing'}")
    return arrays


def matrix(path: Path, name: str, array: np.ndarray) -> Tensor:
    """An array as rows of float64, refused by place where a number is not finite, or not as a float32."""
    if array.dtype.kind not in "biuf" or array.ndim < 2 or array.size == 0:
        raise DataError(f"{path}: {name} must be rows of real numbers, got {array.dtype} of shape {array.shape}")
    with np.errstate(all="ignore"):  # an overflow is found below, with its place
        values = array.astype(np.float64)
    held = np.abs(values) <= LARGEST
    if not bool(held.all()):
        place = tuple(np.argwhere(~held)[0].tolist())
        raise DataError(f"{path}: {name} holds {array[place]} at {place}, which is not a finite float32; replace it")
    return torch.tensor(values.reshape(len(values), -1))


def class_labels(path: Path, name: str, array: np.ndarray) -> list[Any]:
    """Labels as Python's own numbers or text."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "biufSU":
        raise DataError(
            f"{path}: {name} must hold one label a sample, got {array.dtype} of shape {array.shape}; for one-hot rows "
            f"save {name}.argmax(1), for real targets give task='regression'"
        )
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    labels: list[Any] = (array.astype(np.float64) if array.dtype.kind == "f" else array).tolist()
    for place, label in enumerate(labels):
        if isinstance(label, float) and not label.is_integer():
            raise DataError(f"{path}: {name} holds {label} at {place}; labels must be whole numbers or text")
    return [int(label) for label in labels] if array.dtype.kind == "f" else labels
