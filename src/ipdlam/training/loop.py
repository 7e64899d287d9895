"""The loop around a step: callbacks, early stopping and the best iterate. It knows nothing of the method."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ipdlam.checks import check_integer, check_number
from ipdlam.distributed.group import SERIAL, Group
from ipdlam.errors import StopTraining, is_out_of_memory
from ipdlam.network.model import ModelView, Weights
from ipdlam.training.history import History, Record

Callback = Callable[[Record], Any]


@dataclass(frozen=True)
class Stopping:
    """When a run ends, and which weights it leaves."""

    iterations: int
    restore_best: bool = False
    patience: int | None = None
    target_score: float | None = None
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        for name, low in (("iterations", 0), ("patience", 1), ("evaluate_every", 1)):
            value = getattr(self, name)
            if value is not None or name != "patience":
                check_integer(name, value, low)
        if self.target_score is not None:
            check_number("target_score", self.target_score)


@dataclass
class Progress:
    """What the loop remembers from one iteration to the next."""

    best_score: float | None = None
    best_weights: Weights | None = None  # kept where the best iterate is to be restored
    unimproved: int = 0  # evaluations since the best score


def check_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """The callbacks as a tuple, each of them callable."""
    if not isinstance(callbacks, Iterable):
        raise TypeError(
            f"callbacks must be a sequence of functions of a record, got {callbacks!r}; write callbacks=[f]"
        )
    given = tuple(callbacks)
    for callback in given:
        if not callable(callback):
            raise TypeError(f"callbacks holds {callback!r}, which cannot be called")
    return given


def run_loop(
    step: Callable[[bool], Record],
    network: ModelView,
    history: History,
    stopping: Stopping,
    callbacks: Iterable[Callback],
    progress: Progress,
    group: Group = SERIAL,
) -> History:
    """Step until ``history`` holds ``stopping.iterations`` records; ``step(evaluate)`` trains and adds one.

    Scores are :attr:`Record.score`. Whatever ends the run, the model holds the weights of a finished iteration: the
    last one, or with ``restore_best`` the one of the highest score. Ctrl-C ends it like any other reason. All processes
    of the group end with the same iteration, for the same reason: records, and so the rules, are the same on each, and
    what ends one of them ends the others.
    """
    reason = "iterations"
    try:
        with group.telling():
            for number in range(len(history) + 1, stopping.iterations + 1):
                record = step(number % stopping.evaluate_every == 0 or number == stopping.iterations)
                score = record.score
                if score is not None and (progress.best_score is None or score > progress.best_score):
                    progress.best_score, progress.unimproved = score, 0
                    progress.best_weights = network.read() if stopping.restore_best else None
                elif score is not None:
                    progress.unimproved += 1
                for callback in callbacks:
                    callback(record)
                group.agree()
                if stopping.target_score is not None and score is not None and score >= stopping.target_score:
                    reason = "target_score"
                    break
                if stopping.patience is not None and progress.unimproved >= stopping.patience:
                    reason = "patience"
                    break
    except StopTraining as stop:
        reason = str(stop) or "callback"
    except KeyboardInterrupt:
        reason = "interrupted"
    except BaseException as error:
        unnamed = "memory" if is_out_of_memory(error) else type(error).__name__
        history.stop_reason = history.stop_reason or unnamed
        raise
    finally:
        if stopping.restore_best and progress.best_weights is not None:
            network.write(*progress.best_weights)
    history.stop_reason = reason
    return history
