"""What the features of a text table are: numbers, or texts that become one column for each of their categories."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_CATEGORIES = 100
SHOWN = 3  # categories that a model does not know, in a message


@dataclass(frozen=True)
class Column:
    """One feature of a table; texts that are none of the ``categories`` have zeros in all of their columns."""

    name: str
    categories: tuple[str, ...] | None = None  # None for numbers

    @property
    def width(self) -> int:
        """How many inputs of a network it becomes."""
        return 1 if self.categories is None else len(self.categories)

    @property
    def names(self) -> list[str]:
        """What its inputs are called."""
        return [self.name] if self.categories is None else [f"{self.name}={text}" for text in self.categories]

    def encode(self, texts: Sequence[str], table: str) -> np.ndarray:
        """One row of zeros and a one for every text; those that are no category are warned about."""
        assert self.categories is not None
        places = {text: place for place, text in enumerate(self.categories)}
        found = np.zeros((len(texts), len(self.categories)))
        unknown: dict[str, None] = {}
        for row, text in enumerate(texts):
            if text in places:
                found[row, places[text]] = 1.0
            else:
                unknown[text] = None
        if unknown:
            some = ", ".join(repr(text) for text in list(unknown)[:SHOWN])
            more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
            warnings.warn(
                f"{table}: column {self.name!r} holds {some}{more}, which the model was not trained on; they count as "
                "none of its categories",
                UserWarning,
                stacklevel=5,
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"name": self.name, "categories": None if self.categories is None else list(self.categories)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Column:
        """The inverse of :meth:`to_dict`; anything else is refused."""
        name, categories = fields["name"], fields["categories"]
        texts = None if categories is None else tuple(categories)
        if not (isinstance(name, str) and all(isinstance(text, str) for text in texts or ())) or texts == ():
            raise TypeError(f"a column is {fields!r}")
        return cls(name, texts)


class Census:
    """Counts what the cells of a column hold: numbers, gaps, and texts with the place of the first."""

    def __init__(self) -> None:
        self.numbers = self.texts = self.gaps = 0
        self.categories: set[str] = set()
        self.first: tuple[int, str] | None = None  # the line and the text

    def add(self, line: int, text: str, is_number: bool, is_gap: bool) -> None:
        """Take in a cell."""
        self.numbers += is_number
        self.gaps += is_gap
        if not (is_number or is_gap):
            self.texts += 1
            self.first = self.first or (line, text)
        if len(self.categories) <= MOST_CATEGORIES:
            self.categories.add(text)

    @property
    def is_text(self) -> bool:
        """Whether it is a column of texts: a few among many numbers are mistakes."""
        return self.texts > self.numbers
