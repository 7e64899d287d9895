"""The methods of ``ipdlam train`` by name: which settings each of them has, and what they are where nobody says."""

from __future__ import annotations

import math
from typing import Any

WHOLE_BATCH: dict[str, Any] = {
    "regularizer": "ridge",
    "regularizer_strength": None,  # the regularizer's own
    "penalty": 0.1,
    "penalty_growth": 1.1,
    "penalty_max": 1e6,
    "order": "reverse",
    "storage": None,  # memory
    "iterations": 50,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ipdlam": {**WHOLE_BATCH, "inertia": (0.7,), "proximity": 1.0, "weight_proximity": "none"},
    "dlam": WHOLE_BATCH,
    "minibatch": {
        "inertia": (0.7,),
        "proximity": 3.0,
        "penalty": 0.1,
        "batch_size": None,  # as suits the number of samples
        "step": 0.5,
        "rank": 64,
        "weight_decay": 0.0,
        "epochs": 10,
    },
}
METHODS = tuple(DEFAULTS)
OWN = tuple(dict.fromkeys(name for settings in DEFAULTS.values() for name in settings))
"""The settings that some methods have; all others are those of every method."""


def unit(method: str) -> str:
    """What a method counts."""
    return "epoch" if "epochs" in DEFAULTS[method] else "iteration"


def as_weight_proximity(text: str) -> tuple[float, ...] | None:
    """The proximal weights of W and b that text stands for: one number or two, or ``none``."""
    if text == "none":
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 2) or not all(0.0 <= number < math.inf for number in numbers):
        raise ValueError(
            "weight_proximity must be none, a finite number >= 0, or two with a comma between them (W, b), got "
            f"{text!r}"
        )
    return numbers


def remedy(name: str, method: str, selected_by: str | None, then: str | None) -> str:
    """What to do about a setting that a method has not; ``selected_by`` is the option that chose the method."""
    if name == "iterations":
        return "give --epochs instead" + ("" if selected_by is None else f", or leave out {selected_by}")
    if method == "minibatch":
        return "leave it out"
    if name == "epochs":
        return "give --iterations instead, or say --method minibatch"
    if name == "batch_size" and then is not None:
        return f"give --then-batch-size for the batches of {then}, or say --method minibatch"
    return "say --method minibatch, or leave it out"


def shown(value: Any) -> str:
    """A value as a user would type it."""
    if isinstance(value, tuple):
        return ",".join(shown(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"
