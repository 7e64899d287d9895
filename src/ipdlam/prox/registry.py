"""Registered operators by name: from what a user gives to an object, and to plain JSON types and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ipdlam.checks import fields_of
from ipdlam.prox.losses import LOSSES

T = TypeVar("T")


def by_name(argument: str, given: str | T, registry: dict[str, type[T]], kind: type[T]) -> T:
    """The registered object of a name, or the object itself."""
    if isinstance(given, str) and given in registry:
        return registry[given]()
    if isinstance(given, kind):
        return given
    hint = f"; write {given.__name__}()" if isinstance(given, type) else ""
    raise ValueError(
        f"{argument} must be one of {', '.join(registry)} or an ipdlam.prox.{kind.__name__}, got {given!r}{hint}"
    )


def describe(argument: str, thing: Any, registry: Mapping[str, type]) -> dict[str, Any] | None:
    """The name of a registered object with its fields."""
    if thing is None:
        return None
    for name, kind in registry.items():
        if type(thing) is kind:
            return {"name": name, **fields_of(thing)}
    raise ValueError(
        f"{argument} {thing!r} is in no registry, so it cannot be saved; add its class to "
        f"ipdlam.prox.{'LOSSES' if registry is LOSSES else 'REGULARIZERS'}"
    )


def rebuild(argument: str, described: dict[str, Any], registry: Mapping[str, type[T]]) -> T:
    """The inverse of :func:`describe`."""
    fields = dict(described)
    name = fields.pop("name")
    if name not in registry:
        raise ValueError(
            f"{argument} {name!r} is in no registry here (known: {', '.join(registry)}); register it first"
        )
    return registry[name](**fields)
