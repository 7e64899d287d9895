"""Tables as people have them: semicolons, decimal commas, texts, gaps, columns to leave out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ipdlam import DataError
from ipdlam.datasets import load, read_inputs
from ipdlam.datasets.columns import MOST_CATEGORIES, Column
from ipdlam.datasets.tables import found_separator


def written(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("between", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["table.csv", "table.tsv"])
def test_separators_are_found(tmp_path, between, name):
    rows = [["a", "b", "kind"], ["1.5", "2", "x"], ["3", "4", "y"]]
    data = load(written(tmp_path, "\n".join(between.join(row) for row in rows) + "\n", name))
    assert data.X.tolist() == [[1.5, 2.0], [3.0, 4.0]]
    assert data.columns == ("a", "b")


@pytest.mark.parametrize(
    ("text", "usual", "found"),
    [
        ("a;b\n1,5;2\n", ",", ";"),
        ('"a;b",c\n1,2\n', ",", ","),
        ("one\n1\n", ",", ","),
        ("a,b\n1,2\n", "\t", ","),
        ('a,"b\nc"\n', ",", ","),
    ],
)
def test_what_stands_between_cells(text, usual, found):
    assert found_separator(text, usual) == found


def test_decimal_commas_go_where_no_comma_parts_cells(tmp_path):
    assert load(written(tmp_path, "a\tb\ty\n1,5\t2\tx\n2\t0,5\ty\n", "t.tsv")).X.tolist() == [[1.5, 2.0], [2.0, 0.5]]
    assert load(written(tmp_path, "a;b;y\n1,5;-,25;x\n2;1,0e1;y\n")).X.tolist() == [[1.5, -0.25], [2.0, 10.0]]
    with pytest.raises(DataError, match="cells"):
        load(written(tmp_path, "a,b\n1,5,2\n"))


def test_texts_become_a_column_for_each_category(tmp_path):
    data = load(written(tmp_path, "color,size,y\nred,1,0\nblue,2,1\n,3,0\nred,4,1\n"))
    assert data.encoding == (Column("color", ("", "blue", "red")), Column("size"))
    assert data.X.tolist() == [[0, 0, 1, 1], [0, 1, 0, 2], [1, 0, 0, 3], [0, 0, 1, 4]]
    assert data.inputs == ["'color='", "'color=blue'", "'color=red'", "'size'"]


def test_numbers_among_texts_are_texts(tmp_path):
    data = load(written(tmp_path, "code,y\n7,0\nA7,1\nB1,0\n"))
    assert data.encoding == (Column("code", ("7", "A7", "B1")),)


def test_a_text_among_numbers_is_a_mistake_named_by_place(tmp_path):
    with pytest.raises(DataError, match=r"line 4, column 'age': '12x' is not a finite number.*--drop age"):
        load(written(tmp_path, "age,y\n1,0\n2,1\n12x,0\n4,1\n"))


def test_too_many_different_texts_are_refused_with_the_remedy(tmp_path):
    rows = "".join(f"name{place},{place % 2}\n" for place in range(MOST_CATEGORIES + 1))
    with pytest.raises(DataError, match=r"column 'who' holds more than 100 different texts.*--drop who"):
        load(written(tmp_path, f"who,y\n{rows}"))


@pytest.mark.parametrize("gap", ["", "NA", "?", "nan", "NaN", "null", "-"])
def test_gaps_are_refused_by_place_or_nan(tmp_path, gap):
    path = written(tmp_path, f"a,b,y\n1,2,0\n{gap},3,1\n")
    with pytest.raises(DataError, match="line 3, column 'a'"):
        load(path)
    X = load(path, gaps=True, dtype=torch.float64).X.numpy()
    assert np.array_equal(X, [[1.0, 2.0], [np.nan, 3.0]], equal_nan=True)


@pytest.mark.parametrize(("drop", "left"), [(["a"], ["b"]), (["0"], ["b"]), (["-2"], ["a"]), (["b"], ["a"])])
def test_columns_are_dropped_by_name_or_number(tmp_path, drop, left):
    assert list(load(written(tmp_path, "a,b,y\n1,2,0\n3,4,1\n"), drop=drop).columns) == left


@pytest.mark.parametrize(
    ("drop", "says"),
    [(["c"], "no column 'c' to drop"), (["y"], "it is the label"), (["a", "b"], "no column left"), (["7"], "'7'")],
)
def test_what_cannot_be_dropped(tmp_path, drop, says):
    with pytest.raises(DataError, match=says):
        load(written(tmp_path, "a,b,y\n1,2,0\n3,4,1\n"), drop=drop)


def test_drop_is_for_tables():
    with pytest.raises(ValueError, match=r"drop is for the columns of a \.csv"):
        load("digits", drop=["1"])


def test_inputs_for_prediction_are_encoded_as_in_training(tmp_path):
    trained = load(written(tmp_path, "color,size,y\nred,1,0\nblue,2,1\n"))
    new = written(tmp_path, "size,extra,color\n5,9,blue\n,9,violet\n", "new.csv")
    with pytest.warns(UserWarning, match="column 'color' holds 'violet', which the model was not trained on"):
        X = read_inputs(new, trained.columns, gaps=True, encoding=trained.encoding).numpy()
    assert np.array_equal(X, [[1.0, 0.0, 5.0], [0.0, 0.0, np.nan]], equal_nan=True)
    with pytest.raises(DataError, match="column 'size': 'many' is not a finite number"):
        read_inputs(written(tmp_path, "color,size\nred,many\n", "bad.csv"), trained.columns, encoding=trained.encoding)


@pytest.mark.parametrize("fields", [{"name": 1, "categories": None}, {"name": "a", "categories": [1]}, {"name": "a"}])
def test_columns_from_a_file_are_checked(fields):
    with pytest.raises((TypeError, KeyError)):
        Column.from_dict(fields)
    whole = Column("a", ("x", "y"))
    assert Column.from_dict(whole.to_dict()) == whole


@pytest.mark.parametrize("cell", ['"1,5"', '"1,234"', "1.100.000", "1 000 000", "1'000.5.2"])
def test_what_may_be_a_number_is_never_a_category(tmp_path, cell):
    with pytest.raises(DataError, match="may be numbers; write them with a decimal point"):
        load(written(tmp_path, f"a,y\n{cell},0\n{cell},1\n"))


@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_a_line_may_end_where_the_first_look_ends(tmp_path, more):
    rows = 65536 // 10 + 9
    text = "a,b\n" + "x" * 0 + "".join("1111111,0\n" for _ in range(rows))
    shifted = ("0" * more + text[4:14]).join(["a,b\n", text[14:]])
    assert len(load(written(tmp_path, shifted)).X) == rows


@pytest.mark.parametrize("strange", ["\u2028", "\x0c", "\x85", "\x1c"])
def test_only_ends_of_lines_end_lines(tmp_path, strange):
    data = load(written(tmp_path, f"name,size,y\none{strange}two,1,0\nthree,2,1\n"))
    assert data.X.shape == (2, 3)


def test_a_label_is_never_an_input_too(tmp_path):
    trained = load(written(tmp_path, "a,b,y\n1,2,0\n3,4,1\n"))
    assert trained.label == "y"
    other = written(tmp_path, "y,a,b\n0,1,2\n1,3,4\n", "other.csv")
    with pytest.raises(DataError, match="the label is column 'b', which the model takes as an input"):
        load(other, encoding=trained.encoding)
    assert load(other, label="y", encoding=trained.encoding).X.tolist() == trained.X.tolist()
