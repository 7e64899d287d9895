"""``ipdlam reproduce``."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ipdlam.cli.signals import StopSignals
from ipdlam.runs.config import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from ipdlam.experiments.spec import RunResult, RunSpec
    from ipdlam.experiments.store import Store
    from ipdlam.training.history import Record


ALIASES = {"fig4": "order"}


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="EXPERIMENT...",
            help="table1, fig1 to fig4, order, readings, decay, penalty, weights, defaults, warmup, deep, bcd, or all",
        ),
    ],
    scale: Annotated[
        str, typer.Option(metavar="NAME", help="smoke: digits, seconds; small: width 300; paper: width 1500")
    ] = "smoke",
    seeds: Annotated[
        Optional[int],  # noqa: UP045 (typer evaluates it)
        typer.Option(metavar="N", min=1, help="how many seeds \\[default: as many as the last time, or 1]"),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="where rows, pictures and runs go")] = Path("results"),
    only: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="TEXT",
            help="make only the runs with these words, such as 'inertia 0.7', in their label, or else in their name in "
            "the picture",
        ),
    ] = None,
    collecting: Annotated[
        bool, typer.Option("--collect", help="make no run; work out rows and pictures from the runs there are")
    ] = False,
) -> None:
    """Make tables and figures of the paper again, and hold its claims against them.

    Runs are kept in FOLDER/runs by a checksum of their settings and are not made twice; a run that was stopped goes on
    where it was. Rows and pictures are of all runs of these seeds that there are: a part is a result, too. With
    --collect, all means the experiments that have a result.

    Examples:

      ipdlam reproduce table1 fig1

      ipdlam reproduce table1 --scale paper --only 'inertia 0.7'

      ipdlam reproduce all --scale small --output results

      ipdlam reproduce all --scale small --collect
    """
    from rich.console import Console

    from ipdlam.checkpoint.files import unwritable
    from ipdlam.cli.display import Outlet, silenced
    from ipdlam.experiments import EXPERIMENTS
    from ipdlam.experiments.make import chosen_runs, collect, make
    from ipdlam.experiments.spec import SCALES
    from ipdlam.experiments.store import Store
    from ipdlam.experiments.tables import attributed

    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    for name in names:
        if name not in (*EXPERIMENTS, *ALIASES, "all"):
            raise ConfigError(f"unknown experiment {name!r}; known are {', '.join(EXPERIMENTS)}, fig4 and all")
    chosen = list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(ALIASES.get(name, name) for name in names))
    if only is not None and not only.strip():
        raise ConfigError(f"only must hold words of a label, such as 'inertia 0.7', got {only!r}; leave it out for all")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"output {output} is a file; choose a folder")
    if collecting and only is not None:
        raise ConfigError("collect makes no run, so there is nothing for only to choose; leave one of them out")
    store = Store(output / "runs", output / "unfinished")
    wrong = unwritable(output) or (None if collecting else store.unwritable())
    if wrong is not None:
        raise ConfigError(f"output {output} cannot be used: {wrong}, or choose another --output")
    outlet: Any = Outlet(sys.stdout)
    console = Console(file=outlet, highlight=False, soft_wrap=True, markup=False)
    available: dict[str, int] = {}
    if collecting:
        available = collectable(chosen, scale, store, output, "all" in names, console.print)
        for name, count in available.items():
            if seeds is not None and seeds > count:
                raise ConfigError(
                    f"seeds {seeds}: of {name} at the {scale} scale there are runs of {count} only; give fewer"
                )
        chosen = list(available)
    elif only is not None and len(chosen) > 1:  # before the first of them takes hours
        matching = [name for name in chosen if chosen_runs(EXPERIMENTS[name], scale, 1, only)]
        for name in chosen:
            if matching and name not in matching:
                console.print(f"{name}: skipped, {only!r} is in none of its labels")
        chosen = matching or chosen[:1]  # the first one says which labels there are
    for name in chosen:
        experiment = EXPERIMENTS[name]
        count = seeds or seeds_before(output, name, scale) or available.get(name, 1)
        if collecting:  # of a result some of whose runs are lost
            count = min(count, available[name])
        with warnings.catch_warnings(), bar(console) as progress, StopSignals(console.print) as stop:
            warnings.showwarning = lambda message, *details, **more: console.print(f"warning: {message}")
            watch = Watch(name, count, progress, stop)
            store.made, store.waiting = watch.made, watch.waiting
            try:
                if collecting:
                    content = collect(experiment, scale, count, store, output)
                else:
                    content = make(experiment, scale, count, store, output, watch, only)
                if stop.received is not None:  # while nothing was trained: what there is has been written
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                console.print(f"stopped in {name}; the same command goes on from there")
                raise
        made = f" ({content['runs']} of {content['runs_declared']} runs)"
        console.print(content["title"] + (made if content["runs"] < content["runs_declared"] else ""), style="bold")
        for claim in content["claims"]:
            console.print(f"  {claim['verdict']}: {attributed(claim)}")
            console.print(f"    paper: {claim['paper'] or '-'}\n    ours:  {claim['ours']}")
        console.print(f"  {output / f'{name}-{scale}.json'}, {output / f'{name}-{scale}.png'}")
    if outlet.lost is not None:
        print(f"warning: {silenced(outlet)}; the results are in {output}", file=sys.stderr)


def bar(console: Console) -> Progress:
    """The bar of a run, on a terminal; where that is narrow, the name of the run is cut off, not bar and time."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    words = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=3)
    )
    line = BarColumn(bar_width=None, table_column=Column(ratio=1))
    return Progress(
        words,
        line,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        expand=True,
        disable=not console.is_terminal,
    )


class Watch:
    """Shows how the runs of an experiment go: a bar, and a line for every run that was made."""

    def __init__(self, name: str, seeds: int, progress: Progress, stop: StopSignals) -> None:
        self.name, self.seeds, self.progress, self.stop = name, seeds, progress, stop
        self.title = self.waited_for = name
        self.task = progress.add_task(name)

    def __call__(self, spec: RunSpec, place: int, count: int) -> Callable[[Record], None]:
        """What is told of every iteration of a run, the one that comes next."""
        from ipdlam.experiments.store import total_iterations

        seed = f", seed {spec.seed}" if self.seeds > 1 else ""
        self.title = f"{self.name} {place}/{count}: {spec.label}{seed}"
        self.progress.reset(self.task, total=total_iterations(spec), description=self.title)
        return self.seen

    def seen(self, record: Record) -> None:
        self.progress.update(self.task, completed=record.iteration)
        self.stop(record)

    def waiting(self) -> None:
        """Say once that another process is making this run; stop as soon as that is wanted, since nothing is lost."""
        if self.waited_for != self.title:
            self.waited_for = self.title
            self.progress.console.print(f"{self.title}: another process is making this run; waiting for it")
        if self.stop.received is not None:
            raise KeyboardInterrupt

    def made(self, result: RunResult) -> None:
        """Print what came of a run."""
        self.progress.console.print(f"{self.title}: {outcome(result)}")


def outcome(result: RunResult) -> str:
    """Time, end and test accuracy of a run."""
    (best, at), last = result.best("validation_accuracy"), result.last("validation_accuracy")
    seconds, rows = result.last("seconds") or 0.0, len(result.columns["iteration"])
    found = f"{seconds:.1f} s of training"
    if result.diverged:
        found += f", diverged after {rows} iteration{'' if rows == 1 else 's'}"
    if best is not None and last is not None:
        found += f", test accuracy {100 * best:.2f} % at best (iteration {at}), {100 * last:.2f} % at last"
    return found


def collectable(
    chosen: list[str], scale: str, store: Store, output: Path, everything: bool, tell: Callable[[str], None]
) -> dict[str, int]:
    """The experiments that there is something to collect for, and of how many seeds; the others are told.

    Experiments share runs. So that none is begun with a few runs of others, ``everything`` is what has a result.
    """
    from ipdlam.experiments import EXPERIMENTS
    from ipdlam.experiments.make import seeds_with_runs
    from ipdlam.experiments.spec import SCALES

    wanted = {}
    for name in chosen:
        available = seeds_with_runs(EXPERIMENTS[name], scale, store)
        if not available:
            tell(f"{name}: skipped, none of its runs of the first seed at the {scale} scale is in {store.folder}")
        elif everything and not (output / f"{name}-{scale}.json").exists():
            tell(f"{name}: skipped, it has runs but no result at the {scale} scale; name it to collect them")
        else:
            wanted[name] = available
    if not wanted:
        there = sorted({path.stem.rsplit("-", 1)[1] for path in output.glob("*-*.json")} & set(SCALES))
        remedy = f"say --scale {' or '.join(there)}, or make it without collect" if there else "make it without collect"
        raise ConfigError(f"there is nothing to collect at the {scale} scale in {output}; {remedy}")
    return wanted


def seeds_before(output: Path, name: str, scale: str) -> int | None:
    """How many seeds an experiment was made with the last time: a result with three is not replaced by one with one.

    A file that names more seeds than it has rows was not made by us, and does not count.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        content = json.loads((output / f"{name}-{scale}.json").read_bytes())
        seeds = content["seeds"]
        if isinstance(seeds, int) and 1 <= seeds <= len(content["rows"]):
            return int(seeds)
    return None
