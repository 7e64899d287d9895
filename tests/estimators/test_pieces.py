"""Columns in pieces: what they are, where they come by themselves, and that the module takes raw features."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch

from ipdlam.estimators import IPDLAMClassifier, IPDLAMRegressor
from ipdlam.estimators import perceptron as estimator_module
from ipdlam.estimators.pieces import HEIGHT, InPieces, Pieces
from ipdlam.estimators.scaling import Scaling, SmoothClip

RANDOM = np.random.RandomState(0)
X = np.column_stack(
    [RANDOM.normal(size=600), RANDOM.exponential(size=600), RANDOM.randint(0, 2, 600), RANDOM.randint(0, 5, 600)]
)
STAIRS = np.floor(3.0 * np.tanh(X[:, 0])) + np.abs(X[:, 1] - 0.7)


def regressor(**settings):
    return IPDLAMRegressor(**{"hidden_layer_sizes": (16,), "random_state": 0, "max_iter": 2, **settings})


def has_pieces(model):
    return isinstance(model.module_[0], InPieces)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_any_function_with_bends_at_the_quantiles_is_linear_in_the_pieces(count):
    column = X[:, :1]
    pieces = Pieces.of(column, None, count, None)
    knots = np.append(pieces.lower, pieces.lower[-1] + 2 * pieces.half_length[-1])
    assert len(knots) == count + 1
    heights = RANDOM.normal(size=count + 1)
    wanted = np.interp(column[:, 0], knots, heights)
    design = np.column_stack([pieces(column)[:, 1:], np.ones(len(column))])
    found = design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-10)
    # Every piece holds its share of the samples.
    inside = [((column[:, 0] > low) & (column[:, 0] <= high)).mean() for low, high in itertools.pairwise(knots)]
    np.testing.assert_allclose(inside, 1.0 / count, atol=2.0 / len(column))


def test_pieces_have_mean_zero_and_end_where_the_samples_do():
    pieces = Pieces.of(X, None, 4, None)
    made = pieces(X)[:, 4:]
    np.testing.assert_allclose(made.mean(0), 0.0, atol=1e-12)
    assert np.ptp(made, axis=0) == pytest.approx(HEIGHT)
    far = np.array([[1e300, -1e300, 5.0, 1e308]])
    assert np.isfinite(pieces(far)[:, 4:]).all()
    np.testing.assert_array_equal(pieces(far)[:, 4:], pieces(np.array([[1e3, -1e3, 5.0, 1e3]]))[:, 4:])


def test_two_values_have_no_pieces_and_few_values_have_few():
    pieces = Pieces.of(X, None, 4, None)
    columns, counts = np.unique(pieces.column, return_counts=True)
    assert columns.tolist() == [0, 1, 3]
    assert counts.tolist() == [4, 4, 4]
    none = Pieces.of(X[:, 2:3], None, 4, None)
    assert none(X[:, 2:3]).shape == (600, 1)
    constant = np.full((50, 1), 0.1) * (1.0 + 1e-16 * np.arange(50)[:, None])
    assert len(Pieces.of(constant, None, 4, None).column) == 0


def test_a_weight_is_a_number_of_repetitions():
    times = RANDOM.randint(1, 4, 600)
    weighted, repeated = Pieces.of(X, times.astype(float), 4, None), Pieces.of(np.repeat(X, times, 0), None, 4, None)
    for name in ("column", "lower", "half_length"):
        np.testing.assert_array_equal(getattr(weighted, name), getattr(repeated, name))
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-12)


@pytest.mark.parametrize("kind", [None, Scaling, SmoothClip])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_module_does_what_the_array_does(kind, dtype):
    data = X.astype(dtype)
    pieces = Pieces.of(data, None, 4, None if kind is None else kind.of(data, None))
    made = pieces(data)
    assert made.dtype == dtype
    found = InPieces(pieces)(torch.from_numpy(data)).numpy()
    np.testing.assert_allclose(found, made, rtol=1e-4 if dtype == np.float32 else 1e-12, atol=1e-5)


@pytest.mark.parametrize(("settings", "rows", "expected"), [
    ({}, 600, True), ({}, 499, False), ({"n_pieces": 0}, 600, False), ({"n_pieces": 3}, 100, True),
    ({"batch_size": None}, 600, False), ({"batch_size": None, "n_pieces": 2}, 600, True),
])  # fmt: skip
def test_where_they_come_by_themselves(settings, rows, expected):
    assert has_pieces(regressor(**settings).fit(X[:rows], STAIRS[:rows])) is expected


def test_classes_and_streams_have_none_unless_they_are_asked_for():
    kinds = (STAIRS > 0).astype(int)
    make = dict(hidden_layer_sizes=(8,), max_iter=1, random_state=0)
    assert not has_pieces(IPDLAMClassifier(**make).fit(X, kinds))
    assert has_pieces(IPDLAMClassifier(**make, n_pieces=4).fit(X, kinds))
    assert not has_pieces(regressor().partial_fit(X, STAIRS))
    assert has_pieces(regressor(n_pieces=4).partial_fit(X, STAIRS))


def test_they_help_where_targets_bend():
    y = np.sin(6.0 * X[:, 0]) + (X[:, 1] > 1.0)
    scores = [
        regressor(hidden_layer_sizes=(64,), max_iter=20, n_pieces=count).fit(X[:500], y[:500]).score(X[500:], y[500:])
        for count in (0, 8)
    ]
    assert scores[1] > scores[0] + 0.05


@pytest.mark.parametrize("standardize", ["robust", True, False])
def test_the_module_takes_raw_features(standardize):
    model = regressor(standardize=standardize).fit(X, STAIRS)
    outputs = model.module_(torch.from_numpy(X)).numpy()[:, 0]
    np.testing.assert_allclose(outputs, model.predict(X), rtol=1e-9, atol=1e-9)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    gap = X[:3].copy()
    gap[1, 0] = np.nan  # there was none in fit: a usual value
    usual = X[:3].copy()
    usual[1, 0] = model._usual[0]
    np.testing.assert_array_equal(model.predict(gap), model.predict(usual))


def test_onnx_takes_raw_features(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = regressor().fit(X.astype(np.float32), STAIRS.astype(np.float32))
    model.export_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"X": X.astype(np.float32)})
    np.testing.assert_allclose(outputs[:, 0], model.predict(X.astype(np.float32)), rtol=1e-3, atol=1e-4)


def test_a_warm_start_keeps_them():
    model = regressor(warm_start=True).fit(X, STAIRS)
    assert has_pieces(model.fit(X[:100], STAIRS[:100]))
    assert model.n_iter_ == 4


def test_large_samples_are_widened_batch_by_batch(monkeypatch):
    monkeypatch.setattr(estimator_module, "DENSE_CELLS", 5000)
    made = []
    monkeypatch.setattr(
        Pieces, "__call__", lambda self, rows, call=Pieces.__call__: made.append(len(rows)) or call(self, rows)
    )
    model = regressor(max_iter=10).fit(X, STAIRS)
    assert max(made) <= 256
    assert model.score(X, STAIRS) > 0.7


@pytest.mark.parametrize("count", [1, -1, 2.5, "many", None, True])
def test_counts_that_are_none_are_refused(count):
    with pytest.raises((ValueError, TypeError), match="n_pieces"):
        regressor(n_pieces=count).fit(X, STAIRS)


# --- and outputs that are clamped ---------------------------------------------------------------------------------


def test_predictions_stay_in_the_range_of_the_targets():
    line = np.linspace(-1.0, 1.0, 200)[:, None]
    y = np.column_stack([3.0 * line[:, 0], -line[:, 0]])
    ahead = np.array([[-4.0], [4.0]])
    model = regressor(max_iter=20).fit(line, y)
    assert np.all(model.predict(ahead) >= y.min(0))
    assert np.all(model.predict(ahead) <= y.max(0))
    np.testing.assert_allclose(model.module_(torch.from_numpy(ahead)).numpy(), model.predict(ahead), rtol=1e-9)
    free = regressor(max_iter=20, standardize=True, clamp=False).fit(line, y)
    assert free.predict(ahead)[1, 0] > y[:, 0].max()
    np.testing.assert_allclose(free.module_(torch.from_numpy(ahead)).numpy(), free.predict(ahead), rtol=1e-9)


def test_the_range_grows_with_a_stream_and_with_warm_starts():
    line = np.linspace(-1.0, 1.0, 200)[:, None]
    stream = regressor()
    for factor in (1.0, 3.0):
        stream.partial_fit(line, factor * line[:, 0])
    assert stream._range[1] == pytest.approx(3.0)
    warm = regressor(warm_start=True, max_iter=2).fit(line, line[:, 0]).fit(line, 2.0 * line[:, 0])
    assert warm._range[0] == pytest.approx(-2.0)
    assert regressor().fit(line, line[:, 0]).fit(line, 0.5 * line[:, 0])._range[1] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="clamp must be True or False"):
        regressor(clamp="yes").fit(line, line[:, 0])
