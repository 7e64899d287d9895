"""One picture for the whole report: Table 1 as the paper prints it and as our runs give it, against inertia."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipdlam.experiments.contents import Content, base_name, reading_label
from ipdlam.experiments.paper.setup import LETTER
from ipdlam.experiments.paper.table1 import PRINTED, corrected
from ipdlam.training.plots import INK, PALETTE, house_style, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARK = "ipdlam report"  # in the file, so that it may be replaced
TITLE = "Table 1: the paper's beside ours"
TABLE = "table1"
PAPER_SERIES = "the paper"
HIGHEST_PHI, LOWEST_ACCURACY = 1e5, 60.0  # what lies beyond is marked in a band at the edge
BAND = 0.22  # of the height of a panel
APART = 0.005  # of inertia, so that equal points are seen beside each other

Points = tuple[tuple[float, float | None], ...]  # inertia and value; None where the numbers overflowed


@dataclass(frozen=True)
class Quantity:
    """What a column of panels shows."""

    label: str
    key: str  # of the rows
    unit: float = 1.0

    @property
    def logarithmic(self) -> bool:
        return self.unit == 1.0


QUANTITIES = (
    Quantity("Phi for each sample", "objective_per_sample"),
    Quantity("training accuracy (%)", "train_accuracy", 100.0),
    Quantity("test accuracy (%)", "test_accuracy", 100.0),
)


@dataclass(frozen=True)
class Series:
    """The points of the paper, or of one reading at one scale, by data set and quantity."""

    name: str
    colour: str
    marker: str
    filled: bool
    points: dict[str, tuple[Points, ...]]


@dataclass(frozen=True)
class Overview:
    """What the picture shows."""

    series: tuple[Series, ...]

    @property
    def datasets(self) -> list[str]:
        """Those that a run of ours was made on."""
        return [data for data in PRINTED if any(data in each.points for each in self.series[1:])]

    @property
    def description(self) -> str:
        """The picture in words, for those who cannot see it."""
        panels = "; ".join(f"{data}, {each.label}" for data in self.datasets for each in QUANTITIES)
        return f"{TITLE}. Panels, each against inertia: {panels}. Points: {'; '.join(s.name for s in self.series)}."


def table_overview(contents: Sequence[Content]) -> Overview | None:
    """Table 1 in all its readings and scales; None where no run of it was made on data of the paper."""
    ours = [series_of(content) for content in contents if base_name(content.experiment.name) == TABLE]
    found = tuple(each for each in ours if each.points)
    return Overview((printed_series(), *found)) if found else None


def printed_series() -> Series:
    """The paper's own points, test accuracies in the column they belong to."""
    points = {}
    for data, table in PRINTED.items():
        rows = [(inertia, (phi, train, 100.0 * corrected(data, inertia))) for inertia, (phi, train, _) in table.items()]
        points[data] = tuple(tuple((inertia, known(row[place])) for inertia, row in rows) for place in range(3))
    return Series(PAPER_SERIES, INK, "o", True, points)


def known(value: float) -> float | None:
    """A printed number, or None for nan."""
    return None if math.isnan(value) else value


def series_of(content: Content) -> Series:
    """The points of one experiment at one scale; small scales are hollow."""
    whole = content.scale == "paper"
    name = f"{reading_label(content.reading)}, {'size of the paper' if whole else f'{content.scale} scale'}"
    colour, marker = (PALETTE[1], "s") if content.reading == LETTER else (PALETTE[0], "D")
    rows = content.data["means"]
    return Series(name, colour, marker, whole, {data: our_points(rows, data) for data in PRINTED if of(rows, data)})


def of(rows: Sequence[dict[str, Any]], data: str) -> list[dict[str, Any]]:
    """The rows of a data set, by inertia."""
    return sorted((row for row in rows if row["data"] == data), key=lambda row: float(row["inertia"]))


def our_points(rows: Sequence[dict[str, Any]], data: str) -> tuple[Points, ...]:
    """One set of points for each quantity."""
    return tuple(
        tuple(
            (row["inertia"], None if row[quantity.key] is None else quantity.unit * row[quantity.key])
            for row in of(rows, data)
        )
        for quantity in QUANTITIES
    )


def overview_picture(overview: Overview, path: Path) -> bytes:
    """Draw the picture into a file; its bytes."""
    return save(draw(overview), path, {MARK: TITLE}).read_bytes()


def draw(overview: Overview) -> Figure:
    """A row of panels for each data set."""
    with house_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        datasets, count = overview.datasets, len(overview.series)
        figure = Figure(figsize=(12.0, 2.9 * len(datasets) + 1.1), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(datasets), len(QUANTITIES), squeeze=False, sharex=True)
        for line, data in enumerate(datasets):
            for place, quantity in enumerate(QUANTITIES):
                axes = grid[line][place]
                set_axes(axes, quantity, [each.points[data][place] for each in overview.series if data in each.points])
                for number, each in enumerate(overview.series):
                    if data in each.points:
                        draw_points(axes, each, quantity, each.points[data][place], (number, count))
                axes.set_title(f"{data}: {quantity.label}", fontsize=10.0)
                if line == len(datasets) - 1:
                    axes.set_xlabel("inertia")
        handles = [line_of(each) for each in overview.series]
        handles += [
            Line2D([], [], color=INK, marker="x", linestyle="none", label="overflow"),
            Line2D([], [], color=INK, marker="^", linestyle="none", label="larger, or (▼) lower, than the axis"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)
        figure.suptitle(TITLE, fontweight="bold")
    return figure


def set_axes(axes: Axes, quantity: Quantity, lines: Sequence[Points]) -> None:
    """The same accuracies everywhere; Phi from a little below the smallest. A band holds what has no place there."""
    axes.set_xlim(-0.06, 1.26)
    axes.set_xticks([tick / 10 for tick in range(0, 13, 2)])
    if quantity.logarithmic:
        values = [value for points in lines for _, value in points if value is not None and value > 0.0]
        low = min(math.floor(math.log10(min(values, default=1.0))), 0)
        high = math.log10(HIGHEST_PHI)
        axes.set_yscale("log")
        axes.set_ylim(10.0**low, 10.0 ** (low + (high - low) / (1.0 - BAND)))
        axes.set_yticks([10.0**decade for decade in range(low, int(high) + 1)])
        axes.minorticks_off()
    else:
        axes.set_ylim(100.0 - (100.0 - LOWEST_ACCURACY) / (1.0 - BAND), 101.0)
        axes.set_yticks(range(int(LOWEST_ACCURACY), 101, 10))
    bottom, top = axes.get_ylim()
    band = (HIGHEST_PHI, top) if quantity.logarithmic else (bottom, LOWEST_ACCURACY)
    axes.axhspan(*band, color="#F1F1F1", linewidth=0.0, zorder=0)
    middle = 1.0 - BAND / 2 if quantity.logarithmic else BAND / 2
    words = "overflow, or\n" + ("larger" if quantity.logarithmic else "lower")
    axes.text(0.02, middle, words, transform=axes.transAxes, va="center", fontsize=8.0, color="#666666")


def draw_points(axes: Axes, series: Series, quantity: Quantity, points: Points, place: tuple[int, int]) -> None:
    """Points with a thin line between neighbours, and marks in the band; ``place``: which series, and of how many."""
    number, count = place
    face = series.colour if series.filled else "white"
    inside = [(inertia + APART * number, shown(quantity, value)) for inertia, value in points]
    x, y = zip(*inside, strict=True)
    kind = "-" if series.filled else ":"
    axes.plot(x, y, kind, color=series.colour, marker=series.marker, mfc=face, linewidth=0.8, markersize=4.5)
    height = BAND * (number + 1) / (count + 1)
    for (inertia, value), (_, drawn) in zip(points, inside, strict=True):
        if math.isnan(drawn):
            axes.plot(
                [inertia],
                [1.0 - height if quantity.logarithmic else height],
                transform=axes.get_xaxis_transform(),
                color=series.colour,
                marker="x" if value is None else "^" if quantity.logarithmic else "v",
                mfc=face,
                markersize=4.5,
            )


def shown(quantity: Quantity, value: float | None) -> float:
    """A value that has a place on its axis; nan where it has none."""
    if value is None or not (0.0 < value <= HIGHEST_PHI if quantity.logarithmic else value >= LOWEST_ACCURACY):
        return math.nan
    return value


def line_of(series: Series) -> Any:
    """How a series looks, for the legend."""
    from matplotlib.lines import Line2D

    face = series.colour if series.filled else "white"
    line = Line2D([], [], color=series.colour, marker=series.marker, mfc=face, linewidth=0.8, label=series.name)
    line.set_linestyle("-" if series.filled else ":")
    return line
