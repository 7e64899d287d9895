"""The tables of the page on tables, and the picture of mean ranks, made of what ``results/tabular.json`` holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import studentized_range

OURS = "ipdlam, mini-batch"
LINEAR = {"logistic regression, scaled": "linear model, scaled", "ridge regression, scaled": "linear model, scaled"}
Splits = dict[int, dict[str, Any]]


def runs(result: dict, part: str = "scores") -> dict[str, dict[str, Splits]]:
    """By method and table, the rows of the splits."""
    found: dict[str, dict[str, Splits]] = {}
    for row in result["rows"]:
        if row["part"] == part:
            method = LINEAR.get(row["method"], row["method"])
            found.setdefault(method, {}).setdefault(row["table"], {})[row["split"]] = row
    return found


def pairs(own: Splits, other: Splits, field: str = "score") -> list[tuple[float, float]]:
    """A figure of two methods on the splits that both have."""
    return [(own[split][field], other[split][field]) for split in own if split in other and field in own[split]]


def timed(own: Splits, other: Splits) -> list[float]:
    """Seconds of the other over ours, on the splits that one call has measured for both: machines have their moods."""
    same = [split for split in own if split in other and own[split].get("call") == other[split].get("call")]
    return [other[split]["seconds"] / own[split]["seconds"] for split in same]


def wins(result: dict) -> dict[str, tuple[int, int, int]]:
    """For each other method on how many tables the default is better, equal or worse.

    Better and worse mean by more than the standard error of the difference over the splits; of one split, at all.
    """
    found = runs(result)
    counts: dict[str, tuple[int, int, int]] = {}
    for method, tables in found.items():
        if method == OURS:
            continue
        verdicts = [verdict([a - b for a, b in pairs(found[OURS][name], tables[name])]) for name in tables]
        counts[method] = verdicts.count(1), verdicts.count(0), verdicts.count(-1)
    return counts


def verdict(gains: list[float]) -> int:
    mean = statistics.fmean(gains)
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return 0 if abs(mean) <= error else 1 if mean > 0 else -1


def wins_table(result: dict) -> list[str]:
    found = runs(result)
    lines = [
        f"| {OURS}, against | tables | splits | better | equal | worse | its seconds, over ours | log-loss better |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method, counts in wins(result).items():
        tables = found[method]
        splits = min(len(splits) for splits in tables.values())
        ratios = [timed(found[OURS][name], tables[name]) for name in tables]
        known = [statistics.median(some) for some in ratios if some]
        ratio = f"{statistics.median(known):.2f}" if len(known) == len(tables) else ""
        losses = [pairs(found[OURS][name], tables[name], "log_loss") for name in tables]
        gaps = [statistics.fmean(a - b for a, b in some) for some in losses if some]
        surer = f"{sum(gap < 0 for gap in gaps)} of {len(gaps)}" if gaps else ""
        cells = (method, len(tables), splits, *counts, ratio, surer)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def mean_ranks(result: dict, methods: tuple[str, ...]) -> tuple[dict[str, float], int]:
    """The mean over tables of every method's rank by its mean score, 1 is best; and how many tables there are."""
    found = runs(result)
    names = [name for name in found[OURS] if all(name in found.get(method, {}) for method in methods)]
    ranks = []
    for name in names:
        common = set.intersection(*(set(found[method][name]) for method in methods))
        means = np.array([statistics.fmean(found[method][name][s]["score"] for s in common) for method in methods])
        ranks.append([(means > mean).sum() + 0.5 * ((means == mean).sum() - 1) + 1.0 for mean in means])
    return dict(zip(methods, np.mean(ranks, 0).tolist(), strict=True)), len(names)


def critical_difference(methods: int, tables: int) -> float:
    """By how much mean ranks must differ, at a level of 0.05 (Nemenyi's test)."""
    quantile = studentized_range.ppf(0.95, methods, np.inf) / math.sqrt(2.0)
    return float(quantile * math.sqrt(methods * (methods + 1) / (6.0 * tables)))


def competitors(result: dict) -> tuple[str, ...]:
    """The methods that have run on all tables."""
    found = runs(result)
    return tuple(method for method in found if set(found[method]) == set(found[OURS]))


def ranks_table(result: dict) -> list[str]:
    methods = competitors(result)
    ranks, tables = mean_ranks(result, methods)
    lines = ["| method | mean rank |", "|---|---:|"]
    lines += [f"| {method} | {rank:.2f} |" for method, rank in sorted(ranks.items(), key=lambda item: item[1])]
    difference = critical_difference(len(methods), tables)
    about = f"{tables} tables, by the splits that all methods have. Ranks that differ by less than {difference:.2f}"
    return [*lines, "", f"{about} may differ by chance."]


def cells_table(result: dict, kind: str, cell: Callable[[list[dict]], str]) -> list[str]:
    """Something of every method on every table of classes or of real targets."""
    methods, found = competitors(result), runs(result)
    names = [name for name, splits in found[OURS].items() if next(iter(splits.values()))["kind"] == kind]
    lines = [f"| table | rows x columns | {' | '.join(methods)} |", "|---|---|" + "---:|" * len(methods)]
    for name in names:
        row = next(iter(found[OURS][name].values()))
        cells = [cell(list(found[method][name].values())) for method in methods]
        lines.append(f"| {name} | {row['rows']} x {row['columns']} | {' | '.join(cells)} |")
    return lines


def score_of(rows: list[dict]) -> str:
    return f"{statistics.fmean(row['score'] for row in rows):.3f}"


def seconds_of(rows: list[dict]) -> str:
    return f"{statistics.median(row['seconds'] for row in rows):.2f}"


def chances_table(result: dict) -> list[str]:
    """Log-loss and calibration error, on average over the tables of classes."""
    found, lines = runs(result), ["| method | mean log-loss | mean calibration error |", "|---|---:|---:|"]
    for method in competitors(result):
        known = [rows for rows in found[method].values() if "log_loss" in next(iter(rows.values()))]
        figures = (
            statistics.fmean(statistics.fmean(row[field] for row in rows.values()) for rows in known)
            for field in ("log_loss", "calibration")
        )
        lines.append(f"| {method} | {' | '.join(f'{figure:.3f}' for figure in figures)} |")
    return lines


def ablation_table(result: dict, part: str = "ablation") -> list[str]:
    """What a change of one setting does, on the tables that the defaults were chosen on."""
    found = runs(result, part)
    lines = [
        "| changed | accuracy, points | R², points | log-loss | seconds | tables better | tables worse |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    base = found.get("the defaults", {})
    for variant, tables in found.items():
        if variant == "the defaults" or set(tables) != set(base):
            continue
        gains: dict[str, list[float]] = {"classes": [], "real": []}
        losses, verdicts, ratios = [], [], []
        for name, splits in tables.items():
            kind = next(iter(splits.values()))["kind"]
            differences = [a - b for a, b in pairs(splits, base[name])]
            gains[kind].append(statistics.fmean(differences))
            verdicts.append(verdict(differences))
            losses += [a - b for a, b in pairs(splits, base[name], "log_loss")]
            ratios += [a / b for a, b in pairs(splits, base[name], "seconds")]
        cells = (
            variant,
            *(f"{100 * statistics.fmean(own):+.2f}" for own in gains.values()),
            f"{statistics.fmean(losses):+.3f}",
            f"x {statistics.median(ratios):.2f}",
            verdicts.count(1),
            verdicts.count(-1),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def draw_ranks(result: dict, path: Path) -> None:
    """Mean ranks on a line; a bar joins what may differ by chance."""
    import matplotlib.pyplot as plt

    methods = competitors(result)
    ranks, tables = mean_ranks(result, methods)
    difference = critical_difference(len(methods), tables)
    order = sorted(ranks, key=lambda method: ranks[method])
    figure, axes = plt.subplots(figsize=(8.0, 0.34 * len(order) + 1.6))
    heights = range(len(order), 0, -1)
    for method, height in zip(order, heights, strict=True):
        color = "tab:blue" if method.startswith("ipdlam") else "0.35"
        axes.plot([ranks[method]], [height], "o", color=color, markersize=7)
        axes.annotate(f"{ranks[method]:.2f}", (ranks[method], height), (9, 0), textcoords="offset points", va="center")
    top = len(order) + 0.9
    axes.plot([ranks[order[0]], ranks[order[0]] + difference], [top, top], "-", color="0.35", linewidth=3)
    axes.annotate("may be chance", (ranks[order[0]] + difference / 2, top), (0, 7), textcoords="offset points",
                  ha="center", color="0.35")  # fmt: skip
    axes.set_yticks(list(heights), order)
    axes.set_ylim(0.4, top + 0.9)
    axes.set_xlim(max(0.6, min(ranks.values()) - 0.5), max(ranks.values()) + 0.9)
    axes.set_xlabel(f"mean rank on {tables} tables (1 is best)")
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
