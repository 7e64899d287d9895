"""Runs from start to end: what fit records, how it stops, and which weights it leaves whatever happens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import ipdlam
import ipdlam.fullbatch.trainer
from contracts import Snapshots, is_finite, weights
from contracts import equal as same
from detectors import BackPropagationError, NoBackwardOperators, no_back_propagation, no_graph
from ipdlam import DLAM, IPDLAM, DivergenceError
from problems import make_data, make_model, without_seconds

N, VALIDATION = 60, 25
WIDTHS = [5, 8, 7, 3]
ORDERS = ("reverse", "increase", "nested-reverse")
X, Y = make_data(N, 5, 3, "cross_entropy")
X_NEW, Y_NEW = make_data(VALIDATION, 5, 3, "cross_entropy", seed=1)
TARGETS = make_data(N, 5, 3, "squared")[1]


# --- the record of a run --------------------------------------------------------------------------------------------


def test_numbers_of_a_record_are_floats_without_a_regularizer_too():
    record = IPDLAM(make_model(WIDTHS), regularizer=None).fit(X, Y, iterations=1)[0]
    assert record.regularization == 0.0
    assert type(record.regularization) is float


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


# --- step by step ---------------------------------------------------------------------------------------------------


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
    assert without_seconds(by_name) == without_seconds(by_settings)
    assert by_name.column("lyapunov") == by_name.column("objective")
    IPDLAM(other, inertia=0.0, proximity=1.0, **settings).fit(X, Y, iterations=4)
    assert not same(weights(first), weights(other))


# --- how a run ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("targets", ["labels", "real"])
def test_with_strong_inertia_the_restored_model_has_the_best_score(validated, targets):
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


# --- scores that are not finite -------------------------------------------------------------------------------------


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
