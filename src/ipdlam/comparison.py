"""Several methods on one problem: the same data, network and initial weights, and a clock that counts training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipdlam.baselines import OPTIMIZERS, BackPropagation
from ipdlam.config import METHODS, ConfigError, blamed_on_settings
from ipdlam.errors import DivergenceError
from ipdlam.history import History, Record
from ipdlam.problem import Problem

TITLES = {"ipdlam": "iPDLAM", "dlam": "DLAM", "sgd": "SGD", "amsgrad": "AMSGrad", "rmsprop": "RMSprop"}


def check_methods(methods: list[str]) -> None:
    """Refuse unknown names and repeated ones."""
    known = [*METHODS, *OPTIMIZERS]
    for method in methods:
        if method not in known:
            raise ConfigError(f"methods holds {method!r}; known are {', '.join(known)}")
    if not methods or len(set(methods)) < len(methods):
        raise ConfigError(f"methods must name each method once, got {', '.join(methods) or 'none'}")


def run_method(
    problem: Problem, method: str, learning_rate: float, batch_size: int, callback: Callable[[Record], Any]
) -> History:
    """Train a fresh copy of the problem's network; an iteration of an optimizer is one epoch.

    A run that diverges ends there, and its history says so.
    """
    config, split = problem.config, problem.split
    model = problem.make_model()
    common: dict[str, Any] = {"validation_data": split.validation, "callbacks": [callback]}
    try:
        with blamed_on_settings():
            if method in METHODS:
                trainer = problem.make_trainer(model, method)
                return trainer.fit(split.X, split.y, iterations=config.iterations, **common)
            optimizer = BackPropagation(
                model, method, loss=config.loss, learning_rate=learning_rate, batch_size=batch_size, seed=config.seed
            )
            return optimizer.fit(split.X, split.y, epochs=config.iterations, **common)
    except DivergenceError as error:
        return error.history


def title(method: str) -> str:
    """The name of a method as its authors write it."""
    return TITLES.get(method, method.capitalize())


def row(method: str, history: History) -> dict[str, Any]:
    """What a table shows of one run; accuracies are those of the samples it was scored on, where there are any."""
    last, best = history[-1], history.best
    scored = best is not None and best.validation_loss is not None
    return {
        "method": title(method),
        "iterations": last.iteration,
        "seconds": last.seconds,
        "objective": last.objective,
        "train_accuracy": last.train_accuracy,
        "accuracy": last.validation_accuracy if scored else last.train_accuracy,
        "best_accuracy": None if best is None else best.validation_accuracy if scored else best.train_accuracy,
        "best_iteration": None if best is None else best.iteration,
        "train_loss": last.train_loss,
        "loss": last.validation_loss if scored else last.train_loss,
        "stop_reason": history.stop_reason,
    }
