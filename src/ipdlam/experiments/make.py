"""Making an experiment: its runs, its rows in a JSON file, and its picture beside it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipdlam.checkpoint.files import sha256, write_file
from ipdlam.errors import FileError
from ipdlam.experiments.claims import KNOWN, UNJUDGED
from ipdlam.experiments.spec import Experiment, Panel, Results, RunResult, RunSpec
from ipdlam.experiments.store import Store
from ipdlam.runs.config import ConfigError
from ipdlam.training.history import Record
from ipdlam.training.plots import PALETTE, house_style, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_FOLDER = Path("results")

LEGEND_WIDTH = 170  # letters
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
    """Make what runs are missing, then what :func:`collect` makes of all there are.

    With ``only`` no other runs are made than those that it names; the rows are those of all there are.
    """
    wanted = chosen_runs(experiment, scale, seeds, only)
    if not wanted:
        labels = "; ".join(dict.fromkeys(spec.label for spec in experiment.runs(scale)))
        raise ConfigError(f"only {only!r} is in no label of {experiment.name}; they are: {labels}")
    for place, spec in enumerate(wanted, start=1):
        store.make(spec, watch(spec, place, len(wanted)))
    return collect(experiment, scale, seeds, store, output)


def chosen_runs(experiment: Experiment, scale: str, seeds: int, only: str | None) -> list[RunSpec]:
    """The runs whose label holds the words of ``only``, in any case; all of them without it.

    Where no label does, the names that the runs have in the picture count.
    """
    declared = all_runs(experiment, scale, seeds)
    if only is None:
        return declared
    # Whole words and numbers: 1 is not the beginning of 1.2, nor reverse the end of nested-reverse.
    words = re.compile(rf"(?<![\w.-]){re.escape(only)}(?!\w|\.\d)", re.IGNORECASE)
    named = {key for name, key in line_names(experiment, scale) if words.search(name)}
    labelled = [spec for spec in declared if words.search(spec.label)]
    return labelled or [spec for spec in declared if spec.changed(seed=0).key in named]


def line_names(experiment: Experiment, scale: str) -> list[tuple[str, str]]:
    """The lines of the picture, and the keys of the runs of the first seed that they show."""
    return [
        (name, spec.key)
        for panel in experiment.panels(experiment.runs(scale))
        for name, specs in panel.lines.items()
        for spec in ([specs] if isinstance(specs, RunSpec) else specs)
    ]


def collect(experiment: Experiment, scale: str, seeds: int, store: Store, output: Path) -> dict[str, Any]:
    """Write the rows, the claims and the picture of the runs that there are; the content of the JSON file."""
    results = stored(all_runs(experiment, scale, seeds), store)
    content = collected(experiment, scale, seeds, results, file_digests(results, store))
    panels = drawn_panels(experiment, results)
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{experiment.name}-{scale}.json"
    picture = path.with_suffix(".png")
    picture.unlink(missing_ok=True)  # what is stopped before the new one leaves none, not one of other runs
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())
    save(draw(panels, results, experiment.title), picture)
    return content


def command(name: str, scale: str, seeds: int | None = None) -> str:
    """What makes an experiment, with as many seeds as the last time where their number is not given."""
    return f"ipdlam reproduce {name} --scale {scale}" + ("" if seeds is None else f" --seeds {seeds}")


def elsewhere(folder: Path) -> str:
    """The option that sends results to another folder than the usual one."""
    return "" if folder == DEFAULT_FOLDER else f" --output {shlex.quote(str(folder))}"


def all_runs(experiment: Experiment, scale: str, seeds: int) -> list[RunSpec]:
    """The runs of an experiment for every seed."""
    return [spec.changed(seed=seed) for seed in range(seeds) for spec in experiment.runs(scale)]


def stored(specs: Sequence[RunSpec], store: Store) -> dict[str, RunResult]:
    """The results that there are."""
    found = ((spec.key, store.read(spec)) for spec in specs)
    return {key: result for key, result in found if result is not None}


def seeds_with_runs(experiment: Experiment, scale: str, store: Store) -> int:
    """How many seeds from the first on, which the picture shows, have a run."""
    specs = experiment.runs(scale)
    counted = itertools.takewhile(
        lambda seed: any(store.path(spec.changed(seed=seed)).exists() for spec in specs), itertools.count()
    )
    return sum(1 for _ in counted)


def file_digests(results: Results, store: Store) -> dict[str, str]:
    """The checksums of the files of runs, by key: rows show little of a run, these all of it."""
    return {key: sha256(store.path(result.spec)) for key, result in results.items()}


def collected(
    experiment: Experiment, scale: str, seeds: int, results: Results, digests: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON file: a function of the files of the runs alone, so that all of it can be checked against them."""
    return {
        "experiment": experiment.name,
        "command": command(experiment.name, scale, seeds),
        "scale": scale,
        "seeds": seeds,
        "digests": digests,
        **summarise(experiment, all_runs(experiment, scale, seeds), results, scale),
    }


def summarise(experiment: Experiment, declared: Sequence[RunSpec], results: Results, scale: str) -> dict[str, Any]:
    """Rows and claims, from the runs alone."""
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
    claims = [dataclasses.asdict(claim) for claim in experiment.claims(comparable(list(groups.values())), scale)]
    if scale == "smoke":  # another network on other data: nothing to hold against the paper
        claims = [{**claim, "verdict": UNJUDGED} for claim in claims]
    return {
        "title": experiment.title,
        "about": experiment.about,
        "runs": len(specs),
        "runs_declared": len(declared),
        "claims": claims,
        "rows": rows,
        "means": means,
    }


def comparable(groups: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Means over the seeds that all runs on a data set were made with: claims do not compare three seeds with one."""
    common: dict[str, set[int]] = {}
    for group in groups:
        seeds = {row["seed"] for row in group}
        common[group[0]["data"]] = common.get(group[0]["data"], seeds) & seeds
    shared = ([row for row in group if row["seed"] in common[row["data"]]] for group in groups)
    return [averaged(group) for group in shared if group]


def averaged(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row for all seeds: means of the numbers that differ, the range of every accuracy, what is true of all.

    What one of the seeds does not have, as a run that diverged has no end, the mean does not have either: only how many
    have it is kept.
    """
    found = {**group[0], "seeds": len(group)}
    for name in dict.fromkeys(name for row in group for name in row if name not in IDENTITY):
        values: list[Any] = [row.get(name) for row in group]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            found[name] = None
            if known:
                found[f"{name}{KNOWN}"] = len(known)
        elif all(isinstance(value, bool) for value in values):
            found[name] = all(values)
        elif any(value != values[0] for value in values) and not isinstance(values[0], str | list | dict):
            found[name] = sum(values) / len(values)
            if any(word in name for word in RANGED):
                found[f"{name}_range"] = [min(values), max(values)]
    diverged = sum(row["diverged"] for row in group)
    return {**found, "diverged": diverged > 0, "diverged_seeds": diverged}


def check(experiment: Experiment, content: Mapping[str, Any], store: Store) -> dict[str, RunResult]:
    """Refuse the content of a JSON file that its runs do not give, or whose runs are other files by now; those runs.

    Runs made since, for another experiment, do not count.
    """
    scale, seeds, digests = content["scale"], content["seeds"], content.get("digests")
    again = command(experiment.name, scale, seeds)
    remedy = f"collect it again: {again} --collect{elsewhere(store.folder.parent)}"
    if not isinstance(digests, dict):
        raise FileError(f"{experiment.name}-{scale}: it does not hold the digests of its runs; {remedy}")
    used = [spec for spec in all_runs(experiment, scale, seeds) if spec.key in digests]
    results = {spec.key: stored_before(spec, store, again) for spec in used}
    found = file_digests(results, store)
    for spec in used:
        if digests[spec.key] != found[spec.key]:
            raise FileError(
                f"{experiment.name}-{scale}: {store.path(spec)} ({spec.label}) is not the file that it was made of; "
                f"put that one back or, if the run was made again, {remedy}"
            )
    expected = json.loads(json.dumps(collected(experiment, scale, seeds, results, found)))
    for name in {**expected, **content}:
        if name not in expected or content.get(name) != expected[name]:
            raise FileError(f"{experiment.name}-{scale}: {name} is not what its runs give; {remedy}")
    return results


def stored_before(spec: RunSpec, store: Store, again: str) -> RunResult:
    """The result of a run that was there once; where it is lost, the error says how to make this run alone."""
    remedy = f"{again} --only {shlex.quote(spec.label)}{elsewhere(store.folder.parent)}"
    try:
        found = store.read(spec)
    except FileError as error:
        raise FileError(f"{error}: {remedy}") from error
    if found is None:
        raise FileError(f"the run {spec.key} ({spec.label}) is missing; make it again: {remedy}")
    return found


def drawn_panels(experiment: Experiment, results: Results) -> Sequence[Panel]:
    """What the picture shows: the runs of the first seed."""
    first = [result.spec for result in results.values() if result.spec.seed == 0]
    return experiment.panels(first) if first else ()


def axis_labels(panel: Panel) -> tuple[str, str]:
    """What is drawn against what: first the horizontal axis."""
    across = NAMES[panel.against] if panel.across is None else panel.across.__name__.replace("_", " ")
    return across, NAMES[panel.column] + (f" ({panel.unit})" if panel.unit else "")


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
            lines = {name: panel.points(name, results) for name in panel.lines}
            for name, points in lines.items():
                number = names.index(name)
                colour = PALETTE[number % len(PALETTE)]
                dashes = DASHES[number % len(DASHES)]  # lines may cover each other: gaps let all of them be seen
                x, y = zip(*points, strict=True) if points else ((), ())
                dots = "" if panel.across is None else "o"
                (handles[name],) = axes.plot(
                    x, y, color=colour, linestyle=dashes, marker=dots, markersize=4, label=name
                )
            axes.set_title(panel.title, fontsize=10.0)
            across, up = axis_labels(panel)
            axes.set_xlabel(across)
            axes.set_ylabel(up)
            if panel.across is not None:  # a few values, each of which was chosen
                axes.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
                axes.xaxis.set_major_formatter("{x:g}")
            if panel.logarithmic:
                axes.set_yscale("log")
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        beside = LEGEND_WIDTH // (max(map(len, names), default=0) + 8)  # a line and a gap are as wide as 8 letters
        beside = max(1, min(6, len(names), beside))
        figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=beside)
        figure.suptitle(title, fontweight="bold")
    return figure
