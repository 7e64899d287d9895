"""The classical optimizers: they take the steps they should, and keep the protocol of what they are compared to."""

from __future__ import annotations

import copy
import functools
import math
import time

import numpy as np
import pytest
import torch
from torch import nn

from ipdlam import DivergenceError
from ipdlam.baselines import OPTIMIZERS, BackPropagation
from ipdlam.prox import LOSSES, Huber
from problems import make_data, make_model

N, VALIDATION = 60, 25
WIDTHS = [5, 8, 7, 3]
X, Y = make_data(N, 5, 3, "cross_entropy")
X_NEW, Y_NEW = make_data(VALIDATION, 5, 3, "cross_entropy", seed=1)
TARGETS = make_data(N, 5, 3, "squared")[1]

# Each optimizer measures its steps in a unit of its own.
RATES = {
    "sgd": 0.3,
    "adagrad": 0.05,
    "adadelta": 1.0,
    "rmsprop": 0.002,
    "adam": 0.005,
    "amsgrad": 0.005,
    "adamax": 0.01,
    "adamw": 0.005,
    "nadam": 0.005,
    "radam": 0.01,
}


@functools.cache
def digits():
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    return torch.from_numpy(images / 16.0).float(), torch.from_numpy(labels)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first, second):
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def keep_weights(model, kept):
    """A callback that keeps the model's weights after every epoch; those before the first are number 0."""
    kept[0] = weights(model)

    def callback(record):
        kept[record.iteration] = weights(model)

    return callback


# --- what is computed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns(optimizer):
    images, labels = digits()
    model = make_model([64, 32, 10], dtype=torch.float32)
    trainer = BackPropagation(
        model, optimizer, loss="cross_entropy", learning_rate=RATES[optimizer], batch_size=64, seed=1
    )
    history = trainer.fit(images, labels, epochs=15, evaluate_every=15)
    assert history[-1].train_accuracy > 0.9
    assert history[-1].objective < 0.5 * history[0].objective


def test_the_optimizers_are_all_different():
    found = []
    for optimizer in OPTIMIZERS:
        model = make_model(WIDTHS)
        # Large steps up and down: amsgrad is adam until a gradient gets smaller.
        BackPropagation(model, optimizer, learning_rate=0.05, batch_size=7).fit(X, Y, epochs=8)
        found.append(weights(model))
    assert not any(same(a, b) for k, a in enumerate(found) for b in found[:k])


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_differentiated(loss):
    """One step of sgd moves the weights along the finite differences of the mean loss, and the loss decreases."""
    inputs, targets = make_data(N, 5, 3, loss)
    model = make_model(WIDTHS, "tanh")
    twin, rate, width = copy.deepcopy(model), 1e-3, 1e-6
    record = BackPropagation(model, "sgd", loss=loss, learning_rate=rate).fit(inputs, targets, epochs=1)[0]
    known = LOSSES[loss]()
    encoded = targets if targets.ndim == 2 else known.encode(targets, 3, torch.float64)

    @torch.no_grad()
    def mean_loss():
        return float(known.value(encoded, twin(inputs)).mean())

    before = mean_loss()
    assert record.objective == pytest.approx(N * before, rel=1e-12)
    assert record.train_loss < before
    for trained, parameter in zip(model.parameters(), twin.parameters(), strict=True):
        flat = parameter.data.view(-1)
        for place in (0, len(flat) // 2, len(flat) - 1):
            kept = float(flat[place])
            flat[place] = kept + width
            above = mean_loss()
            flat[place] = kept - width
            slope = (above - mean_loss()) / (2 * width)
            flat[place] = kept
            moved = float(trained.data.view(-1)[place]) - kept
            assert moved == pytest.approx(-rate * slope, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_one_epoch_of_full_batch_sgd_is_the_gradient_step(weighted):
    model = make_model([5, 3])
    W, b = (tensor.numpy().copy() for tensor in weights(model))
    weight = np.linspace(0.0, 2.0, N) if weighted else np.ones(N)
    inputs, targets = X.numpy(), TARGETS.numpy()
    residual = inputs @ W.T + b - targets
    share = (weight / weight.sum())[:, None]
    trainer = BackPropagation(model, "sgd", learning_rate=0.2, batch_size=N)
    history = trainer.fit(inputs, targets, epochs=1, sample_weight=weight if weighted else None)
    stepped_W, stepped_b = W - 0.2 * (share * residual).T @ inputs, b - 0.2 * (share * residual).sum(0)
    assert model[0].weight.detach().numpy() == pytest.approx(stepped_W, rel=1e-12)
    assert model[0].bias.detach().numpy() == pytest.approx(stepped_b, rel=1e-12)
    assert history[0].objective == pytest.approx(0.5 * (weight[:, None] * residual**2).sum(), rel=1e-12)
    after = 0.5 * ((inputs @ stepped_W.T + stepped_b - targets) ** 2).sum(1)
    assert history[0].train_loss == pytest.approx((weight * after).sum() / weight.sum(), rel=1e-12)


def test_every_sample_is_seen_once_an_epoch_in_a_new_order():
    seen = []
    model = make_model(WIDTHS)
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    trainer = BackPropagation(model, batch_size=16)
    trainer.start(X, Y)
    orders = []
    for _ in range(2):
        seen.clear()
        trainer.step(evaluate=False)
        assert [len(batch) for batch in seen] == [16, 16, 16, 12]
        met = torch.cat(seen)
        assert torch.equal(met.sort(0).values, X.sort(0).values)
        orders.append(met)
    assert not torch.equal(orders[0], X)
    assert not torch.equal(orders[0], orders[1])


# --- the protocol ---------------------------------------------------------------------------------------------------


def test_records_of_an_optimizer_are_those_of_the_method():
    trainer = BackPropagation(make_model(WIDTHS), learning_rate=0.01, chunk_size=16)
    history = trainer.fit(X, Y, epochs=3, validation_data=(X_NEW, Y_NEW))
    assert history is trainer.history
    assert history.stop_reason == "iterations"
    assert history.column("iteration") == [1, 2, 3]
    for record in history:
        assert record.objective == record.loss == record.lyapunov > 0.0
        assert (record.penalty, record.regularization) == (0.0, 0.0)
        assert (record.linear_gap, record.activation_gap) == ((0.0,) * 3, (0.0,) * 2)
        assert type(record.objective) is float
    with torch.no_grad():
        outputs = trainer.model(X_NEW)
    loss = 0.5 * (outputs - nn.functional.one_hot(Y_NEW, 3)).square().sum(1).mean()
    assert history[-1].validation_loss == pytest.approx(float(loss), rel=1e-12)
    assert history[-1].validation_accuracy == pytest.approx(float((outputs.argmax(1) == Y_NEW).double().mean()))


def test_seconds_do_not_count_what_torch_loads_at_the_start(monkeypatch):
    begin = BackPropagation._begin

    def slow(self, samples, validation):
        time.sleep(0.3)
        return begin(self, samples, validation)

    monkeypatch.setattr(BackPropagation, "_begin", slow)
    (record,) = BackPropagation(make_model(WIDTHS)).fit(X, Y, epochs=1)
    assert 0.0 < record.seconds < 0.3


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_without_gradients_and_in_its_mode(training):
    model = make_model(WIDTHS).train(training)
    model(X).sum().backward()  # gradients of the user's own
    trainer = BackPropagation(model, "sgd", batch_size=N)
    twin = copy.deepcopy(model)
    trainer.fit(X, Y, epochs=2)
    trainer.step()
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(module.training is training for module in model.modules())
    twin.zero_grad()
    BackPropagation(twin, "sgd", batch_size=N).fit(X, Y, epochs=3)
    assert same(weights(model), weights(twin))


# --- how a run ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divergence_leaves_the_last_finite_weights(dtype):
    model, kept = make_model(WIDTHS, dtype=dtype), {}
    trainer = BackPropagation(model, "sgd", learning_rate=1e3, batch_size=N)
    with pytest.raises(DivergenceError, match=r"epoch \d+ is not finite.*learning_rate below 1000") as caught:
        trainer.fit(X, Y, epochs=100, callbacks=[keep_weights(model, kept)])
    history = caught.value.history
    assert history is trainer.history
    assert history.stop_reason == "diverged"
    assert 1 <= len(history) < 100
    assert same(weights(model), kept[len(history)])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(model))
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="did not end"):
        trainer.step()
    trainer.start(X, Y)  # the weights are huge, but sound


def test_weights_that_become_infinite_in_the_last_step_are_noticed():
    """The losses of the epoch were all finite: only the weights tell."""
    model = make_model([5, 3], dtype=torch.float32)
    before = weights(model)
    with pytest.raises(DivergenceError, match="epoch 1 is not finite; the model holds the weights of epoch 0"):
        BackPropagation(model, "sgd", learning_rate=1e30, batch_size=N).fit(1e9 * X, Y, epochs=1)
    assert same(weights(model), before)


def test_ctrl_c_within_an_epoch_leaves_the_epoch_before():
    model, kept, passes = make_model(WIDTHS), {}, []

    def interrupt(module, inputs):
        passes.append(None)
        if len(passes) == 6:  # four batches to an epoch, nothing evaluated
            raise KeyboardInterrupt

    model.register_forward_pre_hook(interrupt)
    trainer = BackPropagation(model, batch_size=16)
    history = trainer.fit(X, Y, epochs=9, evaluate_every=9, callbacks=[keep_weights(model, kept)])
    assert (len(history), history.stop_reason) == (1, "interrupted")
    assert len(passes) == 6
    assert same(weights(model), kept[1])
    assert all(parameter.grad is None for parameter in model.parameters())


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adagrad, .*, or a function of .*, got 'lion'"),
        ({"optimizer": ["adam"]}, r"optimizer must be one of .*, got \['adam'\]"),
        ({"loss": "l2"}, "loss must be one of squared, .*, got 'l2'"),
        ({"loss": Huber}, r"write Huber\(\)"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number > 0 .*, got 0.0"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number > 0 .*, got -1.0"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number > 0 .*, got nan"),
        ({"learning_rate": 1e31}, r"learning_rate must be a finite number > 0 and <= 1e\+30, got 1e\+31"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer >= 1, got 2.5"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"seed": 2**64}, "seed must be below 2\\*\\*64"),
        ({"chunk_size": 0}, "chunk_size must be an integer >= 1, got 0"),
    ],
    ids=str,
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        BackPropagation(make_model(WIDTHS), **settings)


def test_a_rate_must_be_a_number():
    with pytest.raises(TypeError, match=r"learning_rate must be a number, got '0\.1'"):
        BackPropagation(make_model(WIDTHS), learning_rate="0.1")


def test_the_largest_seed_works():
    BackPropagation(make_model(WIDTHS), seed=2**64 - 1).fit(X, Y, epochs=1)


# --- optimizers of one's own ------------------------------------------------------------------------------------------


def trained(optimizer, **settings):
    model, (inputs, labels) = make_model([4, 6, 3], dtype=torch.float64), make_data(30, 4, 3, "cross_entropy")
    trainer = BackPropagation(model, optimizer, loss="cross_entropy", batch_size=8, **settings)
    trainer.fit(inputs, labels, epochs=3)
    return trainer


def test_a_class_of_torch_is_its_name():
    by_class, by_name = trained(torch.optim.AdamW), trained("adamw")
    assert by_class.optimizer == by_name.optimizer == by_class.history[0].optimizer == "adamw"
    assert all(torch.equal(a, b) for a, b in zip(by_class.model.parameters(), by_name.model.parameters(), strict=True))
    assert by_class.settings_dict() == by_name.settings_dict()


def test_any_function_that_makes_an_optimizer_will_do(tmp_path, monkeypatch):
    momentum = functools.partial(torch.optim.SGD, momentum=0.9)
    trainer, plain = trained(momentum, learning_rate=0.1), trained("sgd", learning_rate=0.1)
    assert trainer.optimizer == "sgd"
    assert not torch.equal(trainer.model[0].weight, plain.model[0].weight)
    with pytest.raises(ValueError, match=r"optimizer sgd is in no registry, so it cannot be saved; give it a name"):
        trainer.save(tmp_path / "c")
    monkeypatch.setitem(OPTIMIZERS, "momentum", momentum)
    named = trained("momentum", learning_rate=0.1)
    named.save(tmp_path / "c")
    (inputs, labels), again = make_data(30, 4, 3, "cross_entropy"), make_model([4, 6, 3], seed=2, dtype=torch.float64)
    loaded = BackPropagation.load(tmp_path / "c", again, inputs, labels)
    for each in (loaded, named):
        each.continue_fit(epochs=2)
    assert torch.equal(loaded.model[0].weight, named.model[0].weight)


def test_what_makes_no_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"optimizer <lambda> must make a torch\.optim\.Optimizer, got"):
        trained(lambda parameters, lr: list(parameters))
