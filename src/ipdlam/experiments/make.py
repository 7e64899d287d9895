"""Making an experiment: its runs, its rows in a JSON file, and its picture beside it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipdlam.config import ConfigError
from ipdlam.environment import environment
from ipdlam.errors import CheckpointError
from ipdlam.experiments.base import Experiment, Panel, Results, RunResult, RunSpec
from ipdlam.experiments.claims import UNMEASURED
from ipdlam.experiments.runner import Store
from ipdlam.history import Record
from ipdlam.plots import PALETTE, house_style, save
from ipdlam.storage import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":", "-.")
NAMES = {
    "objective": "objective Φ",
    "train_accuracy": "training accuracy",
    "validation_accuracy": "test accuracy",
    "iteration": "iteration",
    "seconds": "seconds of training (s)",
}
IDENTITY = ("seed", "run", "environment")  # a mean has those of its first run
RANGED = ("accuracy", "gain", "decay", "lead")  # names that hold one of these have their range, too


def make(
    experiment: Experiment,
    scale: str,
    seeds: int,
    store: Store,
    output: Path,
    watch: Callable[[RunSpec, int, int], Callable[[Record], Any]],
    only: str | None = None,
) -> dict[str, Any]:
    """Make what runs are missing, then the rows, the claims and the picture; the content of the JSON file.

    With ``only`` no other runs are made than those whose label holds those words; the rows are those of all there are.
    """
    declared = all_runs(experiment, scale, seeds)
    wanted = [spec for spec in declared if only is None or re.search(rf"(?<!\w){re.escape(only)}(?!\w)", spec.label)]
    if not wanted:
        labels = "; ".join(dict.fromkeys(spec.label for spec in declared))
        raise ConfigError(f"only {only!r} is in no label of {experiment.name}; they are: {labels}")
    for place, spec in enumerate(wanted, start=1):
        store.make(spec, watch(spec, place, len(wanted)))
    results = stored(declared, store)
    content: dict[str, Any] = {
        "experiment": experiment.name,
        "command": f"ipdlam reproduce {experiment.name} --scale {scale} --seeds {seeds}",
        "scale": scale,
        "seeds": seeds,
        "environment": environment(),
        **summarise(experiment, declared, results, scale),
    }
    output.mkdir(parents=True, exist_ok=True)
    write_file(output / f"{experiment.name}-{scale}.json", (json.dumps(content, indent=1) + "\n").encode())
    first = [spec for spec in declared if spec.seed == 0 and spec.key in results]
    save(draw(experiment.panels(first), results, experiment.title), output / f"{experiment.name}-{scale}.png")
    return content


def all_runs(experiment: Experiment, scale: str, seeds: int) -> list[RunSpec]:
    """The runs of an experiment for every seed."""
    return [spec.changed(seed=seed) for seed in range(seeds) for spec in experiment.runs(scale)]


def stored(specs: Sequence[RunSpec], store: Store) -> dict[str, RunResult]:
    """The results that there are."""
    found = ((spec.key, store.read(spec)) for spec in specs)
    return {key: result for key, result in found if result is not None}


def summarise(experiment: Experiment, declared: Sequence[RunSpec], results: Results, scale: str) -> dict[str, Any]:
    """Rows and claims: a function of the runs alone, so that they can be checked against them."""
    specs = [spec for spec in declared if spec.key in results]
    rows = [
        row
        for seed in dict.fromkeys(spec.seed for spec in specs)
        for row in experiment.rows([spec for spec in specs if spec.seed == seed], results)
    ]
    without_seed = {spec.key: spec.changed(seed=0).key for spec in specs}
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(without_seed[row["run"]], []).append(row)
    means = [averaged(group) for group in groups.values()]
    claims = [dataclasses.asdict(claim) for claim in experiment.claims(means)]
    if scale == "smoke":  # another network on other data: nothing to hold against the paper
        claims = [{**claim, "verdict": UNMEASURED} for claim in claims]
    return {
        "title": experiment.title,
        "about": experiment.about,
        "runs": len(specs),
        "runs_declared": len(declared),
        "claims": claims,
        "rows": rows,
        "means": means,
    }


def averaged(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row for all seeds: means of the numbers that differ, the range of every accuracy, diverged if any did.

    What one of the seeds does not have, as a run that diverged has no end, the mean does not have either.
    """
    found = {**group[0], "seeds": len(group), "diverged": any(row["diverged"] for row in group)}
    for name in dict.fromkeys(name for row in group for name in row if name not in IDENTITY):
        values: list[Any] = [row.get(name) for row in group]
        if any(value is None for value in values):
            found[name] = None
        elif any(value != values[0] for value in values) and not isinstance(values[0], bool | str | list | dict):
            found[name] = sum(values) / len(values)
            if any(word in name for word in RANGED):
                found[f"{name}_range"] = [min(values), max(values)]
    return found


def check(experiment: Experiment, content: Mapping[str, Any], store: Store) -> None:
    """Refuse rows or claims that their runs do not give; runs made since, for another experiment, do not count."""
    declared = all_runs(experiment, content["scale"], content["seeds"])
    used = {row["run"] for row in content["rows"]}
    results = stored([spec for spec in declared if spec.key in used], store)
    for run in used:
        if not (store.folder / f"{run}.json").exists():
            raise CheckpointError(f"{experiment.name}: the run {run} is missing; make it again")
    expected = json.loads(json.dumps(summarise(experiment, declared, results, content["scale"])))
    for name, value in expected.items():
        if content.get(name) != value:
            raise CheckpointError(
                f"{experiment.name}-{content['scale']}: {name} is not what its runs give; make it again with "
                f"{content['command']}"
            )


def draw(panels: Sequence[Panel], results: Results, title: str) -> Figure:
    """The panels in rows of two to four, and one legend: a name has one look in all panels."""
    with house_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        columns = 3 if len(panels) % 3 == 0 else min(4, len(panels)) if len(panels) != 4 else 2
        count = -(-len(panels) // columns)
        figure = Figure(figsize=(12.0, 3.6 * count + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(count, columns, squeeze=False)
        names, handles = list(dict.fromkeys(name for panel in panels for name in panel.lines)), {}
        for place, panel in enumerate(panels):
            axes = grid[place // columns][place % columns]
            for name in panel.lines:
                number = names.index(name)
                colour, dashes = PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)]
                points = panel.points(name, results)
                x, y = zip(*points, strict=True) if points else ((), ())
                (handles[name],) = axes.plot(x, y, color=colour, linestyle=dashes, label=name)
            axes.set_title(panel.title, fontsize=10.0)
            axes.set_xlabel(NAMES[panel.against] if panel.across is None else panel.across.__name__)
            axes.set_ylabel(NAMES[panel.column] + (f" ({panel.unit})" if panel.unit else ""))
            if panel.logarithmic:
                axes.set_yscale("log")
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=min(6, len(names)))
        figure.suptitle(title, fontweight="bold")
    return figure
