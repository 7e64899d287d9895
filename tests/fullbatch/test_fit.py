"""Runs from start to end: what fit records, how it stops, and which weights it leaves whatever happens."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import time
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import ipdlam
import ipdlam.fullbatch.trainer
from detectors import BackPropagationError, NoBackwardOperators, no_back_propagation, no_graph
from ipdlam import DLAM, IPDLAM, DivergenceError, History, Record, StopTraining
from ipdlam.training.evaluation import Evaluation
from problems import make_data, make_model

N, VALIDATION = 60, 25
WIDTHS = [5, 8, 7, 3]
ORDERS = ("reverse", "increase", "nested-reverse")
X, Y = make_data(N, 5, 3, "cross_entropy")
X_NEW, Y_NEW = make_data(VALIDATION, 5, 3, "cross_entropy", seed=1)
TARGETS = make_data(N, 5, 3, "squared")[1]


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first, second):
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def is_finite(tensors):
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def without_time(history):
    return [dataclasses.replace(record, seconds=0.0) for record in history]


class Snapshots:
    """A callback that keeps the model's weights after every iteration; those before the first are number 0."""

    def __init__(self, model):
        self.model = model
        self.weights = {0: weights(model)}

    def __call__(self, record):
        self.weights[record.iteration] = weights(self.model)


def raise_at(iteration, error):
    """A callback that raises in one iteration."""

    def callback(record):
        if record.iteration == iteration:
            raise error

    return callback


def script_scores(monkeypatch, training=None, validation=None):
    """Evaluations give these accuracies in turn, so that a test knows which iteration is the best."""
    scripts = {N: iter(training or ()), VALIDATION: iter(validation or ())}

    def evaluate(model, loss, samples, chunk_size):
        return Evaluation(1.0, next(scripts[len(samples)], 0.0))

    monkeypatch.setattr(ipdlam.training.evaluation, "evaluate", evaluate)


@contextmanager
def no_stray_interrupt():
    """A KeyboardInterrupt that gets out is a failed test, not the end of the whole test run."""
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail("KeyboardInterrupt was not caught")


# --- the record of a run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_history_has_a_full_record_of_every_iteration(order, dtype):
    trainer = IPDLAM(make_model(WIDTHS, dtype=dtype), order=order, regularizer="ridge")
    history = trainer.fit(X, Y, iterations=4, validation_data=(X_NEW, Y_NEW))
    assert history is trainer.history
    assert history.stop_reason == "iterations"
    assert history.column("iteration") == [1, 2, 3, 4]
    for record in history:
        assert isinstance(record, Record)
        assert len(record.linear_gap) == 3
        assert len(record.activation_gap) == 2
        assert record.optimizer is None
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            if field.name == "optimizer":
                continue
            numbers = value if isinstance(value, tuple) else (value,)
            assert all(type(number) is (int if field.name == "iteration" else float) for number in numbers), field.name
            assert all(math.isfinite(number) and number >= 0.0 for number in numbers), field.name


def test_numbers_of_a_record_are_floats_without_a_regularizer_too():
    record = IPDLAM(make_model(WIDTHS), regularizer=None).fit(X, Y, iterations=1)[0]
    assert record.regularization == 0.0
    assert type(record.regularization) is float


def test_evaluations_are_those_of_the_model_itself():
    model = make_model(WIDTHS)
    measured = []

    def measure(record):
        with torch.no_grad():
            for inputs, labels in ((X, Y), (X_NEW, Y_NEW)):
                outputs = model(inputs)
                loss = 0.5 * (outputs - nn.functional.one_hot(labels, 3)).square().sum(1).mean()
                measured.append((float(loss), float((outputs.argmax(1) == labels).double().mean())))

    history = IPDLAM(model, chunk_size=16).fit(X, Y, iterations=3, validation_data=(X_NEW, Y_NEW), callbacks=[measure])
    for index, record in enumerate(history):
        assert (record.train_loss, record.train_accuracy) == pytest.approx(measured[2 * index], rel=1e-12)
        assert (record.validation_loss, record.validation_accuracy) == pytest.approx(measured[2 * index + 1], rel=1e-12)
        assert record.score == record.validation_accuracy


def test_without_validation_data_the_score_is_that_of_training():
    history = IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=2)
    assert history.column("validation_loss") == [None, None]
    assert history.column("validation_accuracy") == [None, None]
    assert history.column("score") == history.column("train_accuracy")


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_regression_has_no_accuracy_and_scores_minus_its_loss(loss):
    model = make_model(WIDTHS)
    history = IPDLAM(model, loss=loss).fit(X, TARGETS, iterations=3, validation_data=(X[:9], TARGETS[:9]))
    assert history.column("train_accuracy") == [None] * 3
    assert history.column("validation_accuracy") == [None] * 3
    assert history.column("score") == [-loss for loss in history.column("validation_loss")]
    with torch.no_grad():
        expected = ipdlam.prox.LOSSES[loss]().value(TARGETS, model(X)).mean()
    assert history[-1].train_loss == pytest.approx(float(expected), rel=1e-12)
    unvalidated = IPDLAM(make_model(WIDTHS), loss=loss).fit(X, TARGETS, iterations=3)
    assert unvalidated.column("score") == [-loss for loss in unvalidated.column("train_loss")]


def test_weighted_evaluations_are_weighted_means():
    model = make_model(WIDTHS)
    weight = torch.linspace(0.0, 2.0, N, dtype=torch.float64)
    record = IPDLAM(model, chunk_size=16).fit(X, Y, iterations=2, sample_weight=weight)[-1]
    with torch.no_grad():
        right = (model(X).argmax(1) == Y).double()
    assert record.train_accuracy == pytest.approx(float((right * weight).sum() / weight.sum()), rel=1e-12)


@pytest.mark.parametrize("every", [1, 2, 3, 10])
@pytest.mark.parametrize("iterations", [1, 6, 7])
def test_evaluate_every_leaves_gaps_but_evaluates_the_last(every, iterations):
    trainer = IPDLAM(make_model(WIDTHS))
    history = trainer.fit(X, Y, iterations=iterations, evaluate_every=every, validation_data=(X_NEW, Y_NEW))
    evaluated = {k for k in range(1, iterations + 1) if k % every == 0} | {iterations}
    names = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "score")
    for record in history:
        missing = {getattr(record, name) is None for name in names}
        assert missing == {record.iteration not in evaluated}
    # What is not evaluated is trained all the same.
    full = IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=iterations)
    assert history.column("objective") == full.column("objective")


@pytest.mark.parametrize(("growth", "maximum"), [(1.1, 1e6), (1.5, 0.5), (1.0, 1e6), (3.0, 0.2)])
def test_penalty_follows_its_schedule(growth, maximum):
    trainer = IPDLAM(make_model(WIDTHS), penalty=0.2, penalty_growth=growth, penalty_max=maximum)
    history = trainer.fit(X, Y, iterations=5)
    expected, rho = [], 0.2
    for _ in range(5):
        expected.append(rho)
        rho = min(growth * rho, maximum)
    assert history.column("penalty") == pytest.approx(expected, rel=1e-12)
    assert max(history.column("penalty")) <= maximum


@pytest.mark.parametrize("order", ORDERS)
def test_objective_adds_up_and_agrees_with_the_record(order):
    trainer = IPDLAM(make_model(WIDTHS), order=order, regularizer="ridge", penalty=0.3)
    trainer.start(X, Y)
    for _ in range(4):
        record, objective = trainer.step(), trainer.objective()
        gaps = sum(objective.linear_gap) + sum(objective.activation_gap)
        assert objective.value == pytest.approx(
            objective.loss + objective.regularization + 0.5 * objective.penalty * gaps, rel=1e-14
        )
        assert objective.lyapunov == pytest.approx(
            objective.value + 0.5 * objective.penalty * objective.inertial_energy, rel=1e-14
        )
        for part in (objective.loss, objective.regularization, objective.inertial_energy, gaps):
            assert part > 0.0  # or a term that is left out would not show
        for name in ("penalty", "loss", "regularization", "linear_gap", "activation_gap", "lyapunov"):
            assert getattr(record, name) == getattr(objective, name)
        assert record.objective == objective.value


def test_objective_at_the_start_is_that_of_the_forward_pass():
    model = make_model(WIDTHS)
    trainer = IPDLAM(model, penalty=0.3, regularizer=None)
    trainer.start(X, Y)
    objective = trainer.objective()
    with torch.no_grad():
        loss = 0.5 * (model(X) - nn.functional.one_hot(Y, 3)).square().sum()
    assert objective.loss == pytest.approx(float(loss), rel=1e-12)
    assert objective.value == pytest.approx(float(loss), rel=1e-12)
    assert sum(objective.linear_gap) == pytest.approx(0.0, abs=1e-24)
    assert objective.activation_gap == (0.0, 0.0)
    assert objective.penalty == 0.3
    assert len(trainer.history) == 0


def test_seconds_never_decrease():
    seconds = IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=6).column("seconds")
    assert seconds[0] > 0.0
    assert seconds == sorted(seconds)


def test_seconds_do_not_count_evaluation(monkeypatch):
    real = ipdlam.training.evaluation.evaluate

    def slow(model, loss, samples, chunk_size):
        time.sleep(0.3)
        return real(model, loss, samples, chunk_size)

    monkeypatch.setattr(ipdlam.training.evaluation, "evaluate", slow)
    started = time.perf_counter()
    # Two iterations: the clock of the second would hold the evaluation of the first.
    history = IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=2, validation_data=(X_NEW, Y_NEW))
    assert time.perf_counter() - started > 1.1
    assert 0.0 < history[-1].seconds < 0.3


# --- step by step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_fit_is_start_and_steps(order):
    fitted, stepped = make_model(WIDTHS), make_model(WIDTHS)
    settings = {"order": order, "regularizer": "ridge", "chunk_size": 16}
    weight = torch.linspace(0.5, 1.5, N, dtype=torch.float64)
    data = {"sample_weight": weight, "validation_data": (X_NEW, Y_NEW)}
    snapshots = Snapshots(fitted)
    history = IPDLAM(fitted, **settings).fit(X, Y, iterations=4, callbacks=[snapshots], **data)
    trainer = IPDLAM(stepped, **settings)
    trainer.start(X, Y, **data)
    for k in range(1, 5):
        record = trainer.step()
        assert record is trainer.history[-1]
        assert same(weights(stepped), snapshots.weights[k])
    assert without_time(history) == without_time(trainer.history)
    assert trainer.history.stop_reason is None


@pytest.mark.parametrize("order", ORDERS)
def test_step_continues_after_fit(order):
    whole, parted = make_model(WIDTHS), make_model(WIDTHS)
    expected = IPDLAM(whole, order=order).fit(X, Y, iterations=5)
    trainer = IPDLAM(parted, order=order)
    trainer.fit(X, Y, iterations=3)
    assert trainer.step().iteration == 4
    trainer.step()
    assert same(weights(whole), weights(parted))
    assert without_time(expected) == without_time(trainer.history)


def test_fit_starts_again_from_the_weights_of_the_model():
    model = make_model(WIDTHS)
    trainer = IPDLAM(model)
    first = trainer.fit(X, Y, iterations=3)
    twin = copy.deepcopy(model)
    second = trainer.fit(X, Y, iterations=2)
    assert second.column("iteration") == [1, 2]
    assert len(first) == 3
    expected = IPDLAM(twin).fit(X, Y, iterations=2)
    assert without_time(second) == without_time(expected)
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("regularizer", [{}, {"regularizer": None}, {"regularizer": "l1"}], ids=str)
def test_dlam_is_ipdlam_without_inertia_and_proximity(order, dtype, regularizer):
    first, second, other = (make_model(WIDTHS, dtype=dtype) for _ in range(3))
    settings = {"order": order, "penalty": 0.2, "penalty_growth": 1.3, "penalty_max": 0.4, "chunk_size": 16}
    settings |= regularizer
    by_name = DLAM(first, **settings).fit(X, Y, iterations=4)
    by_settings = IPDLAM(second, inertia=0.0, proximity=0.0, **settings).fit(X, Y, iterations=4)
    assert same(weights(first), weights(second))
    assert without_time(by_name) == without_time(by_settings)
    assert by_name.column("lyapunov") == by_name.column("objective")
    IPDLAM(other, inertia=0.0, proximity=1.0, **settings).fit(X, Y, iterations=4)
    assert not same(weights(first), weights(other))


# --- how a run ends -------------------------------------------------------------------------------------------------


def test_restore_best_by_validation_score(monkeypatch):
    script_scores(monkeypatch, training=[0.1, 0.2, 0.3, 0.9, 0.8, 0.7], validation=[0.1, 0.6, 0.2, 0.6, 0.3, 0.5])
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    trainer = IPDLAM(model)
    history = trainer.fit(X, Y, iterations=6, restore_best=True, validation_data=(X_NEW, Y_NEW), callbacks=[snapshots])
    assert len(history) == 6
    assert history.best.iteration == 2  # the first of two equals
    assert same(weights(model), snapshots.weights[2])
    assert not any(same(weights(model), snapshots.weights[k]) for k in (0, 1, 3, 4, 5, 6))


def test_restore_best_by_training_score(monkeypatch):
    script_scores(monkeypatch, training=[0.1, 0.2, 0.3, 0.9, 0.8, 0.7])
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    history = IPDLAM(model).fit(X, Y, iterations=6, restore_best=True, callbacks=[snapshots])
    assert history.best.iteration == 4
    assert same(weights(model), snapshots.weights[4])


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("targets", ["labels", "real"])
def test_restored_model_has_the_best_score_of_the_history(validated, targets):
    """The same with real scores, measured again on the model that is left."""
    y, y_new = (Y, Y_NEW) if targets == "labels" else (TARGETS, make_data(VALIDATION, 5, 3, "squared", seed=1)[1])
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    # Strong inertia makes the score rise and fall.
    trainer = IPDLAM(model, inertia=0.95, proximity=5.0, penalty=1.0)
    data = {"validation_data": (X_NEW, y_new)} if validated else {}
    history = trainer.fit(X, y, iterations=12, restore_best=True, callbacks=[snapshots], **data)
    best = history.best
    assert best.score == max(history.column("score"))
    assert same(weights(model), snapshots.weights[best.iteration])
    inputs, wanted = (X_NEW, y_new) if validated else (X, y)
    with torch.no_grad():
        outputs = model(inputs)
    if targets == "labels":
        score = (outputs.argmax(1) == wanted).double().mean()
    else:
        score = -0.5 * (outputs - wanted).square().sum(1).mean()
    assert float(score) == pytest.approx(best.score, rel=1e-12)


def test_without_restore_best_the_last_weights_stay(monkeypatch):
    script_scores(monkeypatch, training=[0.9, 0.1, 0.1])
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    IPDLAM(model).fit(X, Y, iterations=3, callbacks=[snapshots])
    assert same(weights(model), snapshots.weights[3])


def test_restore_best_among_the_evaluated(monkeypatch):
    script_scores(monkeypatch, training=[0.2, 0.8, 0.5])
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    history = IPDLAM(model).fit(X, Y, iterations=6, evaluate_every=2, restore_best=True, callbacks=[snapshots])
    assert history.best.iteration == 4
    assert same(weights(model), snapshots.weights[4])


@pytest.mark.parametrize(
    ("patience", "scores", "length"),
    [
        (1, [0.1, 0.2, 0.2, 0.9, 0.9], 3),  # no better is not better
        (2, [0.1, 0.2, 0.1, 0.3, 0.2, 0.3, 0.9], 6),  # a better score starts the count again
        (3, [0.5, 0.1, 0.2, 0.3, 0.9], 4),
        (5, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 7),
    ],
)
def test_patience(monkeypatch, patience, scores, length):
    script_scores(monkeypatch, training=scores)
    history = IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=7, patience=patience)
    assert len(history) == length
    assert history.stop_reason == ("patience" if length < 7 else "iterations")


def test_patience_counts_evaluations_not_iterations(monkeypatch):
    script_scores(monkeypatch, training=[0.5, 0.4, 0.3, 0.2])
    history = IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=20, patience=2, evaluate_every=3)
    assert len(history) == 9
    assert history.stop_reason == "patience"


def test_patience_leaves_the_best_weights_if_asked(monkeypatch):
    script_scores(monkeypatch, training=[0.1, 0.6, 0.5, 0.4, 0.9])
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    IPDLAM(model).fit(X, Y, iterations=9, patience=2, restore_best=True, callbacks=[snapshots])
    assert max(snapshots.weights) == 4
    assert same(weights(model), snapshots.weights[2])


def test_target_score(monkeypatch):
    script_scores(monkeypatch, training=[0.99] * 9, validation=[0.1, 0.4, 0.5, 0.8])
    history = IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=9, target_score=0.5, validation_data=(X_NEW, Y_NEW))
    assert len(history) == 3
    assert history.stop_reason == "target_score"


def test_target_score_of_a_regression_is_minus_a_loss():
    losses = IPDLAM(make_model(WIDTHS)).fit(X, TARGETS, iterations=6).column("train_loss")
    reached = next(k for k, loss in enumerate(losses, start=1) if loss <= losses[3])
    history = IPDLAM(make_model(WIDTHS)).fit(X, TARGETS, iterations=6, target_score=-losses[3])
    assert len(history) == reached
    assert history.stop_reason == "target_score"


def test_unreached_target_ends_by_iterations(monkeypatch):
    script_scores(monkeypatch, training=[0.1, 0.2, 0.3])
    history = IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=3, target_score=0.9)
    assert len(history) == 3
    assert history.stop_reason == "iterations"


def test_callbacks_get_every_record_in_turn_and_cannot_change_it():
    seen = []

    def vandal(record):
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.objective = 0.0
        seen.append(("first", record))

    trainer = IPDLAM(make_model(WIDTHS))
    history = trainer.fit(X, Y, iterations=3, callbacks=[vandal, lambda record: seen.append(("second", record))])
    assert [name for name, _ in seen] == ["first", "second"] * 3
    assert [record for name, record in seen if name == "first"] == list(history)


def test_callbacks_may_come_from_a_generator():
    seen = []
    callbacks = (callback for callback in [seen.append])
    IPDLAM(make_model(WIDTHS)).fit(X, Y, iterations=3, callbacks=callbacks)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("error", "reason"), [(StopTraining("good enough"), "good enough"), (StopTraining(), "callback")]
)
def test_a_callback_may_stop_the_run(error, reason):
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    trainer = IPDLAM(model)
    history = trainer.fit(X, Y, iterations=9, callbacks=[snapshots, raise_at(2, error)])
    assert len(history) == 2
    assert history.stop_reason == reason
    assert same(weights(model), snapshots.weights[2])
    assert trainer.step().iteration == 3


def test_stopping_leaves_the_best_weights_if_asked(monkeypatch):
    script_scores(monkeypatch, training=[0.7, 0.2, 0.3])
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    callbacks = [snapshots, raise_at(3, StopTraining("enough"))]
    IPDLAM(model).fit(X, Y, iterations=9, restore_best=True, callbacks=callbacks)
    assert same(weights(model), snapshots.weights[1])


def test_another_error_in_a_callback_propagates():
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    trainer = IPDLAM(model)
    with pytest.raises(LookupError, match="a fault of the callback"):
        trainer.fit(X, Y, iterations=9, callbacks=[snapshots, raise_at(3, LookupError("a fault of the callback"))])
    assert same(weights(model), snapshots.weights[3])
    assert trainer.history.column("iteration") == [1, 2, 3]
    # The iteration itself was finished, so the run can go on as if nothing had happened.
    trainer.step()
    twin = make_model(WIDTHS)
    IPDLAM(twin).fit(X, Y, iterations=4)
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize("order", ORDERS)
def test_interrupt_in_a_callback(order):
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    trainer = IPDLAM(model, order=order)
    with no_stray_interrupt():
        history = trainer.fit(X, Y, iterations=9, callbacks=[snapshots, raise_at(2, KeyboardInterrupt())])
    assert len(history) == 2
    assert history.stop_reason == "interrupted"
    assert same(weights(model), snapshots.weights[2])
    assert is_finite(weights(model))
    trainer.step()
    twin = make_model(WIDTHS)
    IPDLAM(twin, order=order).fit(X, Y, iterations=3)
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunks_done", [0, 2])
def test_interrupt_in_the_middle_of_a_pass(monkeypatch, order, chunks_done):
    real = ipdlam.fullbatch.passes.update_a
    calls = {"armed": False, "left": chunks_done}

    def interrupted(*args, **keywords):
        if calls["armed"]:
            if calls["left"] == 0:
                raise KeyboardInterrupt
            calls["left"] -= 1
        return real(*args, **keywords)

    def arm(record):
        calls["armed"] = True

    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    trainer = IPDLAM(model, order=order, chunk_size=16)
    with monkeypatch.context() as patch, no_stray_interrupt():
        patch.setattr(ipdlam.fullbatch.passes, "update_a", interrupted)
        history = trainer.fit(X, Y, iterations=9, callbacks=[snapshots, arm])
    assert calls["left"] == 0
    assert len(history) == 1
    assert history.stop_reason == "interrupted"
    assert same(weights(model), snapshots.weights[1])
    with torch.no_grad():
        assert is_finite([model(X)])
    # The half-done iteration cannot be taken up again, and says so; the weights can.
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the last iteration did not end; call start\(X, y\)"):
            trainer.step()
    assert same(weights(model), snapshots.weights[1])
    twin = copy.deepcopy(model)
    trainer.start(X, Y)
    trainer.step()
    IPDLAM(twin, order=order, chunk_size=16).fit(X, Y, iterations=1)
    assert same(weights(model), weights(twin))


def test_interrupt_in_the_middle_of_a_pass_leaves_the_best_weights_if_asked(monkeypatch):
    script_scores(monkeypatch, training=[0.7, 0.2, 0.3])
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)

    def interrupted(*args, **keywords):
        raise KeyboardInterrupt

    def arm(record):
        if record.iteration == 3:
            monkeypatch.setattr(ipdlam.fullbatch.trainer, "solve_weights", interrupted)

    with no_stray_interrupt():
        history = IPDLAM(model).fit(X, Y, iterations=9, restore_best=True, callbacks=[snapshots, arm])
    assert len(history) == 3
    assert history.stop_reason == "interrupted"
    assert same(weights(model), snapshots.weights[1])


# --- scores that are not finite -------------------------------------------------------------------------------------


def scored_with(monkeypatch, *losses):
    """Let the validation losses of a run be these."""
    given = iter(losses)
    monkeypatch.setattr(
        IPDLAM, "_scores", lambda self, run: {"train_loss": 1.0, "validation_loss": next(given)}, raising=True
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_never_the_best(monkeypatch, bad):
    scored_with(monkeypatch, bad, 3.0, 2.0, bad, 2.5)
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    history = IPDLAM(model).fit(X, TARGETS, iterations=5, restore_best=True, callbacks=[snapshots])
    assert history.best.iteration == 3
    assert same(weights(model), snapshots.weights[3])


def test_a_score_that_is_not_finite_does_not_count_for_patience(monkeypatch):
    scored_with(monkeypatch, math.nan, math.inf, 3.0, 4.0, math.nan, 5.0, 6.0)
    history = IPDLAM(make_model(WIDTHS)).fit(X, TARGETS, iterations=7, patience=2)
    assert (len(history), history.stop_reason) == (6, "patience")


def test_a_run_whose_validation_overflows_can_be_resumed(tmp_path):
    model = make_model(WIDTHS, dtype=torch.float32)
    held_out = 1e30 * X_NEW, torch.zeros(VALIDATION, 3)
    trainer = IPDLAM(model)
    history = trainer.fit(X, TARGETS, iterations=2, validation_data=held_out, restore_best=True)
    assert history[-1].validation_loss == math.inf
    assert history.best is None
    trainer.save(tmp_path / "checkpoint")
    again = IPDLAM.load(tmp_path / "checkpoint", copy.deepcopy(model), X, TARGETS, validation_data=held_out)
    assert len(again.continue_fit(iterations=1)) == 3


# --- divergence -----------------------------------------------------------------------------------------------------


def poison_from(monkeypatch, name, value, iteration):
    """A callback after which an update of the trainer gives ``value``; what it returns is written in place too."""
    home = ipdlam.fullbatch.trainer if hasattr(ipdlam.fullbatch.trainer, name) else ipdlam.fullbatch.passes
    real = getattr(home, name)

    def poisoned(*args, **keywords):
        return real(*args, **keywords).fill_(value)

    def arm(record):
        if record.iteration == iteration:
            monkeypatch.setattr(home, name, poisoned)

    return arm


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["update_W", "update_b", "update_a", "update_hidden_z", "update_output_z"])
def test_divergence_leaves_the_last_finite_iterate(monkeypatch, name, value, order):
    model = make_model(WIDTHS)
    snapshots = Snapshots(model)
    trainer = IPDLAM(model, order=order, chunk_size=16)
    arm = poison_from(monkeypatch, name, value, iteration=2)
    with pytest.raises(DivergenceError) as caught:
        trainer.fit(X, Y, iterations=9, callbacks=[snapshots, arm])
    history = caught.value.history
    # z updates of the fourth iteration are made in the pass of the third, whose own iterate is still sound.
    ahead = (name == "update_output_z") or (name == "update_hidden_z" and order != "nested-reverse")
    last = 3 if ahead else 2
    assert history is trainer.history
    assert history.column("iteration") == list(range(1, last + 1))
    assert all(math.isfinite(record.lyapunov) for record in history)
    assert history.stop_reason == "diverged"
    assert f"iteration {last + 1} is not finite" in str(caught.value)
    assert f"weights of iteration {last}" in str(caught.value)
    assert "inertia" in str(caught.value)
    assert same(weights(model), snapshots.weights[last])
    with pytest.raises(RuntimeError, match=r"call start\(X, y\)"):
        trainer.step()


def test_divergence_error_is_arithmetic():
    assert issubclass(DivergenceError, ArithmeticError)


def test_divergence_of_the_last_layer_alone_is_seen_in_a_single_layer(monkeypatch):
    model = make_model([5, 3])
    snapshots = Snapshots(model)
    arm = poison_from(monkeypatch, "update_b", math.nan, iteration=1)
    with pytest.raises(DivergenceError) as caught:
        IPDLAM(model).fit(X, Y, iterations=9, callbacks=[snapshots, arm])
    assert len(caught.value.history) == 1
    assert same(weights(model), snapshots.weights[1])


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_huge_inputs_diverge_at_once(loss):
    model = make_model(WIDTHS, dtype=torch.float32)
    before = weights(model)
    trainer = IPDLAM(model, loss=loss)
    with pytest.raises(DivergenceError, match=r"(?s)not finite.*scale the inputs") as caught:
        trainer.fit(1e30 * X, Y, iterations=5)
    assert len(caught.value.history) == 0
    assert caught.value.history.stop_reason == "diverged"
    assert same(before, weights(model))
    # Nothing is left of the run that would spoil the next one.
    history = trainer.fit(X, Y, iterations=2)
    assert len(history) == 2


@pytest.mark.parametrize("order", ORDERS)
def test_huge_inputs_diverge_in_the_sums(order):
    """The first iterate is finite, because the weights are zero, but the sums of squares are not."""
    model = make_model(WIDTHS, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    trainer = IPDLAM(model, order=order)
    with pytest.raises(DivergenceError, match="iteration 1 is not finite") as caught:
        trainer.fit(1e30 * X, Y, iterations=5)
    assert len(caught.value.history) == 0
    assert caught.value.history.stop_reason == "diverged"
    assert all(bool((weight == 0).all()) for weight in weights(model))


@pytest.mark.parametrize(
    ("dtype", "inertia"),
    [
        (torch.float64, 1.5),  # in float32 this one wanders without ever becoming non-finite
        *[(dtype, inertia) for dtype in (torch.float32, torch.float64) for inertia in (3.0, 10.0)],
    ],
)
@pytest.mark.filterwarnings("ignore:inertia .* is 1 or more")
def test_too_much_inertia_diverges_naturally(dtype, inertia):
    model = make_model([5, 6, 3], dtype=dtype)
    snapshots = Snapshots(model)
    trainer = IPDLAM(model, inertia=inertia)
    with pytest.raises(DivergenceError) as caught:
        trainer.fit(X, Y, iterations=3000, evaluate_every=3000, callbacks=[snapshots])
    history = caught.value.history
    assert len(history) > 1
    assert history.stop_reason == "diverged"
    assert all(math.isfinite(record.loss) for record in history)
    assert is_finite(weights(model))
    assert same(weights(model), snapshots.weights[len(history)])


# --- no back-propagation --------------------------------------------------------------------------------------------


def test_the_detectors_see_an_ordinary_forward_and_backward_pass():
    model = make_model(WIDTHS)
    with pytest.raises(BackPropagationError, match="saved for a backward pass"), no_graph():
        model(X).sum()
    with pytest.raises(BackPropagationError, match="saved for a backward pass"), no_back_propagation():
        model(X).sum()
    loss = model(X).sum()
    with pytest.raises(BackPropagationError, match="threshold_backward"), NoBackwardOperators():
        loss.backward()
    with no_back_propagation(), torch.no_grad():
        model(X).sum()  # so the detectors do not refuse everything


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus"])
def test_a_step_does_not_back_propagate(order, activation):
    model = make_model(WIDTHS, activation)
    trainer = IPDLAM(model, order=order, regularizer=["l1", "ridge", None])
    inputs = X.clone().requires_grad_()
    with no_back_propagation():
        trainer.start(inputs, Y, validation_data=(X_NEW, Y_NEW))
        assert torch.is_grad_enabled()
        for _ in range(3):
            trainer.step()
        trainer.objective()
        assert torch.is_grad_enabled()
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
        assert parameter.grad_fn is None
        assert parameter.is_leaf
    assert inputs.grad is None


@pytest.mark.parametrize("loss", ipdlam.prox.LOSSES)
def test_no_loss_back_propagates(loss):
    model = make_model([5, 6, 3])
    with no_back_propagation():
        IPDLAM(model, loss=loss).fit(X, Y, iterations=2)
    assert all(parameter.grad is None and parameter.grad_fn is None for parameter in model.parameters())


@pytest.mark.parametrize("restore_best", [False, True])
def test_fit_does_not_back_propagate(restore_best):
    model = make_model(WIDTHS)
    with no_back_propagation():
        ipdlam.initialise(model, "he")
        trainer = IPDLAM(model)
        trainer.fit(X, Y, iterations=3, validation_data=(X_NEW, Y_NEW), restore_best=restore_best)
    assert all(parameter.grad is None and parameter.grad_fn is None for parameter in model.parameters())


def test_a_trained_model_can_go_on_with_gradients():
    model = make_model(WIDTHS)
    IPDLAM(model).fit(X, Y, iterations=2)
    nn.functional.cross_entropy(model(X), Y).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_divergence_can_be_pickled():
    """Sweeps in several processes send exceptions through pickle."""
    error = DivergenceError("iteration 2 is not finite", History([], "diverged"))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.history.stop_reason == "diverged"
