"""Somebody's own table, with texts, gaps and semicolons: trained on, scored, predicted."""

from __future__ import annotations

import csv
import io
import json
import random

import pytest

from ipdlam.runs.model_file import load_model
from shell import ipdlam_run, refused

FAST = ("--hidden", "12", "--quiet", "--threads", "1")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A regression and a classification that need their text column, with some gaps."""
    folder, draw = tmp_path_factory.mktemp("tables"), random.Random(3)
    prices, kinds = ["id;color;weight;price"], ["id;color;weight;kind"]
    for number in range(160):
        color, weight = draw.choice(["red", "green", "blue"]), draw.gauss(5.0, 2.0)
        shown = "" if number % 11 == 0 else f"{weight:.3f}".replace(".", ",")
        price = {"red": 1000.0, "green": 2000.0, "blue": 3500.0}[color] + 150.0 * weight
        prices.append(f"n{number};{color};{shown};{price:.2f}".replace(".", ","))
        kinds.append(f"n{number};{color};{shown};{'a' if color == 'red' else 'b'}")
    (folder / "prices.csv").write_text("\n".join(prices) + "\n")
    (folder / "kinds.csv").write_text("\n".join(kinds) + "\n")
    (folder / "new.csv").write_text("weight;color\n5,0;red\n;blue\n")
    return folder


@pytest.fixture(scope="module")
def runs(tables):
    for name, more in (("prices", ()), ("kinds", ("--loss", "cross_entropy"))):
        ipdlam_run(
            "train", tables / f"{name}.csv", "--drop", "id", "--epochs", "25", "--output", tables / name, *FAST, *more
        )
    return tables


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_column_of_names_has_to_be_dropped(tables, tmp_path):
    assert "--drop id" in refused("train", tables / "prices.csv", "--output", tmp_path / "run")


def test_a_regression_is_scored_in_its_own_units(runs):
    scores = json.loads(ipdlam_run("evaluate", runs / "prices", "--json")[0])["held-out samples"]
    assert scores["accuracy"] is None
    assert scores["r2"] > 0.9
    assert 1.0 < scores["mae"] <= scores["rmse"] < 500.0
    shown = ipdlam_run("evaluate", runs / "prices")[0]
    assert "accuracy" not in shown
    assert all(word in shown for word in ("R²", "RMSE", "MAE"))


def test_predictions_are_in_the_units_of_the_targets_and_fill_gaps(runs):
    first, second = (
        float(row["prediction"]) for row in rows(ipdlam_run("predict", runs / "prices", runs / "new.csv")[0])
    )
    assert 1400.0 < first < 2100.0  # 1000 + 150 * 5
    assert 3700.0 < second < 4800.0  # 3500 + 150 * median


def test_the_model_file_holds_what_was_done_to_the_columns(runs):
    trained = load_model(runs / "prices" / "model.safetensors")
    assert [column.name for column in trained.encoding] == ["color", "weight"]
    assert trained.encoding[0].categories == ("blue", "green", "red")
    assert trained.preparation.flags == (3,)  # the weight, after three colors
    assert trained.widths[0] == 5


def test_probabilities_add_up_and_go_with_the_prediction(runs):
    found = rows(ipdlam_run("predict", runs / "kinds", runs / "new.csv", "--probabilities")[0])
    assert [row["prediction"] for row in found] == ["a", "b"]
    for row in found:
        each = {name: float(row[f"probability {name}"]) for name in "ab"}
        assert sum(each.values()) == pytest.approx(1.0)
        assert max(each, key=each.get) == row["prediction"]


def test_probabilities_of_a_regression_are_refused(runs):
    assert "leave them out" in refused("predict", runs / "prices", runs / "new.csv", "--probabilities")


def test_predict_says_what_it_wrote(runs, tmp_path):
    out, _ = ipdlam_run("predict", runs / "kinds", runs / "new.csv", "--output", tmp_path / "p.csv")
    assert out == f"2 predictions (prediction) are in {tmp_path / 'p.csv'}\n"


def test_a_run_on_a_table_is_resumed(runs, tables):
    ipdlam_run("train", "--resume", runs / "kinds", "--epochs", "27", "--quiet")
    assert len((runs / "kinds" / "history.jsonl").read_text().splitlines()) == 27


def test_a_comparison_of_regressions_shows_errors(tables, tmp_path):
    given = ("--drop", "id", "--methods", "minibatch,adam", "--iterations", "3", "--hidden", "8", "--threads", "1")
    out, _ = ipdlam_run("compare", tables / "prices.csv", *given, "--output", tmp_path / "c")
    assert all(word in out for word in ("R²", "RMSE", "MAE"))
    found = json.loads((tmp_path / "c" / "comparison.json").read_text())["rows"]
    assert all({"r2", "rmse", "mae"} <= set(row) for row in found)


def small_run(folder, text, *more):
    (folder / "t.csv").write_text(text)
    ipdlam_run("train", folder / "t.csv", "--epochs", "3", "--output", folder / "run", *FAST, *more)
    return folder / "run"


ROWS = [(number, number % 7, "yes" if number % 3 else "no") for number in range(40)]
HEADED = "a,b,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in ROWS)


def test_a_gap_that_training_did_not_know_is_filled(tmp_path):
    run = small_run(tmp_path, HEADED)
    (tmp_path / "new.csv").write_text("a,b\n,3\n5,NA\n")
    out, _ = ipdlam_run("predict", run, tmp_path / "new.csv", "--scores")
    assert "nan" not in out
    assert len(rows(out)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_the_only_gap_may_be_held_out(tmp_path, seed):
    small_run(tmp_path, HEADED.replace("\n7,0,", "\n,0,"), "--seed", str(seed))


def test_a_column_without_a_number_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,y\n" + "".join(f"{a},NA,{y}\n" for a, _, y in ROWS))
    assert "'b' holds no number" in refused("train", tmp_path / "t.csv", "--output", tmp_path / "run")


def test_columns_in_another_order_are_evaluated_by_their_names(tmp_path):
    run = small_run(tmp_path, HEADED)
    (tmp_path / "other.csv").write_text("y,b,a\n" + "".join(f"{y},{b},{a}\n" for a, b, y in ROWS))
    (tmp_path / "same.csv").write_text(HEADED)
    answers = [
        ipdlam_run("evaluate", run, "--data", tmp_path / name, "--json")[0] for name in ("same.csv", "other.csv")
    ]
    assert answers[0] == answers[1]


def test_a_table_without_a_header_keeps_its_dropped_columns_dropped(tmp_path):
    run = small_run(tmp_path, "".join(f"{a},{a % 2},{b},{y}\n" for a, b, y in ROWS), "--drop", "1")
    assert json.loads(ipdlam_run("evaluate", run, "--json")[0])["training samples"]["samples"] == 32


WIDE = [(10 + number % 2, 20 + number, 70 + number % 3, 80 + number % 7, y) for number, _, y in ROWS]


@pytest.mark.parametrize(
    ("label", "drop"), [("-1", "0"), ("-1", "0,2"), ("0", "-1,2"), ("2", "1"), ("2", "-2,0")], ids=str
)
def test_a_table_without_a_header_is_predicted_with_and_without_its_dropped_columns(tmp_path, label, drop):
    """The inputs alone, the whole table, and the table without its labels."""

    def text(rows):
        return "".join(",".join(map(str, row)) + "\n" for row in rows)

    place, left_out = int(label) % 5, {int(name) % 5 for name in drop.split(",")}
    table = [[*row[:place], row[4], *row[place:4]] for row in WIDE]
    run = small_run(tmp_path, text(table), "--label", label, "--drop", drop)
    tables = {
        "inputs": [[cell for at, cell in enumerate(row) if at != place and at not in left_out] for row in table],
        "whole": table,
        "unlabelled": [[cell for at, cell in enumerate(row) if at != place] for row in table],
    }
    found = []
    for name, rows_of in tables.items():
        (tmp_path / f"{name}.csv").write_text(text(rows_of))
        found.append(ipdlam_run("predict", run, tmp_path / f"{name}.csv", "--scores")[0])
    assert found[0] == found[1] == found[2]
    (tmp_path / "other.csv").write_text(text([[*row, 1, 1] for row in table]))
    message = refused("predict", run, tmp_path / "other.csv")
    assert "has 7 columns and no header; give the inputs that the model was trained on, columns " in message


CODES = [(100 + number % 4, 5 + number % 5, "yes" if number % 4 == 1 else "no") for number in range(60)]


def test_a_column_of_numbers_can_be_declared_to_hold_categories(tmp_path):
    text = "code,b,y\n" + "".join(f"{'x9' if n == 7 else code},{b},{y}\n" for n, (code, b, y) in enumerate(CODES))
    (tmp_path / "t.csv").write_text(text)
    message = refused("train", tmp_path / "t.csv", "--output", tmp_path / "run")
    assert message.endswith("or take all of it for categories (--categories code)\n")
    run = small_run(tmp_path, text, "--categories", "code")
    trained = load_model(run / "model.safetensors")
    assert [column.categories for column in trained.encoding] == [("100", "101", "102", "103", "x9"), None]
    assert trained.widths[0] == 6
    (tmp_path / "new.csv").write_text("b,code\n2,101\n2,101.5\n")
    out, err = ipdlam_run("predict", run, tmp_path / "new.csv")
    assert len(rows(out)) == 2
    assert "'101.5', which the model was not trained on" in err
    assert json.loads(ipdlam_run("evaluate", run, "--json")[0])["training samples"]["samples"] == 48
    ipdlam_run("train", "--resume", run, "--epochs", "4", "--quiet")


@pytest.mark.parametrize("header", ["code,b,y\n", ""])
def test_all_of_a_column_of_categories_may_be_numbers(tmp_path, header):
    text = header + "".join(f"{code},{b},{y}\n" for code, b, y in CODES)
    trained = load_model(small_run(tmp_path, text, "--categories", "0,1") / "model.safetensors")
    assert [len(column.categories) for column in trained.encoding] == [4, 5]


def test_names_of_columns_that_are_numbers_are_no_categories(tmp_path):
    text = "0,1,price\n" + "".join(f"{code},{b},{code + b}\n" for code, b, _ in CODES)
    trained = load_model(small_run(tmp_path, text, "--categories", "1", "--task", "regression") / "model.safetensors")
    assert [column.categories for column in trained.encoding] == [None, ("5", "6", "7", "8", "9")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["z"], "has no column 'z' to take for categories; "),
        (["y"], "'y' is the column to take for categories, but it is the label"),
        (["b", "--drop", "b"], "'b' is the column to take for categories, but it is dropped"),
    ],
)
def test_categories_must_be_features(tmp_path, given, words):
    (tmp_path / "t.csv").write_text(HEADED)
    assert words in refused("train", tmp_path / "t.csv", "--output", tmp_path / "run", "--categories", *given)


def test_categories_are_for_tables():
    message = refused("train", "digits", "--categories", "code")
    assert "categories is for the columns of a .csv or .tsv table, but digits has none; leave it out" in message


def test_large_targets_keep_their_differences_in_float32(tmp_path):
    text = "a,y\n" + "".join(f"{number % 20},{1.7e9 + 3 * (number % 20)}\n" for number in range(120))
    run = small_run(tmp_path, text, "--task", "regression", "--epochs", "30")
    (tmp_path / "new.csv").write_text("a\n0\n19\n")
    low, high = (float(row["prediction"]) for row in rows(ipdlam_run("predict", run, tmp_path / "new.csv")[0]))
    assert abs(low - 1.7e9) < 15.0
    assert abs(high - 1.7e9 - 57.0) < 15.0
    scores = json.loads(ipdlam_run("evaluate", run, "--json")[0])["held-out samples"]
    assert scores["r2"] > 0.9
    assert scores["rmse"] < 10.0
    last = json.loads((run / "history.jsonl").read_text().splitlines()[-1])
    assert scores["loss"] == pytest.approx(last["validation_loss"], rel=1e-5)
