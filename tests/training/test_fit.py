"""Every trainer, from start to end: what fit records, how it stops, and which weights it leaves whatever happens."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import pickle
import random
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

import ipdlam.training.evaluation
from contracts import (
    HELD_OUT,
    TARGETS,
    TRAINERS,
    VALIDATION,
    WEIGHT,
    X_NEW,
    Y_NEW,
    N,
    Operators,
    Snapshots,
    X,
    Y,
    each,
    equal,
    every_class,
    every_trainer,
    is_finite,
    network,
    no_stray_interrupt,
    raise_at,
    script,
    stop_at,
    those,
    weights,
)
from detectors import no_back_propagation
from ipdlam import DivergenceError, History, Record, StopTraining
from ipdlam.baselines import BCD
from ipdlam.distributed.group import uninterrupted
from ipdlam.prox import LOSSES
from problems import assert_same_runs, make_data, make_model, without_seconds

takes_weights = those(lambda trainer: trainer.takes_weights)

# --- the record of a run --------------------------------------------------------------------------------------------


@every_trainer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_history_has_a_full_record_of_every_iteration(trainer, dtype):
    run = trainer.make(network(dtype=dtype))
    history = trainer.fit(run, 4, validation_data=VALIDATION)
    assert history is run.history
    assert history.stop_reason == "iterations"
    assert history.column("iteration") == [1, 2, 3, 4]
    for record in history:
        assert isinstance(record, Record)
        assert record.optimizer == (run.optimizer if trainer.back_propagates else None)
        assert len(record.linear_gap) == 3
        assert len(record.activation_gap) == (3 if trainer.kind is BCD else 2)  # its outputs are a block of their own
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            if field.name == "optimizer":
                continue
            numbers = value if isinstance(value, tuple) else (value,)
            assert all(type(number) is (int if field.name == "iteration" else float) for number in numbers), field.name
            assert all(math.isfinite(number) for number in numbers), field.name
            assert all(number >= 0.0 for number in numbers), field.name
    assert without_seconds(History.from_json(history.to_json())) == without_seconds(history)


@every_trainer
def test_evaluations_are_those_of_the_model_itself(trainer):
    model = network()
    measured = []

    def measure(record):
        with torch.no_grad():
            for inputs, labels in ((X, Y), VALIDATION):
                outputs = model(inputs)
                loss = 0.5 * (outputs - nn.functional.one_hot(labels, 3)).square().sum(1).mean()
                measured.append((float(loss), float((outputs.argmax(1) == labels).double().mean())))

    history = trainer.fit(trainer.make(model), 3, validation_data=VALIDATION, callbacks=[measure])
    for index, record in enumerate(history):
        assert (record.train_loss, record.train_accuracy) == pytest.approx(measured[2 * index], rel=1e-12)
        assert (record.validation_loss, record.validation_accuracy) == pytest.approx(measured[2 * index + 1], rel=1e-12)
        assert record.score == record.validation_accuracy


@every_class
def test_without_validation_data_the_score_is_that_of_training(trainer):
    history = trainer.fit(trainer.make(), 2)
    assert history.column("validation_loss") == [None, None]
    assert history.column("validation_accuracy") == [None, None]
    assert history.column("score") == history.column("train_accuracy")


@every_class
@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_regression_has_no_accuracy_and_scores_minus_its_loss(trainer, loss):
    model = network()
    history = trainer.fit(trainer.make(model, loss=loss), 3, X, TARGETS, validation_data=(X[:9], TARGETS[:9]))
    assert history.column("train_accuracy") == [None] * 3
    assert history.column("validation_accuracy") == [None] * 3
    assert history.column("score") == [-loss for loss in history.column("validation_loss")]
    with torch.no_grad():
        expected = LOSSES[loss]().value(TARGETS, model(X)).mean()
    assert history[-1].train_loss == pytest.approx(float(expected), rel=1e-12)
    unvalidated = trainer.fit(trainer.make(loss=loss), 3, X, TARGETS)
    assert unvalidated.column("score") == [-loss for loss in unvalidated.column("train_loss")]


@every_trainer
@pytest.mark.parametrize(("every", "number"), [(1, 6), (2, 7), (3, 6), (10, 7), (10, 1)])
def test_evaluate_every_leaves_gaps_but_evaluates_the_last(trainer, every, number):
    history = trainer.fit(trainer.make(), number, evaluate_every=every, validation_data=VALIDATION)
    evaluated = {k for k in range(1, number + 1) if k % every == 0} | {number}
    names = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "score")
    for record in history:
        missing = {getattr(record, name) is None for name in names}
        assert missing == {record.iteration not in evaluated}
    # What is not evaluated is trained all the same.
    assert history.column("objective") == trainer.fit(trainer.make(), number).column("objective")


@pytest.fixture
def clock(monkeypatch):
    """A clock that can be turned forward, so that no test has to wait."""
    real, ahead = time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: real() + ahead[0])
    return ahead


@every_trainer
def test_seconds_count_training_and_not_evaluation(trainer, monkeypatch, clock):
    real = ipdlam.training.evaluation.evaluate

    def slow(*arguments):
        clock[0] += 1000.0
        return real(*arguments)

    def slow_callback(record):
        clock[0] += 1000.0

    monkeypatch.setattr(ipdlam.training.evaluation, "evaluate", slow)
    # Several iterations: the clock of the second would hold the evaluation of the first.
    seconds = trainer.fit(trainer.make(), 3, validation_data=VALIDATION, callbacks=[slow_callback]).column("seconds")
    assert clock[0] == 9000.0
    assert seconds[0] > 0.0
    assert seconds == sorted(seconds)
    assert seconds[-1] < 900.0


# --- step by step ---------------------------------------------------------------------------------------------------


@every_trainer
def test_fit_is_start_and_one_iteration_after_the_other(trainer):
    fitted, stepped = network(), network()
    data = {"validation_data": VALIDATION, **({"sample_weight": WEIGHT} if trainer.takes_weights else {})}
    snapshots = Snapshots(fitted)
    history = trainer.fit(trainer.make(fitted), 4, callbacks=[snapshots], **data)
    run = trainer.make(stepped)
    if trainer.steps:
        run.start(X, Y, **data)
        assert run.history.stop_reason is None
    else:  # how long the steps are depends on the plan
        trainer.fit_until(run, 4, 1, **data)
    for k in range(1 if trainer.steps else 2, 5):
        if trainer.steps:
            assert run.step() is run.history[-1]
        else:
            trainer.go_on(run, 1)
        assert run.history[-1].iteration == k
        assert equal(weights(stepped), snapshots.weights[k])
    assert without_seconds(history) == without_seconds(run.history)


@every_trainer
def test_a_run_goes_on_after_fit(trainer):
    whole, parted = trainer.make(), trainer.make()
    expected = trainer.fit(whole, 5)
    trainer.fit_until(parted, 5, 3)
    assert trainer.go_on(parted, 1) is parted.history
    assert parted.history[-1].iteration == 4
    if trainer.steps:
        assert parted.step().iteration == 5
    else:
        trainer.go_on(parted, 1)
    assert without_seconds(expected) == without_seconds(parted.history)
    assert equal(weights(whole.model), weights(parted.model))


@every_trainer
def test_fit_starts_again_from_the_weights_of_the_model(trainer):
    model = network()
    run = trainer.make(model)
    first = trainer.fit(run, 3)
    twin = copy.deepcopy(model)
    second = trainer.fit(run, 2)
    assert second.column("iteration") == [1, 2]
    assert len(first) == 3
    expected = trainer.fit(trainer.make(twin), 2)
    assert without_seconds(second) == without_seconds(expected)
    assert equal(weights(model), weights(twin))


@every_trainer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_runs_are_one(trainer, dtype):
    runs = [trainer.make(network(dtype=dtype)) for _ in range(2)]
    for run in runs:
        trainer.fit(run, 4)
    assert_same_runs(*runs)
    if trainer.seeded:
        other = trainer.make(network(dtype=dtype), seed=4)
        trainer.fit(other, 4)
        assert not equal(weights(other.model), weights(runs[0].model))


@every_class
def test_zero_iterations_train_nothing(trainer):
    model = network()
    before = weights(model)
    history = trainer.fit(trainer.make(model), 0)
    assert len(history) == 0
    assert history.stop_reason == "iterations"
    assert equal(before, weights(model))


@every_class
@pytest.mark.parametrize("way", ["copied", "pickled"])
def test_a_trainer_can_be_copied_in_the_middle_of_a_run(trainer, way):
    run = trainer.make()
    trainer.fit_until(run, 5, 2)
    other = copy.deepcopy(run) if way == "copied" else pickle.loads(pickle.dumps(run))
    assert other.model is not run.model
    trainer.go_on(run, 3)
    assert len(other.history) == 2
    trainer.go_on(other, 3)
    assert_same_runs(run, other)


# --- weights of samples ---------------------------------------------------------------------------------------------

COUNTS = torch.arange(N) % 3  # 0, 1 or 2 of each


def close(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@takes_weights
def test_weights_of_samples_are_repeated_samples(trainer):
    weighted, repeated = network(), network()
    settings = {"regularizer": None} if "regularizer" in trainer.settings else {}
    first = trainer.fit(trainer.make(weighted, **trainer.whole, **settings), 5, sample_weight=COUNTS.double())
    others = X.repeat_interleave(COUNTS, 0), Y.repeat_interleave(COUNTS)
    second = trainer.fit(trainer.make(repeated, **trainer.whole, **settings), 5, *others)
    close(weighted, repeated)
    for name in ("objective", "train_loss", "train_accuracy"):
        assert first.column(name) == pytest.approx(second.column(name), rel=1e-9)


@takes_weights
def test_equal_weights_change_nothing(trainer):
    plain, weighted = network(), network()
    trainer.fit(trainer.make(plain), 4)
    trainer.fit(trainer.make(weighted), 4, sample_weight=torch.ones(N))
    close(plain, weighted)


@takes_weights
def test_weighted_evaluations_are_weighted_means(trainer):
    model = network()
    weight = torch.linspace(0.0, 2.0, N, dtype=torch.float64)
    only_first = torch.zeros(HELD_OUT)
    only_first[0] = 1.0
    history = trainer.fit(trainer.make(model), 2, sample_weight=weight, validation_data=(X_NEW, Y_NEW, only_first))
    with torch.no_grad():
        right, first = (model(X).argmax(1) == Y).double(), model(X_NEW[:1]).argmax(1) == Y_NEW[:1]
    assert history[-1].train_accuracy == pytest.approx(float((right * weight).sum() / weight.sum()), rel=1e-12)
    assert history[-1].validation_accuracy == float(first)


@takes_weights
def test_batches_without_weight_do_no_harm(trainer):
    weight = torch.zeros(N)
    weight[:3] = 1.0
    history = trainer.fit(trainer.make(), 3, sample_weight=weight)
    assert all(math.isfinite(record.objective) for record in history)


# --- how a run ends -------------------------------------------------------------------------------------------------


@every_trainer
def test_restore_best_by_validation_score(trainer, monkeypatch):
    script(monkeypatch, training=[0.1, 0.2, 0.3, 0.9, 0.8, 0.7], validation=[0.1, 0.6, 0.2, 0.6, 0.3, 0.5])
    model = network()
    snapshots = Snapshots(model)
    run = trainer.make(model)
    history = trainer.fit(run, 6, restore_best=True, validation_data=VALIDATION, callbacks=[snapshots])
    assert len(history) == 6
    assert history.best.iteration == 2  # the first of two equals
    assert equal(weights(model), snapshots.weights[2])
    assert not any(equal(weights(model), snapshots.weights[k]) for k in (0, 1, 3, 4, 5, 6))


@every_trainer
def test_restore_best_by_training_score_and_going_on_from_the_last(trainer, monkeypatch):
    script(monkeypatch, training=[0.1, 0.2, 0.9, 0.8, 0.7])
    model, twin = network(), network()
    snapshots = Snapshots(model)
    run = trainer.make(model)
    history = trainer.fit_until(run, 6, 5, restore_best=True, callbacks=[snapshots])
    assert history.best.iteration == 3
    assert equal(weights(model), snapshots.weights[3])
    assert not equal(snapshots.weights[3], snapshots.weights[5])
    trainer.go_on(run, 1)
    monkeypatch.undo()
    trainer.fit(trainer.make(twin), 6)
    assert equal(weights(model), weights(twin))


@every_class
@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("targets", ["labels", "real"])
def test_restored_model_has_the_best_score_of_the_history(trainer, validated, targets):
    """The same with real scores, measured again on the model that is left."""
    y, y_new = (Y, Y_NEW) if targets == "labels" else (TARGETS, make_data(HELD_OUT, 5, 3, "squared", seed=1)[1])
    model = network()
    snapshots = Snapshots(model)
    data = {"validation_data": (X_NEW, y_new)} if validated else {}
    history = trainer.fit(trainer.make(model), 8, X, y, restore_best=True, callbacks=[snapshots], **data)
    best = history.best
    assert best.score == max(history.column("score"))
    assert equal(weights(model), snapshots.weights[best.iteration])
    inputs, wanted = (X_NEW, y_new) if validated else (X, y)
    with torch.no_grad():
        outputs = model(inputs)
    if targets == "labels":
        score = (outputs.argmax(1) == wanted).double().mean()
    else:
        score = -0.5 * (outputs - wanted).square().sum(1).mean()
    assert float(score) == pytest.approx(best.score, rel=1e-12)


@every_trainer
def test_without_restore_best_the_last_weights_stay(trainer, monkeypatch):
    script(monkeypatch, training=[0.9, 0.1, 0.1])
    model = network()
    snapshots = Snapshots(model)
    trainer.fit(trainer.make(model), 3, callbacks=[snapshots])
    assert equal(weights(model), snapshots.weights[3])


@every_class
def test_restore_best_among_the_evaluated(trainer, monkeypatch):
    script(monkeypatch, training=[0.2, 0.8, 0.5])
    model = network()
    snapshots = Snapshots(model)
    history = trainer.fit(trainer.make(model), 6, evaluate_every=2, restore_best=True, callbacks=[snapshots])
    assert history.best.iteration == 4
    assert equal(weights(model), snapshots.weights[4])


@every_class
@pytest.mark.parametrize(
    ("patience", "scores", "length"),
    [
        (1, [0.1, 0.2, 0.2, 0.9, 0.9], 3),  # no better is not better
        (2, [0.1, 0.2, 0.1, 0.3, 0.2, 0.3, 0.9], 6),  # a better score starts the count again
        (3, [0.5, 0.1, 0.2, 0.3, 0.9], 4),
        (5, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 7),
    ],
)
def test_patience(trainer, monkeypatch, patience, scores, length):
    script(monkeypatch, training=scores)
    history = trainer.fit(trainer.make(), 7, patience=patience)
    assert len(history) == length
    assert history.stop_reason == ("patience" if length < 7 else "iterations")


@every_class
def test_patience_counts_evaluations_not_iterations(trainer, monkeypatch):
    script(monkeypatch, training=[0.5, 0.4, 0.3, 0.2])
    history = trainer.fit(trainer.make(), 20, patience=2, evaluate_every=3)
    assert len(history) == 9
    assert history.stop_reason == "patience"


@every_class
def test_patience_leaves_the_best_weights_if_asked(trainer, monkeypatch):
    script(monkeypatch, training=[0.1, 0.6, 0.5, 0.4, 0.9])
    model = network()
    snapshots = Snapshots(model)
    trainer.fit(trainer.make(model), 9, patience=2, restore_best=True, callbacks=[snapshots])
    assert max(snapshots.weights) == 4
    assert equal(weights(model), snapshots.weights[2])


@every_class
def test_target_score(trainer, monkeypatch):
    script(monkeypatch, training=[0.99] * 9, validation=[0.1, 0.4, 0.5, 0.8])
    history = trainer.fit(trainer.make(), 9, target_score=0.5, validation_data=VALIDATION)
    assert len(history) == 3
    assert history.stop_reason == "target_score"
    script(monkeypatch, training=[0.5, 0.7, 0.9])
    history = trainer.fit(trainer.make(), 9, target_score=0.7)
    assert (len(history), history.stop_reason) == (2, "target_score")


@every_class
def test_target_score_of_a_regression_is_minus_a_loss(trainer):
    losses = trainer.fit(trainer.make(), 6, X, TARGETS).column("train_loss")
    reached = next(k for k, loss in enumerate(losses, start=1) if loss <= losses[3])
    history = trainer.fit(trainer.make(), 6, X, TARGETS, target_score=-losses[3])
    assert len(history) == reached
    assert history.stop_reason == "target_score"


@every_class
def test_unreached_target_ends_by_iterations(trainer, monkeypatch):
    script(monkeypatch, training=[0.1, 0.2, 0.3])
    history = trainer.fit(trainer.make(), 3, target_score=0.9)
    assert len(history) == 3
    assert history.stop_reason == "iterations"


@every_class
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_never_the_best(trainer, monkeypatch, bad):
    script(monkeypatch, validation=[bad, 3.0, 2.0, bad, 2.5], accuracies=False)
    model = network()
    snapshots = Snapshots(model)
    history = trainer.fit(
        trainer.make(model), 5, X, TARGETS, restore_best=True, callbacks=[snapshots], validation_data=VALIDATION
    )
    assert history.best.iteration == 3
    assert equal(weights(model), snapshots.weights[3])


@every_class
def test_a_score_that_is_not_finite_does_not_count_for_patience(trainer, monkeypatch):
    script(monkeypatch, validation=[math.nan, math.inf, 3.0, 4.0, math.nan, 5.0, 6.0], accuracies=False)
    history = trainer.fit(trainer.make(), 7, X, TARGETS, patience=2, validation_data=VALIDATION)
    assert (len(history), history.stop_reason) == (6, "patience")


# --- callbacks, and what ends a run from outside --------------------------------------------------------------------


@every_class
def test_callbacks_get_every_record_in_turn_and_cannot_change_it(trainer):
    seen = []

    def vandal(record):
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.objective = 0.0
        seen.append(("first", record))

    history = trainer.fit(trainer.make(), 3, callbacks=[vandal, lambda record: seen.append(("second", record))])
    assert [name for name, _ in seen] == ["first", "second"] * 3
    assert [record for name, record in seen if name == "first"] == list(history)


@every_class
def test_callbacks_may_come_from_a_generator(trainer):
    seen = []
    trainer.fit(trainer.make(), 3, callbacks=(callback for callback in [seen.append]))
    assert len(seen) == 3


@every_trainer
@pytest.mark.parametrize(
    ("error", "reason"), [(StopTraining("good enough"), "good enough"), (StopTraining(), "callback")]
)
def test_a_callback_may_stop_the_run(trainer, error, reason):
    model = network()
    snapshots, seen = Snapshots(model), []
    run = trainer.make(model)
    history = trainer.fit(run, 9, callbacks=[snapshots, seen.append, raise_at(2, error)])
    assert seen == list(history)
    assert len(history) == 2
    assert history.stop_reason == reason
    assert equal(weights(model), snapshots.weights[2])
    assert trainer.go_on(run, 1)[-1].iteration == 3


@every_class
def test_stopping_leaves_the_best_weights_if_asked(trainer, monkeypatch):
    script(monkeypatch, training=[0.7, 0.2, 0.3])
    model = network()
    snapshots = Snapshots(model)
    trainer.fit_until(trainer.make(model), 9, 3, restore_best=True, callbacks=[snapshots])
    assert equal(weights(model), snapshots.weights[1])


@every_trainer
@pytest.mark.parametrize(
    "error", [LookupError("a fault of the callback"), KeyboardInterrupt()], ids=["error", "Ctrl-C"]
)
def test_what_a_callback_raises_costs_nothing(trainer, error):
    """Errors are the user's, Ctrl-C ends fit; the iteration itself was finished, so the run can go on."""
    model, twin = network(), network()
    snapshots = Snapshots(model)
    run = trainer.make(model)
    with no_stray_interrupt():
        if isinstance(error, LookupError):
            with pytest.raises(LookupError, match="a fault of the callback"):
                trainer.fit(run, 4, callbacks=[snapshots, raise_at(3, error)])
        else:
            assert trainer.fit(run, 4, callbacks=[snapshots, raise_at(3, error)]) is run.history
            assert run.history.stop_reason == "interrupted"
    assert equal(weights(model), snapshots.weights[3])
    assert is_finite(weights(model))
    assert run.history.column("iteration") == [1, 2, 3]
    trainer.go_on(run, 1)
    trainer.fit(trainer.make(twin), 4)
    assert equal(weights(model), weights(twin))


@every_trainer
def test_ctrl_c_while_evaluating_keeps_the_iteration(trainer, monkeypatch):
    """The next one is not an iteration without training."""

    def interrupt(*arguments):
        raise KeyboardInterrupt

    whole, first = trainer.make(), trainer.make()
    trainer.fit(whole, 4, evaluate_every=4)
    monkeypatch.setattr(ipdlam.training.evaluation, "evaluate", interrupt)
    with no_stray_interrupt():
        history = trainer.fit(first, 4, evaluate_every=2)
    assert (len(history), history.stop_reason) == (2, "interrupted")
    monkeypatch.undo()
    trainer.go_on(first, 2, evaluate_every=4)
    assert_same_runs(whole, first)


@every_trainer
def test_ctrl_c_between_counting_and_recording_keeps_the_iteration(trainer, monkeypatch):
    """The history has a record of every iteration that was counted."""
    whole, first = trainer.make(), trainer.make()
    trainer.fit(whole, 4, evaluate_every=4)
    real = type(first)._iteration

    def iterate(self, state):
        objective = real(self, state)
        if state.iteration == 2:
            signal.raise_signal(signal.SIGINT)
        return objective

    monkeypatch.setattr(type(first), "_iteration", iterate)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with no_stray_interrupt():
            history = trainer.fit(first, 4, evaluate_every=4)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert (history.stop_reason, history.column("iteration"), first.iteration) == ("interrupted", [1, 2], 2)
    monkeypatch.undo()
    trainer.go_on(first, 2, evaluate_every=4)
    assert_same_runs(whole, first)


@pytest.mark.parametrize("waits", [None, lambda: True, lambda: False], ids=["always", "asked", "not"])
def test_ctrl_c_in_a_block_within_a_block_waits_for_the_outer_one(waits):
    reached = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), uninterrupted(waits):  # noqa: PT012
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                reached.append("the inner end")
            reached.append("the outer end")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    # What need not wait is told as soon as the inner block is done.
    assert reached == (["the inner end"] if waits is not None and not waits() else ["the inner end", "the outer end"])


@every_trainer
def test_ctrl_c_ends_an_evaluation_at_once(trainer, monkeypatch):
    run, seen = trainer.make(), []

    def evaluate(*arguments):
        signal.raise_signal(signal.SIGINT)
        seen.append("went on")

    monkeypatch.setattr(ipdlam.training.evaluation, "evaluate", evaluate)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with no_stray_interrupt():
            history = trainer.fit(run, 4, evaluate_every=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (history.stop_reason, history.column("iteration"), seen) == ("interrupted", [1, 2], [])


@functools.cache
def operators_of_an_iteration(name):
    """How many operators torch is asked for in the third iteration."""
    count, trainer = Operators(), TRAINERS[name]
    with count:
        trainer.fit(trainer.make(), 9, evaluate_every=9, callbacks=[count.arm_after(2), stop_at(3)])
    return count.seen


def interrupt():
    raise KeyboardInterrupt


@every_trainer
@pytest.mark.parametrize(
    ("part", "restore_best"),
    [
        *[(part, False) for part in (0.15, 0.5, 0.9)],
        (0.5, True),
        *[pytest.param(part, True, marks=pytest.mark.slow) for part in (0.15, 0.9)],
    ],
)
def test_ctrl_c_in_the_middle_of_an_iteration(trainer, part, restore_best, tmp_path):
    """The model has the weights of the last whole iteration; the half-done one cannot be taken up, and says so."""
    model = network()
    snapshots = Snapshots(model)
    run = trainer.make(model)
    name = next(name for name, other in TRAINERS.items() if other is trainer)
    stop = Operators(max(1, int(part * operators_of_an_iteration(name))), interrupt)
    with no_stray_interrupt(), stop:
        callbacks = [snapshots, stop.arm_after(2)]
        history = trainer.fit(
            run, 9, evaluate_every=1 if restore_best else 9, restore_best=restore_best, callbacks=callbacks
        )
    assert stop.seen >= stop.number  # and those that put the weights back
    assert len(history) == 2
    assert history.stop_reason == "interrupted"
    left = history.best.iteration if restore_best else 2
    assert equal(weights(model), snapshots.weights[left])
    with torch.no_grad():
        assert is_finite([model(X)])
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the last (iteration|epoch) did not end; call start\(X, y\)"):
            trainer.go_on(run, 1)
    with pytest.raises(RuntimeError, match="did not end"):
        run.save(tmp_path / "c")
    assert equal(weights(model), snapshots.weights[left])
    twin = copy.deepcopy(model)
    trainer.fit(run, 1)
    trainer.fit(trainer.make(twin), 1)
    assert equal(weights(model), weights(twin))


class Poison(Operators):
    """Once it is armed, every product of matrices is full of NaN."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if self.armed and isinstance(found, torch.Tensor) and func.__name__.split(".")[0] in ("mm", "addmm", "bmm"):
            self.seen += 1
            return found.fill_(math.nan)
        return found

    def arm_after(self, iteration):
        def callback(record):
            self.armed = self.armed or record.iteration == iteration

        return callback


@every_trainer
def test_divergence_leaves_the_last_finite_weights(trainer, tmp_path):
    model = network()
    snapshots = Snapshots(model)
    run, poison = trainer.make(model), Poison()
    with pytest.raises(DivergenceError, match="not finite") as caught, poison:
        trainer.fit(run, 9, evaluate_every=9, callbacks=[snapshots, poison.arm_after(2)])
    assert poison.seen
    history = caught.value.history
    assert history is run.history
    assert history.stop_reason == "diverged"
    assert 2 <= len(history) < 9
    assert all(math.isfinite(record.objective) for record in history)
    assert is_finite(weights(model))
    assert equal(weights(model), snapshots.weights[len(history)])
    for again in (lambda: trainer.go_on(run, 1), lambda: run.save(tmp_path / "c")):
        with pytest.raises(RuntimeError, match="did not end"):
            again()
    assert len(trainer.fit(run, 2)) == 2  # nothing is left that would spoil the next run


# --- what is left alone ---------------------------------------------------------------------------------------------


@those(lambda trainer: not trainer.back_propagates)
@pytest.mark.parametrize("restore_best", [False, True])
def test_fit_does_not_back_propagate(trainer, restore_best):
    model = network()
    inputs = X.clone().requires_grad_()
    with no_back_propagation():
        ipdlam.initialise(model, "he")
        run = trainer.make(model)
        trainer.fit(run, 2, inputs, validation_data=VALIDATION, restore_best=restore_best)
        trainer.go_on(run, 1)
        assert torch.is_grad_enabled()
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
        assert parameter.grad_fn is None
        assert parameter.is_leaf
    assert inputs.grad is None


@every_trainer
def test_a_trained_model_can_go_on_with_gradients(trainer):
    model = network()
    trainer.fit(trainer.make(model), 2)
    nn.functional.cross_entropy(model(X), Y).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@every_class
def test_training_works_under_no_grad(trainer):
    first, second = network(), network()
    with torch.no_grad():
        trainer.fit(trainer.make(first), 2)
        assert not torch.is_grad_enabled()
    trainer.fit(trainer.make(second), 2)
    assert equal(weights(first), weights(second))


@every_trainer
@pytest.mark.parametrize(
    ("dtype", "kind", "targets"),
    [
        (torch.float32, "torch", "labels"),
        (torch.float64, "torch", "real"),
        (torch.float32, "numpy", "real"),
        (torch.float64, "numpy", "labels"),
    ],
)
def test_arguments_are_never_changed(trainer, dtype, kind, targets):
    # Data in the model's own precision are shared with the run, so an update in place would reach them.
    inputs, wanted = make_data(N, 5, 3, "cross_entropy" if targets == "labels" else "squared", dtype=dtype)
    weight = torch.linspace(0.5, 2.0, N, dtype=dtype)
    given = [inputs, wanted, weight, inputs.clone(), wanted.clone(), weight.clone()]
    given = [tensor.numpy() if kind == "numpy" else tensor for tensor in given]
    before = copy.deepcopy(given)
    inputs, wanted, weight, *validation = given
    data = {"sample_weight": weight} if trainer.takes_weights else {}
    run = trainer.make(network(dtype=dtype))
    trainer.fit(run, 3, inputs, wanted, validation_data=tuple(validation), restore_best=True, **data)
    for old, new in zip(before, given, strict=True):
        assert bool((old == new).all())


@every_class
def test_in_place_activations_do_not_reach_the_data(trainer):
    before = X.clone()
    model = make_model([5, 5, 5, 3])
    model[1].inplace = model[3].inplace = True
    trainer.fit(trainer.make(model), 2, validation_data=(X, Y))
    assert torch.equal(X, before)


@every_trainer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_parameters(trainer, dtype, training):
    model = network(dtype=dtype).train(training)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    parameters = list(model.parameters())
    places = [parameter.data_ptr() for parameter in parameters]
    before = weights(model)
    run = trainer.make(model)
    trainer.fit(run, 3, validation_data=VALIDATION, restore_best=True)
    assert run.model is model
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    for parameter in parameters:
        assert type(parameter) is nn.Parameter
        assert parameter.dtype == dtype
        assert parameter.device == torch.device("cpu")
        assert parameter.requires_grad
        assert parameter.is_leaf
    if not trainer.back_propagates:  # which needs the gradients for itself
        assert bool((model[0].weight.grad == 1).all())
        assert model[2].weight.grad is None
    assert all(module.training is training for module in model.modules())
    assert not equal(before, weights(model))


def random_states():
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


def test_random_states_can_be_told_apart():
    before = random_states()
    with torch.random.fork_rng():
        torch.rand(1)
        assert random_states()[0] != before[0]
    state = np.random.get_state()
    np.random.random()
    assert random_states()[1] != before[1]
    np.random.set_state(state)
    assert random_states() == before


@every_trainer
@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_the_global_random_state_is_never_touched(trainer, loss):
    model = network()
    before = random_states()
    ipdlam.initialise(model, "paper", seed=3)
    ipdlam.initialise(model, "he", seed=4)
    assert random_states() == before
    run = trainer.make(model, loss=loss)
    run.start(X, Y, validation_data=VALIDATION)
    assert random_states() == before
    trainer.go_on(run, 1)
    assert random_states() == before
    trainer.fit(run, 2, restore_best=True)
    assert random_states() == before


@each("ipdlam")
def test_a_divergence_can_be_pickled(trainer):
    """Sweeps in several processes send exceptions through pickle."""
    error = DivergenceError("iteration 2 is not finite", trainer.fit(trainer.make(), 1))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.history.stop_reason == "iterations"
    assert list(again.history) == list(error.history)
    assert issubclass(DivergenceError, ArithmeticError)


# --- names of arguments ---


@every_class
@pytest.mark.parametrize("method", ["fit", "continue_fit"])
def test_what_another_trainer_counts_is_refused_with_what_this_one_does(trainer, method):
    run = trainer.make()
    name, own = type(run).__name__, trainer.unit
    other = {"epochs": "iterations", "iterations": "epochs"}[own]
    data = (X, Y) if method == "fit" else ()
    with pytest.raises(TypeError, match=f"^{name}.{method} counts {own}, got {other}=3; use {own}=$"):
        getattr(run, method)(*data, **{other: 3})
    with pytest.raises(TypeError, match=f"^{name}.{method} has no argument 'learning_rate'; it has .*{own}.*verbose$"):
        getattr(run, method)(*data, learning_rate=3)
    parameters = inspect.signature(getattr(run, method)).parameters
    assert own in parameters
    assert other not in parameters
