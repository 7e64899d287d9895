"""BCD and dlADMM against their definitions: a slow reference, descent of what they minimise, known solutions."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch
from torch import nn

import ipdlam
from ipdlam.baselines import BCD, DLADMM, BatchByBatch

GENERATOR = torch.Generator().manual_seed(2)
X = torch.randn(40, 5, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, 3, (40,), generator=GENERATOR)
TARGETS = torch.randn(40, 2, generator=GENERATOR, dtype=torch.float64)


def make_model(activation=nn.ReLU, widths=(5, 7, 6, 3), seed=0):
    modules = []
    for inputs, outputs in itertools.pairwise(widths):
        modules += [nn.Linear(inputs, outputs), activation()]
    return ipdlam.initialise(nn.Sequential(*modules[:-1]).double(), "he", seed=seed)


def relu_prox(w, v, r):
    """The better of the two pieces' minimisers, of (max(x, 0) - w)^2 + r (x - v)^2."""
    candidates = np.stack([np.maximum((w + r * v) / (1 + r), 0.0), np.minimum(v, 0.0)])
    values = (np.maximum(candidates, 0.0) - w) ** 2 + r * (candidates - v) ** 2
    return np.take_along_axis(candidates, values.argmin(0)[None], 0)[0]


def reference_bcd(model, X, Y, iterations, alpha=5.0):
    """The algorithm on whole arrays, one formula a line, systems solved as they stand."""
    linears = [module for module in model if isinstance(module, nn.Linear)]
    L = len(linears)
    W = {l: linears[l - 1].weight.detach().numpy().copy() for l in range(1, L + 1)}
    b = {l: linears[l - 1].bias.detach().numpy().copy() for l in range(1, L + 1)}
    N, one_hot = len(X), np.eye(W[L].shape[0])[Y]
    U, V = {}, {0: X}
    for l in range(1, L + 1):
        U[l] = V[l - 1] @ W[l].T + b[l]
        V[l] = np.maximum(U[l], 0.0) if l < L else U[l].copy()
    for _ in range(iterations):
        V[L] = (one_hot + U[L] + alpha * V[L]) / (1 + 1 + alpha)
        U[L] = (V[L] + V[L - 1] @ W[L].T + b[L]) / 2
        for l in range(L, 0, -1):
            if l < L:
                inverse = np.linalg.inv(W[l + 1].T @ W[l + 1] + np.eye(W[l + 1].shape[1]))
                V[l] = (np.maximum(U[l], 0.0) + (U[l + 1] - b[l + 1]) @ W[l + 1]) @ inverse
                centre = (V[l - 1] @ W[l].T + b[l] + alpha * U[l]) / (1 + alpha)
                U[l] = relu_prox(V[l], centre, 1 + alpha)
            A = V[l - 1]
            W[l] = ((U[l] - b[l]).T @ A + alpha * W[l]) @ np.linalg.inv(A.T @ A + alpha * np.eye(A.shape[1]))
            b[l] = ((U[l] - A @ W[l].T).sum(0) + alpha * b[l]) / (N + alpha)
    return W, b


@pytest.mark.parametrize("chunk_size", [1, 7, 40])
@pytest.mark.parametrize("widths", [(5, 3), (5, 6, 3), (5, 7, 6, 3)])
def test_bcd_is_its_definition(widths, chunk_size):
    model = make_model(widths=widths)
    W, b = reference_bcd(make_model(widths=widths), X.numpy(), Y.numpy(), iterations=6)
    BCD(model, chunk_size=chunk_size).fit(X, Y, iterations=6)
    linears = [module for module in model if isinstance(module, nn.Linear)]
    for l, linear in enumerate(linears, start=1):
        np.testing.assert_allclose(linear.weight.detach().numpy(), W[l], rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(linear.bias.detach().numpy(), b[l], rtol=1e-9, atol=1e-11)


LOSSES_OF_BCD = ("squared", "hinge", "cross_entropy", "logistic")
ACTIVATIONS_OF_BCD = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU)


@pytest.mark.parametrize(
    ("activation", "loss"),
    [  # every loss with one activation and every activation with one loss; all pairs take longer
        pytest.param(activation, loss, marks=() if loss == "squared" or activation is nn.ReLU else pytest.mark.slow)
        for activation in ACTIVATIONS_OF_BCD
        for loss in LOSSES_OF_BCD
    ],
)
def test_bcd_never_goes_up(activation, loss):
    history = BCD(make_model(activation), loss=loss).fit(X, Y, iterations=25)
    values = history.column("objective")
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(values))
    assert values[-1] < 0.9 * values[0]
    assert len(history[-1].activation_gap) == 3  # the last one is that of the output block


def test_bcd_learns_the_digits():
    data = ipdlam.datasets.load("digits")
    model = ipdlam.initialise(nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10)), "he", seed=0)
    history = BCD(model).fit(data.X, data.y, iterations=30, validation_data=(data.X_test, data.y_test))
    assert history[-1].train_accuracy > 0.9
    assert history[-1].validation_accuracy > 0.8


def lagrangian(trainer):
    """The augmented Lagrangian of dlADMM at its present variables."""
    state, network, rho = trainer._state, trainer.network, trainer.penalty
    last = len(network)
    value = float(trainer.loss.value(trainer._targets(state), state.z[last]).sum())
    for l in network.numbers:
        b = 0.0 if state.b[l] is None else state.b[l]
        residual = state.z[l] - state.a[l - 1] @ state.W[l].mT - b
        value += 0.5 * rho * float(residual.square().sum())
        if l == last:
            value += float((state.dual * residual).sum())
        else:
            gap = state.a[l] - network.activation(l).value(state.z[l])
            value += 0.5 * rho * float(gap.square().sum())
    return value


@pytest.mark.parametrize("penalty", [1e-6, 0.1, 10.0])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_no_update_of_dladmm_raises_its_lagrangian(monkeypatch, activation, penalty):
    trainer = DLADMM(make_model(activation), loss="cross_entropy", penalty=penalty)
    drops = {}
    for name in ("_update_a", "_update_z", "_update_b", "_update_W"):
        real = getattr(DLADMM, name)

        def watched(self, state, l, real=real, name=name):
            before = lagrangian(self)
            real(self, state, l)
            after = lagrangian(self)
            assert after <= before + 1e-9 * abs(before), (name, l)
            drops[name] = max(drops.get(name, 0.0), before - after)

        monkeypatch.setattr(DLADMM, name, watched)
    trainer.fit(X, Y, iterations=12)
    assert set(drops) == {"_update_a", "_update_z", "_update_b", "_update_W"}
    assert all(drop > 0 for drop in drops.values())


def test_one_layer_of_dladmm_is_least_squares():
    model = make_model(widths=(5, 2))
    history = DLADMM(model, penalty=1.0).fit(X, TARGETS, iterations=400)
    design = torch.cat([X, torch.ones(len(X), 1, dtype=torch.float64)], 1)
    solution = torch.linalg.lstsq(design, TARGETS).solution
    torch.testing.assert_close(model[0].weight.detach(), solution[:-1].mT, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(model[0].bias.detach(), solution[-1], rtol=1e-6, atol=1e-8)
    assert history[-1].linear_gap[0] < 1e-12


@pytest.mark.parametrize("dead", ["nothing to learn", "inputs of zero", "a layer that never fires"])
def test_a_gradient_of_zero_is_no_divergence(dead):
    model, inputs, targets = make_model().float(), X.float(), TARGETS.float()
    model[-1] = nn.Linear(6, 2)
    with torch.no_grad():
        if dead == "nothing to learn":
            targets = torch.zeros_like(targets)
            for parameter in model.parameters():
                parameter.zero_()
        elif dead == "inputs of zero":
            inputs = torch.zeros_like(inputs)
        else:
            model[2].bias.fill_(-50.0)
    history = DLADMM(model).fit(inputs, targets, iterations=200)  # a curvature halved so often is zero
    assert history.stop_reason == "iterations"
    assert history[-1].objective <= history[0].objective


def test_dladmm_learns_the_digits():
    data = ipdlam.datasets.load("digits")
    model = ipdlam.initialise(nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10)), "he", seed=0)
    history = DLADMM(model, penalty=1e-3).fit(data.X, data.y, iterations=150)
    assert history[-1].train_accuracy > 0.8


@pytest.mark.parametrize("kind", [BCD, DLADMM])
def test_the_clock_counts_the_start_and_not_the_objective(monkeypatch, kind):
    begin, measure = kind._begin, kind._measure

    def slow_begin(self, samples, validation):
        time.sleep(0.2)
        return begin(self, samples, validation)

    def slow_measure(self, state):
        time.sleep(0.3)
        return measure(self, state)

    monkeypatch.setattr(kind, "_begin", slow_begin)
    monkeypatch.setattr(kind, "_measure", slow_measure)
    first, second = kind(make_model()).fit(X, Y, iterations=2)
    assert 0.2 < first.seconds < second.seconds < 0.75


@pytest.mark.parametrize("kind", [BCD, DLADMM])
def test_the_start_of_a_second_method_is_added_to_the_time_of_the_first(kind):
    model = make_model()
    first = ipdlam.IPDLAM(model)
    before = first.fit(X, Y, iterations=2)[-1].seconds
    second = kind(model)
    second.start(X, Y, after=first)
    assert second._state.seconds > before


@pytest.mark.parametrize("kind", [BCD, DLADMM])
def test_layers_without_bias_and_bad_input(kind):
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False)).double()
    history = kind(model).fit(X, Y, iterations=3, validation_data=(X, Y))
    assert len(history) == 3
    assert history[-1].validation_accuracy == history[-1].train_accuracy
    with pytest.raises(ValueError, match="loss must be one of"):
        kind(make_model(), loss="nonsense")
    with pytest.raises(ValueError, match="iterations must be an integer"):
        kind(make_model()).fit(X, Y, iterations=-1)
    with pytest.raises(RuntimeError, match="no run has been started"):
        kind(make_model()).step()


def test_settings_are_checked():
    with pytest.raises(ValueError, match="proximity must be"):
        BCD(make_model(), proximity=-1.0)
    with pytest.raises(ValueError, match="penalty must be"):
        DLADMM(make_model(), penalty=0.0)
    with pytest.raises(ValueError, match="takes no sample_weight"):
        DLADMM(make_model()).start(X, Y, sample_weight=torch.ones(40))


# --- batch by batch ---------------------------------------------------------------------------------------------------

SETTINGS = {"inertia": 0.6, "proximity": 0.8, "penalty": 0.3, "penalty_growth": 1.5, "penalty_max": 0.6}


def same_weights(one, other):
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_with_one_batch_it_is_the_method(loss):
    batches, whole = make_model(), make_model()
    made = BatchByBatch(batches, loss=loss, batch_size=40, **SETTINGS).fit(X, Y, iterations=5)
    expected = ipdlam.IPDLAM(whole, loss=loss, regularizer=None, **SETTINGS).fit(X, Y, iterations=5)
    same_weights(batches, whole)
    assert made.column("objective") == pytest.approx(expected.column("objective"), rel=1e-9)
    assert made.column("lyapunov") == pytest.approx(expected.column("lyapunov"), rel=1e-9)


def test_a_fresh_batch_is_one_step_of_the_method_from_the_weights_of_the_batch_before():
    """Without inertia nothing but the weights goes on from batch to batch."""
    settings = {**SETTINGS, "inertia": 0.0, "penalty_growth": 1.0}
    batches, by_hand = make_model(), make_model()
    BatchByBatch(batches, batch_size=15, fresh=True, **settings).fit(X, Y, iterations=2)
    for _ in range(2):
        for rows in (slice(0, 15), slice(15, 30), slice(30, 40)):
            ipdlam.IPDLAM(by_hand, regularizer=None, **settings).fit(X[rows], Y[rows], iterations=1)
    same_weights(batches, by_hand)


def test_what_is_kept_is_that_of_the_sample():
    """The second pass starts from the z and a of the first: it is not that of fresh ones."""
    kept, fresh = make_model(), make_model()
    BatchByBatch(kept, batch_size=15, **SETTINGS).fit(X, Y, iterations=1)
    BatchByBatch(fresh, batch_size=15, fresh=True, **SETTINGS).fit(X, Y, iterations=1)
    first = [parameter.detach().clone() for parameter in kept.parameters()]
    assert not all(torch.equal(a, b) for a, b in zip(first, fresh.parameters(), strict=True))
    again = make_model()
    trainer = BatchByBatch(again, batch_size=15, **SETTINGS)
    trainer.start(X, Y)
    trainer.step()
    before = [parameter.detach().clone() for parameter in again.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(first, before, strict=True))
    trainer._state.variables.shard.current["z", 1].zero_()  # what is kept matters
    trainer.step()
    changed = [parameter.detach().clone() for parameter in again.parameters()]
    BatchByBatch(kept := make_model(), batch_size=15, **SETTINGS).fit(X, Y, iterations=2)
    assert not all(torch.equal(a, b) for a, b in zip(changed, kept.parameters(), strict=True))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"proximity": -1.0}, "proximity must be a finite number >= 0"),
        ({"penalty": 0.0}, "penalty must be a finite number > 0"),
    ],
)
def test_bad_settings_of_batches(given, words):
    with pytest.raises(ValueError, match=words):
        BatchByBatch(make_model(), **given)
