"""The tables and the picture of the page on the race, made of what ``results/race.json`` holds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ipdlam.training.plots import plain
from race_methods import METHODS, OURS, OURS_TUNED
from race_problems import PROBLEMS

Rows = list[dict[str, Any]]
BOTH = (OURS, OURS_TUNED)


def measured(result: dict, problem: str) -> Rows:
    return [row for row in result["rows"] if row["part"] == "measure" and row["problem"] == problem]


def raced(result: dict) -> list[str]:
    """The problems that have been measured, in their usual order."""
    found = {row["problem"] for row in result["rows"] if row["part"] == "measure"}
    return [key for key in PROBLEMS if key in found]


def first_times(rows: Rows, target: str) -> dict[str, dict[int, tuple[float, float]]]:
    """By method and seed, seconds and epochs to a target, by the plan that gets there first."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for row in rows:
        own = found.setdefault(row["method"], {})
        if there := row["reached"][target]:
            steps, seconds = there
            new = (seconds, row["epochs"] * steps / row["planned_steps"])
            own[row["seed"]] = min(own.get(row["seed"], new), new)
    return found


def targets(rows: Rows) -> list[str]:
    return list(rows[0]["reached"])


def seeds(rows: Rows) -> set[int]:
    return {row["seed"] for row in rows}


def medians(rows: Rows, target: str) -> dict[str, float]:
    """The median seconds of the methods that reached a target with every seed."""
    every = seeds(rows)
    return {
        name: statistics.median(seconds for seconds, _ in own.values())
        for name, own in first_times(rows, target).items()
        if set(own) == every
    }


def best_peer(rows: Rows, target: str) -> str | None:
    known = {name: seconds for name, seconds in medians(rows, target).items() if name not in BOTH}
    return min(known, key=lambda name: known[name], default=None)


def ratio(rows: Rows, target: str, name: str, peer: str) -> float | None:
    """The median over the seeds of the time of one method over another's."""
    times = first_times(rows, target)
    if set(times.get(name, {})) != seeds(rows):
        return None
    return statistics.median(times[name][seed][0] / times[peer][seed][0] for seed in seeds(rows))


def level(key: str, target: str) -> str:
    """A target as a reader knows it."""
    return f"R² {float(target):g}" if PROBLEMS[key].real else f"{100 * float(target):g} %"


def seconds_of(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def summary_table(result: dict) -> list[str]:
    """For each target who is first, and our time over that of the best peer."""
    lines = [
        "| problem | target | ours | best peer | ours / best peer | tuned / best peer |",
        "|---|---|---:|---|---:|---:|",
    ]
    for key in raced(result):
        rows = measured(result, key)
        for target in targets(rows):
            peer, known = best_peer(rows, target), medians(rows, target)
            cells = [PROBLEMS[key].title, level(key, target)]
            cells.append(seconds_of(known[OURS]) if OURS in known else "not reached by all seeds")
            cells.append("none" if peer is None else f"{peer}, {seconds_of(known[peer])}")
            for name in BOTH:
                found = None if peer is None else ratio(rows, target, name, peer)
                cells.append("" if found is None else f"**{found:.2f}**" if found < 1 else f"{found:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def methods_of(rows: Rows) -> Iterable[str]:
    found = {row["method"] for row in rows}
    return [name for name in METHODS if name in found]


def command(rows: Rows, key: str) -> str:
    """What makes these rows; the methods are named where they were not all."""
    names = list(methods_of(rows))
    some = f" --methods '{';'.join(names)}'" if len(names) < len(METHODS) else ""
    return f"python benchmarks/race.py tune measure --problems {key}{some}"


def problem_table(result: dict, key: str) -> list[str]:
    """Every method on one problem: seconds and epochs to the targets, the cost of a step, and what was chosen."""
    rows = measured(result, key)
    every = seeds(rows)
    usual, whose = ("Adam", "Adam's") if "Adam" in methods_of(rows) else (OURS, "that of ours")
    heads = [f"{level(key, target)}" for target in targets(rows)]
    lines = [
        f"| method | {' | '.join(heads)} | a step, over {whose} | settings |",
        "|---|" + "---:|" * len(heads) + "---:|---|",
    ]
    for name in methods_of(rows):
        cells = [name]
        for target in targets(rows):
            own = first_times(rows, target)[name]
            if len(own) < len(every):
                ends = Counter(row["ended"] for row in rows if row["method"] == name and not row["reached"][target])
                cells.append(f"{len(own)} of {len(every)} seeds: {ends.most_common(1)[0][0]}")
                continue
            times, epochs = [seconds for seconds, _ in own.values()], [epoch for _, epoch in own.values()]
            spread = f" ({min(times):.2g} … {max(times):.2g})" if len(times) > 1 else ""
            cells.append(f"{seconds_of(statistics.median(times))}{spread}, {statistics.median(epochs):.1f} epochs")
        cells.append(f"{step_cost(rows, name) / step_cost(rows, usual):.2f}")
        settings = next(row["settings"] for row in rows if row["method"] == name)
        shown = [f"{k.replace('_', ' ')} {v:.3g}" if isinstance(v, float) else str(v) for k, v in settings.items()]
        lines.append(f"| {' | '.join([*cells, ', '.join(shown) or 'defaults'])} |")
    return lines


def step_cost(rows: Rows, name: str) -> float:
    return statistics.median(row["milliseconds_per_step"] for row in rows if row["method"] == name)


def all_tables(result: dict) -> list[str]:
    lines: list[str] = []
    for key in raced(result):
        problem = PROBLEMS[key]
        plans = " or ".join(map(str, problem.plans))
        lines += [f"### {problem.title}", "", *problem_table(result, key), ""]
        rows = measured(result, key)
        about = f"Batches of {problem.batch}; plans of {plans} epochs; {len(seeds(rows))} seeds."
        lines += [f"{about} `{command(rows, key)}`", ""]
    return lines[:-1]


def profile_table(result: dict) -> list[str]:
    """What the steps of ours consist of."""
    lines = ["| problem | a step | operators with the largest shares |", "|---|---:|---|"]
    for row in (row for row in result["rows"] if row["part"] == "profile"):
        shares = ", ".join(f"{name.removeprefix('aten::')} {share:.0%}" for name, share in row["shares"].items())
        lines.append(f"| {PROBLEMS[row['problem']].title} | {row['milliseconds']:.1f} ms | {shares} |")
    return lines


def cost_table(result: dict) -> list[str]:
    """What a step of every method costs over one of ours, raced or not."""
    costs = {(row["problem"], row["method"]): row for row in result["rows"] if row["part"] == "cost"}
    keys = [key for key in PROBLEMS if (key, OURS) in costs]
    lines = [f"| a step | {' | '.join(PROBLEMS[key].title for key in keys)} |", "|---|" + "---:|" * len(keys)]
    ours = [costs[key, OURS]["milliseconds"] for key in keys]
    lines.append(f"| {OURS} | {' | '.join(f'{milliseconds:.1f} ms' for milliseconds in ours)} |")
    for name in METHODS:
        own = [costs.get((key, name)) for key in keys]
        if name != OURS and any(own):
            cells = [
                "" if row is None or row["failed"] else f"x {row['milliseconds'] / milliseconds:.2f}"
                for row, milliseconds in zip(own, ours, strict=True)
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def tuning_table(result: dict) -> list[str]:
    """The best held-out scores of the trials, and how many trials failed."""
    trials = [row for row in result["rows"] if row["part"] == "tune"]
    keys = [key for key in PROBLEMS if any(row["problem"] == key for row in trials)]
    lines = [f"| method | {' | '.join(PROBLEMS[key].title for key in keys)} |", "|---|" + "---:|" * len(keys)]
    for name in METHODS:
        own = {key: [row["score"] for row in trials if (row["problem"], row["method"]) == (key, name)] for key in keys}
        if not any(own.values()):
            continue
        cells = []
        for scores in own.values():
            failed = sum(score < 0 for score in scores)
            lost = f" ({failed} diverged)" if failed else ""
            cells.append(f"{max(scores):.4f} of {len(scores)}{lost}" if scores else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def plan_shown(rows: Rows, name: str) -> Rows:
    """The runs of the plan with which a method first gets to the highest target that it reaches, or of the longest."""
    own = [row for row in rows if row["method"] == name]
    for target in reversed(targets(rows)):
        times: dict[int, list[float]] = {}
        for row in own:
            if there := row["reached"][target]:
                times.setdefault(row["epochs"], []).append(there[1])
        if times:
            most = max(map(len, times.values()))
            best = min(
                (epochs for epochs in times if len(times[epochs]) == most), key=lambda e: statistics.median(times[e])
            )
            return [row for row in own if row["epochs"] == best]
    return [row for row in own if row["epochs"] == max(row["epochs"] for row in own)]


def draw(result: dict, path: Path) -> None:
    """Scores against seconds, a panel for each problem; bands are the least and the most of the seeds."""
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    keys = raced(result)
    columns = min(2, len(keys))
    lines = -(-len(keys) // columns)
    figure, panels = plt.subplots(lines, columns, figsize=(5.6 * columns, 3.6 * lines + 0.6), squeeze=False)
    shades = ["#d62728", "#ff9896", "tab:blue", *plt.get_cmap("Dark2").colors]  # type: ignore[attr-defined]
    colors = dict(zip(METHODS, shades, strict=False))
    handles: dict[str, Any] = {}
    for axes, key in zip(panels.flat, keys, strict=False):
        rows = measured(result, key)
        goal = [float(target) for target in targets(rows)]
        for name in methods_of(rows):
            runs = [row["curve"] for row in plan_shown(rows, name)]
            length = min(map(len, runs))
            seconds = np.median([[point[1] for point in run[:length]] for run in runs], 0)
            scores = np.array([[point[2] for point in run[:length]] for run in runs])
            scores = np.where(scores < 0, np.nan, scores)
            width = 2.2 if name in BOTH else 1.2
            (handles[name],) = axes.plot(seconds, np.median(scores, 0), color=colors[name], linewidth=width, label=name)
            axes.fill_between(seconds, scores.min(0), scores.max(0), color=colors[name], alpha=0.15, linewidth=0)
        for target in goal:
            axes.axhline(target, color="0.6", linewidth=0.8, linestyle=":")
        spread = max(goal) - min(goal)
        axes.set_ylim(min(goal) - 5 * spread, max(goal) + 1.2 * spread)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: plain(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(PROBLEMS[key].title, fontsize=10)
        axes.set_ylabel("test R²" if PROBLEMS[key].real else "test accuracy")
        axes.set_xlabel("processor seconds of training")
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in list(panels.flat)[len(keys) :]:
        axes.set_visible(False)
    order = [name for name in METHODS if name in handles]
    figure.legend([handles[name] for name in order], order, loc="lower center", ncols=6, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.6 / (3.6 * lines + 0.6), 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def leads_table(result: dict) -> list[str]:
    """What each change does to the score at the end and in the middle of the plan, and to the time."""
    rows = result["rows"]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    leads = list(dict.fromkeys(row["lead"] for row in rows))

    def figures(problem: str, lead: str) -> tuple[float, float, float]:
        own = [row for row in rows if (row["problem"], row["lead"]) == (problem, lead)]
        ends, halves = ([row["scores"][at] for row in own] for at in (-1, len(own[0]["scores"]) // 2 - 1))
        seconds = statistics.fmean(row["seconds"] for row in own)
        return 100 * statistics.fmean(ends), 100 * statistics.fmean(halves), seconds

    base = {problem: figures(problem, leads[0]) for problem in problems}
    lines = [f"| changed | {' | '.join(problems)} | time |", "|---|" + "---:|" * (len(problems) + 1)]
    scores = " | ".join(f"{end:.2f} ({half:.2f})" for end, half, _ in base.values())
    lines.append(f"| nothing: score in %, at the end (half-way) | {scores} | 1.00 |")
    for lead in leads[1:]:
        found = {problem: figures(problem, lead) for problem in problems}
        cells = [f"{found[p][0] - base[p][0]:+.2f} ({found[p][1] - base[p][1]:+.2f})" for p in problems]
        times = statistics.median(found[p][2] / base[p][2] for p in problems)
        lines.append(f"| {lead} | {' | '.join(cells)} | x {times:.2f} |")
    return lines
