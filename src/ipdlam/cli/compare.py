"""``ipdlam compare``."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ipdlam.checks import LARGEST_RATE, check_integer, check_number
from ipdlam.cli.options import with_settings
from ipdlam.runs.config import MOST, ConfigError, TrainConfig, blamed_on_settings, convert

if TYPE_CHECKING:
    from rich.table import Table

    from ipdlam.runs.compare import Comparison
    from ipdlam.runs.problem import Split
    from ipdlam.training.history import Record

WIDTH = 80  # that the table has at the most
MINIBATCH = ("step", "rank", "output_rank", "weight_decay")  # settings of that method alone
SETTINGS = (
    *("data", "data_dir", "offline", "label", "drop", "categories", "task", "validation", "standardize", "limit"),
    *("hidden", "activation", "initialisation", "dtype", "loss", "regularizer", "regularizer_strength", "inertia"),
    *("proximity", "weight_proximity", "penalty", "penalty_growth", "order", *MINIBATCH),
    *("iterations", "seed", "threads", "output"),
)


@with_settings(SETTINGS)
def compare(
    settings: dict[str, Any],
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="ipdlam, dlam, minibatch, bcd, dladmm, sgd, adagrad, adadelta, rmsprop, adam, amsgrad, adamax, adamw, "
            "nadam, radam",
        ),
    ] = "ipdlam,dlam,minibatch,adam",
    seeds: Annotated[str, typer.Option(metavar="N", help="how many seeds, from --seed on")] = "1",
    seconds: Annotated[
        Optional[str],  # noqa: UP045 (typer evaluates it)
        typer.Option(metavar="X", help="of training for every run; --iterations is then no bound unless it is given"),
    ] = None,
    learning_rate: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="X",
            help="of the optimizers: one for all, or such as adam=0.001,sgd=0.05 \\[default: what suits each]",
        ),
    ] = None,
    batch_size: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="N", help="of minibatch and the optimizers \\[default: 512, or 64 below 10000 samples]"),
    ] = None,
) -> None:
    """Train the same network from the same weights by several methods, and show them side by side.

    One iteration of minibatch or of an optimizer is one epoch; seconds count training only.

    With --seconds, minibatch plans as many epochs as fit, by a short trial that counts.

    Writes comparison.json and curves.png.

    Examples:

      ipdlam compare digits

      ipdlam compare mnist --hidden 500,500 --methods ipdlam,adam,sgd --learning-rate adam=0.001,sgd=0.05

      ipdlam compare mnist --methods minibatch,adam --batch-size 512 --iterations 10

      ipdlam compare digits --methods ipdlam,bcd,dladmm,adam --seconds 5 --seeds 3
    """
    if "data" not in settings:
        raise ConfigError("say what to compare on: ipdlam compare digits (or mnist, fashion-mnist, a file or a folder)")
    batchwise = TrainConfig(method="minibatch").changed({name: settings.pop(name, None) for name in MINIBATCH})
    own = {name: value for name in MINIBATCH if (value := getattr(batchwise, name)) is not None}
    config = TrainConfig(method="ipdlam").changed(settings)
    rows_in_batch = convert("batch_size", batch_size, "int | None")
    count, budget = convert("seeds", seeds, "int"), convert("seconds", seconds, "float | None")
    with blamed_on_settings():
        rates = learning_rates(learning_rate)
        check_integer("batch_size", 1 if rows_in_batch is None else rows_in_batch, low=1)
        check_integer("seeds", count, low=1)
        check_integer("iterations", config.rounds, low=1)  # of nothing there is nothing to compare
        if budget is not None:
            check_number("seconds", budget, low=0.0, strict=True)
    if config.seed + count - 1 > MOST["seed"]:
        raise ConfigError(
            f"seeds {count} from --seed {config.seed} on go beyond the last, {MOST['seed']}; give a lower --seed"
        )
    names = [name.strip() for name in methods.split(",") if name.strip()]

    from ipdlam.checkpoint.files import write_file
    from ipdlam.runs.compare import ENDLESS, Comparison, Terms, check_methods, check_read, resolve_rates
    from ipdlam.runs.folder import is_taken, make_folder, new_path
    from ipdlam.runs.problem import Problem
    from ipdlam.training.history import plain

    check_methods(names)
    rates = resolve_rates(rates, names)
    if "minibatch" in names:
        config.of_method("minibatch")  # may refuse
    optional = {"learning_rate": learning_rate, "batch_size": rows_in_batch}
    check_read({**settings, **own, **{name: value for name, value in optional.items() if value is not None}}, names)
    folder = new_path(config, f"compare-{Path(config.data).name}")
    if is_taken(folder):
        raise ConfigError(f"output {folder} exists already; choose another --output")
    problem = Problem(config, progress=True)
    terms = Terms(rates, problem.batch_size(rows_in_batch), budget, own)
    iterations = ENDLESS if budget is not None and "iterations" not in settings else config.rounds
    comparison = Comparison(problem, names, range(config.seed, config.seed + count), iterations, terms)
    make_folder(folder)
    file = folder / "comparison.json"
    screen = Screen(comparison)
    try:
        screen.run()
    finally:  # whatever ended it, memory that ran out for one: the runs that are over are not lost
        if comparison.histories:
            content = comparison.content(f"ipdlam {shlex.join(sys.argv[1:])}")
            write_file(file, (json.dumps(plain(content), indent=1) + "\n").encode())
    screen.end(file)
    if comparison.was_interrupted:
        raise typer.Exit(130)


class Screen:
    """What a person sees of a comparison."""

    def __init__(self, comparison: Comparison) -> None:
        from rich.console import Console

        from ipdlam.cli.display import Outlet

        self.comparison = comparison
        self.outlet = Outlet(sys.stdout)
        stream: Any = self.outlet  # all of a file that is needed
        self.console = Console(file=stream, highlight=False, soft_wrap=True, markup=False)
        self.console.width = max(self.console.width, WIDTH)  # lines may wrap, but numbers are not cut off

    def run(self) -> None:
        """Say what is compared, and show a bar for every run."""
        from rich.progress import Progress

        from ipdlam.runs.compare import title

        comparison, console = self.comparison, self.console
        terms, count, config = comparison.terms, len(comparison.seeds), comparison.problem.config
        console.print(comparison.problem.heading)
        told = f"{count} seeds from {config.seed}" if count > 1 else f"seed {config.seed}"
        told += f", {config.loss} loss" + ("" if terms.seconds is None else f", {terms.seconds:g} s of training each")
        if terms.learning_rates:
            told += f"; rates {', '.join(f'{name} {rate:g}' for name, rate in terms.learning_rates.items())}"
        if terms.learning_rates or "minibatch" in comparison.methods:
            told += f", batches of {terms.batch_size}"
        console.print(f"{config.initialisation} initialisation, {told}")
        bars = Progress(console=console, transient=True, disable=not console.is_terminal)
        with warnings.catch_warnings(), bars as progress:
            warnings.showwarning = lambda message, *details, **more: console.print(f"warning: {message}")

            def begin(method: str) -> Callable[[Record], None]:
                task = progress.add_task(title(method), total=terms.seconds or comparison.iterations)

                def advance(record: Record) -> None:
                    progress.update(task, completed=record.iteration if terms.seconds is None else record.seconds)

                return advance

            comparison.run(begin)

    def end(self, file: Path) -> None:
        """The table, what it is of, and where the rest is."""
        from ipdlam.cli.display import silenced
        from ipdlam.runs.compare import title
        from ipdlam.training.plots import curves

        comparison, console, problem = self.comparison, self.console, self.comparison.problem
        count, shared = len(comparison.seeds), comparison.compared
        console.print()
        console.print(as_table(comparison.rows(), problem.split))
        if count > 1:
            which = (
                f"{count} seeds" if len(shared) == count else f"the seeds that all methods finished, {listed(shared)}"
            )
            means = f"means of {which}; ± is half the distance from the lowest to the highest"
            first = comparison.seeds.start
            console.print(means if shared else f"no seed was finished by all methods; this is seed {first}")
        for (method, seed), history in comparison.histories.items():
            if history.stop_reason in ("diverged", "interrupted"):
                label = comparison.label(method, seed).replace(method, title(method), 1)
                console.print(f"{label} {history.stop_reason} after {len(history)} iterations")
        console.print(f"\nresults: {file}")
        drawn = {title(method): each[0] for method, each in comparison.runs().items()}
        if drawn:
            seed = (shared or comparison.seeds)[0]
            heading = problem.title if count == 1 else f"{problem.title}, seed {seed}"
            try:
                console.print(f"curves:  {curves(drawn, file.with_name('curves.png'), title=heading)}")
            except ImportError as error:
                console.print(str(error))
            except Exception as error:  # the comparison is written
                console.print(f"warning: the curves were not drawn: {error or type(error).__name__}")
        if self.outlet.lost is not None:
            print(f"warning: {silenced(self.outlet)}; the results are in {file}", file=sys.stderr)


def listed(seeds: Sequence[int]) -> str:
    """Seeds in words."""
    return ", ".join(map(str, seeds))


def as_table(rows: Sequence[Mapping[str, Any]], split: Split) -> Table:
    """The rows for the terminal: accuracies in percent, or losses and errors where there are no classes."""
    from rich.table import Table

    from ipdlam.cli.display import ERRORS

    regression = bool(rows) and rows[0]["train_accuracy"] is None
    where = "held out" if split.scored_on == "held-out samples" else "test" if split.validation else "training"
    scores = ("training", where) if split.validation and not regression else (where,)
    names = ("method", "iter.", "seconds", *scores, f"best {where}", *(ERRORS.values() if regression else ("Phi",)))
    table = Table(box=None, pad_edge=False, padding=(0, 1 if regression else 2, 0, 0))
    for name in names:
        unit = " %" if name in scores and not regression else ""
        table.add_column(f"{name}{unit}", justify="left" if name == "method" else "right", no_wrap=True)
    for line in rows:
        table.add_row(*cells(line, scored=split.validation is not None))
    return table


def learning_rates(text: str | None) -> dict[str, float]:
    """``0.001`` for all, or ``adam=0.001,sgd=0.05``; the empty name is for all others."""
    found: dict[str, float] = {}
    for part in [] if text is None else text.split(","):
        name, _, value = part.rpartition("=")
        if name.strip() in found:
            raise ConfigError(f"learning_rate has two values for {name.strip() or 'all optimizers'}, got {text!r}")
        rate = convert("learning_rate", value.strip(), "float")
        found[name.strip()] = check_number("learning_rate", rate, 0.0, LARGEST_RATE, strict=True)
    return found


def cells(line: Mapping[str, Any], *, scored: bool) -> list[str]:
    """A row of the table as text; losses stand in for accuracies where there are no classes."""
    from ipdlam.cli.display import ERRORS, number

    def shown(accuracy: str, loss: str, *, spread: bool = True) -> str:
        """A score; an accuracy with half the distance from the lowest to the highest where there are seeds."""
        if line[accuracy] is None:
            return "-" if line[loss] is None else f"{line[loss]:.3g}"
        low, high = line.get("ranges", {}).get(accuracy, (None, None))
        apart = "" if low is None or not spread else f" ±{50 * (high - low):.1f}"
        return f"{100 * line[accuracy]:.2f}{apart}"

    scores = [shown("accuracy", "loss")]
    if scored and line["train_accuracy"] is not None:
        scores.insert(0, shown("train_accuracy", "train_loss"))
    best = shown("best_accuracy", "best_loss", spread=False)
    scores.append("-" if line["best_iteration"] is None else f"{best} at {line['best_iteration']:.0f}")
    last = [number(line[name], 3) for name in ERRORS] if "r2" in line else [f"{line['objective']:.3g}"]
    return [line["method"], f"{line['iterations']:.0f}", f"{line['seconds']:.1f}", *scores, *last]
