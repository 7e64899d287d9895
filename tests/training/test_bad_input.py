"""Every bad input gives a clear error before any work, whichever trainer gets it; changes under way are noticed."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import ipdlam
from contracts import CLASSES, TRAINERS, equal, every_class, says, those, weights
from ipdlam import UnsupportedModelError
from ipdlam.network.mlp import Network
from ipdlam.training.state import some_rows
from problems import make_data, make_model

N, INPUTS, OUTPUTS = 24, 4, 3
WIDTHS = [INPUTS, 5, OUTPUTS]
LATE = 4500  # arrays are scanned in pieces of 4096 rows: a fault in the second piece must be found in its true place


def labelled(samples=N, dtype=torch.float64):
    X, y = make_data(samples, INPUTS, OUTPUTS, "cross_entropy", dtype=dtype)
    return X, y


def real(samples=N, dtype=torch.float64):
    return make_data(samples, INPUTS, OUTPUTS, "squared", dtype=dtype)


def with_fault(array, place, value):
    faulty = array.clone()
    faulty[place] = value
    return faulty


def refuses(name, error, parts, function, *arguments, **others):
    """The error says all the parts; a failure names the trainer."""
    try:
        with pytest.raises(error, match=says(*parts)):
            function(*arguments, **others)
    except (AssertionError, pytest.fail.Exception) as failure:
        pytest.fail(f"{name}: {failure}")


def refuse_data(parts, X, y, *, error=ValueError, dtype=torch.float64, widths=WIDTHS, loss="squared", **others):
    """``start`` and ``fit`` of every trainer raise an error that says the parts, leave the model and start no run."""
    for name in CLASSES:
        trainer = TRAINERS[name]
        if "sample_weight" in others and not trainer.takes_weights:
            continue
        model = make_model(widths, dtype=dtype)
        before = weights(model)
        run = trainer.make(model, loss=loss)
        for begin in (run.start, run.fit):
            refuses(name, error, parts, begin, X, y, **others)
            refuses(name, RuntimeError, ["no run has been started"], trainer.go_on, run, 1)
        assert equal(before, weights(model)), name


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


def test_integers_of_a_single_output_are_real_targets():
    X, y = torch.randn(6, INPUTS), torch.tensor([0, 3, 1, 2, 0, 1])
    outcomes = []
    for targets in (y, y.float()):
        trainer = ipdlam.IPDLAM(make_model([INPUTS, 5, 1], dtype=torch.float32))
        trainer.start(X, targets)
        outcomes.append(trainer.step())
    assert outcomes[0].objective == outcomes[1].objective
    assert outcomes[0].train_accuracy is None
    refuse_data(["label 3 at 1", "0 ... 1"], X, y, widths=[INPUTS, 5, 1], loss="hinge")


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


# --- fit and step ---------------------------------------------------------------------------------------------------


def refuse_fit(parts, error=ValueError, number=3, **arguments):
    """What ``fit`` of every trainer says; ``unit`` among the parts is what it counts."""
    for name in CLASSES:
        trainer = TRAINERS[name]
        model = make_model(WIDTHS)
        before = weights(model)
        run = trainer.make(model)
        wanted = [part.format(unit=trainer.unit) for part in parts]
        refuses(name, error, wanted, trainer.fit, run, number, *labelled(), **arguments)
        refuses(name, RuntimeError, ["no run has been started"], trainer.go_on, run, 1)
        assert equal(before, weights(model)), name


@pytest.mark.parametrize("value", [-1, 2.0, True, "3", None, math.inf])
def test_the_number_of_iterations(value):
    refuse_fit(["{unit} must be an integer >= 0", f"got {value!r}"], number=value)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3"])
def test_bad_patience(value):
    refuse_fit(["patience must be an integer >= 1", f"got {value!r}"], patience=value)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3", None])
def test_bad_evaluate_every(value):
    refuse_fit(["evaluate_every must be an integer >= 1", f"got {value!r}"], evaluate_every=value)


def test_bad_target_scores():
    for value in (math.nan, math.inf, -math.inf):
        refuse_fit(["target_score must be a finite number", f"got {value!r}"], target_score=value)
    for value in ("0.9", True, [0.9]):
        refuse_fit(["target_score must be a number", f"got {value!r}"], error=TypeError, target_score=value)


@pytest.mark.parametrize("value", [print, [3], [print, None], "print"], ids=["one", "number", "None", "string"])
def test_callbacks_that_cannot_be_called(value):
    refuse_fit(["callbacks"], error=(TypeError, ValueError), callbacks=value)


@every_class
def test_nothing_before_start(trainer):
    run = trainer.make(make_model(WIDTHS))
    uses = [lambda: trainer.go_on(run, 1), lambda: run.history, *([run.step] if trainer.steps else [])]
    for use in [*uses, *([run.objective] if hasattr(run, "objective") else [])]:
        with pytest.raises(RuntimeError, match=says("no run has been started", "call start(X, y) or fit(X, y) first")):
            use()


@every_class
def test_the_number_of_iterations_to_go_on_with(trainer):
    run = trainer.make(make_model(WIDTHS))
    run.start(*labelled())
    with pytest.raises(ValueError, match=f"{trainer.unit} must be an integer >= 0, got -1"):
        trainer.go_on(run, -1)


@every_class
def test_a_refused_start_leaves_the_run_before_it_alone(trainer):
    X, y = labelled()
    twin, model = trainer.make(make_model(WIDTHS)), make_model(WIDTHS)
    run = trainer.make(model)
    trainer.fit(twin, 3, X, y)
    trainer.fit_until(run, 3, 1, X, y)
    with pytest.raises(ValueError, match="X has shape"):
        run.start(X[:, :2], y)
    trainer.go_on(run, 1)
    with pytest.raises(ValueError, match="validation"):
        run.start(X, y, validation_data=(X, y[:3]))
    trainer.go_on(run, 1)
    assert equal(weights(model), weights(twin.model))


def test_targets_are_needed():
    refuse_data(["y is missing: give the targets of X"], labelled()[0], None)


# --- what is changed while a run is under way -------------------------------------------------------------------------


ANOTHER = "is another one, or has other settings, than when the run was started"  # of a module of any model


def replace_layer(model):
    model[0] = make_model(WIDTHS, seed=1)[0]
    return "module 0 (Linear) is another layer than when the run was started", f"module 0 {ANOTHER}"


def replace_activation(model):
    model[1] = nn.Tanh()
    return "module 0 (Linear) has another name or activation", f"module 1 {ANOTHER}"


def add_layer(model):
    model.append(nn.Linear(OUTPUTS, OUTPUTS).double())
    return "module 2 (Linear) has another name or activation", f"module 3 {ANOTHER}"


def convert(model):
    model.float()
    return 2 * ("the model is torch.float32 on cpu, but was torch.float64 on cpu",)


@every_class
@pytest.mark.parametrize("change", [replace_layer, replace_activation, add_layer, convert])
def test_a_model_that_is_changed_between_steps_is_noticed(trainer, change):
    X, y = labelled()
    model = make_model(WIDTHS)
    run = trainer.make(model)
    run.start(X, y)
    trainer.go_on(run, 1)
    words = change(model)[0 if trainer.kind.view is Network else 1]
    with pytest.raises(RuntimeError, match=says(words, "call start(X, y) to train the model as it is")):
        trainer.go_on(run, 1)
    if change is not add_layer and change is not convert:
        run.start(X, y)
        before = weights(model)
        trainer.go_on(run, 1)
        assert not any(torch.equal(old, new) for old, new in zip(before, weights(model), strict=True))


@those(lambda trainer: not trainer.back_propagates, CLASSES)
def test_forward_hooks_are_refused(trainer):
    X, y = labelled()
    model = make_model(WIDTHS)
    for module, words in ((model, "the model has a forward hook"), (model[2], "module 2 (Linear) has a forward hook")):
        run = trainer.make(model)
        handle = module.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
        with pytest.raises(UnsupportedModelError, match=says(words, "remove it")):
            run.start(X, y)
        handle.remove()
        run.start(X, y)
        handle = module.register_forward_pre_hook(lambda module, inputs: None)
        with pytest.raises(UnsupportedModelError, match=says(words)):
            trainer.go_on(run, 1)
        handle.remove()
        trainer.go_on(run, 1)
    own_loop = ipdlam.MiniBatchIPDLAM(model)
    model[0].register_forward_hook(lambda module, inputs, outputs: None)
    with pytest.raises(UnsupportedModelError, match="module 0"):
        own_loop.step(X, y)


@every_class
@pytest.mark.parametrize("name", ["X", "y", "validation X"])
def test_data_that_are_changed_in_place_between_steps_are_noticed(trainer, name):
    (X, y), (X_new, y_new) = real(), real()
    run = trainer.make(make_model(WIDTHS))
    run.start(X, y, validation_data=(X_new, y_new))
    {"X": X, "y": y, "validation X": X_new}[name].mul_(2.0)
    with pytest.raises(RuntimeError, match=says(f"{name} was changed in place since the run was started", "a copy")):
        trainer.go_on(run, 1)
    run.start(X, y, validation_data=(X_new, y_new))
    trainer.go_on(run, 1)


@every_class
@pytest.mark.parametrize("name", ["X", "y", "validation X"])
def test_numpy_arrays_that_are_changed_in_place_between_steps_are_noticed(trainer, name):
    """torch does not count what NumPy does to numbers that they share."""
    (X, y), (X_new, y_new) = ([array.numpy() for array in real()] for _ in range(2))
    run = trainer.make(make_model(WIDTHS))
    run.start(X, y, validation_data=(X_new, y_new))
    trainer.go_on(run, 1)
    changed = {"X": X, "y": y, "validation X": X_new}[name]
    changed *= 2.0
    with pytest.raises(RuntimeError, match=says(f"{name} was changed in place since the run was started", "a copy")):
        trainer.go_on(run, 2)
    changed /= 2.0
    trainer.go_on(run, 2)


def test_rows_from_all_over_an_array_are_watched():
    many = torch.zeros(1000, 2, 256)
    before = some_rows(many)
    for row in (0, 96, 992):
        for column in (0, 128, 254):
            other = many.clone()
            other[row, 1, column] = 1.0
            assert some_rows(other) != before
    assert some_rows(many[:0]) is None
    assert some_rows(many.to("meta")) is None
    assert some_rows(many[:, 0, 0]) != some_rows(many[:, 0, 0] + 1.0)


@every_class
def test_autocast_of_the_caller_changes_nothing(trainer):  # of layers as narrow as these, also on mini-batches
    X, y = labelled(dtype=torch.float32)
    plain, mixed = make_model(WIDTHS, dtype=torch.float32), make_model(WIDTHS, dtype=torch.float32)
    run = trainer.make(plain)
    run.start(X, y)
    expected = trainer.go_on(run, 1)
    with torch.autocast("cpu"):
        run = trainer.make(mixed)
        run.start(X, y)
        history = trainer.go_on(run, 1)
        if not isinstance(run, ipdlam.MiniBatchIPDLAM):
            assert run.step().train_loss is not None
    assert history[0].train_loss == expected[0].train_loss
    again = trainer.make(make_model(WIDTHS, dtype=torch.float32))
    again.start(X, y)
    trainer.go_on(again, 1)
    assert equal(weights(again.model), weights(plain))


@every_class
def test_a_model_made_in_inference_mode_is_refused_by_name(trainer):
    with torch.inference_mode():
        model = make_model(WIDTHS)
    with pytest.raises(
        UnsupportedModelError, match=says("module 0 (Linear): its weight", "inference_mode", "deepcopy")
    ):
        trainer.make(model)
    trainer.make(copy.deepcopy(model)).start(*labelled())
