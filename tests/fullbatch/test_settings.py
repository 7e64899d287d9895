"""The settings of iPDLAM and DLAM: what is refused and in which words, and what warns."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import ipdlam
from contracts import equal as same
from contracts import says, weights
from ipdlam import DLAM, IPDLAM
from ipdlam.prox import L1, ElasticNet, Hardtanh, Huber, LeakyReLU, Ridge
from problems import make_data, make_model

N, INPUTS, CLASSES = 24, 4, 3
WIDTHS = [INPUTS, 5, CLASSES]


def labelled(samples=N, dtype=torch.float64):
    X, y = make_data(samples, INPUTS, CLASSES, "cross_entropy", dtype=dtype)
    return X, y


def linear(inputs=4, outputs=4, **settings):
    return nn.Linear(inputs, outputs, **settings)


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


def test_lists_of_settings_are_never_changed():
    order, regularizers, inertia = ["z2", "W2", "a1", "z1", "W1"], ["ridge", None], [0.1, 0.2, 0.3]
    trainer = IPDLAM(make_model(WIDTHS), order=order, regularizer=regularizers, inertia=inertia)
    trainer.fit(*labelled(), iterations=2)
    assert order == ["z2", "W2", "a1", "z1", "W1"]
    assert regularizers == ["ridge", None]
    assert inertia == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("name", ["inertia", "proximity"])
def test_settings_beyond_the_precision_of_the_model_are_refused(name):
    X, y = labelled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an inertia of 1 and more
        trainer = IPDLAM(make_model(WIDTHS, dtype=torch.float32), **{name: 1e39})
    with pytest.raises(ValueError, match=says(f"{name} is 1e+39, which is beyond torch.float32", "float64")):
        trainer.start(X, y)
