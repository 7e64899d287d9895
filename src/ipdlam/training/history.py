"""What a run leaves behind: one immutable record for every iteration."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from ipdlam.checks import check_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Record:
    """One iteration, or one epoch of an optimizer.

    The clock of ``seconds`` runs while a method works something out from the training data that it goes on with, z and
    a of its start included. It stands still while data are checked and while losses, accuracies and the objective of a
    baseline are evaluated, which are only shown. Phi of :class:`ipdlam.IPDLAM` is on the clock, since the pass over the
    data that trains measures it, too (docs/guide/runs.md says how long that takes).

    Losses and accuracies are None where they were not evaluated or make no sense (accuracy of a regression).
    """

    iteration: int
    penalty: float
    objective: float
    loss: float
    regularization: float
    linear_gap: tuple[float, ...]
    activation_gap: tuple[float, ...]
    lyapunov: float
    seconds: float  # of training so far
    train_loss: float | None = None  # mean loss of the true forward pass
    train_accuracy: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    optimizer: str | None = None  # the one whose epoch it was, by back-propagation

    @property
    def epoch(self) -> int:
        """What ``iteration`` counts where training goes through mini-batches."""
        return self.iteration

    @property
    def score(self) -> float | None:
        """Higher is better.

        Accuracy where there are labels, else minus the loss; on validation data where there are any. A score that is
        not finite, such as that of a loss that overflows, counts as none: nothing could be better or worse.
        """
        for accuracy, loss in (
            (self.validation_accuracy, self.validation_loss),
            (self.train_accuracy, self.train_loss),
        ):
            if loss is not None:
                score = -loss if accuracy is None else accuracy
                return score if math.isfinite(score) else None
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Record:
        """The inverse of :meth:`to_dict`, also after a trip through JSON, which turns tuples into lists."""
        gaps = {name: tuple(fields[name]) for name in ("linear_gap", "activation_gap")}
        record = cls(**{**fields, **gaps})
        record._check()
        return record

    def _check(self) -> None:
        """Refuse fields that are no numbers: they came from a file."""
        check_integer("iteration", self.iteration, 1)
        optional = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name == "optimizer":
                fits = value is None or isinstance(value, str)
            elif isinstance(value, tuple):
                fits = item.name.endswith("_gap") and all(type(number) in (int, float) for number in value)
            else:
                fits = type(value) in (int, float) or (value is None and item.name in optional)
            if not fits:
                raise TypeError(f"{item.name} of iteration {self.iteration} is {value!r}")


class History(Sequence[Record]):
    """The records of a run in order, and why it ended."""

    def __init__(self, records: Iterable[Record] = (), stop_reason: str | None = None) -> None:
        self._records = list(records)
        self.stop_reason = stop_reason

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    def __getitem__(self, index: int | slice) -> Record | History:
        return History(self._records[index], self.stop_reason) if isinstance(index, slice) else self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __repr__(self) -> str:
        if not self._records:
            return "History(empty)"
        last = self._records[-1]
        ended = f"ended by {self.stop_reason}" if self.stop_reason else "running"
        return f"History({len(self)} iterations, objective {last.objective:.6g}, score {last.score}, {ended})"

    def append(self, record: Record) -> None:
        self._records.append(record)

    def column(self, name: str) -> list[Any]:
        """One field over the iterations, ready to plot."""
        return [getattr(record, name) for record in self._records]

    def to_dataframe(self) -> Any:
        """A ``pandas.DataFrame`` with one row an iteration, indexed by it; gaps are summed over the layers."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("History.to_dataframe needs pandas; install it: pip install pandas") from error
        rows = [
            {**record.to_dict(), "linear_gap": sum(record.linear_gap), "activation_gap": sum(record.activation_gap)}
            for record in self._records
        ]
        fields = [item.name for item in dataclasses.fields(Record)]
        return pd.DataFrame(rows, columns=fields).set_index("iteration")

    def plot(self, title: str | None = None) -> Figure:
        """The curves of the run as a matplotlib figure, which a notebook shows; ``ipdlam.plots`` compares several."""
        from ipdlam.training.plots import draw_curves

        return draw_curves({title or "run": self}, title)

    @property
    def best(self) -> Record | None:
        """The record of the highest score, the first among equals."""
        scored = [record for record in self._records if record.score is not None]
        return max(scored, key=lambda record: record.score or 0.0) if scored else None

    @property
    def handover(self) -> int | None:
        """How many iterations came before an optimizer took over; None where none did."""
        places = (place for place, record in enumerate(self._records) if record.optimizer is not None)
        return next(places, None)

    def to_json(self) -> str:
        return json.dumps({"stop_reason": self.stop_reason, "records": [record.to_dict() for record in self._records]})

    @classmethod
    def from_json(cls, text: str) -> History:
        content = json.loads(text)
        return cls((Record.from_dict(fields) for fields in content["records"]), content["stop_reason"])


def plain(content: Any) -> Any:
    """Content for JSON that others read: what is not finite is null there, for JSON has neither NaN nor Infinity."""
    if isinstance(content, dict):
        return {name: plain(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [plain(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
