"""Pictures of runs, in one house style. Matplotlib is the extra ``plots`` and is imported when a picture is drawn."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

from ipdlam.checkpoint.files import write_file
from ipdlam.errors import FileError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

    from ipdlam.training.history import History

SIZE = (12.0, 6.5)  # inches
COLOURS = 128  # of a PNG file

# Okabe and Ito's colours, which the colour-blind tell apart; their yellow is too faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("", "o", "s", "^", "D", "v")  # tell runs apart when the colours are used up
INK = "#333333"

STYLE: dict[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": 10.0,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 5),
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    **{f"{x}tick.color": "#888888" for x in "xy"},
    **{f"{x}tick.labelcolor": INK for x in "xy"},
    **{f"{x}tick.labelsize": 9.0 for x in "xy"},
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "legend.fontsize": 9.0,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.handlelength": 2.4,
    "text.color": INK,
    "figure.titlesize": 12.0,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
}
"""What makes a picture one of ours; :func:`house_style` draws with it."""

Values = Sequence[Union[float, None]]  # one for each record; None where it was not evaluated

# The two kinds of lines of the gaps, and of the accuracies or losses.
KINDS: dict[str, Literal["-", "--"]] = {"linear": "-", "activation": "--", "validation": "-", "training": "--"}


@dataclass(frozen=True)
class Panel:
    """One quantity over time: for every run the kinds of lines that it has, none where it has no such quantity."""

    label: str
    lines: dict[str, dict[str, Values]]  # by run and kind
    linear: bool = False  # even if all is positive

    @property
    def logarithmic(self) -> bool:
        """Whether the axis is: if that shows all there is."""
        values = [value for kinds in self.lines.values() for line in kinds.values() for value in line]
        numbers = [value for value in values if value is not None and drawable(value)]
        return not self.linear and bool(numbers) and min(numbers) > 0.0


def curves(
    histories: Mapping[str, History], path: str | PathLike[str], title: str | None = None, unit: str = "iteration"
) -> Path:
    """Write the curves of one run, or of several to compare, to a PNG file: see :func:`draw_curves`."""
    target = check_path(path)
    return save(draw_curves(histories, title, unit), target)


def draw_curves(histories: Mapping[str, History], title: str | None = None, unit: str = "iteration") -> Figure:
    """Phi, the constraint gaps and the accuracy (or the mean loss) against iterations, or what ``unit`` says, and time.

    Every run has one colour in all panels. Iterations that were not evaluated are passed over; what is not finite
    breaks the line. A quantity that no run has gets no panel. A thin vertical line shows where an optimizer took over.
    """
    check_histories(histories)
    with house_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        panels = [objective_panel(histories), gap_panel(histories), score_panel(histories)]
        panels = [panel for panel in panels if any(panel.lines.values())]
        grid = figure.subplots(2, len(panels), sharey="col", squeeze=False)
        for row, (field, label) in enumerate((("iteration", unit), ("seconds", "seconds of training (s)"))):
            times = {name: history.column(field) for name, history in histories.items()}
            for axes, panel in zip(grid[row], panels, strict=True):
                draw_panel(axes, panel, times)
                draw_handovers(axes, histories, field)
                axes.set_xlabel(label)
                set_time(axes, whole=field == "iteration")
        for axes, panel in zip(grid[0], panels, strict=True):
            add_key(axes, panel)
        if len(histories) > 1:
            add_names(figure, list(histories))
        heading = title if title is not None or len(histories) > 1 else next(iter(histories))
        if heading:
            figure.suptitle(heading, fontweight="bold", parse_math=False)
    return figure


def save(figure: Figure, path: str | PathLike[str], texts: Mapping[str, str] | None = None) -> Path:
    """Write a figure as PNG; the file is the old picture or the whole new one, never a part.

    ``texts``, by keyword, go into the file unseen. Lines and words need few colours: a palette makes the file a third
    of what it would be.
    """
    target = check_path(path)
    drawn, content = io.BytesIO(), io.BytesIO()
    with house_style():
        from PIL import Image, PngImagePlugin  # matplotlib depends on it

        figure.savefig(drawn, format="png", dpi=figure.dpi)
    unseen = PngImagePlugin.PngInfo()
    for keyword, text in (texts or {}).items():
        unseen.add_text(keyword, text)
    with Image.open(drawn) as picture:
        reduced = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        reduced.save(content, format="png", optimize=True, pnginfo=unseen)
    try:
        write_file(target, content.getvalue())
    except FileError as error:  # the same remedies, but no checkpoint
        raise OSError(str(error)) from error
    return target


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with :data:`STYLE` on matplotlib's own defaults, whatever the user has set; all is put back at the end."""
    try:
        import matplotlib.style
    except ImportError as error:
        raise ImportError("pictures need matplotlib, which is not installed:\npip install matplotlib") from error
    with matplotlib.style.context(STYLE, after_reset=True):
        yield


def check_path(path: str | PathLike[str]) -> Path:
    """The path of a picture that can only be a PNG."""
    target = Path(path)
    if target.suffix.lower() != ".png":
        raise ValueError(f"path must end in .png, got {str(target)!r}")
    return target


def check_histories(histories: Mapping[str, History]) -> None:
    """Refuse what cannot be drawn, by name."""
    if not isinstance(histories, Mapping):
        raise TypeError(f"histories must map names to histories, got {type(histories).__name__}; write {{'run': it}}")
    if not histories:
        raise ValueError("histories is empty; give at least one history to draw")
    for name, history in histories.items():
        if not hasattr(history, "handover"):  # a History; to import it here would close a circle, for it draws itself
            raise TypeError(f"histories[{name!r}] must be a History, got {type(history).__name__}")
        if not len(history):
            raise ValueError(f"histories[{name!r}] is empty; train for an iteration before you draw it")


def objective_panel(histories: Mapping[str, History]) -> Panel:
    """Phi; that of an optimizer which took over is another function, so no line leads there."""
    lines: dict[str, dict[str, Values]] = {}
    for name, history in histories.items():
        values, place = history.column("objective"), history.handover
        lines[name] = {"": values}
        if place:
            lines[name] = {
                "": [*values[:place], *[None] * (len(values) - place)],
                f"{history[place].optimizer}": [*[None] * place, *values[place:]],
            }
    return Panel("objective Φ", lines)


def gap_panel(histories: Mapping[str, History]) -> Panel:
    """The sums of the gaps over the layers; zeros have no logarithm, and zeros alone (back-propagation) are no line."""
    lines: dict[str, dict[str, Values]] = {}
    for name, history in histories.items():
        sums = {kind: [sum(gaps) for gaps in history.column(f"{kind}_gap")] for kind in ("linear", "activation")}
        lines[name] = {kind: [total or math.nan for total in totals] for kind, totals in sums.items() if any(totals)}
    return Panel("constraint gaps (squared)", lines)


def score_panel(histories: Mapping[str, History]) -> Panel:
    """Accuracies where there are any, else mean losses, of the true forward pass."""
    accuracies = {name: scores(history, "accuracy", 100.0) for name, history in histories.items()}
    if any(accuracies.values()):
        return Panel("accuracy (%)", accuracies, linear=True)
    return Panel("mean loss", {name: scores(history, "loss", 1.0) for name, history in histories.items()})


def scores(history: History, quantity: str, unit: float) -> dict[str, Values]:
    """What was measured on either kind of data, as far as it was."""
    found: dict[str, Values] = {}
    for kind, prefix in (("validation", "validation"), ("training", "train")):
        values = history.column(f"{prefix}_{quantity}")
        if any(value is not None for value in values):
            found[kind] = [None if value is None else unit * value for value in values]
    return found


def drawable(number: float) -> bool:
    """Whether a number has a place in a picture: matplotlib's margins overflow a little before floats do."""
    return abs(number) < 1e300


def look(index: int) -> tuple[str, str]:
    """The colour and the marker of a run, the same in all panels; the first ones need no marker."""
    return PALETTE[index % len(PALETTE)], MARKERS[index // len(PALETTE) % len(MARKERS)]


def draw_panel(axes: Axes, panel: Panel, times: Mapping[str, Sequence[float]]) -> None:
    """The lines of a panel against some measure of time."""
    for index, (name, kinds) in enumerate(panel.lines.items()):
        color, marker = look(index)
        for kind, values in kinds.items():
            x = [moment for moment, value in zip(times[name], values, strict=True) if value is not None]
            y = [value if drawable(value) else math.nan for value in values if value is not None]
            style, every = KINDS.get(kind, "-"), max(1, len(y) // 8) if marker else lonely(y)
            face, label = color if style == "-" else "white", f"{name} {kind}".strip()
            axes.plot(x, y, style, color=color, marker=marker or "o", mfc=face, markevery=every, label=label)
    axes.set_ylabel(panel.label)
    if panel.logarithmic:
        set_logarithmic(axes)


def draw_handovers(axes: Axes, histories: Mapping[str, History], field: str) -> None:
    """A thin line, with its name, where an optimizer took over from the iterations of a run."""
    for index, history in enumerate(histories.values()):
        place = history.handover
        if not place:  # an optimizer from the beginning took over from nobody
            continue
        color = INK if len(histories) == 1 else look(index)[0]
        x = getattr(history[place - 1], field)
        # The whole run in all panels, also where the optimizer has no line.
        axes.update_datalim([(getattr(history[-1], field), 0.0)], updatey=False)
        axes.autoscale_view(scaley=False)
        axes.axvline(x, color=color, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"{history[place].optimizer} →",
            (x, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            color=color,
            fontsize=8.0,
        )


def lonely(y: Sequence[float]) -> list[int]:
    """The points that no line goes through, which would be invisible without a marker."""
    gaps = [True, *(math.isnan(value) for value in y), True]
    return [k for k in range(len(y)) if gaps[k] and not gaps[k + 1] and gaps[k + 2]]


def set_time(axes: Axes, whole: bool) -> None:
    """Few ticks, on whole numbers or from zero."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=whole))
    low, high = axes.dataLim.intervalx
    if not whole:
        axes.set_xlim(left=0.0)
    elif low == high:
        axes.set_xlim(low - 1.0, high + 1.0)


def set_logarithmic(axes: Axes) -> None:
    """A logarithmic axis with few and plain tick labels, also where it spans less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high) - math.log10(low)
    if decades < 1.0:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_minor_locator(NullLocator())
    elif decades < 2.5:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 1.7 else (1.0, 3.0)))
    if decades < 2.5:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: plain(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """A number for a tick: without an exponent where that is short."""
    if value == 0.0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.10g}"  # more digits than a round number has, so that no two ticks look alike
    digits, exponent = f"{value:.9e}".split("e")
    digits = digits.rstrip("0").rstrip(".")
    factor = "" if digits == "1" else f"{digits} \\times "
    return f"${factor}10^{{{int(exponent)}}}$"


def add_key(axes: Axes, panel: Panel) -> None:
    """What the line styles of a panel mean, and which runs have no line in it."""
    from matplotlib.lines import Line2D

    color = INK if len(panel.lines) > 1 else look(0)[0]
    marks = [line.get_markevery() for line in axes.get_lines()]
    marker = "o" if any(isinstance(places, list) and places for places in marks) else ""
    found = {kind for kinds in panel.lines.values() for kind in kinds}
    handles = [
        Line2D([], [], color=color, linestyle=style, marker=marker, mfc=color if style == "-" else "white", label=kind)
        for kind, style in KINDS.items()
        if kind in found
    ]
    missing = [name for name, kinds in panel.lines.items() if not kinds]
    if missing:
        names = ", ".join(missing) if len(missing) <= 3 else f"{len(missing)} of {len(panel.lines)} runs"
        handles.append(Line2D([], [], linestyle="none", label=f"none for {names}"))
    if handles:
        unparsed(axes.legend(handles=handles, loc="best"))


def add_names(figure: Figure, names: Sequence[str]) -> None:
    """The colours of the runs, once for all panels, in rows of equal length."""
    from matplotlib.lines import Line2D

    looks = map(look, range(len(names)))
    handles = [Line2D([], [], color=color, marker=marker, linewidth=2.4) for color, marker in looks]
    fitting = max(1, 130 // (max(map(len, names)) + 8))
    columns = math.ceil(len(names) / math.ceil(len(names) / fitting))
    unparsed(figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=10.0))


def unparsed(legend: Legend) -> None:
    """Names stand as they are given: a dollar sign begins no formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)
