"""Checks of what a user gives: the error names the argument, the range and the value."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

# NumPy's scalars are numbers too; the type checker knows only Python's own.
REAL: Any = numbers.Real
INTEGRAL: Any = numbers.Integral

LARGEST_RATE = 1e30  # some way below the largest float32: optimizers divide it by numbers such as 1 - beta


def check_number(
    name: str, value: float, low: float = -math.inf, high: float = math.inf, *, strict: bool = False
) -> float:
    """``value`` as a float if it is finite and in range; otherwise an error naming all three."""
    if isinstance(value, bool) or not isinstance(value, REAL):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the range of floats
        number = math.inf
    inside = low < number <= high if strict else low <= number <= high
    if not (math.isfinite(number) and inside):
        bound = (f" {'>' if strict else '>='} {low:g}" if low > -math.inf else "") + (
            f" and <= {high:g}" if high < math.inf else ""
        )
        raise ValueError(f"{name} must be a finite number{bound}, got {value!r}")
    return number


def check_integer(name: str, value: int, low: int) -> int:
    """``value`` if it is an integer and at least ``low``; otherwise an error naming all three."""
    if isinstance(value, bool) or not isinstance(value, INTEGRAL) or value < low:
        raise ValueError(f"{name} must be an integer >= {low}, got {value!r}")
    return int(value)


def check_seed(seed: int) -> int:
    """``seed`` if torch takes it."""
    if check_integer("seed", seed, 0) >= 2**64:
        raise ValueError(f"seed must be below 2**64, got {seed!r}")
    return int(seed)


def fields_of(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass, in plain types; nothing for what is none."""
    return dataclasses.asdict(thing) if dataclasses.is_dataclass(thing) and not isinstance(thing, type) else {}


def differences(saved: Any, given: Any, name: str) -> list[str]:
    """Where two values of plain JSON types differ, in words."""
    if isinstance(saved, dict) and isinstance(given, dict):
        keys = [*saved, *(key for key in given if key not in saved)]
        return [line for key in keys for line in differences(saved.get(key), given.get(key), f"{name} {key}".strip())]
    if isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        numbered = enumerate(zip(saved, given, strict=True), start=1)
        return [line for number, (old, new) in numbered for line in differences(old, new, f"{name} {number}")]
    if isinstance(saved, list) and isinstance(given, list):
        return [f"{name} were {len(saved)} and are {len(given)}"]
    return [] if saved == given else [f"{name} was {brief(saved)} and is {brief(given)}"]


def brief(value: Any) -> str:
    """A value in a message; checksums and the like are cut short."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
