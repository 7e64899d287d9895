"""The mini-batch method: what it learns, from which weights, what samples count for, and how it diverges."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import ipdlam
from detectors import no_back_propagation
from ipdlam import DivergenceError, MiniBatchIPDLAM
from ipdlam.network.initialise import mlp
from ipdlam.prox import ACTIVATIONS, LOSSES
from problems import make_data, make_model

WIDTHS = [5, 8, 7, 3]
N = 60
X, Y = make_data(N, 5, 3, "cross_entropy")
TARGETS = make_data(N, 5, 3, "squared")[1]


@functools.cache
def digits():
    """All images, mixed: those of the package's own test set are of other writers, which is another question."""
    data = ipdlam.datasets.load("digits")
    images, labels = torch.cat([data.X, data.X_test]), torch.cat([data.y, data.y_test])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return (images[order[:1347]], labels[order[:1347]]), (images[order[1347:]], labels[order[1347:]])


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def finite(model):
    return all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def loss_of(model, loss, X, y):
    operator = LOSSES[loss]()
    with torch.no_grad():
        outputs = model(X)
    targets = operator.encode(y, outputs.shape[1], X.dtype) if y.ndim == 1 else y
    return float(operator.value(targets, outputs).mean())


# --- it learns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "identity"])
def test_default_settings_learn_digits(activation):
    model = mlp((64, 80, 80, 10), activation, "torch", 0, torch.float32, "cpu")
    train, held_out = digits()
    history = MiniBatchIPDLAM(model).fit(*train, epochs=10, validation_data=held_out, evaluate_every=10)
    assert history[-1].validation_accuracy >= 0.97


@pytest.mark.parametrize("scheme", ["paper", "he", "torch"])
def test_ten_layers_learn_digits_from_any_initialisation(scheme):
    """The weights of the paper are so small that nothing of the input is left after ten layers."""
    model = mlp((64, *[40] * 9, 10), "relu", scheme, 0, torch.float32, "cpu")
    train, held_out = digits()
    history = MiniBatchIPDLAM(model).fit(*train, epochs=10, validation_data=held_out, evaluate_every=10)
    assert history[-1].validation_accuracy >= 0.93


def learnable(loss, outputs, dtype=torch.float64):
    """What another network says, and the loss of outputs that are all zero."""
    with torch.no_grad():
        real = make_model([5, 6, outputs], "tanh", seed=5)(X)
    real = (2.0 * (real - real.mean(0))).to(dtype)
    labels = real.argmax(1) if outputs > 1 else (real[:, 0] > 0).long()
    goal = real if loss in ("squared", "huber", "absolute", "quantile") else labels
    targets = LOSSES[loss]().encode(goal, outputs, dtype) if goal.ndim == 1 else goal
    return X.to(dtype), goal, float(LOSSES[loss]().value(targets, torch.zeros_like(targets)).mean())


@pytest.mark.parametrize(("activation", "dtype"), [("relu", torch.float32), ("tanh", torch.float64)])
@pytest.mark.parametrize("outputs", [3, 1])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_falls(loss, outputs, activation, dtype):
    if outputs == 1 and loss == "cross_entropy":
        pytest.skip("one output tells no two classes apart")
    model = make_model([5, 12, outputs], activation, dtype=dtype)
    inputs, goal, before = learnable(loss, outputs, dtype)
    history = MiniBatchIPDLAM(model, loss=loss, batch_size=16).fit(inputs, goal, epochs=20)
    assert history[-1].train_loss < 0.5 * before
    assert history[-1].train_loss < history[0].train_loss
    assert history[-1].train_loss == pytest.approx(loss_of(model, loss, inputs, goal), rel=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("depth", [1, 3, 10])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_depth_and_activation_trains(activation, depth, bias):
    model = make_model([5, *[9] * (depth - 1), 3], activation)
    for linear in model[::2]:
        if not bias:
            linear.bias = None
    inputs, goal, before = learnable("squared", 3)
    history = MiniBatchIPDLAM(model, batch_size=15).fit(inputs, goal, epochs=10, evaluate_every=10)
    assert history[-1].train_loss < 0.7 * before
    assert len(list(model.parameters())) == (2 if bias else 1) * depth


def test_nothing_is_back_propagated():
    for activation, loss in zip([*ACTIVATIONS], [*LOSSES, *LOSSES], strict=False):
        model = make_model(WIDTHS, activation)
        inputs = X.clone().requires_grad_()
        trainer = MiniBatchIPDLAM(model, loss=loss, batch_size=16)
        with no_back_propagation():
            trainer.fit(inputs, Y, epochs=2, validation_data=(X, Y), restore_best=True)
            trainer.fit([(inputs, Y)], epochs=2)
            trainer.step(inputs, Y)
            assert torch.is_grad_enabled()
        assert all(p.grad is None and p.grad_fn is None and p.requires_grad for p in model.parameters())
        assert inputs.grad is None


def test_its_memory_does_not_grow_with_the_samples():
    held = []
    for samples in (100, 1000):
        trainer = MiniBatchIPDLAM(make_model(WIDTHS), batch_size=50)
        trainer.fit(*make_data(samples, 5, 3), epochs=1)
        held.append({name: tensor.shape for name, tensor in trainer._state.tensors().items()})
    assert held[0] == held[1]


def test_records_of_epochs_are_those_of_the_method():
    history = MiniBatchIPDLAM(make_model(WIDTHS), batch_size=N).fit(X, Y, epochs=3, evaluate_every=2)
    assert history.column("iteration") == [1, 2, 3]
    assert [loss is None for loss in history.column("train_loss")] == [True, False, False]
    # One batch to an epoch: its loss is that of the weights before, evaluated after the epoch before.
    assert history[2].loss / N == pytest.approx(history[1].train_loss, rel=1e-12)
    assert history[2].objective == history[2].loss == history[2].lyapunov
    assert history[2].linear_gap + history[2].activation_gap == (0.0,) * 5
    assert 0.0 < history[0].seconds < history[1].seconds


# --- weights of samples -----------------------------------------------------------------------------------------------

COUNTS = torch.arange(30) % 3  # 0, 1 or 2 of each


def weighted_and_repeated(widths, start):
    weighted, repeated = make_model(widths), make_model(widths)
    settings = {"batch_size": 1000, "start": start}
    x, y = X[:30], TARGETS[:30]
    first = MiniBatchIPDLAM(weighted, **settings).fit(x, y, epochs=5, sample_weight=COUNTS)
    second = MiniBatchIPDLAM(repeated, **settings).fit(
        x.repeat_interleave(COUNTS, 0), y.repeat_interleave(COUNTS, 0), epochs=5
    )
    return (weighted, first), (repeated, second)


@pytest.mark.parametrize("start", ["keep", "rescale", "auto"])
@pytest.mark.parametrize("widths", [[5, 3], WIDTHS], ids=len)
def test_weights_of_samples_are_repeated_samples_at_every_start(widths, start):
    (weighted, first), (repeated, second) = weighted_and_repeated(widths, start)
    for a, b in zip(weights(weighted), weights(repeated), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    assert first.column("objective") == pytest.approx(second.column("objective"), rel=1e-9)
    assert first.column("train_loss") == pytest.approx(second.column("train_loss"), rel=1e-9)


@pytest.mark.parametrize("start", ["keep", "rescale"])
@pytest.mark.parametrize("how", ["arrays", "loader", "steps"])
def test_samples_without_weight_are_absent(how, start):
    weight = (torch.arange(N) % 3 > 0).double()
    models = make_model(WIDTHS), make_model(WIDTHS)
    for model, x, y, w in ((models[0], X, Y, weight), (models[1], X[weight > 0], Y[weight > 0], None)):
        trainer = MiniBatchIPDLAM(model, batch_size=16, start=start)
        if how == "arrays":
            trainer.fit(x, y, sample_weight=w, epochs=3)
        elif how == "loader":
            trainer.fit([(x, y)] if w is None else [(x, y, w)], epochs=3)
        else:
            trainer.step(x, y, w)
    for a, b in zip(weights(models[0]), weights(models[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)  # a share is a quotient more


# --- the start --------------------------------------------------------------------------------------------------------


def first_outputs(model):
    """z of every layer before a first step of next to no length, which the start alone has changed."""
    MiniBatchIPDLAM(model, start="rescale", step=1e-12).step(X, TARGETS)
    a, found = X, []
    for module in model:
        a = module(a).detach()
        if isinstance(module, nn.Linear):
            found.append(a)
    return found


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_start_gives_every_hidden_layer_mean_zero_and_deviation_one(activation, scale):
    model = make_model([5, *[9] * 9, 3], activation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    *hidden, last = first_outputs(model)
    assert len(hidden) == 9
    for z in hidden:
        torch.testing.assert_close(z.mean(0), torch.zeros_like(z[0]), rtol=0.0, atol=1e-6)
        assert float(z.std(correction=0)) == pytest.approx(1.0, rel=1e-6)
    assert 0.01 < float(last.std()) < float(TARGETS.std())


def test_a_trained_model_is_kept():
    model = make_model(WIDTHS)
    MiniBatchIPDLAM(model, batch_size=16).fit(X, TARGETS, epochs=60)
    before, kept = loss_of(model, "squared", X, TARGETS), weights(model)
    untrained = TARGETS.square().sum(1).mean() / 2
    assert before < 0.5 * untrained
    history = MiniBatchIPDLAM(model, batch_size=16, step=0.05).fit(X, TARGETS, epochs=5)
    assert max(history.column("train_loss")) < 1.05 * before
    for start in ("keep", "rescale"):
        nn.utils.vector_to_parameters(torch.cat([w.flatten() for w in kept]), model.parameters())
        MiniBatchIPDLAM(model, start=start, step=1e-12).step(X, TARGETS)
        assert (loss_of(model, "squared", X, TARGETS) < 1.01 * before) == (start == "keep")


def test_a_trained_model_is_kept_also_where_the_first_batch_is_of_one_class():
    (images, labels), _ = digits()
    model = mlp((64, 40, 10), "relu", "torch", 0, torch.float32, "cpu")
    MiniBatchIPDLAM(model).fit(images, labels, epochs=5)
    before = loss_of(model, "squared", images, labels)
    MiniBatchIPDLAM(model, step=1e-9).step(images[labels == 3][:64], labels[labels == 3][:64])
    assert loss_of(model, "squared", images, labels) < 1.1 * before


@pytest.mark.parametrize(
    "scale",
    [1e10, 1e-3, 1e-10],
)
def test_the_start_does_not_depend_on_the_unit_of_the_inputs(scale):
    x, y = X.float(), TARGETS.float()
    losses = []
    for unit in (1.0, scale):
        model = make_model(WIDTHS, dtype=torch.float32)
        losses.append(MiniBatchIPDLAM(model, start="rescale").step(unit * x, y))  # of the start, before the step
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_an_untrained_model_is_rescaled_on_the_first_batch_alone():
    auto, rescaled, kept = (make_model(WIDTHS) for _ in range(3))
    for model, start in ((auto, "auto"), (rescaled, "rescale"), (kept, "keep")):
        trainer = MiniBatchIPDLAM(model, start=start)
        for _ in range(3):
            trainer.step(X, TARGETS)
    assert same(weights(auto), weights(rescaled))
    assert not same(weights(auto), weights(kept))


# --- divergence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh", "identity"])
@pytest.mark.parametrize("start", ["auto", "keep"])
@pytest.mark.parametrize(("step", "scale"), [(1e30, 1.0), (0.5, 1e30)])
def test_divergence_leaves_finite_weights(activation, start, step, scale):
    model = make_model(WIDTHS, activation, dtype=torch.float32)
    trainer = MiniBatchIPDLAM(model, step=step, start=start, batch_size=16)
    before, x, y = weights(model), (scale * X).float(), TARGETS.float()
    with pytest.raises(DivergenceError, match=r"holds the weights of epoch 0.*Use a step below") as caught:
        trainer.fit(x, y, epochs=20)
    assert caught.value.history.stop_reason == "diverged"
    assert same(weights(model), before)
    with pytest.raises(RuntimeError, match="the last epoch did not end"):
        trainer.continue_fit(epochs=1)
    stepping = MiniBatchIPDLAM(model, step=step, start=start)
    with pytest.raises(DivergenceError):  # noqa: PT012
        for _ in range(20):
            stepping.step(x, y)
            assert finite(model)
    assert finite(model)


@pytest.mark.parametrize("first", ["one sample", "one sample repeated", "zeros"])
def test_a_first_batch_that_does_not_vary_does_no_harm(first):
    """It has no deviation to scale by and no covariance: the start and the metric wait for the next ones."""
    (images, labels), _ = digits()
    x, y = images[:64], labels[:64]
    x, y = {"one sample": (x[:1], y[:1]), "one sample repeated": (x[:1].repeat(64, 1), y)}.get(first, (0.0 * x, y))
    trainer = MiniBatchIPDLAM(mlp((64, 40, 40, 10), "relu", "torch", 0, torch.float32, "cpu"))
    trainer.step(x, y)
    losses = [trainer.step(images[i : i + 64], labels[i : i + 64]) for i in range(64, 1088, 64)]
    assert max(losses) < 1.0
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_small_batches_learn(batch_size):
    (images, labels), (held_out, answers) = digits()
    model = mlp((64, 40, 10), "relu", "torch", 0, torch.float32, "cpu")
    history = MiniBatchIPDLAM(model, batch_size=batch_size).fit(
        images[:400], labels[:400], epochs=2, validation_data=(held_out, answers)
    )
    assert history[-1].validation_accuracy > 0.85


def test_a_start_that_overflows_leaves_the_weights_alone():
    model = make_model(WIDTHS, dtype=torch.float32)
    before = weights(model)
    with pytest.raises(DivergenceError):
        MiniBatchIPDLAM(model).step(X.float(), 1e30 * TARGETS.float())
    assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))


def test_a_trained_model_is_kept_also_where_neighbours_are_alike():
    t = torch.linspace(0.0, 20.0, 512).unsqueeze(1)
    features, targets = torch.cat([t.sin(), t.cos(), 0.1 * t], 1), (2.0 * t).sin()
    model = mlp((3, 40, 1), "relu", "torch", 0, torch.float32, "cpu")
    MiniBatchIPDLAM(model).fit(features, targets, epochs=60)
    before = loss_of(model, "squared", features, targets)
    MiniBatchIPDLAM(model, step=1e-9).step(features[:128], targets[:128])
    assert loss_of(model, "squared", features, targets) < 1.1 * before


@pytest.mark.parametrize("size", [10.0, 100.0, 1e4])
def test_a_few_outlying_samples_do_not_spoil_the_others(size):
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(1500, 5, generator=generator)
    targets = (6.0 * clean[:, :1]).sin() + clean[:, 1:2]
    spoilt = clean.clone()
    spoilt[7], spoilt[700] = size, -size
    model = mlp((5, 64, 64, 1), "relu", "torch", 0, torch.float32, "cpu")
    MiniBatchIPDLAM(model).fit(spoilt, targets, epochs=10)
    assert loss_of(model, "squared", clean, targets) < 0.05 * float(targets.var())


def test_outputs_of_unequal_size_are_all_learned():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(1500, 5, generator=generator)
    targets = torch.cat([1e4 * ((6.0 * inputs[:, :1]).sin() + inputs[:, 1:2]), inputs[:, 1:2]], 1)
    model = mlp((5, 64, 64, 2), "relu", "torch", 0, torch.float32, "cpu")
    MiniBatchIPDLAM(model).fit(inputs, targets, epochs=20)
    with torch.no_grad():
        unexplained = (model(inputs) - targets).square().mean(0) / targets.var(0)
    assert float(unexplained.max()) < 0.1


def test_the_output_side_is_that_of_hidden_layers_with_more_outputs_than_it_knows_directions():
    inputs, goal, _ = learnable("squared", 3)

    def trained(widths, **settings):
        model = make_model([5, *widths, 3])
        trainer = MiniBatchIPDLAM(model, batch_size=15, **settings)
        trainer.fit(inputs, goal, epochs=3)
        return [parameter.detach() for parameter in model.parameters()], trainer._state.stepper.wish_memories

    plain, none = trained([9, 4], output_rank=0)
    usual, too_narrow = trained([9, 4])
    evened, some = trained([9, 4], output_rank=4)
    assert (list(none), list(too_narrow), list(some)) == ([], [], [1])
    assert all(torch.equal(a, b) for a, b in zip(plain, usual, strict=True))
    assert not torch.equal(plain[0], evened[0])


def test_frozen_layers_and_networks_that_are_no_perceptrons_have_no_output_side():
    model = make_model([5, 9, 9, 3])
    model[0].weight.requires_grad_(False)
    inputs, goal, _ = learnable("squared", 3)
    trainer = MiniBatchIPDLAM(model, batch_size=15, output_rank=2)
    trainer.fit(inputs, goal, epochs=1)
    assert list(trainer._state.stepper.wish_memories) == [2]
    other = MiniBatchIPDLAM(nn.Sequential(nn.Linear(5, 9), nn.LayerNorm(9), nn.Linear(9, 3)), output_rank=2)
    other.step(inputs.float(), goal.float())
    assert not other._state.stepper.wish_memories
