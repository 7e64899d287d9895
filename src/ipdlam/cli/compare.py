"""``ipdlam compare``."""

from __future__ import annotations

import functools
import json
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ipdlam.checks import check_integer, check_number
from ipdlam.cli.options import with_settings
from ipdlam.config import ConfigError, TrainConfig, blamed_on_settings, convert

SETTINGS = (
    "data",
    "data_dir",
    "offline",
    "label",
    "task",
    "validation",
    "standardize",
    "limit",
    "hidden",
    "activation",
    "initialisation",
    "dtype",
    "loss",
    "regularizer",
    "regularizer_strength",
    "inertia",
    "proximity",
    "penalty",
    "penalty_growth",
    "order",
    "iterations",
    "seed",
    "threads",
    "output",
)


@with_settings(SETTINGS)
def compare(
    settings: dict[str, Any],
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="ipdlam, dlam, sgd, adagrad, adadelta, rmsprop, adam, amsgrad, adamax")
    ] = "ipdlam,dlam,adam",
    learning_rate: Annotated[str, typer.Option(metavar="X", help="of the optimizers")] = "0.001",
    batch_size: Annotated[
        Optional[str],  # noqa: UP045 (typer evaluates it)
        typer.Option(
            metavar="N", help="of the optimizers [default: 512, or 64 below 10000 samples]".replace("[", "\\[")
        ),
    ] = None,
) -> None:
    """Train the same network from the same weights by several methods, and show them side by side.

    One iteration of an optimizer is one epoch; seconds count training only. Writes comparison.json and curves.png.

    Examples:

      ipdlam compare digits

      ipdlam compare mnist --hidden 500,500 --methods ipdlam,adam,sgd --iterations 20
    """
    if "data" not in settings:
        raise ConfigError("say what to compare on: ipdlam compare digits (or mnist, fashion-mnist, a file or a folder)")
    config = TrainConfig().changed(settings)
    rate = convert("learning_rate", learning_rate, "float")
    rows_in_batch = convert("batch_size", batch_size, "int | None")
    with blamed_on_settings():
        check_number("learning_rate", rate, low=0.0, strict=True)
        check_integer("batch_size", 1 if rows_in_batch is None else rows_in_batch, low=1)

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from ipdlam.comparison import check_methods, row, run_method, title
    from ipdlam.environment import environment
    from ipdlam.plots import curves
    from ipdlam.problem import Problem
    from ipdlam.runs import is_taken, make_folder, new_path
    from ipdlam.storage import write_file

    names = [name.strip() for name in methods.split(",") if name.strip()]
    check_methods(names)
    folder = new_path(config, f"compare-{Path(config.data).name}")
    if is_taken(folder):
        raise ConfigError(f"output {folder} exists already; choose another --output")
    problem = Problem(config, progress=True)
    split = problem.split
    if rows_in_batch is None:
        rows_in_batch = 512 if len(split.X) >= 10000 else 64

    make_folder(folder)

    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(problem.heading)
    console.print(
        f"{config.initialisation} initialisation, seed {config.seed}, {config.loss} loss; optimizers: rate "
        f"{rate:g}, batches of {rows_in_batch}"
    )
    histories = {}
    bars = Progress(console=console, transient=True, disable=not console.is_terminal)
    with warnings.catch_warnings(), bars as progress:
        warnings.showwarning = lambda message, *details, **more: console.print(f"warning: {message}")
        for name in names:
            task = progress.add_task(title(name), total=config.iterations)
            histories[name] = run_method(
                problem, name, rate, rows_in_batch, functools.partial(lambda t, _: progress.advance(t), task)
            )
            if histories[name].stop_reason == "interrupted":
                break
    rows = [row(name, history) for name, history in histories.items() if history]

    content = {
        "command": f"ipdlam {shlex.join(sys.argv[1:])}",
        "environment": environment(),
        "config": config.to_dict(),
        "learning_rate": rate,
        "batch_size": rows_in_batch,
        "samples": len(split.X),
        "network": list(problem.widths),
        "scored_on": split.scored_on,
        "rows": rows,
        "histories": {name: json.loads(history.to_json()) for name, history in histories.items()},
    }
    write_file(folder / "comparison.json", (json.dumps(content, indent=1) + "\n").encode())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    where = "held out" if split.scored_on == "held-out samples" else "test" if split.validation else "training"
    for column in ("method", "iterations", "seconds", "training", where, f"best {where}", "Phi"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for line in rows:
        table.add_row(*cells(line))
    console.print()
    console.print(table)
    for name, history in histories.items():
        if history.stop_reason in ("diverged", "interrupted"):
            console.print(f"{title(name)} {history.stop_reason} after {len(history)} iterations")

    drawn = {title(name): history for name, history in histories.items() if history}
    console.print(f"\nresults: {folder / 'comparison.json'}")
    if drawn:
        try:
            console.print(f"curves:  {curves(drawn, folder / 'curves.png', title=problem.title)}")
        except ImportError as error:
            console.print(str(error))
    if any(history.stop_reason == "interrupted" for history in histories.values()):
        raise typer.Exit(130)


def cells(line: dict[str, Any]) -> list[str]:
    """A row of the table as text; losses stand in for accuracies where there are no classes."""
    from ipdlam.cli.display import percent, score

    scores = [score(line["train_accuracy"], line["train_loss"]), score(line["accuracy"], line["loss"])]
    best = "" if line["best_accuracy"] is None else percent(line["best_accuracy"])
    scores.append("-" if line["best_iteration"] is None else f"{best} at {line['best_iteration']:>2}".strip())
    return [line["method"], str(line["iterations"]), f"{line['seconds']:.2f}", *scores, f"{line['objective']:.3g}"]
