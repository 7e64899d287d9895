"""The exceptions a user may want to catch by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipdlam.training.history import History


class UnsupportedModelError(ValueError):
    """The model holds something that the method has no exact update for."""


class SolveError(ArithmeticError):
    """A linear system of the method could not be solved."""


class FileError(RuntimeError):
    """A file could not be written, or what was found is not what it should be; the message says what to do."""


class CheckpointError(FileError):
    """A checkpoint could not be written, or what was found is not a whole one that fits."""


class StorageError(OSError):
    """The folder in which a run keeps its state cannot be used, or a disk has failed; the message says what to do."""


class DistributedError(RuntimeError):
    """One of the processes that train together failed, died or hangs; the same message on all that can still speak."""

    lost = False  # whether this process can no longer reach the others


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left; torch has no class of its own for that on all devices."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error))


class DataError(ValueError):
    """A data set is missing, damaged or not in a known format."""


class StopTraining(Exception):
    """Raise it in a callback to end ``fit`` after the current iteration.

    The message becomes ``history.stop_reason``.
    """


class EndedRun(Exception):
    """A run cannot go on; ``history`` is the run up to there."""

    def __init__(self, message: str, history: History) -> None:
        super().__init__(message, history)
        self.history = history

    def __str__(self) -> str:
        return str(self.args[0])


class DivergenceError(EndedRun, ArithmeticError):
    """An iterate became non-finite. The model holds the last finite weights; ``history`` is the run up to them."""


class OutOfMemoryError(EndedRun, MemoryError):
    """There is no memory left to go on with a run; ``history`` is the run up to there."""
