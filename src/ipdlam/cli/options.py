"""The options of ``ipdlam train``, made from the one table of settings in :mod:`ipdlam.runs.config`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Optional

import typer

from ipdlam.defaults import LEARNING_RATES
from ipdlam.runs import config as known
from ipdlam.runs.config import DEFAULTS, METHODS, TrainConfig, shown

COMPLETIONS: dict[str, tuple[str, ...]] = {
    "data": ("digits", "mnist", "fashion-mnist", "cifar10"),
    "validation": ("auto", "test", "none"),
    "task": known.TASKS,
    "activation": known.ACTIVATIONS,
    "initialisation": known.INITIALISATIONS,
    "dtype": known.DTYPES,
    "method": METHODS,
    "loss": known.LOSSES,
    "regularizer": known.REGULARIZERS,
    "order": known.ORDERS,
    "checkpoint": known.CHECKPOINTS,
    "then": tuple(LEARNING_RATES),
}

COMMON = (
    *("data", "label", "drop", "hidden", "loss", "method", "batch_size", "learning_rate", "iterations", "epochs"),
    *("then", "patience", "seed", "output"),
)
"""What ``--help`` shows of the settings; ``--help-all`` shows the others, too."""


def completion(name: str) -> Callable[[str], list[str]] | None:
    """What the shell offers for a setting with names."""
    if name not in COMPLETIONS:
        return None

    def offer(incomplete: str) -> list[str]:
        return [choice for choice in COMPLETIONS[name] if choice.startswith(incomplete)]

    return offer


def default_of(item: dataclasses.Field[Any]) -> str | None:
    """The default of a setting in words; where the methods have their own, the others' stand behind the first's."""
    values = {method: own[item.name] for method, own in DEFAULTS.items() if own.get(item.name) is not None}
    if not values:
        return None if item.default is None else shown(item.default)
    first = next(iter(values.values()))
    return "; ".join([shown(first), *(f"{name} {shown(value)}" for name, value in values.items() if value != first)])


def option(item: dataclasses.Field[Any]) -> inspect.Parameter:
    """The command-line parameter of one setting; None means that it was not given."""
    flag, kind = f"--{item.name.replace('_', '-')}", str(item.type)
    text = item.metadata["help"]
    default = default_of(item)
    if default is not None and item.name != "data" and not kind.startswith("bool") and "[" not in text:
        text += f" [default: {default}]"
    details: dict[str, Any] = {"help": text.replace("[", "\\["), "show_default": False}
    details["hidden"] = item.name not in COMMON
    if item.name == "data":
        declared = typer.Argument(None, metavar="DATA", autocompletion=completion("data"), **details)
    elif kind.startswith("bool"):
        declared = typer.Option(None, f"{flag}/--no-{flag[2:]}", rich_help_panel=item.metadata["panel"], **details)
    else:
        # Text, whatever the type: config.py converts and refuses, for files and the command line alike.
        metavar = {"int": "N", "float": "X", "tuple[int, ...]": "N,N", "tuple[float, ...]": "X"}.get(
            kind.removesuffix(" | None"), "TEXT"
        )
        declared = typer.Option(
            None,
            flag,
            metavar=metavar,
            rich_help_panel=item.metadata["panel"],
            autocompletion=completion(item.name),
            **details,
        )
    annotation: Any = Optional[bool] if kind.startswith("bool") else Optional[str]  # noqa: UP045 (typer evaluates it)
    return inspect.Parameter(
        item.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=declared, annotation=annotation
    )


def show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with all settings, and stop."""
    if not wanted:
        return
    hidden = [parameter for parameter in context.command.params if getattr(parameter, "hidden", False)]
    for parameter in hidden:
        parameter.hidden = False  # type: ignore[attr-defined]
    try:
        text = context.get_help()  # with rich it is on the screen by now
        if text:
            print(text)
    finally:
        for parameter in hidden:
            parameter.hidden = True  # type: ignore[attr-defined]
    raise typer.Exit


HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    default=typer.Option(False, "--help-all", is_eager=True, callback=show_all, help="show all settings and exit"),
    annotation=bool,
)


def with_settings(names: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command settings of :class:`TrainConfig`; it receives those that were given as ``settings``."""
    chosen = set(names)
    items = [item for item in dataclasses.fields(TrainConfig) if item.name in chosen]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            given.pop("help_all")
            settings = {item.name: given.pop(item.name) for item in items}
            function(**given, settings={name: value for name, value in settings.items() if value is not None})

        declared = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [*(option(item) for item in items), *(p for p in declared if p.name != "settings"), HELP_ALL]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__doc__ = function.__doc__
        command.__name__ = function.__name__
        return command

    return decorate
