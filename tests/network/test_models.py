"""Models as the trainers read them: what is refused and why, and what is unusual but trains like its plain form."""

from __future__ import annotations

import contextlib
import copy
import math
import re
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import ipdlam
from contracts import CLASSES as KINDS
from contracts import TRAINERS, says, weights
from contracts import equal as same
from ipdlam import IPDLAM, UnsupportedModelError
from ipdlam.network.mlp import Network
from ipdlam.network.samples import as_tensor
from problems import make_data, make_model

N, INPUTS, CLASSES = 24, 4, 3
WIDTHS = [INPUTS, 5, CLASSES]


def labelled(samples=N, dtype=torch.float64):
    X, y = make_data(samples, INPUTS, CLASSES, "cross_entropy", dtype=dtype)
    return X, y


def real(samples=N, dtype=torch.float64):
    return make_data(samples, INPUTS, CLASSES, "squared", dtype=dtype)


PERCEPTRONS = [name for name in KINDS if TRAINERS[name].kind.view is Network]  # the others train any model


def refuse_model(model, pattern, trainers=KINDS):
    """Every trainer does, before anything else."""
    for name in trainers:
        try:
            with pytest.raises(UnsupportedModelError, match=pattern):
                TRAINERS[name].kind(model, **TRAINERS[name].settings)
        except (AssertionError, pytest.fail.Exception) as failure:
            pytest.fail(f"{name}: {failure}")


def train(model, X, y, steps=3, **settings):
    """The weights after a few steps, and the trainer."""
    trainer = IPDLAM(model, **settings)
    trainer.start(X, y)
    for _ in range(steps):
        trainer.step()
    return weights(model), trainer


# --- models ---------------------------------------------------------------------------------------------------------


class Square(nn.Module):
    def forward(self, x):
        return x.square()


class ScaledLinear(nn.Linear):
    def forward(self, x):
        return 2.0 * super().forward(x)


class NoisyReLU(nn.ReLU):
    pass


class SquaredSequential(nn.Sequential):
    def forward(self, x):
        return super().forward(x).square()


def linear(inputs=4, outputs=4, **settings):
    return nn.Linear(inputs, outputs, **settings)


UNSUPPORTED = {
    "Dropout": (lambda: [linear(), nn.ReLU(), nn.Dropout(), linear()], ["module 2 (Dropout)", "MiniBatchIPDLAM"]),
    "BatchNorm1d": (
        lambda: [linear(), nn.BatchNorm1d(4), linear()],
        ["module 1 (BatchNorm1d)", "MiniBatchIPDLAM"],
    ),
    "Conv1d": (lambda: [nn.Conv1d(1, 1, 1), linear()], ["module 0 (Conv1d)", "Linear layers and", "MiniBatchIPDLAM"]),
    "Softmax": (lambda: [linear(), nn.Softmax(dim=1)], ["module 1 (Softmax)", 'loss="cross_entropy"']),
    "LogSoftmax": (lambda: [linear(), nn.LogSoftmax(dim=1)], ["module 1 (LogSoftmax)", 'loss="cross_entropy"']),
    "Flatten": (lambda: [linear(), nn.Flatten(), linear()], ["module 1 (Flatten)", "can only come first"]),
    "Softsign": (lambda: [linear(), nn.Softsign(), linear()], ["module 1 (Softsign)", "Tanh"]),
    "Bilinear": (lambda: [linear(), nn.Bilinear(4, 4, 4)], ["module 1 (Bilinear)"]),
    "nested": (
        lambda: [linear(), nn.Sequential(nn.Dropout(), linear())],
        ["module 1.0 (Dropout)", "MiniBatchIPDLAM"],
    ),
    "nested deeper": (
        lambda: [linear(), nn.Sequential(nn.ReLU(), nn.Sequential(linear(), nn.Flatten()))],
        ["module 1.1.1 (Flatten)"],
    ),
    "named": (
        lambda: [OrderedDict(first=linear(), noise=nn.Dropout(), last=linear())],
        ["module noise (Dropout)"],
    ),
    "custom": (lambda: [linear(), Square(), linear()], ["module 1 (Square)", "Linear layers and"]),
    "subclass of Linear": (lambda: [linear(), ScaledLinear(4, 4)], ["module 1 (ScaledLinear)"]),
    "subclass of ReLU": (lambda: [linear(), NoisyReLU(), linear()], ["module 1 (NoisyReLU)"]),
    "LazyLinear": (lambda: [linear(), nn.LazyLinear(4)], ["module 1 (LazyLinear)"]),
    "activation first": (lambda: [nn.ReLU(), linear()], ["module 0 (ReLU)", "must follow a Linear", "comes first"]),
    "two activations": (
        lambda: [linear(), nn.ReLU(), nn.Tanh(), linear()],
        ["module 2 (Tanh)", "must follow a Linear", "another activation"],
    ),
    "activation last": (
        lambda: [linear(), nn.ReLU(), linear(), nn.Sigmoid()],
        ["module 3 (Sigmoid)", "the last layer must be Linear", "remove it"],
    ),
    "empty": (lambda: [], ["model", "no Linear layer"]),
    "empty inside": (lambda: [nn.Sequential(), nn.Sequential()], ["model", "no Linear layer"]),
    "widths": (
        lambda: [linear(4, 5), nn.ReLU(), linear(6, 3)],
        ["module 0 (Linear) has 5 outputs", "module 2 (Linear) takes 6 inputs"],
    ),
    "widths, nested": (
        lambda: [nn.Sequential(linear(4, 5)), nn.Sequential(linear(6, 3))],
        ["module 0.0 (Linear) has 5 outputs", "module 1.0 (Linear) takes 6 inputs"],
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_layers_are_refused_by_position_and_type(case):
    build, parts = UNSUPPORTED[case]
    refuse_model(nn.Sequential(*build()), says(*parts), PERCEPTRONS)
    with pytest.raises(UnsupportedModelError, match=says(*parts)):
        ipdlam.initialise(nn.Sequential(*build()))


@pytest.mark.parametrize(("model", "kind"), [(None, "NoneType"), ([linear()], "list")], ids=["None", "list"])
def test_what_is_no_module(model, kind):
    refuse_model(model, says("model must be an nn.Module", f"got {kind}"))


def test_a_module_without_a_forward_pass():
    refuse_model(nn.ModuleList([linear()]), says("the forward pass of ModuleList cannot be followed"))


def test_a_sequential_with_a_forward_pass_of_its_own():
    """The method would train the layers as if this forward pass did not exist."""
    model = SquaredSequential(linear(), nn.ReLU(), linear())
    refuse_model(model, says("square in forward is not supported", "MiniBatchIPDLAM"), PERCEPTRONS)


def test_errors_about_the_model_are_value_errors():
    assert issubclass(UnsupportedModelError, ValueError)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_frozen_parameters(layer, kind):
    model = make_model(WIDTHS)
    getattr(model[layer], kind).requires_grad_(False)
    refuse_model(model, says(f"module {layer} (Linear): its {kind} is frozen", "unfreeze"), PERCEPTRONS)


def test_the_same_module_twice():
    shared = linear()
    model, others = nn.Sequential(shared, nn.ReLU(), shared), [name for name in KINDS if name not in PERCEPTRONS]
    refuse_model(
        model,
        says("module 2 (Linear): its weight is shared with the weight of module 0 (Linear)", "tied weights"),
        PERCEPTRONS,
    )
    refuse_model(model, says("module 0 (Linear) is used twice", "share their weights"), others)


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_the_same_parameter_in_two_modules(kind):
    first, second = linear(), linear()
    setattr(second, kind, getattr(first, kind))
    refuse_model(
        nn.Sequential(first, nn.ReLU(), second),
        says(f"module 2 (Linear): its {kind} is shared with the {kind} of module 0 (Linear)", "tied"),
    )


@pytest.mark.parametrize(
    "wrap",
    [
        lambda layer: nn.utils.spectral_norm(layer),
        lambda layer: parametrizations.weight_norm(layer),
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        lambda layer: prune.l1_unstructured(layer, "bias", 0.5),
    ],
    ids=["spectral_norm", "weight_norm", "pruned weight", "pruned bias"],
)
def test_parameters_that_are_computed_from_others(wrap):
    """What is written to them would be overwritten in the next forward pass."""
    model = make_model(WIDTHS)
    wrap(model[2])
    refuse_model(model, re.escape("module 2 ("))


def test_meta_device():
    model = nn.Sequential(linear(device="meta"), nn.ReLU(), linear(device="meta"))
    refuse_model(model, says("module 0 (Linear): its weight", "meta device", "to_empty"))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_model(kind):
    refuse_model(make_model(WIDTHS).to(kind), says("module 0 (Linear): its weight is", kind, "model.float()"))


def test_mixed_precision():
    model = make_model(WIDTHS)
    model[2].float()
    parts = ("module 2 (Linear): its weight is torch.float32", "the first layer is torch.float64", "use one")
    refuse_model(model, says(*parts))
    model[2].double()
    model[2].bias = nn.Parameter(model[2].bias.detach().float())
    refuse_model(model, says("module 2 (Linear): its bias is torch.float32"))


@pytest.mark.parametrize("kind", ["weight", "bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_weights_at_the_start(kind, value):
    model = make_model(WIDTHS)
    trainer = IPDLAM(model)
    with torch.no_grad():
        getattr(model[2], kind).view(-1)[1] = value
    X, y = labelled()
    for begin in (trainer.start, trainer.fit):
        with pytest.raises(UnsupportedModelError, match=says(f"module 2 (Linear): its {kind} holds NaN or", "again")):
            begin(X, y)
        with pytest.raises(RuntimeError, match="no run has been started"):
            trainer.step()


def test_a_model_converted_after_the_trainer_was_made():
    """It trains in its new precision, or is refused in words: torch's own message about dtypes explains nothing."""
    model = make_model(WIDTHS)
    trainer = IPDLAM(model)
    model.float()
    with contextlib.suppress(UnsupportedModelError):
        trainer.start(*labelled())
        trainer.step()
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


# --- accepted -------------------------------------------------------------------------------------------------------


def test_a_shared_activation_module_is_like_separate_ones():
    X, y = labelled()
    expected, _ = train(make_model([4, 5, 6, 3], "tanh"), X, y)
    layers = make_model([4, 5, 6, 3], "tanh")
    tanh = nn.Tanh()
    shared = nn.Sequential(layers[0], tanh, layers[2], tanh, layers[4])
    actual, _ = train(shared, X, y)
    assert same(actual, expected)


def test_two_linear_layers_in_a_row_have_the_identity_between_them():
    X, y = labelled()
    model = make_model([4, 5, 6, 3], "identity")
    bare = nn.Sequential(*(copy.deepcopy(module) for module in model if isinstance(module, nn.Linear)))
    expected, _ = train(model, X, y)
    actual, _ = train(bare, X, y)
    assert same(actual, expected)


def test_nested_and_named_sequentials_are_like_flat_ones():
    X, y = labelled()
    flat = make_model([4, 5, 6, 3])
    first, relu, second, relu_too, last = copy.deepcopy(flat)
    nested = nn.Sequential(
        nn.Sequential(first), nn.Sequential(relu, nn.Sequential(OrderedDict(middle=second, bend=relu_too))), last
    )
    expected, _ = train(flat, X, y)
    actual, trainer = train(nested, X, y)
    assert same(actual, expected)
    assert trainer.model is nested


@pytest.mark.parametrize("biased", [(False, False, False), (True, False, True), (False, True, True)])
@pytest.mark.parametrize("order", ["reverse", "nested-reverse"])
def test_layers_without_bias(biased, order):
    X, y = labelled()
    model = make_model([4, 5, 6, 3])
    for layer, has_bias in zip(model[::2], biased, strict=True):
        if not has_bias:
            layer.bias = None
    before = weights(model)
    after, trainer = train(model, X, y, order=order)
    assert [layer.bias is not None for layer in model[::2]] == list(biased)
    assert math.isfinite(trainer.objective().value)
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    # A bias that is held at zero by nothing but its absence: the objective's gap is that of the model's own layers.
    iterate = trainer.iterate()
    gap = (iterate.z[1] - model[0](X).detach()).square().sum()
    assert float(gap) == pytest.approx(trainer.objective().linear_gap[0], rel=1e-9)


def as_big_endian(array):
    return array.astype(array.dtype.newbyteorder(">"))


def as_read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def as_negative_strides(array):
    return array[::-1].copy()[::-1]


def as_strided(array):
    """Every second entry along every axis of a larger array."""
    wide = np.zeros([2 * size for size in array.shape], dtype=array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def as_fortran(array):
    return np.asfortranarray(array)


@pytest.mark.parametrize(
    "disguise", [np.copy, as_big_endian, as_read_only, as_negative_strides, as_strided, as_fortran]
)
@pytest.mark.parametrize("targets", ["labels", "real"])
def test_numpy_arrays_are_like_tensors(disguise, targets):
    X, y = labelled() if targets == "labels" else real()
    weight = torch.linspace(0.5, 2.0, N, dtype=torch.float64)

    def run(convert):
        model = make_model(WIDTHS)
        data = (convert(X), convert(y), convert(weight))
        trainer = IPDLAM(model)
        history = trainer.fit(*data[:2], sample_weight=data[2], validation_data=data, iterations=3)
        return weights(model), [(r.objective, r.train_loss, r.validation_loss, r.validation_accuracy) for r in history]

    expected_weights, expected_records = run(lambda tensor: tensor)
    actual_weights, actual_records = run(lambda tensor: disguise(tensor.numpy()))
    # Products of other memory layouts may be summed in another order.
    torch.testing.assert_close(actual_weights, expected_weights, rtol=1e-10, atol=1e-12)
    assert np.allclose(
        np.array(actual_records, dtype=float),
        np.array(expected_records, dtype=float),
        rtol=1e-9,
        atol=0,
        equal_nan=True,
    )


@pytest.mark.parametrize(
    "kind", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4", ">u2"]
)
def test_integer_labels_of_every_type(kind):
    X, y = labelled()
    expected, _ = train(make_model(WIDTHS), X, y)
    actual, trainer = train(make_model(WIDTHS), X, y.numpy().astype(kind))
    assert same(actual, expected)
    assert trainer.history[-1].train_accuracy is not None


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_integer_tensors_as_labels(kind):
    X, y = labelled()
    y = y.clamp_max(1)
    expected, _ = train(make_model(WIDTHS), X, y)
    actual, _ = train(make_model(WIDTHS), X, y.to(kind))
    assert same(actual, expected)


def test_integer_inputs_are_numbers():
    X, y = labelled()
    X = (10 * X).round()
    expected, _ = train(make_model(WIDTHS), X, y)
    actual, _ = train(make_model(WIDTHS), X.to(torch.int8), y)
    assert same(actual, expected)


@pytest.mark.parametrize("kind", ["uint64", ">u8"])
def test_unsigned_numbers_beyond_the_signed_ones_stay_positive(kind, tmp_path):
    X = np.array([[2**64 - 2**11, 2**63, 1, 0]] * N, dtype=kind)
    X[::2] = [[2**62, 5, 2**63 + 2**12, 7]]
    assert np.array_equal(as_tensor("X", X).double().numpy(), X.astype(np.float64))
    y = labelled()[1]
    on_disk = IPDLAM(make_model(WIDTHS), storage=tmp_path / "state")  # reads by rows
    on_disk.start(X, y)
    assert np.array_equal(on_disk._state.samples.inputs(slice(0, N)).numpy(), X.astype(np.float64))
    on_disk.close()
    with pytest.raises(ValueError, match=r"^y "):
        IPDLAM(make_model(WIDTHS)).start(labelled()[0], X[:, 0])


@pytest.mark.parametrize("kind", [np.float64, np.longdouble])
def test_wider_data_are_rounded_to_the_precision_of_the_model(kind):
    X, y = real()
    expected, _ = train(make_model(WIDTHS, dtype=torch.float32), X.float(), y.float())
    model = make_model(WIDTHS, dtype=torch.float32)
    actual, _ = train(model, X.numpy().astype(kind), y.numpy().astype(kind))
    assert same(actual, expected)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_narrower_data_are_widened():
    X, y = labelled(dtype=torch.float32)
    expected, _ = train(make_model(WIDTHS), X.double(), y)
    actual, _ = train(make_model(WIDTHS), X.numpy(), y)
    assert same(actual, expected)


def test_a_vector_of_floats_is_one_output():
    X, y = make_data(N, INPUTS, 1)
    expected, _ = train(make_model([4, 5, 1]), X, y)
    actual, trainer = train(make_model([4, 5, 1]), X, y[:, 0])
    assert same(actual, expected)
    assert trainer.history[-1].train_accuracy is None


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute", "cross_entropy"])
def test_one_hot_rows_are_like_labels(loss):
    X, y = labelled()
    expected, by_label = train(make_model(WIDTHS), X, y, loss=loss)
    one_hot = nn.functional.one_hot(y, CLASSES).double()
    actual, by_row = train(make_model(WIDTHS), X, one_hot, loss=loss)
    assert same(actual, expected)
    assert by_row.history.column("objective") == by_label.history.column("objective")
    assert by_row.history.column("train_loss") == by_label.history.column("train_loss")


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "logistic"])
def test_signs_are_like_labels_for_margin_losses(loss):
    X, y = labelled()
    expected, _ = train(make_model(WIDTHS), X, y, loss=loss)
    signs = 2.0 * nn.functional.one_hot(y, CLASSES).double() - 1.0
    actual, _ = train(make_model(WIDTHS), X, signs, loss=loss)
    assert same(actual, expected)


def test_inputs_that_require_grad_are_only_read():
    X, y = labelled()
    expected, _ = train(make_model(WIDTHS), X, y)
    X_tracked = X.clone().requires_grad_()
    actual, _ = train(make_model(WIDTHS), X_tracked, y)
    assert same(actual, expected)
    assert X_tracked.grad is None


def test_a_single_sample_trains():
    after, trainer = train(make_model(WIDTHS), *labelled(1))
    assert all(bool(torch.isfinite(weight).all()) for weight in after)
    assert math.isfinite(trainer.objective().value)


# --- initialise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "deviation", "bias"), [("paper", 0.01, 0.1), ("he", math.sqrt(2 / 80), 0.0)])
def test_initialise_sets_what_it_says(scheme, deviation, bias):
    model = make_model([80, 90, 80, 70])
    # A wide layer of other inputs tells a deviation by inputs from one by outputs.
    assert ipdlam.initialise(model, scheme, seed=1) is model
    for layer in model[::2]:
        expected = deviation if scheme == "paper" else math.sqrt(2 / layer.in_features)
        entries = layer.weight.detach()
        error = expected / math.sqrt(entries.numel())
        assert abs(float(entries.mean())) < 5 * error
        assert abs(float(entries.std()) - expected) < 5 * error
        assert float(entries.abs().max()) > 2.5 * expected  # normal, not uniform
        assert bool((layer.bias == bias).all())
    assert not torch.equal(model[0].weight.view(-1)[:50], model[2].weight.view(-1)[:50])


def test_initialise_is_paper_by_default():
    assert same(
        weights(ipdlam.initialise(make_model(WIDTHS))), weights(ipdlam.initialise(make_model(WIDTHS), "paper", 0))
    )


@pytest.mark.parametrize("scheme", ["paper", "he"])
def test_initialise_is_a_function_of_the_seed(scheme):
    first = weights(ipdlam.initialise(make_model(WIDTHS, seed=1), scheme, seed=5))
    torch.rand(3)
    second = weights(ipdlam.initialise(make_model(WIDTHS, seed=2), scheme, seed=5))
    other = weights(ipdlam.initialise(make_model(WIDTHS, seed=1), scheme, seed=6))
    assert same(first, second)
    assert not same(first, other)


def test_initialise_draws_the_same_numbers_in_either_precision():
    wide = weights(ipdlam.initialise(make_model(WIDTHS), seed=5))
    narrow = weights(ipdlam.initialise(make_model(WIDTHS, dtype=torch.float32), seed=5))
    assert same([weight.float() for weight in wide], narrow)


def test_initialise_works_without_biases_and_keeps_the_parameters():
    model = nn.Sequential(linear(bias=False), nn.ReLU(), linear())
    parameters = list(model.parameters())
    ipdlam.initialise(model)
    assert model[0].bias is None
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert all(parameter.requires_grad and parameter.grad_fn is None for parameter in parameters)


def test_initialise_repairs_a_model_of_nan():
    model = make_model(WIDTHS)
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    ipdlam.initialise(model)
    assert all(bool(torch.isfinite(weight).all()) for weight in weights(model))


@pytest.mark.parametrize(
    ("module", "reason"),
    [(nn.LeakyReLU(1.0), "slope"), (nn.LeakyReLU(-0.1), "slope"), (nn.Softplus(threshold=1), "threshold")],
    ids=str,
)
def test_activations_with_bad_settings_are_named_with_their_place(module, reason):
    model = nn.Sequential(nn.Linear(INPUTS, 4), module, nn.Linear(4, 3))
    with pytest.raises(UnsupportedModelError, match=rf"module 1 \({type(module).__name__}\): {reason}"):
        IPDLAM(model)


def test_layers_without_units_are_refused():
    with pytest.warns(UserWarning, match="zero-element"):
        model = nn.Sequential(nn.Linear(INPUTS, 0), nn.ReLU(), nn.Linear(0, 3))
    with pytest.raises(UnsupportedModelError, match=r"module 0 .* 0 outputs"):
        IPDLAM(model)


@pytest.mark.parametrize("seed", [None, 1.5, "0", -1])
def test_bad_seeds(seed):
    with pytest.raises(ValueError, match="seed must be an integer >= 0"):
        ipdlam.initialise(make_model([INPUTS, 4, 3]), "he", seed=seed)
