"""The scikit-learn estimators: what they learn, what they say about it, and what they refuse."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from ipdlam import IPDLAM, DivergenceError, MiniBatchIPDLAM
from ipdlam.estimators import IPDLAMClassifier, IPDLAMRegressor
from ipdlam.estimators.reading import Rows
from ipdlam.estimators.scaling import Clip, Scaling
from ipdlam.estimators.stopping import Plateau
from ipdlam.prox import ACTIVATIONS, LOSSES
from ipdlam.prox.probabilities import nearest_probabilities
from ipdlam.training.history import Record

# Most trainings here are far too short to converge; the tests of the warning itself ask for it.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

METHODS = ["auto", None]
both_methods = pytest.mark.parametrize("batch_size", METHODS, ids=["batches", "full"])
PROBABLE = ["cross_entropy", "logistic", "squared"]

X, Y = make_classification(160, 6, n_informative=4, n_redundant=0, n_classes=3, class_sep=1.5, random_state=0)
TWO = (Y > 0).astype(int)
NAMES = np.array(["ash", "beech", "cedar"])[Y]
TARGETS = np.stack([np.sin(X[:, 0]) + X[:, 1], X[:, 2] * 3.0 + 5.0], 1)


def classifier(**settings):
    return IPDLAMClassifier(**{"hidden_layer_sizes": (12,), "max_iter": 5, "random_state": 0, **settings})


def regressor(**settings):
    return IPDLAMRegressor(**{"hidden_layer_sizes": (12,), "max_iter": 5, "random_state": 0, **settings})


KINDS = [(classifier, Y), (regressor, TARGETS[:, 0])]
both_kinds = pytest.mark.parametrize(("make", "y"), KINDS, ids=["classifier", "regressor"])


def answers(model, inputs=X):
    return model.decision_function(inputs) if hasattr(model, "decision_function") else model.predict(inputs)


def same_answers(first, second, inputs=X):
    return np.array_equal(answers(first, inputs), answers(second, inputs))


def module_answers(model, inputs):
    """What the plain network says about raw features."""
    module = model.module_
    return module(torch.as_tensor(inputs, dtype=next(module.parameters()).dtype)).numpy()


def run_python(code, *arguments):
    """A fresh interpreter."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, env=environment, check=True
    ).stdout


# --- it learns --------------------------------------------------------------------------------------------------------


@both_methods
def test_iris_and_diabetes_without_tuning(batch_size):
    iris = load_iris(return_X_y=True)
    assert IPDLAMClassifier(batch_size=batch_size, random_state=0).fit(*iris).score(*iris) > 0.9
    diabetes = load_diabetes(return_X_y=True)
    assert IPDLAMRegressor(batch_size=batch_size, random_state=0).fit(*diabetes).score(*diabetes) > 0.45


@both_methods
@pytest.mark.parametrize("y", [TWO, Y], ids=["two", "three"])
@pytest.mark.parametrize("loss", IPDLAMClassifier.losses)
def test_every_loss_learns_classes(loss, y, batch_size):
    model = classifier(loss=loss, batch_size=batch_size, max_iter=15).fit(X, y)
    predicted, decision = model.predict(X), model.decision_function(X)
    assert np.mean(predicted == y) > (0.8 if y is TWO else 0.65)
    classes = len(np.unique(y))
    assert decision.shape == ((len(X),) if classes == 2 else (len(X), classes))
    assert np.array_equal(decision > 0 if classes == 2 else decision.argmax(1), predicted)
    assert model.n_outputs_ == model.module_[-1].out_features
    if loss in PROBABLE:
        found = model.predict_proba(X)
        assert found.shape == (len(X), classes)
        assert found.min() >= 0.0
        np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
        assert np.array_equal(found[np.arange(len(X)), predicted], found.max(1))
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(model.predict_log_proba(X), np.log(found), rtol=1e-9)
    else:
        assert not hasattr(model, "predict_proba")
        assert not hasattr(model, "predict_log_proba")
        with pytest.raises(AttributeError, match="predict_proba") as refused:
            _ = model.predict_proba
        assert "needs a loss that estimates probabilities" in str(refused.value.__cause__)
        assert loss in str(refused.value.__cause__)


@both_methods
@pytest.mark.parametrize("loss", IPDLAMRegressor.losses)
def test_every_loss_learns_targets(loss, batch_size):
    if (loss, batch_size) == ("quantile", None):
        pytest.skip("the full-batch method does not come near a quantile, and is refused")
    model = regressor(loss=loss, batch_size=batch_size, max_iter=30, hidden_layer_sizes=(30,)).fit(X, TARGETS)
    assert model.predict(X).shape == TARGETS.shape
    assert model.score(X, TARGETS) > 0.8


@both_methods
def test_every_activation_trains(batch_size):
    for activation in (*ACTIVATIONS, "logistic"):
        model = classifier(activation=activation, batch_size=batch_size, loss="squared").fit(X, Y)
        assert model.score(X, Y) > 0.5
    assert same_answers(model, classifier(activation="sigmoid", batch_size=batch_size, loss="squared").fit(X, Y))


@both_methods
@pytest.mark.parametrize("sizes", [(), 7, (7,), [7, 5], np.array([7, 5])])
def test_the_hidden_layers_are_those_asked_for(sizes, batch_size):
    model = classifier(hidden_layer_sizes=sizes, batch_size=batch_size).fit(X, Y)
    widths = [6, *np.atleast_1d(np.asarray(sizes, dtype=int)), 3]
    assert [coef.shape for coef in model.coefs_] == list(itertools.pairwise(widths))
    assert model.n_layers_ == len(widths)


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_any_number_of_samples_may_make_a_batch(batch_size):
    assert classifier(batch_size=batch_size).fit(X[:60], Y[:60]).score(X, Y) > 0.5


# --- probabilities ----------------------------------------------------------------------------------------------------


@functools.cache
def noisy(classes):
    """Labels that are drawn with probabilities that depend on two features in a known way."""
    random = np.random.RandomState(1)
    inputs = random.uniform(-2, 2, (1500, 2))
    logits = np.stack([np.zeros(1500), 2.0 * inputs[:, 0], inputs[:, 1]], 1)[:, :classes]
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (random.uniform(size=(1500, 1)) > true.cumsum(1)[:, :-1]).sum(1)
    return inputs, labels, true


@both_methods
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", PROBABLE)
def test_probabilities_are_those_of_the_noise(loss, classes, batch_size):
    inputs, labels, true = noisy(classes)
    model = classifier(loss=loss, batch_size=batch_size, max_iter=10).fit(inputs, labels)
    found = model.predict_proba(inputs)
    assert np.abs(found - true).mean() < 0.07
    np.testing.assert_allclose(found.mean(0), np.bincount(labels) / len(labels), atol=0.04)
    for low in np.arange(0.0, 1.0, 0.25):  # what is said to come in a quarter of all cases does
        said = (found[:, 1] >= low) & (found[:, 1] < low + 0.25)
        if said.sum() > 100:
            assert abs(found[said, 1].mean() - (labels[said] == 1).mean()) < 0.1


def test_nearest_probabilities_are_nearest():
    """Certified by a solver that knows nothing of the formula."""
    rows = np.random.RandomState(0).normal(0.3, 1.0, (12, 4))
    rows[0] = [-5.0, -7.0, -6.0, -9.0]  # no output is positive
    rows[1] = [1.2, 1.1, 0.0, 0.0]  # two are above 1
    rows[2] = [0.1, 0.2, 0.3, 0.4]
    found = nearest_probabilities(torch.tensor(rows)).numpy()
    np.testing.assert_allclose(found.sum(1), 1.0)
    np.testing.assert_allclose(found[2], rows[2])
    assert np.array_equal(found.argmax(1), rows.argmax(1))
    add_up = {"type": "eq", "fun": lambda p: p.sum() - 1.0}
    for row, p in zip(rows, found, strict=True):
        best = minimize(
            lambda p, row=row: ((p - row) ** 2).sum(), np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints=add_up
        )
        assert ((p - row) ** 2).sum() <= best.fun + 1e-9


@pytest.mark.parametrize("loss", PROBABLE)
def test_probabilities_far_from_the_data_agree_with_the_class(loss):
    """Outputs are huge there: sigmoids round to 0 and 1, and squared outputs leave [0, 1] together."""
    model = classifier(loss=loss).fit(X.astype(np.float32), Y)
    far = (X * 1000.0).astype(np.float32)
    found, logarithms = model.predict_proba(far), model.predict_log_proba(far)
    assert np.array_equal(found[np.arange(len(far)), model.predict(far)], found.max(1))
    np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-5)
    assert not np.isnan(logarithms).any()
    if loss == "cross_entropy":
        assert np.isfinite(logarithms).all()


# --- labels and targets -----------------------------------------------------------------------------------------------


@both_methods
@pytest.mark.parametrize(
    "labels",
    [
        NAMES,
        NAMES.astype(object),
        pd.Series(NAMES, index=np.arange(160)[::-1], dtype="category"),
        Y > 0,
        Y * 10 - 7,
        Y.astype(float),
        Y.astype(np.uint8),
        list(NAMES),
    ],
    ids=["strings", "objects", "categories", "bools", "negative", "floats", "bytes", "list"],
)
def test_labels_of_every_kind_come_back(labels, batch_size):
    model = classifier(batch_size=batch_size).fit(X, labels)
    expected, given = np.unique(np.asarray(labels)), np.asarray(labels)
    assert np.array_equal(model.classes_, expected)
    predicted = model.predict(X)
    assert predicted.dtype == given.dtype
    assert set(predicted) <= set(expected)
    assert np.mean(predicted == given) > 0.5
    # Only their order matters.
    numbers = classifier(batch_size=batch_size).fit(X, np.searchsorted(expected, given))
    assert same_answers(model, numbers)


@both_methods
def test_a_column_of_labels_warns_as_in_scikit_learn(batch_size):
    with pytest.warns(DataConversionWarning, match="column-vector y was passed"):
        model = classifier(batch_size=batch_size).fit(X, Y[:, None])
    assert same_answers(model, classifier(batch_size=batch_size).fit(X, Y))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.stack([Y, Y], 1), "1d array"),
        (X[:, 0], "Unknown label type"),
        (np.zeros(160), "one class: 0.0"),
        (np.full(160, "ash"), "one class: 'ash'"),
        (Y[:-1], "inconsistent numbers of samples"),
        (None, "requires y"),
    ],
)
@both_methods
def test_targets_that_are_no_classes_are_refused(y, message, batch_size):
    with pytest.raises(ValueError, match=message):
        classifier(batch_size=batch_size).fit(X, y)


@both_methods
def test_targets_keep_their_shape(batch_size):
    for y in (TARGETS[:, 0], TARGETS[:, :1], TARGETS):
        assert regressor(batch_size=batch_size).fit(X, y).predict(X).shape == y.shape


@both_methods
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble, ">f8", object, np.int8, bool])
def test_targets_may_be_numbers_of_any_kind(kind, batch_size):
    y = TARGETS.astype(kind)
    model = regressor(batch_size=batch_size, max_iter=2).fit(X, y)
    expected = regressor(batch_size=batch_size, max_iter=2).fit(X, y.astype(np.float64))
    assert model.predict(X).dtype == np.float64
    np.testing.assert_allclose(model.predict(X), expected.predict(X), rtol=1e-3, atol=1e-3)


@both_methods
def test_units_of_targets_do_not_matter(batch_size):
    model = regressor(batch_size=batch_size).fit(X, TARGETS)
    for unit, mean in ((1e-9, 0.0), (1e9, 0.0), (1.0, 1e6), (1e-200, 0.0), (1e200, 0.0)):
        other = regressor(batch_size=batch_size).fit(X, TARGETS * unit + mean)
        np.testing.assert_allclose((other.predict(X) - mean) / unit, model.predict(X), rtol=1e-6, atol=1e-6)


@both_methods
def test_a_constant_target_is_learned_exactly(batch_size):
    y = np.stack([TARGETS[:, 0], np.full(160, 7.0)], 1)
    assert np.abs(regressor(batch_size=batch_size, max_iter=20).fit(X, y).predict(X)[:, 1] - 7.0).max() < 0.5
    assert np.isfinite(regressor(batch_size=batch_size).fit(X, np.full(160, -3.0)).predict(X)).all()


# --- weights of samples and classes -----------------------------------------------------------------------------------


@both_kinds
def test_a_weight_is_a_number_of_repetitions(make, y):
    """By the full-batch method, whose sums do not know the order; batches would be others."""
    counts = np.random.RandomState(0).randint(0, 4, len(X))
    weighted = make(batch_size=None, max_iter=8).fit(X, y, sample_weight=counts)
    repeated = make(batch_size=None, max_iter=8).fit(np.repeat(X, counts, 0), np.repeat(y, counts))
    np.testing.assert_allclose(answers(weighted), answers(repeated), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(weighted.loss_curve_, repeated.loss_curve_, rtol=1e-6)


@both_kinds
def test_a_weight_is_a_number_of_repetitions_where_a_batch_holds_all(make, y):
    counts = np.random.RandomState(0).randint(1, 4, len(X))
    for settings in ({"standardize": True, "alpha": 0.01}, {}):
        weighted = make(batch_size=160, **settings).fit(X, y, sample_weight=counts)
        repeated = make(batch_size=1000, **settings).fit(np.repeat(X, counts, 0), np.repeat(y, counts))
        largest = np.abs(answers(repeated)).max()
        np.testing.assert_allclose(answers(weighted), answers(repeated), rtol=0.0, atol=0.05 * largest)
        if settings:
            np.testing.assert_allclose(answers(weighted), answers(repeated), rtol=0.05, atol=0.05)


@both_methods
@both_kinds
def test_a_weight_of_zero_is_a_sample_left_out(make, y, batch_size):
    weight = (np.arange(len(X)) % 3 > 0).astype(float)
    wrong = np.where(weight > 0, y, y[0])
    weighted = make(batch_size=batch_size).fit(X, wrong, sample_weight=weight)
    assert same_answers(
        weighted, make(batch_size=batch_size).fit(X[weight > 0], y[weight > 0], np.ones(len(X))[weight > 0])
    )


@both_kinds
def test_the_unit_of_weights_does_not_matter_to_batches(make, y):
    """In the full-batch method it does, as more samples do: the proximal terms of W and b do not grow with them."""
    weight = np.random.RandomState(0).uniform(0.5, 2.0, len(X))
    once, scaled = (make().fit(X, y, sample_weight=unit * weight) for unit in (1.0, 1024.0))
    np.testing.assert_allclose(answers(once), answers(scaled), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(once.loss_curve_, scaled.loss_curve_, rtol=1e-6)


@both_methods
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros(160), "every sample is zero|at least one non-zero"),  # ours, or that of newer versions of theirs
        (-np.ones(160), "[Nn]egative"),
        (np.ones(3), "shape"),
        (["heavy"] * 160, "heavy"),
    ],
)
def test_weights_that_are_none_are_refused(weight, message, batch_size):
    with pytest.raises(ValueError, match=message):
        classifier(batch_size=batch_size).fit(X, Y, sample_weight=weight)


@both_methods
def test_balanced_classes_count_alike(batch_size):
    """Nine to one and overlapping: without weights the rare class is hardly ever said."""
    random = np.random.RandomState(0)
    y = (np.arange(600) % 10 == 0).astype(int)
    inputs = random.normal(size=(600, 2)) + y[:, None]
    rare = {
        weight: classifier(class_weight=weight, batch_size=batch_size, max_iter=10)
        .fit(inputs, y)
        .predict(inputs)
        .mean()
        for weight in (None, "balanced")
    }
    assert rare[None] < 0.1
    assert 0.2 < rare["balanced"] < 0.5


@both_methods
def test_weights_of_classes_are_weights_of_their_samples(batch_size):
    weights = {"ash": 1.0, "beech": 4.0, "cedar": 0.5}
    by_class = classifier(class_weight=weights, batch_size=batch_size).fit(X, NAMES, sample_weight=np.arange(1, 161))
    if batch_size is None:  # batches meet a class as often as its weight says
        of_samples = np.array([weights[name] for name in NAMES]) * np.arange(1, 161)
        assert same_answers(by_class, classifier(batch_size=None).fit(X, NAMES, sample_weight=of_samples))
    counts = np.bincount(Y)
    balanced = classifier(class_weight="balanced", batch_size=batch_size).fit(X, Y)
    by_hand = classifier(class_weight=dict(enumerate(160 / (3 * counts))), batch_size=batch_size).fit(X, Y)
    np.testing.assert_allclose(answers(balanced), answers(by_hand), rtol=1e-6, atol=1e-9)


def test_balance_counts_repetitions():
    counts = np.random.RandomState(0).randint(0, 4, len(X))
    weighted = classifier(batch_size=None, class_weight="balanced").fit(X, Y, sample_weight=counts)
    repeated = classifier(batch_size=None, class_weight="balanced").fit(np.repeat(X, counts, 0), np.repeat(Y, counts))
    np.testing.assert_allclose(answers(weighted), answers(repeated), rtol=1e-6, atol=1e-6)


@both_methods
def test_a_class_of_weight_zero_teaches_nothing(batch_size):
    model = classifier(class_weight={0: 0.0, 1: 1.0, 2: 1.0}, batch_size=batch_size, max_iter=10).fit(X, Y)
    assert list(model.classes_) == [0, 1, 2]
    assert not (model.predict(X) == 0).any()
    with pytest.raises(ValueError, match="class_weight"):
        classifier(class_weight=dict.fromkeys(range(3), 0.0), batch_size=batch_size).fit(X, Y)


@both_methods
@pytest.mark.parametrize("weights", [{7: 1.0}, {"ash": 2.0, "oak": 1.0}, "heavy"])
def test_weights_of_classes_that_are_none_are_refused(weights, batch_size):
    with pytest.raises(ValueError, match=r"class_weight|classes"):
        classifier(class_weight=weights, batch_size=batch_size).fit(X, NAMES)


# --- partial_fit ------------------------------------------------------------------------------------------------------


def stream(size=20):
    return [slice(start, start + size) for start in range(0, len(X), size)]


def test_a_stream_is_learned():
    random = np.random.RandomState(0)
    inputs = random.normal(size=(2000, 4))
    y = np.where(inputs[:, 0] * inputs[:, 1] > 0, "same", "other")
    model, scores = classifier(hidden_layer_sizes=(30,)), []
    for start in range(0, 1500, 100):
        model.partial_fit(inputs[start : start + 100], y[start : start + 100], classes=["same", "other"])
        scores.append(model.score(inputs[1500:], y[1500:]))
    assert scores[-1] > 0.8
    assert scores[-1] > scores[0] + 0.15
    assert model.n_iter_ == len(model.loss_curve_) == 15
    assert model.loss_curve_[-1] < 0.7 * model.loss_curve_[0]


def test_a_stream_of_targets_is_learned():
    model = regressor()
    for _ in range(10):
        for rows in stream(40):
            model.partial_fit(X[rows], TARGETS[rows])
    assert model.score(X, TARGETS) > 0.8
    with pytest.raises(ValueError, match="y has 1 columns, but had 2"):
        model.partial_fit(X, TARGETS[:, 0])


def test_the_first_call_says_which_classes_there_are():
    model = classifier().partial_fit(X[Y == 0], NAMES[Y == 0], classes=["cedar", "ash", "beech"])
    assert list(model.classes_) == ["ash", "beech", "cedar"]
    model.partial_fit(X, NAMES).partial_fit(X, NAMES, classes=["ash", "beech", "cedar"])
    with pytest.raises(ValueError, match="'oak', which is not among the classes"):
        model.partial_fit(X[:1], ["oak"])
    with pytest.raises(ValueError, match=r"classes are .*'oak'.*, but were .*'ash'"):
        model.partial_fit(X, NAMES, classes=["ash", "oak", "beech"])
    assert list(classifier().partial_fit(X, NAMES).classes_) == ["ash", "beech", "cedar"]
    with pytest.raises(ValueError, match="one class"):
        classifier().partial_fit(X[Y == 0], NAMES[Y == 0])
    with pytest.raises(ValueError, match="not among the classes"):
        classifier().partial_fit(X, NAMES, classes=["ash", "beech"])


@both_kinds
def test_a_pickle_in_mid_stream_goes_on_exactly(make, y):
    given = {"classes": [0, 1, 2]} if make is classifier else {}
    model, restored = make(), None
    for number, rows in enumerate(stream()):
        model.partial_fit(X[rows], y[rows], **given)
        if number == 3:
            restored = pickle.loads(pickle.dumps(model))
        elif restored is not None:
            restored.partial_fit(X[rows], y[rows], **given)
    assert same_answers(model, restored)
    assert model.loss_curve_ == restored.loss_curve_


@both_kinds
def test_a_stream_may_change_its_precision(make, y):
    """pandas and files give what they hold; the network keeps the precision of the first call."""
    for kinds in ((np.float32, np.float64), (np.float64, np.float32)):
        model = make().partial_fit(X.astype(kinds[0]), y, sample_weight=np.ones(160))
        for kind in kinds:
            model.partial_fit(X.astype(kind), y.astype(kind), sample_weight=np.ones(160, dtype=kinds[1]))
        assert answers(model).dtype == kinds[0]
        assert model.coefs_[0].dtype == kinds[0]


def test_weights_of_classes_in_a_stream():
    weights = {0: 2.0, 2: 3.0}
    model, by_hand = classifier(class_weight=weights), classifier()
    for rows in (slice(None), Y < 2, Y == 1):  # some batches lack a class
        given = {"classes": [0, 1, 2]}
        model.partial_fit(X[rows].astype(np.float32), Y[rows], **given)
        by_hand.partial_fit(X[rows].astype(np.float32), Y[rows], sample_weight=np.array([2, 1, 3])[Y[rows]], **given)
    assert same_answers(model, by_hand)
    unloved = classifier(class_weight={0: 0.0, 1: 1.0, 2: 1.0}, batch_size=1).partial_fit(X, Y)
    assert np.isfinite(unloved.loss_)
    with pytest.raises(ValueError, match="class_weight='balanced' needs all samples"):
        classifier(class_weight="balanced").partial_fit(X, Y)


@both_kinds
def test_partial_fit_is_for_batches(make, y):
    assert hasattr(make(), "partial_fit")
    assert not hasattr(make(batch_size=None), "partial_fit")
    with pytest.raises(AttributeError) as refused:
        make(batch_size=None).partial_fit(X, y)
    assert "full-batch" in str(refused.value.__cause__)
    with pytest.raises(ValueError, match="early_stopping"):
        make(early_stopping=True).partial_fit(X, y)


@both_kinds
def test_fit_begins_anew_and_partial_fit_goes_on(make, y):
    model = make().partial_fit(X[:, ::-1], y).fit(X, y)
    assert same_answers(model, make().fit(X, y))
    assert model.n_iter_ == 5
    for _ in range(5):
        model.partial_fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == 10
    assert max(model.loss_curve_[5:]) < 0.7 * model.loss_curve_[0]  # not from the beginning
    assert same_answers(model.fit(X, y), make().fit(X, y))


def test_a_single_sample_may_open_a_stream():
    model = classifier()
    for row in range(60):
        model.partial_fit(X[row : row + 1], Y[row : row + 1], classes=[0, 1, 2])
    assert np.isfinite(model.decision_function(X)).all()
    assert model.score(X, Y) > 0.4


# --- how training goes on and ends ------------------------------------------------------------------------------------


@both_methods
@both_kinds
def test_warm_start_goes_on(make, y, batch_size):
    model = make(batch_size=batch_size, warm_start=True, alpha=0.01, max_iter=8, tol=0.0).fit(X, y)
    first, curve = model.loss_curve_[0], list(model.loss_curve_)
    model.fit(X, y)
    assert model.loss_curve_[:8] == curve
    assert model.n_iter_ == len(model.loss_curve_) == 16
    assert model.loss_curve_[8] < 0.8 * first  # not from the beginning
    assert min(model.loss_curve_[8:]) < min(curve)
    assert make(batch_size=batch_size, max_iter=8).fit(X, y).fit(X, y).n_iter_ == 8


@both_methods
@both_kinds
def test_warm_start_may_change_precision_scaling_and_method(make, y, batch_size):
    model = make(batch_size=batch_size, warm_start=True, max_iter=10).fit(X.astype(np.float32) * 50, y)
    score = model.score(X * 50, y)
    model.set_params(standardize=False).fit(X * 50, y)  # the scale belongs to the weights
    assert model.score(X * 50, y) > score - 0.1
    model.set_params(standardize=True, batch_size=None if batch_size else "auto").fit(X.astype(np.float32) * 50, y)
    assert model.score(X * 50, y) > score - 0.1
    assert answers(model).dtype == np.float32


@both_methods
@both_kinds
def test_warm_start_refuses_another_network(make, y, batch_size):
    model = make(batch_size=batch_size, warm_start=True).fit(X, y)
    before = answers(model)
    for name, value in (("hidden_layer_sizes", (3, 3)), ("activation", "tanh")):
        with pytest.raises(ValueError, match=f"{name}.*go on with"):
            clone_with_state(model).set_params(**{name: value}).fit(X, y)
    with pytest.raises(ValueError, match="features"):
        model.fit(X[:, :3], y)
    assert np.array_equal(answers(model), before)


def clone_with_state(model):
    return pickle.loads(pickle.dumps(model))


@both_methods
def test_warm_start_refuses_other_targets(batch_size):
    model = classifier(batch_size=batch_size, warm_start=True).fit(X, TWO)
    with pytest.raises(ValueError, match="y holds 2, which is not among the classes"):
        model.fit(X, Y)
    several = regressor(batch_size=batch_size, warm_start=True).fit(X, TARGETS)
    with pytest.raises(ValueError, match="y has 1 columns, but had 2"):
        several.fit(X, TARGETS[:, 0])


@both_methods
@both_kinds
def test_early_stopping_keeps_the_best(make, y, batch_size, monkeypatch):
    """The last weights are worse on the samples held out; labels without meaning make sure of it."""
    monkeypatch.setattr("ipdlam.estimators.perceptron.REFIT_BELOW", 0)
    mixed = np.random.RandomState(0).permutation(y)
    settings = {"batch_size": batch_size, "hidden_layer_sizes": (60,), "n_iter_no_change": 3, "tol": 0.0}
    held, hold_out = [], IPDLAMClassifier._hold_out
    watchers, begin = [], Plateau.__init__

    def spy(self, *arguments):
        found = hold_out(self, *arguments)
        held.append(found[1])
        return found

    def watch(self, *arguments):
        begin(self, *arguments)
        watchers.append(self)

    monkeypatch.setattr("ipdlam.estimators.perceptron.Perceptron._hold_out", spy)
    monkeypatch.setattr(Plateau, "__init__", watch)
    model = make(early_stopping=True, max_iter=200, validation_fraction=0.25, **settings).fit(X, mixed)
    assert len(held[0]) == 40
    assert model.n_iter_ == len(model.validation_scores_) == len(model.loss_curve_) < 200
    assert watchers[0].best_epoch == model.n_iter_ - 3  # three more without a better one
    inputs, labels = X[held[0]], mixed[held[0]]
    if make is classifier:
        assert log_loss(labels, model.predict_proba(inputs)) == pytest.approx(watchers[0].best, rel=1e-6)
    else:
        errors = (model.predict(inputs) - labels) / model._units.deviation
        assert 0.5 * np.mean(errors**2) == pytest.approx(watchers[0].best)
    model.set_params(early_stopping=False, max_iter=2).fit(X, y)
    assert not hasattr(model, "validation_scores_")  # they would be of another training


@both_methods
@both_kinds
def test_early_stopping_trains_few_samples_again_on_all(make, y, batch_size, monkeypatch):
    """Planned for as many epochs as were best on the samples held out, from the same start."""
    watchers, begin = [], Plateau.__init__

    def watch(self, *arguments):
        begin(self, *arguments)
        watchers.append(self)

    monkeypatch.setattr(Plateau, "__init__", watch)
    settings = {"batch_size": batch_size, "n_iter_no_change": 3, "tol": 0.0, "max_iter": 30}
    model = make(early_stopping=True, **settings).fit(X, y)
    assert len(watchers) == 2
    assert len(watchers[1].losses) == model.n_iter_ <= watchers[0].best_epoch
    monkeypatch.setattr("ipdlam.estimators.perceptron.REFIT_BELOW", len(X))  # as many are enough
    fewer = make(early_stopping=True, **settings).fit(X, y)
    assert fewer.n_iter_ == len(watchers[0].losses)
    assert not same_answers(model, fewer)


@both_methods
def test_a_validation_score_that_is_not_finite_counts_as_none(batch_size, monkeypatch, capsys):
    given = iter([np.nan, 3.0, np.inf, 2.0, 4.0])
    monkeypatch.setattr("ipdlam.estimators.perceptron.REFIT_BELOW", 0)
    real = Record.__init__

    def init(self, *arguments, **fields):
        real(self, *arguments, **{**fields, "validation_loss": next(given), "validation_accuracy": None})

    monkeypatch.setattr(Record, "__init__", init)
    model = regressor(early_stopping=True, batch_size=batch_size, verbose=True).fit(X, TARGETS[:, 0])
    assert np.array_equal(model.validation_scores_, [np.nan, -3.0, np.nan, -2.0, -4.0], equal_nan=True)
    lines = capsys.readouterr().out.splitlines()
    assert ["validation score" in line for line in lines] == [False, True, False, True, True]


def test_samples_are_held_out_evenly():
    rare = np.repeat([0, 1], [180, 20])
    inputs = np.random.RandomState(0).normal(size=(200, 3))
    model = classifier(early_stopping=True, max_iter=2).fit(inputs, rare)
    _, held = model._hold_out(Rows(inputs, rare, None), np.random.RandomState(0))
    assert np.bincount(rare[held]).tolist() == [18, 2]
    for fraction in (0.01, 0.5, 0.99):  # also where one side has too few samples for that
        classifier(early_stopping=True, validation_fraction=fraction, max_iter=2).fit(X, Y)
    classifier(early_stopping=True, max_iter=2).fit(X, [*Y[:-1], 99])  # one sample of its class


@both_methods
@both_kinds
def test_training_ends_where_the_loss_falls_no_more(make, y, batch_size):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make(batch_size=batch_size, max_iter=50, tol=0.5, n_iter_no_change=2).fit(X, y)
        assert model.n_iter_ < 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(batch_size=batch_size, max_iter=3, tol=10.0, n_iter_no_change=10).fit(X, y)  # too short for that
        assert make(batch_size=batch_size, max_iter=2, tol=0.0).fit(X, y).n_iter_ == 2  # who knows if more would help


@both_methods
@both_kinds
def test_a_warning_comes_where_more_epochs_would_help(make, y, batch_size, monkeypatch):
    """That is what the samples held out say; the training loss falls as long as there is noise to be learned."""
    rising, falling = iter(range(10)), iter(range(10, 0, -1))
    real = Record.__init__

    def init(self, *arguments, given, **fields):
        real(self, *arguments, **{**fields, "validation_loss": float(next(given)), "validation_accuracy": None})

    settings = {"batch_size": batch_size, "max_iter": 3, "early_stopping": True}
    monkeypatch.setattr("ipdlam.estimators.perceptron.REFIT_BELOW", 0)
    monkeypatch.setattr(Record, "__init__", functools.partialmethod(init, given=falling))
    with pytest.warns(ConvergenceWarning, match="max_iter=3 was reached") as found:
        make(**settings).fit(X, y)
    assert found[0].filename == __file__
    monkeypatch.setattr(Record, "__init__", functools.partialmethod(init, given=rising))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(**settings).fit(X, y)


@both_methods
@both_kinds
def test_ctrl_c_leaves_what_has_been_trained(make, y, batch_size, monkeypatch):
    listen = Plateau.__call__

    def interrupt(self, record):
        listen(self, record)
        if record.iteration == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Plateau, "__call__", interrupt)
    with pytest.warns(UserWarning, match="interrupted by the user after 3 iterations"):
        model = make(batch_size=batch_size, max_iter=50).fit(X, y)
    assert model.n_iter_ == 3
    assert model.score(X, y) > 0.3


@both_methods
@both_kinds
def test_a_training_that_diverges_leaves_the_earlier_one(make, y, batch_size):
    model = make(batch_size=batch_size, warm_start=True, standardize=True).fit(X, y)
    before, module = answers(model), module_answers(model, X)
    with pytest.raises(DivergenceError):
        model.fit(X * 1e200, y)
    assert np.array_equal(answers(model), before)
    assert np.array_equal(module_answers(model, X), module)
    assert model.n_iter_ == 5
    assert model.fit(X, y).n_iter_ == 10


def test_a_stream_goes_on_after_a_batch_that_diverges():
    model = classifier(standardize=False)
    with pytest.raises(DivergenceError):
        model.partial_fit(X * 1e250, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.partial_fit(X, Y)
    assert same_answers(model, classifier(standardize=False).partial_fit(X, Y))  # nothing of the first try is left
    with pytest.raises(DivergenceError):
        model.partial_fit(X * 1e250, Y)
    for _ in range(20):
        model.partial_fit(X, Y)
    assert model.score(X, Y) > 0.6


@both_methods
def test_a_new_training_that_fails_leaves_none(batch_size):
    """Classes, scales and weights would be of two trainings, and what they predict of neither."""
    model = classifier(batch_size=batch_size).fit(X, Y)
    with pytest.raises(DivergenceError):
        model.set_params(standardize=False).fit(X * 1e250, TWO)
    with pytest.raises(NotFittedError):
        model.predict(X)
    other = classifier(batch_size=batch_size).fit(X, Y)
    before = other.predict_proba(X)
    with pytest.raises(ValueError, match="class_weight"):  # refused before it began: that is another matter
        other.set_params(class_weight={"oak": 1.0}).fit(X, TWO)
    assert np.array_equal(other.predict_proba(X), before)
    if batch_size is not None:
        model.partial_fit(X, Y)
        assert same_answers(model, classifier(standardize=False).partial_fit(X, Y))


@both_methods
@both_kinds
def test_a_bad_setting_leaves_the_earlier_training(make, y, batch_size):
    model = make(batch_size=batch_size).fit(X, y)
    before = answers(model)
    for name in ("inertia", "penalty", "step", "hidden_layer_sizes"):
        with pytest.raises(ValueError, match=name):
            clone_with_state(model).set_params(**{name: -1}).fit(X, y)
        with pytest.raises(ValueError, match=name):
            model.set_params(**{name: -1}).fit(X[:, ::-1], np.roll(y, 1))
        model.set_params(**{name: make().get_params()[name]})
        assert np.array_equal(answers(model), before)


@both_methods
@both_kinds
def test_the_random_state_decides_everything(make, y, batch_size):
    def trained(random_state):
        return make(batch_size=batch_size, random_state=random_state, early_stopping=True, max_iter=2).fit(X, y)

    assert same_answers(trained(3), trained(3))
    assert not same_answers(trained(3), trained(4))
    assert same_answers(trained(np.random.RandomState(3)), trained(np.random.RandomState(3)))
    instance = np.random.RandomState(3)
    assert not same_answers(trained(instance), trained(instance))
    assert not same_answers(trained(None), trained(None))
    again = trained(3)
    assert same_answers(again.fit(X, y), clone(again).fit(X, y))


@both_methods
def test_no_randomness_is_taken_from_others(batch_size):
    torch.manual_seed(0)
    np.random.seed(0)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(0)
    np.random.seed(0)
    classifier(batch_size=batch_size, early_stopping=True).fit(X, Y)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


@both_methods
@both_kinds
def test_verbose_talks_and_others_do_not(make, y, batch_size, capsys):
    make(batch_size=batch_size).fit(X, y)
    assert capsys.readouterr().out == ""
    make(batch_size=batch_size, verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert "iteration 1, loss" in lines[0]
    make(batch_size=batch_size, verbose=True, early_stopping=True).fit(X, y)
    assert "validation score" in capsys.readouterr().out


@both_methods
@both_kinds
def test_the_loss_is_that_of_a_sample(make, y, batch_size):
    """In one batch of all samples the first loss is that of the start, and no sum over samples."""
    model = make(batch_size=batch_size and 160, max_iter=1).fit(X, y)
    assert 0.05 < model.loss_ < 3.0
    double = make(batch_size=batch_size and 320, max_iter=1).fit(np.repeat(X, 2, 0), np.repeat(y, 2))
    assert double.loss_ == pytest.approx(model.loss_, rel=0.1)


# --- the trained network ----------------------------------------------------------------------------------------------


@both_methods
@pytest.mark.parametrize("standardize", ["robust", True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_module_is_a_plain_network_on_raw_features(dtype, standardize, batch_size):
    inputs = X.astype(dtype)
    model = classifier(batch_size=batch_size, standardize=standardize, hidden_layer_sizes=(9, 7)).fit(inputs, Y)
    module = model.module_
    assert type(module) is nn.Sequential
    front = [Clip] if standardize == "robust" else []
    assert [type(layer) for layer in module] == [*front, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert not any(parameter.requires_grad for parameter in module.parameters())
    outputs = module(torch.from_numpy(inputs))
    assert outputs.numpy().dtype == dtype
    tolerance = 1e-4 if dtype is np.float32 else 1e-10
    np.testing.assert_allclose(outputs, model.decision_function(inputs), rtol=tolerance, atol=tolerance)
    hidden = module[0](torch.from_numpy(inputs)).numpy() if front else inputs
    for coef, intercept in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        hidden = np.maximum(hidden @ coef + intercept, 0.0)
    np.testing.assert_allclose(
        hidden @ model.coefs_[-1] + model.intercepts_[-1], outputs, rtol=tolerance, atol=tolerance
    )
    real = regressor(batch_size=batch_size, standardize=standardize).fit(inputs, TARGETS)
    np.testing.assert_allclose(module_answers(real, inputs), real.predict(inputs), rtol=tolerance, atol=tolerance)


@both_methods
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_module_stands_features_and_targets_far_from_zero(dtype, batch_size):
    """With mean 1e4 and deviation 1, float32 has three digits left; folding the mean in must not cost another."""
    inputs = (X + 1e4).astype(dtype)
    model = classifier(batch_size=batch_size).fit(inputs, Y)
    decision = model.decision_function(inputs)
    atol = (2e-3 if dtype is np.float32 else 1e-9) * np.abs(decision).max()
    np.testing.assert_allclose(module_answers(model, inputs), decision, atol=atol)
    assert model.score(inputs, Y) > 0.6
    targets = TARGETS[:, 0] + 1e6
    real = regressor(batch_size=batch_size, max_iter=10).fit(X.astype(dtype), targets)
    atol = 0.25 if dtype is np.float32 else 1e-8  # float32 counts in sixteenths there
    np.testing.assert_allclose(module_answers(real, X)[:, 0], real.predict(X.astype(dtype)), rtol=0, atol=atol)
    assert real.score(X, targets) > 0.7


def test_a_folded_scale_is_as_exact_as_float32_allows():
    random = np.random.RandomState(0)
    inputs = (random.normal(size=(500, 40)) + 1e4).astype(np.float32)
    scaling, layer = Scaling.of(inputs, None), nn.Linear(40, 8)
    exact = scaling(inputs.astype(np.float64)) @ layer.weight.detach().double().numpy().T + layer.bias.detach().numpy()
    scaling.put_before(nn.Sequential(layer))
    folded = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
    off = np.abs(inputs.astype(np.float64) @ folded[0].T + folded[1] - exact)
    assert off.max() < 1e-3


@both_methods
def test_the_module_belongs_to_the_user(batch_size):
    model = classifier(batch_size=batch_size).fit(X, Y)
    before = answers(model)
    with torch.no_grad():
        model.module_[-1].weight.zero_()
        model.coefs_[0][:] = 0.0
    assert np.array_equal(answers(model), before)
    assert model.module_[-1].weight.any()  # what one changes is one's own copy
    old = model.coefs_[0].copy()
    assert not np.array_equal(model.fit(X, np.roll(Y, 1)).coefs_[0], old)  # and follows a new training


@both_kinds
def test_nothing_is_there_before_training(make, y):
    model = make()
    for name in ("module_", "coefs_", "intercepts_", "loss_curve_", "n_iter_", "classes_", "n_features_in_"):
        assert not hasattr(model, name)
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(NotFittedError):
        _ = model.module_
    with pytest.raises(NotFittedError):
        model.export_onnx("nowhere.onnx")
    with pytest.raises(ValueError, match="validation_fraction"):
        model.set_params(validation_fraction=2.0).fit(X, y)
    with pytest.raises(NotFittedError):  # a training that failed is none
        model.predict(X)


@pytest.mark.parametrize(
    ("make", "y", "dtype", "batch_size"),
    [(classifier, Y, np.float32, "auto"), (regressor, TARGETS, np.float64, None)],
    ids=["classifier", "regressor"],
)
def test_onnx_says_the_same(make, y, dtype, batch_size, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    inputs = X.astype(dtype)
    model = make(batch_size=batch_size).fit(inputs, y)
    model.export_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for rows in (1, 2, 160):
        (found,) = session.run(["outputs"], {"X": inputs[:rows]})
        np.testing.assert_allclose(found, module_answers(model, inputs[:rows]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("missing", ["onnx", "onnxscript"])
def test_onnx_is_an_extra(missing, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"export_onnx needs ONNX.*pip install onnx onnxscript"):
        classifier().fit(X, Y).export_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_scikit_learn_is_an_extra():
    code = """
import sys
import ipdlam
assert not any(name.split(".")[0] in ("sklearn", "pandas", "onnx") for name in sys.modules)
sys.modules["sklearn"] = None
try:
    import ipdlam.estimators
except ImportError as error:
    print(error)
"""
    said = run_python(code)
    assert "scikit-learn 1.6 or newer is needed" in said
    assert "pip install 'scikit-learn>=1.6'" in said


def test_other_missing_modules_are_not_blamed_on_scikit_learn(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("ipdlam.estimators")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ipdlam.minibatch.trainer", None)
    with pytest.raises(ImportError, match=r"ipdlam\.minibatch") as refused:
        __import__("ipdlam.estimators")
    assert "scikit-learn" not in str(refused.value)


# --- pickles ----------------------------------------------------------------------------------------------------------


@both_methods
@both_kinds
def test_a_pickle_holds_weights_and_no_samples(make, y, batch_size):
    sizes = []
    for copies in (1, 20):
        model = make(batch_size=batch_size, max_iter=2, early_stopping=True, n_pieces=4, n_members=1).fit(
            np.tile(X, (copies, 1)), np.tile(y, copies)
        )
        sizes.append(len(pickle.dumps(model)))
    assert abs(sizes[1] - sizes[0]) < 200
    assert sizes[0] < 20000


def test_a_pickle_in_mid_stream_holds_no_samples():
    sizes = [len(pickle.dumps(classifier().partial_fit(np.tile(X, (c, 1)), np.tile(Y, c)))) for c in (1, 20)]
    assert abs(sizes[1] - sizes[0]) < 500


def test_pickles_predict_elsewhere(tmp_path):
    models = [make(batch_size=batch_size).fit(X, y) for make, y in KINDS for batch_size in METHODS]
    joblib.dump(models, tmp_path / "models.joblib")
    (tmp_path / "models.pickle").write_bytes(pickle.dumps(models))
    np.save(tmp_path / "X.npy", X)
    code = """
import sys, pickle, joblib, numpy as np
folder = sys.argv[1]
models = joblib.load(folder + "/models.joblib") + pickle.load(open(folder + "/models.pickle", "rb"))
X = np.load(folder + "/X.npy")
np.save(folder + "/said.npy", [model.predict(X) for model in models])
"""
    run_python(code, tmp_path)
    expected = [model.predict(X) for model in models]
    assert np.array_equal(np.load(tmp_path / "said.npy"), expected + expected)
    for model, restored in zip(models, joblib.load(tmp_path / "models.joblib"), strict=True):
        assert same_answers(model, restored)
        assert all(np.array_equal(a, b) for a, b in zip(model.coefs_, restored.coefs_, strict=True))
        assert same_answers(restored.fit(X, Y), model.fit(X, Y))


# --- scikit-learn and pandas ------------------------------------------------------------------------------------------


@both_methods
def test_columns_with_names(batch_size):
    frame = pd.DataFrame(X, columns=list("abcdef"), index=np.arange(160)[::-1])
    model = classifier(batch_size=batch_size).fit(frame, pd.Series(NAMES, index=frame.index))
    assert list(model.feature_names_in_) == list("abcdef")
    assert model.n_features_in_ == 6
    with pytest.raises(ValueError, match="same order"):
        model.predict(frame[list("fedcba")])
    with pytest.raises(ValueError, match="unseen at fit time"):
        model.predict(frame.rename(columns={"a": "z"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)
    bare = answers(classifier(batch_size=batch_size).fit(X, NAMES))
    np.testing.assert_allclose(answers(model, frame), bare, rtol=1e-6, atol=1e-9)  # a frame lies column by column
    assert not hasattr(model.fit(X, NAMES), "feature_names_in_")
    targets = pd.DataFrame(TARGETS, columns=["sine", "line"])
    assert regressor(batch_size=batch_size).fit(frame, targets).predict(frame).shape == (160, 2)
    mixed = frame.assign(a=frame["a"].astype(np.float32), b=(frame["b"] > 0), c=np.arange(160))
    assert classifier(batch_size=batch_size).fit(mixed, NAMES).predict(mixed).shape == (160,)


@both_methods
def test_a_pipeline_with_frames_in_between(batch_size):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    pipeline = make_pipeline(StandardScaler(), classifier(batch_size=batch_size, standardize=False))
    pipeline.set_output(transform="pandas").fit(frame, NAMES)
    assert list(pipeline[-1].feature_names_in_) == list("abcdef")
    assert pipeline.predict_proba(frame).shape == (160, 3)
    inside = classifier(batch_size=batch_size, standardize=True).fit(frame, NAMES)
    np.testing.assert_allclose(answers(pipeline, frame), answers(inside, frame), rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore")  # of worker processes, which do not know the filters of this one
@both_kinds
def test_a_search_in_two_processes(make, y):
    grid = {"batch_size": [None, "auto"], "hidden_layer_sizes": [(12, 6)]}
    search = GridSearchCV(make(max_iter=3), grid, cv=2, n_jobs=2).fit(X, y)
    alone = GridSearchCV(make(max_iter=3), grid, cv=2).fit(X, y)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-6)
    assert search.best_estimator_.n_iter_ == 3


@both_methods
def test_cross_validation_and_calibration(batch_size):
    assert cross_val_score(classifier(batch_size=batch_size, max_iter=10), X, NAMES, cv=3).mean() > 0.6
    assert cross_val_score(regressor(batch_size=batch_size, max_iter=20), X, TARGETS, cv=3).mean() > 0.5
    # A loss without probabilities gets them from outside.
    model = CalibratedClassifierCV(classifier(batch_size=batch_size, loss="hinge"), cv=3).fit(X, NAMES)
    found = model.predict_proba(X)
    np.testing.assert_allclose(found.sum(1), 1.0)
    assert model.score(X, NAMES) > 0.6
    CalibratedClassifierCV(classifier(batch_size=batch_size), cv=3).fit(X, TWO, sample_weight=np.ones(160))


@both_kinds
def test_a_clone_has_the_settings_and_nothing_else(make, y):
    settings = {"hidden_layer_sizes": [3, 4], "batch_size": None, "alpha": 0.5, "standardize": False, "inertia": 0.1}
    model = make(**settings).fit(X, y)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "n_iter_")
    assert model.hidden_layer_sizes == [3, 4]  # untouched by fit


@both_methods
@both_kinds
@pytest.mark.parametrize("standardize", [True, False])
def test_mapped_and_odd_arrays_are_only_read(make, y, standardize, batch_size, tmp_path):
    inputs, weight = X * 3 + 1, np.ones(160)
    weight[::5] = 0.0
    np.save(tmp_path / "X.npy", inputs)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    frozen = np.array(y)
    for array in (frozen, weight):
        array.flags.writeable = False
    model = make(batch_size=batch_size, standardize=standardize).fit(mapped, frozen, sample_weight=weight)
    expected = make(batch_size=batch_size, standardize=standardize).fit(inputs, y, sample_weight=weight)
    assert np.array_equal(answers(model, mapped), answers(expected, inputs))
    assert np.array_equal(inputs, X * 3 + 1)
    for odd in (np.asfortranarray(inputs), inputs[:, ::-1].copy()[:, ::-1], inputs.astype(">f8"), inputs.tolist()):
        if standardize:
            continue  # makes copies
        other = make(batch_size=batch_size, standardize=standardize).fit(odd, y, sample_weight=weight)
        np.testing.assert_allclose(answers(other, odd), answers(expected, inputs), rtol=1e-6, atol=1e-8)


@both_methods
def test_a_permutation_of_columns_hardly_matters(batch_size):
    inputs, y = load_breast_cancer(return_X_y=True)
    order = np.random.RandomState(0).permutation(30)
    straight, permuted = (
        IPDLAMClassifier((20,), batch_size=batch_size, max_iter=10, random_state=0)
        .fit(given[::2], y[::2])
        .score(given[1::2], y[1::2])
        for given in (inputs, inputs[:, order])
    )
    assert straight > 0.9
    assert abs(straight - permuted) < 0.03


# --- data of all sizes and scales -------------------------------------------------------------------------------------


@both_methods
@pytest.mark.parametrize("samples", [2, 3, 20])
def test_few_samples(samples, batch_size):
    inputs, y = X[:samples], np.arange(samples) % 2
    model = IPDLAMClassifier(batch_size=batch_size, random_state=0).fit(inputs, y)
    assert model.score(inputs, y) > 0.8
    real = IPDLAMRegressor(batch_size=batch_size, random_state=0, max_iter=50).fit(inputs, TARGETS[:samples])
    assert real.score(inputs, TARGETS[:samples]) > 0.8


@both_methods
def test_more_columns_than_samples(batch_size):
    random = np.random.RandomState(0)
    inputs = random.normal(size=(120, 500))
    y = (np.arange(120) % 2).astype(int)
    inputs[:, :25] += 1.5 * y[:, None]
    model = IPDLAMClassifier((20,), batch_size=batch_size, random_state=0).fit(inputs[:60], y[:60])
    assert model.score(inputs[:60], y[:60]) == 1.0
    # The full-batch method leaves the initial weights where the samples do not reach; MLPClassifier gets 0.64 too.
    assert model.score(inputs[60:], y[60:]) > (0.55 if batch_size is None else 0.85)
    real = IPDLAMRegressor((20,), batch_size=batch_size, random_state=0).fit(inputs[:60], y[:60].astype(float))
    assert real.score(inputs[:60], y[:60]) > 0.8


@both_methods
def test_one_column(batch_size):
    column = np.linspace(-3, 3, 120)[:, None]
    settings = {"batch_size": batch_size, "max_iter": 20, "random_state": 0}
    model = IPDLAMClassifier((20,), **settings).fit(column, np.abs(column[:, 0]) > 1.5)
    assert model.score(column, np.abs(column[:, 0]) > 1.5) > 0.85
    real = IPDLAMRegressor((20,), **settings).fit(column, np.abs(column[:, 0]))
    assert real.score(column, np.abs(column[:, 0])) > 0.6


@both_methods
@both_kinds
@pytest.mark.parametrize("value", [0.0, 1.0, -1e12, 0.1])
def test_constant_columns_do_no_harm(make, y, value, batch_size):
    padded = np.concatenate([X, np.full((160, 2), value)], 1)
    model = make(batch_size=batch_size, max_iter=10).fit(padded, y)
    assert model.score(padded, y) > 0.6
    assert np.isfinite(module_answers(model, padded)).all()
    for dtype in (np.float32, np.float64):
        scaling = Scaling.of(padded.astype(dtype), np.random.RandomState(0).uniform(size=160))
        assert np.array_equal(scaling.deviation[6:], [1.0, 1.0])


@both_methods
@both_kinds
def test_equal_rows_train(make, y, batch_size):
    model = make(batch_size=batch_size).fit(np.repeat(X[:1], 160, 0), y)  # nothing can be learned
    assert np.isfinite(answers(model)).all()
    assert (
        make(batch_size=batch_size, max_iter=20)
        .fit(np.repeat(X[:30], 5, 0), np.repeat(y[:30], 5))
        .score(X[:30], y[:30])
        > 0.7
    )


@both_methods
@both_kinds
@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_units_of_features_do_not_matter(make, y, scale, batch_size):
    units = scale ** np.linspace(0, 1, 6)
    model, expected = make(batch_size=batch_size).fit(X * units, y), make(batch_size=batch_size).fit(X, y)
    np.testing.assert_allclose(answers(model, X * units), answers(expected), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        module_answers(model, X * units).squeeze(), answers(model, X * units), rtol=1e-6, atol=1e-6
    )


def test_the_scale_is_that_of_the_weighted_samples():
    weight = np.random.RandomState(0).randint(0, 4, 160)
    repeated = np.repeat(X, weight, 0)
    scaling = Scaling.of(X, weight.astype(float))
    np.testing.assert_allclose(scaling.mean, repeated.mean(0))
    np.testing.assert_allclose(scaling.deviation, repeated.std(0))
    np.testing.assert_allclose(scaling.undo(scaling(X)), X)


@both_methods
@both_kinds
def test_infinity_is_refused(make, y, batch_size):
    bad = X.copy()
    bad[3, 2] = np.inf
    model = make(batch_size=batch_size)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.fit(bad, y)
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.fit(X, y).predict(bad)


@both_methods
def test_predictions_do_not_depend_on_how_many_there_are(batch_size, monkeypatch):
    model = classifier(batch_size=batch_size).fit(X, Y)
    whole = answers(model)
    monkeypatch.setattr("ipdlam.estimators.perceptron.CHUNK", 7)
    np.testing.assert_allclose(answers(model), whole, rtol=1e-12, atol=1e-12)


# --- settings ---------------------------------------------------------------------------------------------------------


@both_methods
@both_kinds
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_iter", 0),
        ("max_iter", "many"),
        ("max_iter", 2.5),
        ("tol", -1),
        ("tol", "small"),
        ("tol", None),
        ("alpha", -1),
        ("alpha", "weak"),
        ("activation", "sine"),
        ("activation", None),
        ("activation", ["relu"]),
        ("loss", "focal"),
        ("loss", None),
        ("loss", ["squared"]),
        ("validation_fraction", 0),
        ("validation_fraction", 1),
        ("validation_fraction", 1.5),
        ("validation_fraction", "some"),
        ("hidden_layer_sizes", (0,)),
        ("hidden_layer_sizes", (10, -1)),
        ("hidden_layer_sizes", "ten"),
        ("hidden_layer_sizes", 0),
        ("hidden_layer_sizes", 1.5),
        ("hidden_layer_sizes", None),
        ("hidden_layer_sizes", (10.0,)),
        ("n_iter_no_change", 0),
        ("inertia", -1),
        ("inertia", "much"),
        ("step", 0),
        ("proximity", -1),
        ("penalty", -1),
        ("penalty", 0),
        ("early_stopping", "yes"),
        ("warm_start", 1),
        ("standardize", "no"),
    ],
)
def test_bad_settings_are_named(make, y, name, value, batch_size):
    with pytest.raises((ValueError, TypeError), match=name):
        make(batch_size=batch_size, **{name: value}).fit(X, y)
    if batch_size is not None and (name, value) != ("early_stopping", "yes"):
        with pytest.raises((ValueError, TypeError), match=name):
            make(**{name: value}).partial_fit(X, y)


@both_kinds
@pytest.mark.parametrize("size", [0, -5, "huge", 1.5, True, [64]])
def test_bad_batch_sizes_are_named(make, y, size):
    for train in ("fit", "partial_fit"):
        with pytest.raises((ValueError, TypeError), match="batch_size"):
            getattr(make(batch_size=size), train)(X, y)


@both_methods
@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in IPDLAMRegressor.losses])
def test_losses_of_classes_are_not_for_targets(loss, batch_size):
    with pytest.raises(ValueError, match=f"loss must be one of squared, huber, absolute, quantile, got '{loss}'"):
        regressor(loss=loss, batch_size=batch_size).fit(X, TARGETS)


def test_a_bad_random_state_is_named():
    with pytest.raises(ValueError, match="cannot be used to seed"):
        classifier(random_state="lucky").fit(X, Y)


@both_methods
def test_alpha_pulls_weights_to_zero(batch_size):
    sizes = []
    for alpha in (0, 1.0):
        model = classifier(alpha=alpha, batch_size=batch_size, max_iter=15).fit(X, Y)
        sizes.append(sum(float(np.square(coef).sum()) for coef in model.coefs_))
    assert sizes[1] < 0.7 * sizes[0]


def test_what_none_stands_for_in_the_two_methods(monkeypatch):
    seen = []
    for method in (MiniBatchIPDLAM, IPDLAM):

        def start(self, *data, begin=method.start, **more):
            seen.append(self.settings_dict())
            begin(self, *data, **more)

        monkeypatch.setattr(method, "start", start)
    classifier().fit(X, Y)
    assert (seen[0]["weight_decay"], seen[0]["proximity"], seen[0]["batch_size"]) == (0.1, 3.0, 64)
    classifier(batch_size=16).fit(X, Y)  # four times as many steps, each of which pulls by a quarter
    assert seen[1]["weight_decay"] == 0.025
    classifier(batch_size=None).fit(X, Y)
    assert seen[2]["proximity"] == 1.0
    assert all(layer["strength"] == 1e-5 and layer["relative"] for layer in seen[2]["regularizers"])


@pytest.mark.parametrize(("kinds", "of_one"), [(2, 1000.0), (5, 1000.0), (10, 500.0)])
def test_more_classes_are_pulled_less(kinds, of_one, monkeypatch):
    seen = []
    monkeypatch.setattr(
        MiniBatchIPDLAM,
        "start",
        lambda self, *data, begin=MiniBatchIPDLAM.start, **more: (
            seen.append(self.settings_dict()["weight_decay"]),
            begin(self, *data, **more),
        )[1],
    )
    samples = np.random.RandomState(0).normal(size=(800, 3))
    classifier(max_iter=1).fit(samples, np.arange(800) % kinds)
    assert seen == [pytest.approx(of_one / 800**1.5)]


@pytest.mark.parametrize(("trained", "later"), [("logistic", "cross_entropy"), ("cross_entropy", "squared")])
def test_predictions_are_made_by_the_loss_that_was_trained(trained, later):
    two = (Y > 0).astype(int)
    model = classifier(loss=trained).fit(X, two)
    before, score = model.predict_proba(X), model.score(X, two)
    model.set_params(loss=later)
    assert np.array_equal(model.predict_proba(X), before)
    assert model.score(X, two) == score
    assert hasattr(model.set_params(loss="hinge"), "predict_proba")


def test_a_setting_that_is_changed_holds_from_the_next_batch_on():
    model = classifier(standardize=False).partial_fit(X, Y)
    before = model.coefs_[0]
    model.set_params(step=1e-9, alpha=0.0).partial_fit(X, Y)
    assert np.abs(model.coefs_[0] - before).max() < 1e-6
    model.set_params(step=0.5).partial_fit(X, Y)
    assert np.abs(model.coefs_[0] - before).max() > 1e-3


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_of_classes_are_checked(weight):
    with pytest.raises(ValueError, match="class_weight must hold finite weights >= 0"):
        classifier(class_weight={0: weight, 1: 1.0, 2: 1.0}).fit(X, Y)


def test_sizes_that_can_be_gone_through_only_once_are_refused():
    with pytest.raises(ValueError, match="hidden_layer_sizes"):
        classifier(hidden_layer_sizes=iter((5,))).fit(X, Y)


@both_kinds
def test_data_that_are_refused_leave_no_half_of_a_training(make, y):
    names = [f"x{place}" for place in range(X.shape[1])]
    model = make().fit(pd.DataFrame(X, columns=names), y)
    before, attributes = model.predict(pd.DataFrame(X, columns=names)), dict(vars(model))
    refused = [
        ({"X": X[:, :2], "y": y, "sample_weight": -np.ones(len(X))}, "sample_weight"),
        ({"X": np.full_like(X, np.inf), "y": y}, "infinity"),
        ({"X": pd.DataFrame(X[:, :2], columns=["a", "b"]), "y": y[:-1]}, "inconsistent numbers of samples"),
        ({"X": X[:1], "y": y[:1]}, "minimum of 2"),
    ]
    for arguments, words in refused:
        with pytest.raises(ValueError, match=words):
            model.fit(**arguments)
        assert dict(vars(model)) == attributes
        assert np.array_equal(model.predict(pd.DataFrame(X, columns=names)), before)
    fresh = make()
    with pytest.raises(ValueError, match="infinity"):
        fresh.fit(np.full_like(X, np.inf), y)
    with pytest.raises(NotFittedError):
        fresh.predict(X)


@both_methods
@both_kinds
def test_ctrl_c_before_anything_is_learned_is_passed_on(make, y, batch_size, monkeypatch):
    from ipdlam.training.loop import run_loop

    def interrupted(step, network, history, *rest):
        def refuse(evaluate):
            raise KeyboardInterrupt

        return run_loop(refuse, network, history, *rest)

    monkeypatch.setattr("ipdlam.training.trainer.run_loop", interrupted)
    model = make(batch_size=batch_size)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_the_scale_of_wide_samples_is_found_a_few_rows_at_a_time(monkeypatch):
    wide = np.random.default_rng(0).normal(5.0, 3.0, (40, 7))
    whole = Scaling.of(wide, None)
    monkeypatch.setattr("ipdlam.estimators.scaling.NUMBERS", 15)
    few = Scaling.of(wide, None)
    np.testing.assert_allclose(few.mean, whole.mean, rtol=1e-14)
    np.testing.assert_allclose(few.deviation, whole.deviation, rtol=1e-14)


@both_kinds
@pytest.mark.parametrize("bad", [{"inertia": 1.5}, {"penalty": 0.0}, {"proximity": 0.0}], ids=str)
def test_what_only_the_trainer_knows_to_be_wrong_costs_no_earlier_training(make, y, bad):
    model = make().fit(X, y)
    before = answers(model)
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        model.set_params(**bad).fit(X, y)
    assert np.array_equal(answers(model), before)


@both_methods
def test_targets_beyond_the_precision_of_the_network_are_refused(batch_size):
    y = TARGETS[:, 0] * 1e39
    with pytest.raises(ValueError, match=r"y holds numbers up to .*e\+39, .* float32, .*give X in float64"):
        regressor(batch_size=batch_size).fit(X.astype(np.float32), y)
    predicted = regressor(batch_size=batch_size, max_iter=20).fit(X, y).predict(X)
    assert np.isfinite(predicted).all()
    assert np.corrcoef(predicted / 1e39, TARGETS[:, 0])[0, 1] > 0.9


@both_kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_whose_outputs_are_not_finite_is_refused(make, y, dtype):
    model = make(standardize=True).fit(X.astype(dtype), y)
    rows = X[:5].copy()
    rows[3, 1] = 1e300 if dtype == np.float32 else 1e308
    rows[3, 2] = -rows[3, 1]
    methods = [model.predict, *([model.predict_proba, model.decision_function] if make is classifier else [])]
    for method in methods:
        with pytest.raises(ValueError, match=r"X holds .*e\+30\d in row 3, for which the outputs .* not finite"):
            method(rows * (1.0 if dtype == np.float32 else 1.7))
        assert len(method(rows[:3])) == 3


def test_fits_in_threads_leave_the_global_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    alone = [classifier(random_state=seed, max_iter=1).fit(X, Y) for seed in range(8)]
    torch.manual_seed(0)
    together = joblib.Parallel(n_jobs=4, backend="threading")(
        joblib.delayed(lambda seed: classifier(random_state=seed, max_iter=1).fit(X, Y))(seed) for seed in range(8)
    )
    assert torch.equal(torch.rand(3), expected)
    for one, other in zip(alone, together, strict=True):
        assert same_answers(one, other)


def test_nothing_draws_from_the_global_random_state(monkeypatch):
    """What threads do in between cannot be tested by chance alone."""
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("the global random state was set"))
    classifier(max_iter=1).fit(X, Y)
