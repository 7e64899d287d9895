"""Making an experiment: its runs, its rows in a JSON file, and its picture beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipdlam.environment import environment
from ipdlam.errors import CheckpointError
from ipdlam.experiments.base import Experiment, Panel, Results, RunSpec, Verdict
from ipdlam.experiments.runner import Store
from ipdlam.history import Record
from ipdlam.plots import PALETTE, house_style, save
from ipdlam.storage import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "objective": "objective Φ",
    "train_accuracy": "training accuracy",
    "validation_accuracy": "test accuracy",
    "iteration": "iteration",
    "seconds": "seconds of training (s)",
}
AVERAGED = ("objective", "train_accuracy", "test_accuracy", "best_test_accuracy")


def make(
    experiment: Experiment,
    scale: str,
    seeds: int,
    store: Store,
    output: Path,
    watch: Callable[[RunSpec, int, int], Callable[[Record], Any]],
) -> dict[str, Any]:
    """Make what runs are missing, then the rows, the verdict and the picture; the content of the JSON file."""
    specs = all_runs(experiment, scale, seeds)
    results = {spec.key: store.make(spec, watch(spec, place, len(specs))) for place, spec in enumerate(specs, start=1)}
    content: dict[str, Any] = {
        "command": f"ipdlam reproduce {experiment.name} --scale {scale} --seeds {seeds}",
        "scale": scale,
        "seeds": seeds,
        "environment": environment(),
        **summarise(experiment, specs, results, scale),
    }
    output.mkdir(parents=True, exist_ok=True)
    write_file(output / f"{experiment.name}-{scale}.json", (json.dumps(content, indent=1) + "\n").encode())
    first = [spec for spec in specs if spec.seed == 0]
    save(draw(experiment.panels(first), results, experiment.title), output / f"{experiment.name}-{scale}.png")
    return content


def all_runs(experiment: Experiment, scale: str, seeds: int) -> list[RunSpec]:
    """The runs of an experiment for every seed."""
    return [spec.changed(seed=seed) for seed in range(seeds) for spec in experiment.runs(scale)]


def summarise(experiment: Experiment, specs: Sequence[RunSpec], results: Results, scale: str) -> dict[str, Any]:
    """Rows and verdict: a function of the runs alone, so that they can be checked against them."""
    by_seed = [
        experiment.rows([spec for spec in specs if spec.seed == seed], results)
        for seed in dict.fromkeys(spec.seed for spec in specs)
    ]
    verdict = experiment.verdict(by_seed[0])
    if scale == "smoke":  # another network on other data: nothing to hold against the paper
        verdict = Verdict("not measured", f"at the scale of a smoke test, {verdict.word}: {verdict.why}")
    rows = [row for rows in by_seed for row in rows]
    return {
        "title": experiment.title,
        "claim": experiment.claim,
        "verdict": verdict.word,
        "why": verdict.why,
        "rows": rows,
        "spread": [spread(group) for group in zip(*by_seed, strict=True)] if len(by_seed) > 1 else [],
    }


def spread(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and range over the seeds of one row."""
    found: dict[str, Any] = {"runs": [row["run"] for row in group]}
    for name in AVERAGED:
        values = [row[name] for row in group if row[name] is not None]
        found[name] = [sum(values) / len(values), min(values), max(values)] if values else None
    return found


def check(experiment: Experiment, content: Mapping[str, Any], store: Store) -> None:
    """Refuse rows or a verdict that the stored runs do not give."""
    specs = all_runs(experiment, content["scale"], content["seeds"])
    results = {}
    for spec in specs:
        result = store.read(spec)
        if result is None:
            raise CheckpointError(f"{experiment.name}: the run {spec.key} ({spec.label}) is missing")
        results[spec.key] = result
    expected = json.loads(json.dumps(summarise(experiment, specs, results, content["scale"])))
    for name, value in expected.items():
        if content[name] != value:
            raise CheckpointError(f"{experiment.name}: its {name} are not those of its runs; make it again")


def draw(panels: Sequence[Panel], results: Results, title: str) -> Figure:
    """The panels in rows of three or four, one legend a row of panels."""
    with house_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        columns = 3 if len(panels) % 3 == 0 else min(4, len(panels)) if len(panels) != 4 else 2
        count = -(-len(panels) // columns)
        figure = Figure(figsize=(12.0, 3.6 * count + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(count, columns, squeeze=False)
        for place, panel in enumerate(panels):
            axes = grid[place // columns][place % columns]
            for number, name in enumerate(panel.lines):
                points = panel.points(name, results)
                colour, dashes = PALETTE[number % len(PALETTE)], ("-", "--", ":", "-.")[number // len(PALETTE) % 4]
                axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, label=name)
            axes.set_title(panel.title, fontsize=10.0)
            axes.set_xlabel(NAMES[panel.against] if panel.across is None else panel.across.__name__)
            axes.set_ylabel(NAMES[panel.column] + (f" ({panel.unit})" if panel.unit else ""))
            if panel.logarithmic:
                axes.set_yscale("log")
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
        figure.suptitle(title, fontweight="bold")
    return figure
