"""Stopping a run from outside without losing an iteration."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from ipdlam.errors import StopTraining

if TYPE_CHECKING:
    from ipdlam.training.history import Record


class StopSignals:
    """Ends the run after the current iteration on SIGINT, SIGTERM or a closed pipe; a second Ctrl-C ends it at once."""

    def __init__(
        self, note: Callable[[str], Any], unheard: Callable[[], bool] = lambda: False, unit: str = "iteration"
    ) -> None:
        self.note = note
        self.unit = unit  # what is finished first
        self.unheard = unheard  # whether nobody reads what is printed any more
        self.received: signal.Signals | None = None
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.received = signal.Signals(number)
        with contextlib.suppress(RuntimeError):  # it came in the middle of a line, which no other line can interrupt
            self.note(f"{self.received.name}: finishing this {self.unit} (Ctrl-C again stops at once)")

    def __call__(self, record: Record) -> None:
        """The callback after every iteration."""
        if self.received is None and self.unheard():  # as SIGPIPE would, but with a checkpoint
            self.received = signal.SIGPIPE
        if self.received is not None:
            raise StopTraining(self.received.name)
