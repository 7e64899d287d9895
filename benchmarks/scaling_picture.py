"""The panels of ``results/scaling.png``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ipdlam.costs import Machine, iteration_cost
from ipdlam.plots import INK, PALETTE
from scaling_model import BILLION, LATENCY, PAPER, RATES, node

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def rate_name(rate: float | None) -> str:
    if rate is None:
        return "no limit"
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"


def draw_checks(axes: Axes, checks: Sequence[dict[str, Any]]) -> None:
    """Predicted against measured seconds."""
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
    axes.set_xlabel("measured seconds of an iteration")
    axes.set_ylabel("predicted seconds")
    axes.set_title("The model and what was measured")
    axes.legend(loc="upper left")


def draw_networks(axes: Axes, result: dict[str, Any]) -> None:
    """The same iteration of two processes through several networks: bars measured, marks predicted."""
    widths = next((row["widths"] for row in result["rows"] if row["part"] == "networks"), None)
    own = [check for check in result["checks"] if check["widths"] == widths and check["ranks"] == 2]
    own.sort(key=lambda check: (-(check["rate"] or 1e15), check["delay"]))
    unique = list({(check["rate"], check["delay"], check["samples"]): check for check in own}.values())
    names = [f"{rate_name(check['rate'])}\n{1000 * check['delay']:g} ms" for check in unique]
    rest = [check["measured"] - check["communication_measured"] for check in unique]
    axes.barh(names, rest, color=PALETTE[0], height=0.6, label="work")
    sent = [check["communication_measured"] for check in unique]
    axes.barh(names, sent, left=rest, color=PALETTE[1], height=0.6, label="communication")
    predicted = [check["predicted"] for check in unique]
    axes.plot(predicted, names, "D", color="black", mfc="white", markersize=5.0, label="predicted")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", labelsize=8.0)
    axes.set_xlabel("seconds of an iteration")
    if widths is not None:
        axes.set_title(f"Two processes, {'-'.join(map(str, widths))}")
    axes.legend(loc="lower right")


def draw_predictions(axes: Axes, machine: Machine) -> None:
    """Efficiency over the number of ranks, for nodes that hold all in memory."""
    ranks = [2**power for power in range(13)]
    for samples, style in ((BILLION, "-"), (10**6, "--")):
        for rate, color in zip(RATES, PALETTE, strict=False):
            own = dataclasses.replace(node(machine), bandwidth=rate / 8, latency=LATENCY)
            serial = iteration_cost(PAPER, samples, 1, own).total
            efficiency = [100 * serial / (count * iteration_cost(PAPER, samples, count, own).total) for count in ranks]
            label = f"{samples:.0e} samples, {rate_name(rate)}".replace("e+0", "e")
            axes.plot(ranks, efficiency, style, color=color, label=label)
    axes.axvline(64, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks[::2], [str(count) for count in ranks[::2]])
    axes.set_ylim(0, 102)
    axes.set_xlabel("ranks of 64 cores")
    axes.set_ylabel("efficiency (%)")
    axes.set_title(f"Predicted, {'-'.join(map(str, PAPER))}")
    axes.legend(loc="lower left", fontsize=8.0)
