"""The panels of ``results/scaling.png``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costs import Machine, iteration_cost
from ipdlam.training.plots import INK, PALETTE, plain
from scaling_model import BILLION, LATENCY, PAPER, RATES, node

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rate_name(rate: float | None) -> str:
    if rate is None:
        return "no limit"
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"


def add_legend(axes: Axes, columns: int) -> None:
    """Below the panel, where no line is."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=columns)


def draw_checks(axes: Axes, checks: Sequence[dict[str, Any]]) -> None:
    """Predicted against measured seconds."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    looks = (
        (False, 1, PALETTE[0], "o", "fitted, one process"),
        (False, 2, PALETTE[1], "o", "fitted, two"),
        (True, 1, PALETTE[0], "^", "held out, one process"),
        (True, 2, PALETTE[1], "^", "held out, two"),
    )
    for held_out, ranks, color, marker, label in looks:
        own = [check for check in checks if (check["held_out"], check["ranks"]) == (held_out, ranks)]
        face = "white" if held_out else color
        x, y = [check["measured"] for check in own], [check["predicted"] for check in own]
        axes.plot(x, y, marker, color=color, mfc=face, markersize=5.5, label=label)
    seconds = [check[name] for check in checks for name in ("measured", "predicted")]
    ends = [min(seconds) / 1.5, max(seconds) * 1.5]
    axes.plot(ends, ends, "-", color=INK, linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, position: plain(value)))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("measured seconds of an iteration")
    axes.set_ylabel("predicted seconds")
    axes.set_title("The model and what was measured")
    add_legend(axes, 2)


def draw_networks(axes: Axes, result: dict[str, Any]) -> None:
    """The same iteration of two processes through several networks: bars measured, marks predicted."""
    widths = next((row["widths"] for row in result["rows"] if row["part"] == "networks"), None)
    own = [check for check in result["checks"] if check["widths"] == widths and check["ranks"] == 2]
    own.sort(key=lambda check: (-(check["rate"] or 1e15), check["delay"]))
    unique = list({(check["rate"], check["delay"], check["samples"]): check for check in own}.values())
    if not unique:
        axes.set_title("No network namespaces here")
        return
    names = [f"{rate_name(check['rate'])}\n{1000 * check['delay']:g} ms" for check in unique]
    rest = [check["measured"] - check["communication_measured"] for check in unique]
    axes.barh(names, rest, color=PALETTE[0], height=0.6, label="work")
    sent = [check["communication_measured"] for check in unique]
    axes.barh(names, sent, left=rest, color=PALETTE[1], height=0.6, label="communication")
    predicted = [check["predicted"] for check in unique]
    axes.plot(predicted, names, "D", color="black", mfc="white", markersize=5.0, label="predicted")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", labelsize=8.0)
    axes.set_xlabel("seconds of an iteration")
    axes.set_title(f"Two processes, {'-'.join(map(str, unique[0]['widths']))}")
    add_legend(axes, 3)


def draw_predictions(axes: Axes, machine: Machine) -> None:
    """Efficiency over the number of ranks, for nodes that hold all in memory."""
    ranks = [2**power for power in range(13)]
    for samples, style in ((BILLION, "-"), (10**6, "--")):
        for rate, color in zip(RATES, PALETTE, strict=False):
            own = dataclasses.replace(node(machine), bandwidth=rate / 8, latency=LATENCY)
            serial = iteration_cost(PAPER, samples, 1, own).total
            efficiency = [100 * serial / (count * iteration_cost(PAPER, samples, count, own).total) for count in ranks]
            label = rate_name(rate) if samples == BILLION else "the same, a million samples"
            axes.plot(ranks, efficiency, style, color=color, label=label if style == "-" or rate == RATES[0] else None)
    axes.axvline(64, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks[::2], [str(count) for count in ranks[::2]])
    axes.set_ylim(0, 102)
    axes.set_xlabel(f"ranks of 64 cores, {'-'.join(map(str, PAPER))}")
    axes.set_ylabel("efficiency (%)")
    axes.set_title("Predicted, a billion samples")
    add_legend(axes, 2)
