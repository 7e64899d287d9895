"""What every run has, whatever its method: its data, how far it is, what it has measured, what a checkpoint keeps."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ipdlam.checkpoint.format import RowStore
from ipdlam.checks import check_number
from ipdlam.distributed.group import SERIAL, Group, Span
from ipdlam.network.linalg import all_finite
from ipdlam.network.matmul import USUAL, usable
from ipdlam.network.model import ModelView, Weights
from ipdlam.network.samples import Samples
from ipdlam.training.history import History, Record
from ipdlam.training.loop import Progress

ROWS_WATCHED, NUMBERS_WATCHED = 32, 256  # of an array, and of each of these rows: tens of microseconds an iteration


def add_digests(parts: Sequence[dict[str, tuple[str, int] | None]]) -> dict[str, str | None]:
    """What :meth:`ipdlam.network.samples.Samples.row_digests` gives for all parts together, as text."""
    text: dict[str, str | None] = {}
    for name, own in parts[0].items():
        total = sum(found[1] for part in parts if (found := part[name]) is not None)
        text[name] = None if own is None else f"{total % 2**256:064x} {own[0]}"
    return text


def some_rows(array: Tensor | None) -> bytes | None:
    """A checksum of rows from all over an array in memory; None where there is none, or it is elsewhere."""
    if array is None or not len(array) or array.device.type != "cpu" or array.layout != torch.strided:
        return None
    rows = array.detach().numpy()[:: -(-len(array) // ROWS_WATCHED)]
    numbers = rows.reshape(len(rows), -1)
    numbers = numbers[:, :: -(-numbers.shape[1] // NUMBERS_WATCHED)]
    return hashlib.blake2b(np.ascontiguousarray(numbers).data).digest()


@dataclass
class RunState(ABC):
    """A run from one iteration to the next; a method adds its own variables to the tensors and the counters."""

    samples: Samples
    validation: Samples | None
    progress: Progress = field(default_factory=Progress, kw_only=True)
    history: History = field(default_factory=History, kw_only=True)
    iteration: int = field(default=0, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    whole: bool = field(default=False, kw_only=True)  # False while an iteration is under way: half of one is no run
    evaluating: bool = field(default=False, kw_only=True)  # the iteration that was counted last
    products: str = field(default=USUAL, kw_only=True)  # the routine that multiplies (ipdlam.network.matmul)
    spans: tuple[Span, Span | None] | None = field(default=None, kw_only=True)  # of many processes' samples, validation
    _marks: dict[str, object] = field(init=False, repr=False)
    _fingerprints: dict[str, Any] | None = field(default=None, kw_only=True, repr=False)
    _row_fingerprints: dict[str, Any] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        self._marks = self._mark_samples()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, or from a pickle: torch counts the changes of the new tensors from the beginning."""
        self.__dict__.update(state)
        self._marks = self._mark_samples()

    @abstractmethod
    def last_weights(self) -> Weights:
        """What the last finished iteration left: the run's own, no copies. The model may hold others."""

    def named_weights(self) -> dict[str, Tensor]:
        """The weights and biases of the last finished iteration, by name."""
        return self.last_weights().named()

    def tensors(self) -> dict[str, RowStore]:
        """Every tensor on which the rest of the run depends, by name: the run's own, no copies."""
        best = self.progress.best_weights
        return {**self.named_weights(), **({} if best is None else best.named("best."))}

    def fingerprints(self) -> dict[str, Any]:
        """What tells the data of this run from others."""
        if self._fingerprints is None:
            validation = None if self.validation is None else self.validation.fingerprint()
            self._fingerprints = {"training": self.samples.fingerprint(), "validation": validation}
        return self._fingerprints

    def fingerprints_by_row(self, group: Group = SERIAL) -> dict[str, Any]:
        """The same for the data of all processes, however they are divided among them."""
        if self._row_fingerprints is None:
            spans = self.spans or (Span.even(0, 1, len(self.samples)), None)
            own = [self.samples.row_digests(spans[0].first)]
            if self.validation is not None:
                own.append(self.validation.row_digests(0 if spans[1] is None else spans[1].first))
            training, *validation = [add_digests(parts) for parts in zip(*group.everyones(own), strict=True)]
            self._row_fingerprints = {
                "by": "row",
                "training": training,
                "validation": validation[0] if validation else None,
            }
        return self._row_fingerprints

    def refuse_changes(self) -> None:
        """Refuse samples that were changed in place since the run began: sums over them would be of two kinds.

        torch counts the changes of a tensor. Of what else changes numbers, as NumPy does in an array that a tensor
        shares, some rows tell, the same ones every time.
        """
        for name, mark in self._mark_samples().items():
            if mark != self._marks[name]:
                raise RuntimeError(
                    f"{name} was changed in place since the run was started, which reads it in every iteration; give "
                    "the run a copy of its own, or call start(X, y) with the new data"
                )

    def _mark_samples(self) -> dict[str, object]:
        parts = {"": self.samples, "validation ": self.validation}
        return {
            f"{prefix}{name}": (version, some_rows(part.weight if name == "sample_weight" else getattr(part, name)))
            for prefix, part in parts.items()
            if part is not None
            for name, version in part.versions().items()
        }

    @property
    def is_unrecorded(self) -> bool:
        """Whether an iteration is counted that has no record yet, and it is not being evaluated."""
        return self.iteration > len(self.history) and not self.evaluating

    def place(self) -> dict[str, Any]:
        """Where the run stands; the same on all processes."""
        return {"iterations so far": len(self.history)}

    def plan_until(self, iterations: int) -> None:  # noqa: B027 (most have no plan)
        """Prepare for a loop that ends after so many iterations, if nothing ends it earlier."""

    def counters(self) -> dict[str, Any]:
        """Everything else on which the rest of the run depends, in plain JSON types."""
        return {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "history": [record.to_dict() for record in self.history],
            "best_score": self.progress.best_score,
            "has_best_weights": self.progress.best_weights is not None,
            "unimproved": self.progress.unimproved,
            "products": self.products,
        }

    def restore(self, counters: dict[str, Any], network: ModelView) -> None:
        """Make this the run with these counters, whose :meth:`tensors` remain to be filled."""
        self.iteration, self.seconds = int(counters["iteration"]), float(counters["seconds"])
        if self.iteration != len(counters["history"]):
            raise ValueError(f"it is of iteration {self.iteration}, but has {len(counters['history'])} records")
        self.products = usable(counters.get("products", USUAL))  # runs of before had no other
        if counters["best_score"] is not None:
            check_number("best_score", counters["best_score"])
        self.history = History(Record.from_dict(fields) for fields in counters["history"])
        best_weights = network.read() if counters["has_best_weights"] else None
        self.progress = Progress(counters["best_score"], best_weights, int(counters["unimproved"]))

    def count(self, seconds: float) -> None:
        """An iteration is done, and took so long."""
        self.iteration += 1
        self.seconds += seconds
        self.whole = True

    def close(self) -> None:
        """Give back what the run holds outside memory; it cannot go on."""
        self.whole = False

    def check_filled(self) -> None:
        """Refuse what was filled into the :meth:`tensors` and no run can have."""
        for name, tensor in self.named_weights().items():
            if not all_finite(tensor):
                raise ValueError(f"its {name} is not finite")
