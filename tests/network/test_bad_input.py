"""Every bad input gives a clear error before any work; unusual but sound input trains exactly like its plain form."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import re
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import ipdlam
from ipdlam import DLAM, IPDLAM, UnsupportedModelError
from ipdlam.baselines import BCD, DLADMM, BackPropagation
from ipdlam.network.samples import as_tensor
from ipdlam.prox import L1, ElasticNet, Hardtanh, Huber, LeakyReLU, Ridge
from problems import make_data, make_model

N, INPUTS, CLASSES = 24, 4, 3
WIDTHS = [INPUTS, 5, CLASSES]
LATE = 4500  # arrays are scanned in pieces of 4096 rows: a fault in the second piece must be found in its true place


def says(*parts):
    """A pattern for messages that hold all the parts, in any order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts)


def labelled(samples=N, dtype=torch.float64):
    X, y = make_data(samples, INPUTS, CLASSES, "cross_entropy", dtype=dtype)
    return X, y


def real(samples=N, dtype=torch.float64):
    return make_data(samples, INPUTS, CLASSES, "squared", dtype=dtype)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first, second):
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def refuse_data(parts, X, y, *, error=ValueError, dtype=torch.float64, widths=WIDTHS, loss="squared", **others):
    """``start`` and ``fit`` raise an error that says the parts, leave the model as it was and start no run."""
    model = make_model(widths, dtype=dtype)
    before = weights(model)
    trainer = IPDLAM(model, loss=loss)
    for begin in (trainer.start, trainer.fit):
        with pytest.raises(error, match=says(*parts)):
            begin(X, y, **others)
        with pytest.raises(RuntimeError, match="no run has been started"):
            trainer.step()
    assert same(before, weights(model))


def with_fault(array, place, value):
    faulty = array.clone()
    faulty[place] = value
    return faulty


def train(model, X, y, steps=3, **settings):
    """The weights after a few steps, and the trainer."""
    trainer = IPDLAM(model, **settings)
    trainer.start(X, y)
    for _ in range(steps):
        trainer.step()
    return weights(model), trainer


# --- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X_shape", "y_shape", "parts"),
    [
        ((N, 3), (N,), ["X has shape (24, 3)", "the first layer takes 4 inputs"]),
        ((N, 5), (N,), ["X has shape (24, 5)", "the first layer takes 4 inputs"]),
        ((N, 4), (N - 1,), ["X has shape (24, 4)", "y has shape (23,)", "number of samples"]),
        ((N, 4), (N + 1, 3), ["X has shape (24, 4)", "y has shape (25, 3)"]),
        ((N, 4), (), ["X has shape (24, 4)", "y has shape ()"]),
        ((N, 4), (N, 2), ["y has shape (24, 2)", "the last layer has 3 outputs"]),
        ((N, 4), (N, 3, 1), ["y has shape (24, 3, 1)", "the last layer has 3 outputs"]),
        ((N, 2, 2), (N,), ["X must be a matrix", "(24, 2, 2)", "X.reshape(len(X), -1)"]),
        ((4,), (N,), ["X must be a matrix", "(4,)"]),
        ((), (N,), ["X must be a matrix", "()"]),
        ((0, 4), (0,), ["X is empty", "(0, 4)", "at least one sample"]),
    ],
)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_shapes_that_do_not_fit(X_shape, y_shape, parts, kind):
    X, y = torch.zeros(X_shape, dtype=torch.float64), torch.zeros(y_shape, dtype=torch.int64)
    refuse_data(parts, *((X, y) if kind == "torch" else (X.numpy(), y.numpy())))


def test_float_labels_are_refused_with_the_remedy():
    X, y = labelled()
    refuse_data(["y has shape (24,)", "3 outputs", "class labels must be integers"], X, y.double())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, 7, LATE])
def test_non_finite_X_is_named_with_its_place(value, row):
    X, y = labelled(LATE + 100)
    refuse_data(["X holds", value, f"at ({row}, 2)", "remove or replace"], with_fault(X, (row, 2), value), y)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, LATE])
def test_non_finite_y_is_named_with_its_place(value, row):
    X, y = real(LATE + 100)
    refuse_data(["y holds", value, f"at ({row}, 1)", "remove or replace"], X, with_fault(y, (row, 1), value))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("row", [3, LATE])
def test_non_finite_sample_weight_is_named_with_its_place(value, row):
    X, y = labelled(LATE + 100)
    weight = with_fault(torch.ones(len(X)), row, value)
    refuse_data(["sample_weight holds", value, f"at ({row},)"], X, y, sample_weight=weight)


@pytest.mark.parametrize("row", [3, LATE])
def test_non_finite_validation_data_is_named_with_its_place(row):
    X, y = labelled()
    X_late, y_late = real(LATE + 100)
    bad_X, bad_y = with_fault(X_late, (row, 3), math.nan), with_fault(y_late, (row, 2), math.inf)
    bad_weight = with_fault(torch.ones(len(X_late)), row, math.nan)
    refuse_data(["validation X holds nan", f"at ({row}, 3)"], X, y, validation_data=(bad_X, y_late))
    refuse_data(["validation y holds inf", f"at ({row}, 2)"], X, y, validation_data=(X_late, bad_y))
    parts = ["validation sample_weight holds nan", f"at ({row},)"]
    refuse_data(parts, X, y, validation_data=(X_late, y_late, bad_weight))


def test_the_first_of_several_faults_is_named():
    X, y = labelled()
    X[20, 0] = math.nan
    X[5, 3] = math.inf
    refuse_data(["X holds inf", "at (5, 3)"], X, y)


@pytest.mark.parametrize("row", [2, LATE])
@pytest.mark.parametrize("label", [-1, 3, 255])
@pytest.mark.parametrize("kind", [torch.int64, torch.int16])
def test_labels_out_of_range_are_named_with_their_place(row, label, kind):
    X, y = labelled(LATE + 100)
    y = with_fault(y.to(kind), row, label)
    refuse_data(["y holds the label", label, f"at {row}", "3 outputs", "0 ... 2"], X, y)


def test_validation_labels_out_of_range():
    X, y = labelled()
    refuse_data(["validation y holds the label 3 at 6"], X, y, validation_data=(X, with_fault(y, 6, 3)))


def test_integers_of_a_single_output_are_real_targets():
    X, y = torch.randn(6, INPUTS), torch.tensor([0, 3, 1, 2, 0, 1])
    outcomes = []
    for targets in (y, y.float()):
        trainer = IPDLAM(make_model([INPUTS, 5, 1], dtype=torch.float32))
        trainer.start(X, targets)
        outcomes.append(trainer.step())
    assert outcomes[0].objective == outcomes[1].objective
    assert outcomes[0].train_accuracy is None
    refuse_data(["label 3 at 1", "0 ... 1"], X, y, widths=[INPUTS, 5, 1], loss="hinge")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_data(kind):
    X, y = labelled()
    _, targets = real()
    ones = torch.ones(N)
    refuse_data(["X is", kind, "half precision", ".float()"], X.to(kind), y, error=TypeError)
    refuse_data(["y is", kind, ".float()"], X, targets.to(kind), error=TypeError)
    refuse_data(["sample_weight is", kind], X, y, error=TypeError, sample_weight=ones.to(kind))
    refuse_data(["validation X is", kind], X, y, error=TypeError, validation_data=(X.to(kind), y))


def test_half_precision_numpy():
    X, y = labelled()
    for order in "<>":
        refuse_data(["X is torch.float16", ".float()"], X.numpy().astype(f"{order}f2"), y, error=TypeError)


@pytest.mark.parametrize(
    ("X", "parts"),
    [
        ([[0.0] * 4] * N, ["X must be a torch tensor or a numpy array", "list"]),
        (None, ["X must be", "NoneType"]),
        ("X", ["X must be", "str"]),
        (torch.zeros(N, 4, dtype=torch.complex64), ["X must hold real numbers", "complex64"]),
        (np.zeros((N, 4), dtype=complex), ["X must hold real numbers", "complex128"]),
        (np.zeros((N, 4), dtype=object), ["X must hold real numbers", "object"]),
        (np.full((N, 4), "a"), ["X must hold real numbers", "<U1"]),
        (torch.zeros(N, 4).to_sparse(), ["X must be a dense tensor", "sparse"]),
        (torch.zeros(N, 4, device="meta"), ["X must be a dense tensor with values", "meta"]),
    ],
    ids=lambda value: None if isinstance(value, list) else type(value).__name__,
)
def test_what_is_no_array_of_numbers(X, parts):
    refuse_data(parts, X, labelled()[1], error=TypeError)
    refuse_data(
        ["validation " + parts[0], *parts[1:]], *labelled(), error=TypeError, validation_data=(X, labelled()[1])
    )


def test_strings_as_labels():
    X, _ = labelled()
    refuse_data(["y must hold real numbers", "<U3"], X, np.full(N, "cat"), error=TypeError)


@pytest.mark.parametrize("name", ["X", "y", "validation X", "validation y"])
def test_numbers_beyond_the_precision_of_the_model(name):
    """1e300 is finite in float64 and infinite in the model's float32, so it is as bad as infinity."""
    X, y = real()
    bad_X, bad_y = with_fault(X, (5, 1), 1e300), with_fault(y, (5, 1), 1e300)
    data = {
        "X": {"X": bad_X, "y": y},
        "y": {"X": X, "y": bad_y},
        "validation X": {"X": X, "y": y, "validation_data": (bad_X, y)},
        "validation y": {"X": X, "y": y, "validation_data": (X, bad_y)},
    }[name]
    refuse_data([f"{name} holds", "(5, 1)"], dtype=torch.float32, **data)


@pytest.mark.parametrize(
    ("weight", "parts"),
    [
        (torch.ones(N - 1), ["sample_weight has shape (23,)", "(24, 4)", "one weight a sample"]),
        (torch.ones(N, 1), ["sample_weight has shape (24, 1)", "(24, 4)"]),
        (torch.tensor(1.0), ["sample_weight has shape ()", "(24, 4)"]),
        (with_fault(torch.ones(N), 3, -0.5), ["sample_weight holds -0.5 at 3", "must be >= 0"]),
        (torch.zeros(N), ["sample_weight is zero for every sample", "at least one"]),
        # Finite and positive in float64, but nothing is left of them in float32: they would sum to zero.
        (torch.full((N,), 1e-60, dtype=torch.float64), ["sample_weight is zero for every sample"]),
    ],
)
def test_bad_sample_weights(weight, parts):
    X, y = labelled()
    refuse_data(parts, X, y, sample_weight=weight, dtype=torch.float32)
    refuse_data(["validation " + parts[0], *parts[1:]], X, y, validation_data=(X, y, weight), dtype=torch.float32)


def test_sample_weight_must_be_an_array():
    X, y = labelled()
    refuse_data(["sample_weight must be a torch tensor or a numpy array", "list"], X, y,
                error=TypeError, sample_weight=[1.0] * N)  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        lambda X, y: X,
        lambda X, y: (X,),
        lambda X, y: (X, y, None, None),
        lambda X, y: {"X": X, "y": y},
        lambda X, y: 0.2,
        lambda X, y: (X, None),
        lambda X, y: (None, y),
    ],
    ids=["array", "one", "four", "dict", "fraction", "no y", "no X"],
)
def test_validation_data_of_the_wrong_form(form):
    X, y = labelled()
    refuse_data(["validation"], X, y, error=(TypeError, ValueError), validation_data=form(X, y))


def test_validation_data_form_is_explained():
    X, y = labelled()
    refuse_data(["validation_data must be (X, y) or (X, y, sample_weight)"], X, y, validation_data=X)


def test_validation_shapes_name_the_validation_data():
    X, y = labelled()
    refuse_data(["validation X has shape (24, 3)", "4 inputs"], X, y, validation_data=(X[:, :3], y))
    parts = ["validation X has shape (24, 4)", "validation y has shape (9,)"]
    refuse_data(parts, X, y, validation_data=(X, y[:9]))
    refuse_data(["validation X is empty"], X, y, validation_data=(X[:0], y[:0]))


@pytest.mark.parametrize(
    ("loss", "parts"),
    [
        ("hinge", ["Hinge needs targets of -1 and +1", "integers"]),
        ("logistic", ["Logistic needs targets of -1 and +1"]),
        ("cross_entropy", ["CrossEntropy needs rows of probabilities", "integers"]),
    ],
)
def test_real_targets_that_the_loss_is_not_defined_for(loss, parts):
    refuse_data(parts, *real(), loss=loss)


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
    "Dropout": (lambda: [linear(), nn.ReLU(), nn.Dropout(), linear()], ["module 2 (Dropout)", "regularizer"]),
    "BatchNorm1d": (lambda: [linear(), nn.BatchNorm1d(4), linear()], ["module 1 (BatchNorm1d)", "fold it"]),
    "Conv1d": (lambda: [nn.Conv1d(1, 1, 1), linear()], ["module 0 (Conv1d)", "Linear layers and", "ReLU"]),
    "Softmax": (lambda: [linear(), nn.Softmax(dim=1)], ["module 1 (Softmax)", 'loss="cross_entropy"']),
    "LogSoftmax": (lambda: [linear(), nn.LogSoftmax(dim=1)], ["module 1 (LogSoftmax)", 'loss="cross_entropy"']),
    "Flatten": (lambda: [nn.Flatten(), linear()], ["module 0 (Flatten)", "X.reshape(len(X), -1)"]),
    "GELU": (lambda: [linear(), nn.GELU(), linear()], ["module 1 (GELU)", "Tanh"]),
    "Bilinear": (lambda: [linear(), nn.Bilinear(4, 4, 4)], ["module 1 (Bilinear)"]),
    "nested": (
        lambda: [linear(), nn.Sequential(nn.Dropout(), linear())],
        ["module 1.0 (Dropout)", "regularizer"],
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
        ["module 0 has 5 outputs", "module 2 takes 6 inputs"],
    ),
    "widths, nested": (
        lambda: [nn.Sequential(linear(4, 5)), nn.Sequential(linear(6, 3))],
        ["module 0.0 has 5 outputs", "module 1.0 takes 6 inputs"],
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("case", UNSUPPORTED)
@pytest.mark.parametrize("user", [IPDLAM, DLAM, ipdlam.initialise], ids=["IPDLAM", "DLAM", "initialise"])
def test_unsupported_layers_are_refused_by_position_and_type(case, user):
    build, parts = UNSUPPORTED[case]
    with pytest.raises(UnsupportedModelError, match=says(*parts)):
        user(nn.Sequential(*build()))


@pytest.mark.parametrize(
    ("model", "kind"),
    [(linear(), "Linear"), (nn.ModuleList([linear()]), "ModuleList"), (None, "NoneType"), ([linear()], "list")],
    ids=["Linear", "ModuleList", "None", "list"],
)
def test_what_is_no_sequential(model, kind):
    with pytest.raises(UnsupportedModelError, match=says("model must be an nn.Sequential", f"got {kind}")):
        IPDLAM(model)


def test_a_sequential_with_a_forward_pass_of_its_own():
    """The method would train the layers as if this forward pass did not exist."""
    with pytest.raises(UnsupportedModelError, match="SquaredSequential"):
        IPDLAM(SquaredSequential(linear(), nn.ReLU(), linear()))


def test_errors_about_the_model_are_value_errors():
    assert issubclass(UnsupportedModelError, ValueError)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_frozen_parameters(layer, kind):
    model = make_model(WIDTHS)
    getattr(model[layer], kind).requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match=says(f"module {layer} (Linear): its {kind} is frozen", "unfreeze")):
        IPDLAM(model)


def test_the_same_module_twice():
    shared = linear()
    with pytest.raises(
        UnsupportedModelError, match=says("module 2 (Linear): its weight is shared with module 0", "tied weights")
    ):
        IPDLAM(nn.Sequential(shared, nn.ReLU(), shared))


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_the_same_parameter_in_two_modules(kind):
    first, second = linear(), linear()
    setattr(second, kind, getattr(first, kind))
    with pytest.raises(
        UnsupportedModelError, match=says(f"module 2 (Linear): its {kind} is shared with module 0 ({kind})", "tied")
    ):
        IPDLAM(nn.Sequential(first, nn.ReLU(), second))


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
    with pytest.raises(UnsupportedModelError, match=re.escape("module 2 (")):
        IPDLAM(model)


def test_meta_device():
    model = nn.Sequential(linear(device="meta"), nn.ReLU(), linear(device="meta"))
    with pytest.raises(UnsupportedModelError, match=says("module 0 (Linear): its weight", "meta device", "to_empty")):
        IPDLAM(model)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_model(kind):
    with pytest.raises(UnsupportedModelError, match=says("module 0 (Linear): its weight is", kind, "model.float()")):
        IPDLAM(make_model(WIDTHS).to(kind))


def test_mixed_precision():
    model = make_model(WIDTHS)
    model[2].float()
    parts = ("module 2 (Linear): its weight is torch.float32", "the first layer is torch.float64", "use one")
    with pytest.raises(UnsupportedModelError, match=says(*parts)):
        IPDLAM(model)
    model[2].double()
    model[2].bias = nn.Parameter(model[2].bias.detach().float())
    with pytest.raises(UnsupportedModelError, match=says("module 2 (Linear): its bias is torch.float32")):
        IPDLAM(model)


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


# --- settings -------------------------------------------------------------------------------------------------------

NUMBERS = ("inertia", "proximity", "penalty", "penalty_growth", "penalty_max")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1.0, -1, math.nan, math.inf, -math.inf])
def test_numbers_out_of_range(name, value):
    with pytest.raises(ValueError, match=says(name, "must be a finite number", f"got {value!r}")):
        IPDLAM(make_model(WIDTHS), **{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["0.5", None, True, 1j, {}, torch.ones(2)], ids=lambda value: type(value).__name__)
def test_numbers_that_are_none(name, value):
    with pytest.raises(TypeError, match=says(name, "must be a number", f"got {value!r}")):
        IPDLAM(make_model(WIDTHS), **{name: value})


@pytest.mark.parametrize(("name", "value", "bound"), [("penalty", 0.0, "> 0"), ("penalty_max", 0, "> 0"),
                                                     ("penalty_growth", 0.99, ">= 1"), ("proximity", -1e-9, ">= 0"),
                                                     ("inertia", -1e-9, ">= 0")])  # fmt: skip
def test_bounds_are_named(name, value, bound):
    with pytest.raises(ValueError, match=says(name, f"number {bound}, got {value!r}")):
        IPDLAM(make_model(WIDTHS), **{name: value})


@pytest.mark.parametrize("name", ["penalty", "penalty_growth", "penalty_max"])
def test_dlam_checks_its_settings_too(name):
    with pytest.raises(ValueError, match=says(name, "got -2.0")):
        DLAM(make_model(WIDTHS), **{name: -2.0})


def test_settings_on_their_bounds_are_accepted():
    IPDLAM(make_model(WIDTHS), inertia=0, proximity=0, penalty=1e-9, penalty_growth=1, penalty_max=1e-9, chunk_size=1)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, (0.1, -1.0), (math.nan, 0.1)], ids=str)
def test_the_proximal_weight_of_W_and_b_is_checked(value):
    with pytest.raises(ValueError, match=says("weight_proximity", "must be a finite number >= 0")):
        IPDLAM(make_model(WIDTHS), weight_proximity=value)


@pytest.mark.parametrize("value", ["0.5", True, 1j, {}], ids=lambda value: type(value).__name__)
def test_a_proximal_weight_that_is_no_number(value):
    with pytest.raises(TypeError, match=says("weight_proximity (W) must be a number", f"got {value!r}")):
        IPDLAM(make_model(WIDTHS), weight_proximity=value)


@pytest.mark.parametrize("value", [(), (0.1,), (0.1, 0.2, 0.3)])
def test_proximal_weights_of_the_wrong_length(value):
    with pytest.raises(ValueError, match=says("weight_proximity must be None, a number or two (W, b)", f"{value!r}")):
        IPDLAM(make_model(WIDTHS), weight_proximity=value)


def test_penalty_max_below_penalty():
    parts = ("penalty_max must be at least penalty", "penalty_max=0.5", "penalty=2.0")
    with pytest.raises(ValueError, match=says(*parts)):
        IPDLAM(make_model(WIDTHS), penalty=2.0, penalty_max=0.5)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
def test_each_of_three_inertias_is_checked(place, value):
    inertia = [0.5, 0.5, 0.5]
    inertia[place] = value
    name = ("inertia (z)", "inertia (W and b)", "inertia (a)")[place]
    with pytest.raises(ValueError, match=says(name, f"got {value!r}")):
        IPDLAM(make_model(WIDTHS), inertia=tuple(inertia))


@pytest.mark.parametrize("inertia", [(), (0.5,), (0.5, 0.5), (0.5, 0.5, 0.5, 0.5), [0.1, 0.2]])
def test_inertia_of_the_wrong_length(inertia):
    with pytest.raises(ValueError, match=says("inertia must be a number or three (z, W and b, a)", f"got {inertia!r}")):
        IPDLAM(make_model(WIDTHS), inertia=inertia)


@pytest.mark.parametrize("value", [1.0, 1.2, (0.1, 1.0, 0.1), (0.1, 0.1, 2)])
def test_inertia_of_one_or_more_warns_with_the_evidence_of_the_paper(value):
    with pytest.warns(
        UserWarning, match=says("inertia", "1 or more", "5510", "divergence to NaN", "below 1")
    ) as caught:
        trainer = IPDLAM(make_model(WIDTHS), inertia=value)
    assert len(caught) == 1
    assert max(trainer.settings.inertia) == (max(value) if isinstance(value, tuple) else value)


def test_inertia_without_proximity_warns():
    with pytest.warns(UserWarning, match=says("inertia", "no effect at proximity 0")):
        IPDLAM(make_model(WIDTHS), proximity=0.0)


@pytest.mark.parametrize("settings", [{"inertia": 1.0}, {"proximity": 0.0}], ids=str)
def test_warnings_point_at_the_line_of_the_user(settings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        IPDLAM(make_model(WIDTHS), **settings)
    assert [warning.filename for warning in caught] == [__file__]


def test_usual_settings_do_not_warn():
    # Warnings are errors in this suite.
    IPDLAM(make_model(WIDTHS), inertia=0.99)
    IPDLAM(make_model(WIDTHS), inertia=0.0, proximity=0.0)
    DLAM(make_model(WIDTHS))


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8", math.nan, (8,)])
def test_chunk_size(value):
    with pytest.raises(ValueError, match=says("chunk_size must be an integer >= 1", f"got {value!r}")):
        IPDLAM(make_model(WIDTHS), chunk_size=value)


@pytest.mark.parametrize("value", ["mse", "Squared", "", None, 3, nn.MSELoss(), ipdlam.prox.Squared])
def test_unknown_loss(value):
    with pytest.raises(ValueError, match=says("loss must be one of squared, huber", "ipdlam.prox.Loss", f"{value!r}")):
        IPDLAM(make_model(WIDTHS), loss=value)


@pytest.mark.parametrize("value", ["l2", "Ridge", "", 0.1, ipdlam.prox.Ridge])
def test_unknown_regularizer(value):
    parts = ("regularizer must be one of ridge, l1", "ipdlam.prox.Regularizer", f"{value!r}")
    with pytest.raises(ValueError, match=says(*parts)):
        IPDLAM(make_model(WIDTHS), regularizer=value)
    with pytest.raises(ValueError, match=says(*parts)):
        IPDLAM(make_model(WIDTHS), regularizer=[None, value])


@pytest.mark.parametrize("given", [[], ["ridge"], ["ridge", None, "ridge"], ("l1",) * 4])
def test_regularizers_of_the_wrong_number(given):
    parts = ("regularizer must be one or one for each of the 2 layers", f"got {len(given)}")
    with pytest.raises(ValueError, match=says(*parts)):
        IPDLAM(make_model(WIDTHS), regularizer=given)


@pytest.mark.parametrize("value", ["backwards", "REVERSE", ""])
def test_unknown_order(value):
    parts = ("order must be one of reverse, increase, nested-reverse", f"got {value!r}")
    with pytest.raises(ValueError, match=says(*parts)):
        IPDLAM(make_model(WIDTHS), order=value)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda value: Ridge(value), "strength"),
        (lambda value: L1(value), "strength"),
        (lambda value: ElasticNet(l1=value), "l1"),
        (lambda value: ElasticNet(ridge=value), "ridge"),
        (lambda value: Huber(value), "threshold"),
        (lambda value: LeakyReLU(value), "slope"),
    ],
)
def test_settings_of_operators(build, name):
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=says(name, f"got {value!r}")):
            build(value)
    with pytest.raises(TypeError, match=says(name, "must be a number", "got '1'")):
        build("1")


def test_settings_of_operators_with_bounds_of_their_own():
    with pytest.raises(ValueError, match=says("threshold", "> 0", "got 0.0")):
        Huber(0.0)
    with pytest.raises(ValueError, match=says("slope must be in [0, 1)", "got 1.0", "Identity")):
        LeakyReLU(1.0)
    with pytest.raises(ValueError, match=says("low=2.0", "high=1.0")):
        Hardtanh(2.0, 1.0)


@pytest.mark.parametrize("slope", [-0.5, 1.0])
def test_activation_modules_with_settings_the_method_cannot_use(slope):
    with pytest.raises(ValueError, match=says("slope", f"got {slope!r}")):
        IPDLAM(nn.Sequential(linear(), nn.LeakyReLU(slope), linear()))


@pytest.mark.parametrize("scheme", ["xavier", "", None, "Paper"])
def test_unknown_initialisation(scheme):
    model = make_model(WIDTHS)
    before = weights(model)
    with pytest.raises(ValueError, match=says("scheme must be one of paper, he", f"got {scheme!r}")):
        ipdlam.initialise(model, scheme)
    assert same(before, weights(model))


# --- fit and step ---------------------------------------------------------------------------------------------------


def refuse_fit(parts, error=ValueError, **arguments):
    model = make_model(WIDTHS)
    before = weights(model)
    trainer = IPDLAM(model)
    with pytest.raises(error, match=says(*parts)):
        trainer.fit(*labelled(), **arguments)
    with pytest.raises(RuntimeError, match="no run has been started"):
        trainer.step()
    assert same(before, weights(model))


@pytest.mark.parametrize("value", [-1, 2.0, True, "3", None, math.inf])
def test_iterations(value):
    refuse_fit(["iterations must be an integer >= 0", f"got {value!r}"], iterations=value)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3"])
def test_patience(value):
    refuse_fit(["patience must be an integer >= 1", f"got {value!r}"], patience=value)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3", None])
def test_evaluate_every(value):
    refuse_fit(["evaluate_every must be an integer >= 1", f"got {value!r}"], evaluate_every=value)


def test_target_score():
    for value in (math.nan, math.inf, -math.inf):
        refuse_fit(["target_score must be a finite number", f"got {value!r}"], target_score=value)
    for value in ("0.9", True, [0.9]):
        refuse_fit(["target_score must be a number", f"got {value!r}"], error=TypeError, target_score=value)


@pytest.mark.parametrize("value", [print, [3], [print, None], "print"], ids=["one", "number", "None", "string"])
def test_callbacks_that_cannot_be_called(value):
    refuse_fit(["callbacks"], error=(TypeError, ValueError), callbacks=value)


def test_nothing_before_start():
    trainer = IPDLAM(make_model(WIDTHS))
    for use in (trainer.step, trainer.objective, lambda: trainer.history):
        with pytest.raises(RuntimeError, match=says("no run has been started", "call start(X, y) or fit(X, y) first")):
            use()


def test_a_refused_start_leaves_the_run_before_it_alone():
    X, y = labelled()
    expected, _ = train(make_model(WIDTHS), X, y, steps=3)
    model = make_model(WIDTHS)
    trainer = IPDLAM(model)
    trainer.start(X, y)
    trainer.step()
    with pytest.raises(ValueError, match="X has shape"):
        trainer.start(X[:, :2], y)
    trainer.step()
    with pytest.raises(ValueError, match="validation"):
        trainer.start(X, y, validation_data=(X, y[:3]))
    trainer.step()
    assert same(weights(model), expected)


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
    assert np.array_equal(on_disk._run.samples.inputs(slice(0, N)).numpy(), X.astype(np.float64))
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


def test_zero_iterations_train_nothing():
    model = make_model(WIDTHS)
    before = weights(model)
    history = IPDLAM(model).fit(*labelled(), iterations=0)
    assert len(history) == 0
    assert history.stop_reason == "iterations"
    assert same(before, weights(model))


def test_a_single_sample_trains():
    after, trainer = train(make_model(WIDTHS), *labelled(1))
    assert all(bool(torch.isfinite(weight).all()) for weight in after)
    assert math.isfinite(trainer.objective().value)


# --- what is left alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("targets", ["labels", "real"])
@pytest.mark.parametrize("order", ["reverse", "nested-reverse"])
def test_arguments_are_never_changed(dtype, kind, targets, order):
    # Data in the model's own precision are shared with the run, so an update in place would reach them.
    X, y = labelled(dtype=dtype) if targets == "labels" else real(dtype=dtype)
    weight = torch.linspace(0.5, 2.0, N, dtype=dtype)
    given = [X, y, weight, X.clone(), y.clone(), weight.clone()]
    given = [tensor.numpy() if kind == "numpy" else tensor for tensor in given]
    before = copy.deepcopy(given)
    trainer = IPDLAM(make_model(WIDTHS, dtype=dtype), order=order, chunk_size=10)
    X, y, weight, *validation = given
    trainer.fit(X, y, sample_weight=weight, validation_data=tuple(validation), iterations=3, restore_best=True)
    for old, new in zip(before, given, strict=True):
        assert bool((old == new).all())


def test_in_place_activations_do_not_reach_the_data():
    X, y = labelled()
    before = X.clone()
    model = make_model([4, 4, 4, 3])
    model[1].inplace = model[3].inplace = True
    IPDLAM(model).fit(X, y, iterations=2, validation_data=(X, y))
    assert torch.equal(X, before)


def test_lists_of_settings_are_never_changed():
    order, regularizers, inertia = ["z2", "W2", "a1", "z1", "W1"], ["ridge", None], [0.1, 0.2, 0.3]
    trainer = IPDLAM(make_model(WIDTHS), order=order, regularizer=regularizers, inertia=inertia)
    trainer.fit(*labelled(), iterations=2)
    assert order == ["z2", "W2", "a1", "z1", "W1"]
    assert regularizers == ["ridge", None]
    assert inertia == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_keeps_its_parameters(dtype):
    X, y = labelled()
    model = make_model(WIDTHS, dtype=dtype).eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    parameters = list(model.parameters())
    places = [parameter.data_ptr() for parameter in parameters]
    before = weights(model)
    trainer = IPDLAM(model)
    trainer.fit(X, y, iterations=3, validation_data=(X, y), restore_best=True)
    assert trainer.model is model
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    for parameter in parameters:
        assert type(parameter) is nn.Parameter
        assert parameter.dtype == dtype
        assert parameter.device == torch.device("cpu")
        assert parameter.requires_grad
        assert parameter.is_leaf
    assert bool((model[0].weight.grad == 1).all())
    assert model[2].weight.grad is None
    assert not model.training
    assert not same(before, weights(model))


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


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_the_global_random_state_is_never_touched(loss):
    X, y = labelled()
    model = make_model(WIDTHS)
    before = random_states()
    ipdlam.initialise(model, "paper", seed=3)
    ipdlam.initialise(model, "he", seed=4)
    assert random_states() == before
    trainer = IPDLAM(model, loss=loss, regularizer="l1")
    trainer.start(X, y, validation_data=(X, y))
    assert random_states() == before
    trainer.step()
    assert random_states() == before
    trainer.fit(X, y, iterations=2, restore_best=True)
    assert random_states() == before


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


# --- what is changed while a run is under way -------------------------------------------------------------------------

TRAINERS = [IPDLAM, DLAM, ipdlam.MiniBatchIPDLAM, BCD, DLADMM, BackPropagation]
every_trainer = pytest.mark.parametrize("kind", TRAINERS, ids=lambda kind: kind.__name__)


def one_more(trainer):
    """Another iteration or epoch."""
    unit = "epochs" if isinstance(trainer, (ipdlam.MiniBatchIPDLAM, BackPropagation)) else "iterations"
    return trainer.continue_fit(**{unit: 1})


def replace_layer(model):
    model[0] = nn.Linear(INPUTS, 5).double()
    return "module 0 is another layer than when the run was started"


def replace_activation(model):
    model[1] = nn.Tanh()
    return "module 0 has another name or activation"


def add_layer(model):
    model.append(nn.Linear(CLASSES, CLASSES).double())
    return "module 2 has another name or activation"


def convert(model):
    model.float()
    return "the model is torch.float32 on cpu, but was torch.float64 on cpu"


@every_trainer
@pytest.mark.parametrize("change", [replace_layer, replace_activation, add_layer, convert])
def test_a_model_that_is_changed_between_steps_is_noticed(kind, change):
    X, y = labelled()
    model = make_model(WIDTHS)
    trainer = kind(model)
    trainer.start(X, y)
    one_more(trainer)
    words = change(model)
    with pytest.raises(RuntimeError, match=says(words, "call start(X, y) to train the model as it is")):
        one_more(trainer)
    if change is not add_layer and change is not convert:
        trainer.start(X, y)
        before = weights(model)
        one_more(trainer)
        assert not any(torch.equal(old, new) for old, new in zip(before, weights(model), strict=True))


@pytest.mark.parametrize("kind", TRAINERS[:-1], ids=lambda kind: kind.__name__)
def test_forward_hooks_are_refused(kind):
    X, y = labelled()
    model = make_model(WIDTHS)
    for module, words in ((model, "the model has a forward hook"), (model[2], "module 2 (Linear) has a forward hook")):
        trainer = kind(model)
        handle = module.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
        with pytest.raises(UnsupportedModelError, match=says(words, "remove it")):
            trainer.start(X, y)
        handle.remove()
        trainer.start(X, y)
        handle = module.register_forward_pre_hook(lambda module, inputs: None)
        with pytest.raises(UnsupportedModelError, match=says(words)):
            one_more(trainer)
        handle.remove()
        one_more(trainer)
    own_loop = ipdlam.MiniBatchIPDLAM(model)
    model[0].register_forward_hook(lambda module, inputs, outputs: None)
    with pytest.raises(UnsupportedModelError, match="module 0"):
        own_loop.step(X, y)


@every_trainer
@pytest.mark.parametrize("name", ["X", "y", "validation X"])
def test_data_that_are_changed_in_place_between_steps_are_noticed(kind, name):
    (X, y), (X_new, y_new) = real(), real()
    trainer = kind(make_model(WIDTHS))
    trainer.start(X, y, validation_data=(X_new, y_new))
    {"X": X, "y": y, "validation X": X_new}[name].mul_(2.0)
    with pytest.raises(RuntimeError, match=says(f"{name} was changed in place since the run was started", "a copy")):
        one_more(trainer)
    trainer.start(X, y, validation_data=(X_new, y_new))
    one_more(trainer)


@every_trainer
def test_autocast_of_the_caller_changes_nothing(kind):
    X, y = labelled(dtype=torch.float32)
    plain, mixed = make_model(WIDTHS, dtype=torch.float32), make_model(WIDTHS, dtype=torch.float32)
    trainer = kind(plain)
    trainer.start(X, y)
    expected = one_more(trainer)
    with torch.autocast("cpu"):
        trainer = kind(mixed)
        trainer.start(X, y)
        history = one_more(trainer)
        if not isinstance(trainer, ipdlam.MiniBatchIPDLAM):
            assert trainer.step().train_loss is not None
    assert history[0].train_loss == expected[0].train_loss
    again = kind(make_model(WIDTHS, dtype=torch.float32))
    again.start(X, y)
    one_more(again)
    assert same(weights(again.model), weights(plain))


@every_trainer
def test_a_model_made_in_inference_mode_is_refused_by_name(kind):
    with torch.inference_mode():
        model = make_model(WIDTHS)
    with pytest.raises(
        UnsupportedModelError, match=says("module 0 (Linear): its weight", "inference_mode", "deepcopy")
    ):
        kind(model)
    kind(copy.deepcopy(model)).start(*labelled())


@pytest.mark.parametrize("name", ["inertia", "proximity"])
def test_settings_beyond_the_precision_of_the_model_are_refused(name):
    X, y = labelled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an inertia of 1 and more
        trainer = IPDLAM(make_model(WIDTHS, dtype=torch.float32), **{name: 1e39})
    with pytest.raises(ValueError, match=says(f"{name} is 1e+39, which is beyond torch.float32", "float64")):
        trainer.start(X, y)


def test_a_folder_without_a_name_is_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (".", "..", "/"):
        with pytest.raises(ipdlam.CheckpointError, match="holds no whole checkpoint"):
            IPDLAM.load(path, make_model(WIDTHS), *labelled())
