"""Pictures: they show the numbers of the histories, all of them, and leave matplotlib as they found it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
import subprocess
import sys

import pytest

from ipdlam import History, Record
from ipdlam.training import plots
from ipdlam.training.plots import PALETTE, STYLE, curves, draw_curves, house_style, save

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def coarse(monkeypatch):
    """Few pixels, where nobody counts them: they are most of the work."""
    for name in ("figure.dpi", "savefig.dpi"):
        monkeypatch.setitem(STYLE, name, 20)


def make_record(iteration, **fields):
    values = {
        "penalty": 0.1,
        "objective": 1000.0 / iteration**3,
        "loss": 3.0,
        "regularization": 0.25,
        "linear_gap": (10.0 / iteration, 1.0),
        "activation_gap": (30.0 / iteration,),
        "lyapunov": 11.0,
        "seconds": 0.5 * iteration,
        "train_loss": 2.0 / iteration,
        "train_accuracy": 0.5 + 0.05 * iteration,
        "validation_loss": 3.0 / iteration,
        "validation_accuracy": 0.4 + 0.05 * iteration,
    }
    return Record(iteration=iteration, **{**values, **fields})


def make_history(length=6, **fields):
    return History([make_record(k, **fields) for k in range(1, length + 1)], "iterations")


def back_propagation(length=6):
    return make_history(length, linear_gap=(0.0, 0.0), activation_gap=(0.0,))


def panels(figure):
    """The axes by what they show: ``("objective", "iteration")`` and so on."""
    return {(axes.get_ylabel().split()[0], axes.get_xlabel().split()[0]): axes for axes in figure.axes}


def drawn(axes):
    """The points of every line by its label, and its colour and style."""
    return {line.get_label(): list(zip(*map(list, line.get_data()), strict=True)) for line in axes.get_lines()}


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def size_of_png(content):
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    return struct.unpack(">II", content[16:24])


# --- the file -------------------------------------------------------------------------------------------------------


def test_the_file_is_a_png_of_the_promised_size(tmp_path):
    path = curves({"run": make_history()}, str(tmp_path / "curves.png"), title="a run")
    assert path == tmp_path / "curves.png"
    assert size_of_png(path.read_bytes()) == (1800, 975)
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]


@pytest.mark.usefixtures("coarse")
def test_a_picture_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = curves({"run": make_history()}, tmp_path / "curves.png")
    old = path.read_bytes()
    figure = draw_curves({"run": make_history(3)})

    def fail(*arguments, **settings):
        raise MemoryError

    monkeypatch.setattr(figure.canvas, "print_png", fail)
    with pytest.raises(MemoryError):
        save(figure, path)
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]
    monkeypatch.undo()
    save(figure, path)
    assert path.read_bytes() != old


@pytest.mark.usefixtures("coarse")
def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OSError, match=r"nowhere does not exist") as caught:
        curves({"run": make_history()}, tmp_path / "nowhere" / "curves.png")
    assert type(caught.value) is OSError


@pytest.mark.parametrize("name", ["curves.pdf", "curves", "curves.png.txt"])
def test_other_formats_are_refused_before_any_work(tmp_path, name):
    with pytest.raises(ValueError, match=r"path must end in \.png, got '.*" + name):
        curves({}, tmp_path / name)


# --- what is drawn --------------------------------------------------------------------------------------------------


def test_the_lines_are_the_columns_of_the_history():
    history = make_history()
    found = panels(draw_curves({"run": history}))
    quantities, times = ("objective", "constraint", "accuracy"), ("iteration", "seconds")
    assert set(found) == set(itertools.product(quantities, times))
    for time in times:
        x = history.column(time)
        expected = {
            "objective": {"run": history.column("objective")},
            "constraint": {
                "run linear": [sum(gaps) for gaps in history.column("linear_gap")],
                "run activation": [sum(gaps) for gaps in history.column("activation_gap")],
            },
            "accuracy": {
                "run validation": [100 * value for value in history.column("validation_accuracy")],
                "run training": [100 * value for value in history.column("train_accuracy")],
            },
        }
        for quantity, lines in expected.items():
            assert drawn(found[quantity, time]) == {
                label: list(zip(x, values, strict=True)) for label, values in lines.items()
            }


def test_axes_have_units_and_fitting_scales():
    found = panels(draw_curves({"run": make_history()}))
    assert {axes.get_xlabel() for axes in found.values()} == {"iteration", "seconds of training (s)"}
    assert {axes.get_ylabel() for axes in found.values()} == {
        "objective Φ",
        "constraint gaps (squared)",
        "accuracy (%)",
    }
    scales = {quantity: axes.get_yscale() for (quantity, _), axes in found.items()}
    assert scales == {"objective": "log", "constraint": "log", "accuracy": "linear"}
    assert found["objective", "seconds"].get_xlim()[0] == 0.0


@pytest.mark.parametrize("objective", [0.0, -3.0])
def test_an_objective_that_is_not_positive_has_a_linear_scale(objective):
    history = make_history()
    history.append(make_record(7, objective=objective))
    found = panels(draw_curves({"run": history}))
    assert found["objective", "iteration"].get_yscale() == "linear"
    assert drawn(found["objective", "iteration"])["run"][-1] == (7, objective)


def test_kinds_of_lines_differ_in_style():
    axes = panels(draw_curves({"run": make_history()}))
    styles = {line.get_label(): line.get_linestyle() for axes in axes.values() for line in axes.get_lines()}
    assert styles == {
        "run": "-",
        "run linear": "-",
        "run activation": "--",
        "run validation": "-",
        "run training": "--",
    }
    assert texts(axes["constraint", "iteration"].get_legend()) == ["linear", "activation"]
    assert texts(axes["accuracy", "iteration"].get_legend()) == ["validation", "training"]


def test_iterations_that_were_not_evaluated_are_passed_over():
    missing = {"train_loss": None, "train_accuracy": None, "validation_loss": None, "validation_accuracy": None}
    history = History([make_record(k, **({} if k % 3 == 0 else missing)) for k in range(1, 8)])
    axes = panels(draw_curves({"run": history}))["accuracy", "seconds"]
    assert drawn(axes)["run training"] == [(1.5, pytest.approx(65.0)), (3.0, pytest.approx(80.0))]
    never = make_history(**missing)
    assert {quantity for quantity, _ in panels(draw_curves({"run": never}))} == {"objective", "constraint"}


def test_losses_where_there_is_no_accuracy():
    history = make_history(train_accuracy=None, validation_accuracy=None)
    found = panels(draw_curves({"run": history}))
    axes = found["mean", "iteration"]
    assert axes.get_ylabel() == "mean loss"
    assert axes.get_yscale() == "log"
    assert [y for _, y in drawn(axes)["run validation"]] == history.column("validation_loss")
    assert ("accuracy", "iteration") not in found


def test_without_validation_data_only_training_is_drawn():
    history = make_history(validation_accuracy=None, validation_loss=None)
    axes = panels(draw_curves({"run": history}))["accuracy", "iteration"]
    assert list(drawn(axes)) == ["run training"]
    assert texts(axes.get_legend()) == ["training"]


@pytest.mark.usefixtures("coarse")
def test_a_single_record_is_visible(tmp_path):
    figure = draw_curves({"run": make_history(1)})
    for axes in figure.axes:
        for line in axes.get_lines():
            assert line.get_marker() == "o"
            assert line.get_markevery() == [0]
    assert panels(figure)["objective", "iteration"].get_xlim() == (0.0, 2.0)
    save(figure, tmp_path / "one.png")


def test_lines_have_no_markers_but_lonely_points_do():
    values = [math.inf, 3.0, math.nan, 2.0, 1.0, -math.inf, 1.5]
    history = History([make_record(k, objective=value) for k, value in enumerate(values, start=1)])
    found = panels(draw_curves({"run": history, "other": make_history()}))
    bad, good = found["objective", "iteration"].get_lines()
    assert bad.get_markevery() == [1, 6]
    assert good.get_markevery() == []
    shown = [None if math.isnan(y) else y for y in bad.get_ydata()]
    assert shown == [None, 3.0, None, 2.0, 1.0, None, 1.5]


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    ("value", "length"), [(math.nan, 3), (math.inf, 1), (1e308, 3), (5e-324, 1), (1e-308, 3), (0.0, 1), (-1e308, 3)]
)
def test_extreme_numbers_are_no_obstacle(tmp_path, value, length):
    fields = {"objective": value, "linear_gap": (abs(value), 1.0), "validation_accuracy": value}
    histories = {"run": make_history(length, **fields)}
    if length > 1:
        histories["other"] = make_history()
    curves(histories, tmp_path / "extreme.png")


def test_a_gap_of_zero_breaks_the_line():
    history = make_history()
    history.append(make_record(7, linear_gap=(0.0, 0.0)))
    axes = panels(draw_curves({"run": history}))["constraint", "iteration"]
    assert axes.get_yscale() == "log"
    assert math.isnan(drawn(axes)["run linear"][-1][1])
    assert not math.isnan(drawn(axes)["run activation"][-1][1])


# --- comparisons ----------------------------------------------------------------------------------------------------


def test_every_run_has_its_colour_in_all_panels(tmp_path):
    histories = {"IPDLAM": make_history(), "adam": back_propagation(4), "DLAM": make_history(5)}
    figure = draw_curves(histories, "a comparison")
    for axes in figure.axes:
        for line in axes.get_lines():
            assert line.get_color() == PALETTE[list(histories).index(line.get_label().split()[0])]
    (legend,) = figure.legends
    assert texts(legend) == list(histories)
    assert [handle.get_color() for handle in legend.legend_handles] == list(PALETTE[:3])
    assert figure.get_suptitle() == "a comparison"
    save(figure, tmp_path / "comparison.png")


def test_runs_without_gaps_are_left_out_and_named():
    found = panels(draw_curves({"IPDLAM": make_history(), "adam": back_propagation()}))
    axes = found["constraint", "iteration"]
    assert list(drawn(axes)) == ["IPDLAM linear", "IPDLAM activation"]
    assert texts(axes.get_legend()) == ["linear", "activation", "none for adam"]
    many = {f"run {k}": back_propagation() for k in range(4)}
    axes = panels(draw_curves({"IPDLAM": make_history(), **many}))["constraint", "iteration"]
    assert texts(axes.get_legend())[-1] == "none for 4 of 5 runs"


def test_a_panel_that_no_run_fills_is_left_out():
    figure = draw_curves({"adam": back_propagation(), "sgd": back_propagation()})
    assert {quantity for quantity, _ in panels(figure)} == {"objective", "accuracy"}


def test_many_runs_are_told_apart():
    histories = {f"run {k}": make_history() for k in range(2 * len(PALETTE))}
    axes = panels(draw_curves(histories))["objective", "iteration"]
    looks = set()
    for line in axes.get_lines():
        marked = line.get_markevery() != []
        looks.add((line.get_color(), line.get_marker() if marked else ""))
    assert len(looks) == len(histories)


def test_one_run_needs_no_names():
    figure = draw_curves({"IPDLAM": make_history()})
    assert figure.legends == []
    assert figure.get_suptitle() == "IPDLAM"
    assert draw_curves({"IPDLAM": make_history()}, "").get_suptitle() == ""


@pytest.mark.usefixtures("coarse")
def test_names_are_taken_literally(tmp_path):
    names = ["_hidden", "50$ and 60$", r"\frac{", "x" * 200]
    figure = draw_curves({name: make_history() for name in names}, r"$\alpha{")
    assert texts(figure.legends[0]) == names
    save(figure, tmp_path / "names.png")


def test_nothing_overlaps():
    """The legend of the runs, the title and the axes with their labels keep apart."""
    figure = draw_curves({name: make_history() for name in ("IPDLAM", "DLAM", "adam")}, "a title")
    with house_style():
        figure.canvas.draw()
        boxes = [axes.get_tightbbox() for axes in figure.axes]
        boxes += [figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()]
    assert not any(first.overlaps(second) for first, second in itertools.combinations(boxes, 2))
    assert all(0 <= box.x0 <= box.x1 <= 1800 and 0 <= box.y0 <= box.y1 <= 975 for box in boxes)


@pytest.mark.parametrize("high", [1.0001, 1.05, 1.5, 8.0, 30.0, 200.0, 1e5, 1e12, 1e100])
@pytest.mark.parametrize("low", [1e-8, 0.3, 4e6])
def test_logarithmic_axes_have_a_few_labels_at_any_range(low, high):
    history = History([make_record(1, objective=low), make_record(2, objective=low * high)])
    axes = panels(draw_curves({"run": history}))["objective", "iteration"]
    bottom, top = axes.get_ylim()
    places = [place for place in axes.get_yticks() if bottom <= place <= top]
    labels = axes.yaxis.get_major_formatter().format_ticks(places)
    assert 2 <= len(labels) <= 12
    assert len(set(labels)) == len(labels)
    assert all(labels)


@pytest.mark.parametrize(
    ("value", "label"),
    [(20.0, "20"), (0.005, "0.005"), (1e5, "$10^{5}$"), (2.5e6, r"$2.5 \times 10^{6}$"), (2e-7, r"$2 \times 10^{-7}$")],
)
def test_ticks_are_plain_where_that_is_short(value, label):
    assert plots.plain(value) == label


# --- bad input, and a good guest ------------------------------------------------------------------------------------


def test_empty_histories_are_refused_by_name():
    with pytest.raises(ValueError, match="histories is empty; give at least one"):
        draw_curves({})
    with pytest.raises(ValueError, match=r"histories\['second'\] is empty; train"):
        draw_curves({"first": make_history(), "second": History()})


def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match="histories must map names to histories, got History"):
        draw_curves(make_history())
    with pytest.raises(TypeError, match=r"histories\['run'\] must be a History, got list"):
        draw_curves({"run": list(make_history())})


def test_missing_matplotlib_says_how_to_install_it(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError) as caught:
        curves({"run": make_history()}, tmp_path / "curves.png")
    assert "pip install matplotlib" in str(caught.value).splitlines()


def test_pyplot_is_never_imported_nor_matplotlib_before_it_is_needed(tmp_path):
    code = f"""
import sys
import ipdlam.training.plots
from ipdlam import History, Record
assert "matplotlib" not in sys.modules
history = History([Record(1, 0.1, 1.0, 1.0, 0.0, (1.0,), (), 1.0, 0.5, 1.0, 0.5)])
ipdlam.training.plots.curves({{"run": history}}, {str(tmp_path / "curves.png")!r})
sys.exit("pyplot was imported" if "matplotlib.pyplot" in sys.modules else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_global_settings_neither_change_nor_count(tmp_path):
    plain = curves({"run": make_history()}, tmp_path / "plain.png").read_bytes()
    with matplotlib.rc_context({"figure.facecolor": "black", "font.size": 30.0, "lines.linewidth": 9.0}):
        before = dict(matplotlib.rcParams)
        changed = curves({"run": make_history()}, tmp_path / "changed.png").read_bytes()
        assert dict(matplotlib.rcParams) == before
    assert changed == plain


def test_the_style_holds_settings_that_matplotlib_knows():
    assert set(STYLE) <= set(matplotlib.rcParams)
    assert len(set(PALETTE)) == len(PALETTE)


@pytest.mark.usefixtures("coarse")
def test_histories_are_only_read(tmp_path):
    history = make_history()
    before = [dataclasses.asdict(record) for record in history]
    curves({"run": history}, tmp_path / "curves.png")
    assert [dataclasses.asdict(record) for record in history] == before
