"""A table as numbers: what its columns are, learned from the first samples, and the same for all that come later.

Numbers stay as they are; a gap among them becomes the median, and a column says where the gaps were. Categories become
a column of 0 and 1 each, the most frequent ones of a column; rarer ones share one. A category that is met for the first
time in ``predict`` is one of the rare ones where there are any, else none.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipdlam.estimators.scaling import Array

MOST_CATEGORIES = 64  # of a column that are told apart, the most frequent ones; the others share a column
SETTING = "categorical_features must be 'from_dtype', None, or the columns as names, positions or a mask"
NO_DATES = (
    "give numbers made of them, such as the year, the day of the week or the seconds since a date, or leave the column "
    "out"
)


@dataclass(frozen=True)
class Column:
    """How one column of a table is read; ``categories`` is None where it holds numbers."""

    name: str
    categories: tuple[Any, ...] | None = None
    has_others: bool = False  # whether rarer categories share a column
    fill: float = 0.0  # what stands for a gap among numbers
    has_gaps: bool = False  # whether a column says where gaps are

    @property
    def width(self) -> int:
        """How many columns of numbers it becomes."""
        if self.categories is None:
            return 1 + self.has_gaps
        return len(self.categories) + self.has_others + self.has_gaps

    @classmethod
    def of(cls, name: str, values: Array, categorical: bool) -> Column:
        """As the first samples say."""
        gaps = is_missing(values)
        has_gaps, known = bool(gaps.any()), values[~gaps]
        if not categorical:
            return cls(name, fill=float(np.median(known)) if len(known) else 0.0, has_gaps=has_gaps)
        words: Counter[str] = Counter()
        for value, count in counts(name, known).items():
            words[as_word(name, value)] += count
        often = sorted(word for word, _ in words.most_common(MOST_CATEGORIES))
        return cls(name, tuple(often), len(words) > MOST_CATEGORIES, has_gaps=has_gaps)

    def fill_in(self, values: Array, out: Array) -> None:
        """Write the columns of numbers that it becomes."""
        gaps = is_missing(values)
        if self.has_gaps:
            out[:, -1] = gaps
        if self.categories is None:
            out[:, 0] = np.where(gaps, self.fill, values)
            return
        known = values[~gaps].tolist()
        different = counts(self.name, values[~gaps])
        places = {category: place for place, category in enumerate(self.categories)}
        others = len(places) if self.has_others else -1
        place_of = {value: places.get(as_word(self.name, value), others) for value in different}
        place = np.fromiter((place_of[value] for value in known), np.int64, len(known))
        rows = np.flatnonzero(~gaps)
        out[rows[place >= 0], place[place >= 0]] = 1.0

    def named(self) -> list[str]:
        """The names of the columns of numbers."""
        if self.categories is None:
            found = [self.name]
        else:
            found = [f"{self.name}={category}" for category in self.categories]
            found += [f"{self.name}: others"] * self.has_others
        return found + [f"{self.name}: missing"] * self.has_gaps


@dataclass(frozen=True)
class Columns:
    """How every column of a table is read."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, table: Any, categorical_features: Any) -> Columns | None:
        """What the first samples say; None where they are numbers without gaps, which need no reading."""
        names = names_of(table)
        which = categorical_mask(table, names, categorical_features)
        found = tuple(
            Column.of(name, values, category)
            for name, values, category in zip(names, values_of(table, names, which), which, strict=True)
        )
        return None if all(column.categories is None and not column.has_gaps for column in found) else cls(found)

    def __call__(self, table: Any, dtype: Any) -> Array:
        """The table as numbers."""
        names = [column.name for column in self.columns]
        which = [column.categories is not None for column in self.columns]
        out = np.zeros((len(table), sum(column.width for column in self.columns)), dtype)
        start = 0
        for column, values in zip(self.columns, values_of(table, names, which), strict=True):
            column.fill_in(values, out[:, start : start + column.width])
            start += column.width
        return out

    def named(self) -> list[str]:
        """The names of the columns of numbers."""
        return [name for column in self.columns for name in column.named()]


def is_frame(X: Any) -> bool:
    """Whether it has columns with types of their own: a DataFrame of pandas, or one of polars."""
    return hasattr(X, "columns") and hasattr(X, "dtypes") and not hasattr(X, "tocsr")


def as_pandas(X: Any) -> Any:
    """A DataFrame of another library as one of pandas."""
    return X if hasattr(X, "iloc") or not hasattr(X, "to_pandas") else X.to_pandas()


def names_of(table: Any) -> list[str]:
    """The columns' names, or ``column 0`` and so on."""
    if is_frame(table):
        return [str(name) for name in table.columns]
    return [f"column {number}" for number in range(table.shape[1])]


def values_of(table: Any, names: Sequence[str], which: Sequence[bool]) -> list[Array]:
    """The columns as arrays: categories as objects, numbers as float64, what is missing as None or NaN."""
    found: list[Array] = []
    for number, (name, category) in enumerate(zip(names, which, strict=True)):
        values = table.iloc[:, number] if is_frame(table) else table[:, number]
        found.append(np.asarray(values.astype(object)) if category else as_numbers(name, values))
    return found


def as_numbers(name: str, values: Any) -> Array:
    """A column of numbers, with NaN for what is missing."""
    try:
        if getattr(values.dtype, "kind", "") == "c":
            raise TypeError("complex numbers")
        if hasattr(values, "iloc"):
            numbers: Array = values.to_numpy(dtype=np.float64, na_value=np.nan)
            return numbers
        if values.dtype.kind != "O":
            return np.asarray(values, np.float64)
        return np.array(
            [np.nan if gap else float(value) for value, gap in zip(values, is_missing(values), strict=True)]
        )
    except (TypeError, ValueError, OverflowError):
        given = np.asarray(values.astype(object))
        some = next((value for value in given[~is_missing(given)] if not is_number(value)), values.dtype)
        raise ValueError(
            f"X holds {some!r} in the column {name!r}, where numbers are expected; make it a number, or name the "
            "column in categorical_features"
        ) from None


def refuse_dates(X: Any) -> None:
    """Refuse dates and spans of time, of a frame by the column's name."""
    kinds = dict(zip(names_of(X), X.dtypes, strict=True)) if is_frame(X) else {"X": getattr(X, "dtype", None)}
    for name, kind in kinds.items():
        if getattr(kind, "kind", "") in ("m", "M") or str(kind).startswith(("datetime", "timedelta", "period")):
            raise ValueError(f"X holds dates in the column {name!r} ({kind}); {NO_DATES}")


def categorical_mask(table: Any, names: Sequence[str], features: Any) -> list[bool]:
    """Which columns hold categories."""
    kinds = list(table.dtypes) if is_frame(table) else []
    if features is None:
        return [False] * len(names)
    if isinstance(features, str):
        if features != "from_dtype":
            raise ValueError(f"{SETTING}, got {features!r}")
        if not kinds:
            return [False] * len(names)
        return [is_categorical(kind, table.iloc[:, number]) for number, kind in enumerate(kinds)]
    try:
        given = np.asarray(features)
    except ValueError:
        raise ValueError(f"{SETTING}, got {features!r}") from None
    if given.dtype == bool and given.shape == (len(names),):
        return [bool(flag) for flag in given]
    if given.ndim != 1 or given.dtype == bool:
        raise ValueError(f"{SETTING}, got {features!r} for {len(names)} columns")
    mask = [False] * len(names)
    for one in list(features):
        if isinstance(one, str):
            if not kinds or one not in names:
                known = ", ".join(names[:5]) if kinds else "columns without names"
                raise ValueError(f"categorical_features holds {one!r}, but X has {known}")
            mask[list(names).index(one)] = True
        elif isinstance(one, (int, np.integer)) and 0 <= one < len(names):
            mask[int(one)] = True
        else:
            raise ValueError(
                f"categorical_features holds {one!r}, but X has {len(names)} columns, at positions from 0 on"
            )
    return mask


def is_categorical(kind: Any, series: Any) -> bool:
    """Whether a column holds categories: text, or what pandas calls so; objects that are all numbers are numbers."""
    if str(kind) == "object":
        return not all(isinstance(value, (int, float, np.number, np.bool_)) for value in series.dropna())
    return str(kind) in ("category", "str") or str(kind).startswith("string")


def is_missing(values: Array) -> Array:
    """Where a column has gaps: NaN, None, pandas' NA and NaT."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(len(values), bool)
    return np.fromiter((value is None or is_nothing(value) for value in values), bool, len(values))


def is_nothing(value: Any) -> bool:
    """Whether a value is NaN, NA or NaT: none of them equals itself, and NA does not even say so."""
    try:
        return bool(value != value)
    except TypeError:
        return True
    except ValueError:  # an array in a cell
        return False


def is_number(value: Any) -> bool:
    """Whether ``float`` takes it."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, complex)


def counts(name: str, values: Array) -> Counter[Any]:
    """How often each value comes up."""
    try:
        return Counter(values.tolist())
    except TypeError:  # some value is no key of a dictionary, and so no category
        for value in values:
            as_word(name, value)
        raise


def as_word(name: str, value: Any) -> str:
    """A category as text: the numbers 1 and 1.0 and True are one."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, np.bool_, int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    if type(value).__name__ == "Interval":  # of pandas.cut
        return str(value)
    if isinstance(value, (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)):
        raise ValueError(f"X holds dates in the column {name!r} ({value!r}); {NO_DATES}")
    raise TypeError(
        f"X holds {value!r} in the column {name!r}; a category must be a string or a number, not "
        f"{type(value).__name__}: use .astype(str)"
    )
