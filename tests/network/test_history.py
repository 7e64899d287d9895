"""Records and histories: what a run leaves behind, and that it survives JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest

from ipdlam import IPDLAM, History, Record
from problems import make_data, make_model


def make_record(iteration=1, **fields):
    values = {
        "penalty": 0.1,
        "objective": 10.0 / iteration,
        "loss": 3.0,
        "regularization": 0.25,
        "linear_gap": (0.1, 0.2),
        "activation_gap": (0.3,),
        "lyapunov": 11.0 / iteration,
        "seconds": 0.5 * iteration,
    }
    return Record(iteration=iteration, **{**values, **fields})


def make_history(*accuracies, stop_reason="iterations"):
    records = [make_record(k, train_loss=1.0, train_accuracy=score) for k, score in enumerate(accuracies, start=1)]
    return History(records, stop_reason)


@pytest.mark.parametrize(
    "change",
    [
        {"iteration": "1"},
        {"iteration": 0},
        {"iteration": True},
        {"penalty": None},
        {"objective": "10"},
        {"seconds": [1.0]},
        {"linear_gap": "ab"},
        {"activation_gap": [None]},
        {"train_accuracy": "high"},
        {"validation_loss": {}},
        {"optimizer": 3},
    ],
)
def test_a_record_of_a_file_with_nonsense_is_refused(change):
    with pytest.raises((TypeError, ValueError), match=next(iter(change))):
        Record.from_dict({**make_record().to_dict(), **change})


def test_record_is_immutable():
    record = make_record()
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.objective = 0.0


def test_fields_of_a_record_are_those_of_the_interface():
    names = [field.name for field in dataclasses.fields(Record)]
    promised = (
        "iteration penalty objective loss linear_gap activation_gap lyapunov train_loss train_accuracy "
        "validation_loss validation_accuracy seconds"
    )
    assert set(promised.split()) <= set(names)
    evaluated = [name for name in names if getattr(make_record(), name) is None]
    assert evaluated == ["train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "optimizer"]


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({}, None),
        ({"train_loss": 0.4}, -0.4),
        ({"train_loss": 0.4, "train_accuracy": 0.8}, 0.8),
        ({"train_loss": 0.4, "train_accuracy": 0.8, "validation_loss": 0.6}, -0.6),
        ({"train_loss": 0.4, "train_accuracy": 0.8, "validation_loss": 0.6, "validation_accuracy": 0.7}, 0.7),
        # Zero is a score like any other: it must not be taken for a missing one.
        ({"train_loss": 0.4, "train_accuracy": 0.8, "validation_loss": 0.6, "validation_accuracy": 0.0}, 0.0),
        ({"train_loss": 0.0}, 0.0),
        # Nor is one that is not finite a score, whatever the training samples say.
        ({"train_loss": float("nan")}, None),
        ({"train_loss": 0.4, "validation_loss": float("inf")}, None),
        ({"train_loss": 0.4, "validation_loss": float("nan"), "validation_accuracy": float("nan")}, None),
        ({"train_loss": 0.4, "validation_loss": float("inf"), "validation_accuracy": 0.5}, 0.5),
        ({"train_loss": 0.3, "train_accuracy": 0.8, "validation_loss": 0.0}, 0.0),
    ],
)
def test_score_is_validation_before_training_and_accuracy_before_loss(fields, score):
    assert make_record(**fields).score == score


def test_record_survives_json():
    record = make_record(train_loss=0.1, train_accuracy=1 / 3, seconds=0.1 + 0.2)
    again = Record.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again == record
    assert isinstance(again.linear_gap, tuple)
    assert isinstance(again.activation_gap, tuple)


def test_from_dict_does_not_change_its_argument():
    fields = json.loads(json.dumps(make_record().to_dict()))
    Record.from_dict(fields)
    assert fields["linear_gap"] == [0.1, 0.2]


def test_history_is_a_sequence():
    history = make_history(0.1, 0.2, 0.3)
    assert isinstance(history, Sequence)
    assert len(history) == 3
    assert [record.iteration for record in history] == [1, 2, 3]
    assert [record.iteration for record in reversed(history)] == [3, 2, 1]
    assert history[0].iteration == 1
    assert history[-1].iteration == 3
    assert history[1] in history
    assert make_record(9) not in history
    assert history.index(history[2]) == 2
    assert history.count(history[0]) == 1
    assert bool(history)
    assert not History()
    with pytest.raises(IndexError):
        history[3]


def test_history_cannot_be_assigned_to():
    history = make_history(0.1, 0.2)
    with pytest.raises(TypeError):
        history[0] = make_record(7)
    with pytest.raises(TypeError):
        del history[0]


def test_slices_are_histories_that_do_not_grow_with_the_whole():
    history = make_history(0.1, 0.4, 0.3, stop_reason="patience")
    tail = history[1:]
    assert isinstance(tail, History)
    assert [record.iteration for record in tail] == [2, 3]
    assert tail.stop_reason == "patience"
    assert tail.best is history[1]
    assert [record.iteration for record in history[::-2]] == [3, 1]
    assert len(history[5:]) == 0
    history.append(make_record(4))
    assert len(history) == 4
    assert len(tail) == 2


def test_history_does_not_grow_with_the_list_it_was_made_of():
    records = [make_record(1)]
    history = History(records)
    records.append(make_record(2))
    assert len(history) == 1


def test_histories_made_without_records_share_none():
    first, second = History(), History()
    first.append(make_record())
    assert len(second) == 0


def test_column():
    history = make_history(0.1, 0.4, 0.3)
    assert history.column("train_accuracy") == [0.1, 0.4, 0.3]
    assert history.column("objective") == [10.0, 5.0, 10.0 / 3]
    assert history.column("validation_loss") == [None, None, None]
    assert history.column("score") == [0.1, 0.4, 0.3]
    assert History().column("objective") == []
    with pytest.raises(AttributeError, match="accuracy_of_training"):
        history.column("accuracy_of_training")


def test_best_is_the_highest_score_and_the_first_among_equals():
    assert make_history(0.1, 0.4, 0.4, 0.3).best.iteration == 2
    assert make_history(0.0, 0.0).best.iteration == 1


def test_best_of_regressions_is_the_smallest_loss():
    history = History(make_record(k, train_loss=loss) for k, loss in enumerate([3.0, 0.5, 2.0], start=1))
    assert history.best.iteration == 2


def test_best_passes_over_what_was_not_evaluated():
    # A missing score must not count as 0, which would beat every regression.
    history = History([make_record(1), make_record(2, train_loss=5.0), make_record(3), make_record(4, train_loss=4.0)])
    assert history.best.iteration == 4
    assert History([make_record(1)]).best is None
    assert History().best is None


def test_handover_is_where_an_optimizer_took_over():
    alternating, epochs = [make_record(k) for k in (1, 2)], [make_record(k, optimizer="adam") for k in (3, 4)]
    assert History(alternating + epochs).handover == 2
    assert History(epochs).handover == 0
    assert History(alternating).handover is None
    assert History().handover is None
    assert History.from_json(History(alternating + epochs).to_json()).handover == 2


def test_records_from_before_optimizers_were_named_are_read():
    fields = make_record().to_dict()
    del fields["optimizer"]
    assert Record.from_dict(fields) == make_record()


def test_history_survives_json():
    history = make_history(0.1, 1 / 3, stop_reason="target_score")
    history.append(make_record(3, objective=1e-300, seconds=1e9))
    text = history.to_json()
    again = History.from_json(text)
    assert list(again) == list(history)
    assert again.stop_reason == "target_score"
    assert again.to_json() == text


def test_json_is_plain():
    content = json.loads(make_history(0.5).to_json())
    assert content["stop_reason"] == "iterations"
    assert content["records"][0]["linear_gap"] == [0.1, 0.2]
    assert content["records"][0]["validation_loss"] is None


def test_empty_and_running_histories_survive_json():
    again = History.from_json(History().to_json())
    assert len(again) == 0
    assert again.stop_reason is None


def test_repr_tells_length_objective_score_and_end():
    assert repr(make_history(0.1, 0.4)) == "History(2 iterations, objective 5, score 0.4, ended by iterations)"
    assert repr(make_history(0.1, stop_reason=None)) == "History(1 iterations, objective 10, score 0.1, running)"
    assert repr(History()) == "History(empty)"


def test_a_history_as_a_data_frame():
    pd = pytest.importorskip("pandas")
    model, (X, y) = make_model([4, 5, 3]), make_data(30, 4, 3, "cross_entropy")
    history = IPDLAM(model, loss="cross_entropy").fit(X, y, iterations=4, evaluate_every=2)
    frame = history.to_dataframe()
    assert list(frame.index) == [1, 2, 3, 4]
    assert list(frame["objective"]) == history.column("objective")
    assert list(frame["linear_gap"]) == [sum(record.linear_gap) for record in history]
    assert pd.isna(frame["train_accuracy"]).tolist() == [True, False, True, False]
    empty = History().to_dataframe()
    assert len(empty) == 0
    assert list(empty.columns) == list(frame.columns)
