"""What scikit-learn's users have: frames with text and gaps, sparse samples, labels, rare classes, quantiles."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_diabetes, load_iris, load_wine, make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.model_selection import cross_val_score
from torch import nn

from ipdlam.estimators import IPDLAMClassifier, IPDLAMRegressor, perceptron
from ipdlam.estimators.batches import DrawnBatches
from ipdlam.estimators.columns import MOST_CATEGORIES, Columns
from ipdlam.estimators.scaling import SmoothClip
from ipdlam.estimators.stopping import Plateau

# These trainings are short.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RANDOM = np.random.RandomState(0)
N = 300
FRAME = pd.DataFrame(
    {
        "size": RANDOM.normal(size=N),
        "colour": RANDOM.choice(["red", "green", "blue"], N),
        "grade": pd.Categorical(RANDOM.choice(["a", "b"], N)),
        "sold": RANDOM.rand(N) < 0.5,
        "count": pd.array(RANDOM.randint(0, 5, N), dtype="Int64"),
    }
)
FRAME.loc[::7, "size"] = np.nan
FRAME.loc[::11, "colour"] = None
FRAME.loc[::13, "count"] = pd.NA
WORTH = (FRAME["colour"] == "red") * 2.0 + FRAME["size"].fillna(0.5) - (FRAME["grade"] == "a")
MIDDLE = WORTH.median()
LABEL = np.where(WORTH > MIDDLE, "dear", "cheap")
methods = pytest.mark.parametrize("batch_size", ["auto", None], ids=["batches", "full"])


def classifier(**settings):
    return IPDLAMClassifier(**{"hidden_layer_sizes": (16,), "random_state": 0, **settings})


def regressor(**settings):
    return IPDLAMRegressor(**{"hidden_layer_sizes": (16,), "random_state": 0, **settings})


# --- frames -----------------------------------------------------------------------------------------------------------


@methods
def test_a_frame_with_text_categories_and_gaps_is_learned(batch_size):
    model = classifier(batch_size=batch_size, max_iter=40).fit(FRAME[:200], LABEL[:200])
    assert model.score(FRAME[200:], LABEL[200:]) > 0.9
    assert model.n_features_in_ == 5
    assert list(model.feature_names_in_) == list(FRAME)
    real = regressor(batch_size=batch_size, max_iter=40).fit(FRAME[:200], WORTH[:200])
    assert real.score(FRAME[200:], WORTH[200:]) > 0.8


def test_columns_become_what_their_types_say():
    columns = Columns.of(FRAME, "from_dtype")
    named = ["size", "size: missing", "colour=blue", "colour=green", "colour=red", "colour: missing"]
    assert columns.named() == [*named, "grade=a", "grade=b", "sold", "count", "count: missing"]
    assert classifier(max_iter=1).fit(FRAME, LABEL).number_names_ == columns.named()
    numbers = columns(FRAME, np.float64)
    assert numbers.shape == (N, len(columns.named()))
    assert np.array_equal(numbers[:, 1], FRAME["size"].isna())
    assert (numbers[::7, 0] == FRAME["size"].median()).all()
    assert np.array_equal(numbers[:, 4], FRAME["colour"] == "red")
    assert (numbers[:, 2:6].sum(1) == 1).all()


@pytest.mark.parametrize("given", [["colour", "grade"], [1, 2], [False, True, True, False, False], "from_dtype"])
def test_categories_may_be_named(given):
    model = classifier(categorical_features=given).fit(FRAME, LABEL)
    assert np.array_equal(model.predict(FRAME), classifier().fit(FRAME, LABEL).predict(FRAME))


def test_numbers_of_an_array_may_be_categories():
    X = np.stack([RANDOM.randint(0, 5, N), RANDOM.normal(size=N)], 1)
    y = np.isin(X[:, 0], [1, 3]).astype(int)
    assert classifier(categorical_features=[0], max_iter=30).fit(X, y).score(X, y) == 1.0
    mixed = X.astype(object)
    mixed[:, 0] = [f"kind {int(number)}" for number in X[:, 0]]
    assert classifier(categorical_features=[True, False], max_iter=30).fit(mixed, y).score(mixed, y) == 1.0


def test_a_category_that_was_never_seen_is_none_of_those_known():
    model = classifier().fit(FRAME, LABEL)
    strange = FRAME[:1].assign(colour="mauve")
    gone = model._reader.columns(strange, np.float64)[0, 2:6]
    assert not gone.any()
    assert model.predict(strange)[0] in ("dear", "cheap")


def test_rare_categories_share_a_column():
    many = pd.DataFrame({"who": [f"p{number % 200}" for number in range(1000)] + ["often"] * 50})
    columns = Columns.of(many, "from_dtype")
    assert len(columns.named()) == MOST_CATEGORIES + 1
    assert {"who=often", "who: others"} <= set(columns.named())
    assert (columns(many, np.float64).sum(1) == 1).all()


def test_numbers_and_flags_are_one_category_whatever_their_type():
    trained = Columns.of(pd.DataFrame({"a": pd.Categorical([1, 2, 1])}), "from_dtype")
    again = pd.DataFrame({"a": [1.0, 2.0, 1.0]})
    assert np.array_equal(trained(again, np.float64), [[1, 0], [0, 1], [1, 0]])


def test_objects_that_are_numbers_are_numbers():
    frame = pd.DataFrame({"a": np.array([1, 2.5, None], dtype=object)})
    assert Columns.of(frame, "from_dtype").named() == ["a", "a: missing"]


@pytest.mark.parametrize("kind", ["datetime64[ns]", "timedelta64[ns]"])
def test_dates_are_refused_by_name(kind):
    frame = FRAME.assign(day=np.arange(N).astype(kind))
    with pytest.raises(ValueError, match=r"dates in the column 'day' .*day of the week"):
        classifier().fit(frame, LABEL)


def test_dates_are_refused_wherever_they_come():
    model, day = classifier(max_iter=1).fit(FRAME, LABEL), pd.date_range("2020-01-01", periods=N)
    with pytest.raises(ValueError, match="dates in the column 'size'"):
        model.predict(FRAME.assign(size=day))
    with pytest.raises(ValueError, match="dates in the column 'size'"):
        model.partial_fit(FRAME.assign(size=day), LABEL)
    with pytest.raises(ValueError, match="dates"):
        classifier().fit(np.full((N, 2), np.datetime64("2020-01-01")), LABEL)
    with pytest.raises(ValueError, match="dates in the column 'odd'"):
        classifier().fit(FRAME.assign(odd=np.array([*day[:-1], "never"], object)), LABEL)


@pytest.mark.parametrize("odd", ["text", 10**400, 1j], ids=["text", "huge", "complex"])
def test_what_is_no_number_is_refused_by_the_name_of_its_column(odd):
    numbers = FRAME[["size", "sold"]].astype(float)
    model = classifier(max_iter=1).fit(numbers, LABEL)
    with pytest.raises(ValueError, match="in the column 'sold', where numbers are expected"):
        model.predict(numbers.assign(sold=np.array([odd] * N, object)))
    with pytest.raises(ValueError, match="in the column 'column 1', where numbers are expected"):
        classifier(categorical_features=[0]).fit(np.array([["a", odd], ["b", 2]] * 60, object), [0, 1] * 60)
    if odd == "text":
        with pytest.raises(ValueError, match="name columns of text in categorical_features, or give a DataFrame"):
            classifier().fit(np.array([["a", 1], ["b", 2]] * 60, object), [0, 1] * 60)


def test_categories_that_are_large_numbers_or_intervals_are_told_apart():
    large = pd.DataFrame({"a": pd.Categorical([12345678901234567, 12345678901234569])})
    assert len(Columns.of(large, "from_dtype").named()) == 2
    cut = pd.DataFrame({"a": pd.cut(np.arange(9.0), 3)})
    assert len(Columns.of(cut, "from_dtype").named()) == 3


def test_what_is_no_category_is_refused_by_name():
    frame = FRAME.assign(odd=[[1, 2]] * N)
    with pytest.raises(TypeError, match=r"holds \[1, 2\] in the column 'odd'"):
        classifier().fit(frame, LABEL)
    with pytest.raises(ValueError, match=r"holds '\w+' in the column 'colour'"):
        classifier(categorical_features=None).fit(FRAME, LABEL)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("all", "'from_dtype', None, or the columns"),
        (["weight"], "holds 'weight', but X has size, colour"),
        ([9], "holds 9, but X has 5 columns"),
        ([True], r"got \[True\] for 5 columns"),
    ],
)
def test_columns_that_are_none_are_named(given, words):
    with pytest.raises(ValueError, match=words):
        classifier(categorical_features=given).fit(FRAME, LABEL)


def test_a_frame_of_other_columns_is_refused():
    model = classifier().fit(FRAME, LABEL)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(FRAME.rename(columns={"size": "length"}))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(FRAME[["size", "colour"]])


@methods
def test_gaps_in_numbers(batch_size):
    X = RANDOM.normal(size=(N, 4))
    y = (X[:, 0] > 0).astype(int)
    X[RANDOM.rand(N, 4) < 0.1] = np.nan
    model = classifier(batch_size=batch_size, max_iter=30).fit(X, y)
    assert model.score(X, y) > 0.85
    assert np.isfinite(model.predict_proba(np.full((2, 4), np.nan))).all()


@pytest.mark.parametrize("standardize", [True, False])
def test_a_gap_that_is_met_first_in_predict_is_a_usual_value(standardize):
    X = RANDOM.normal(size=(N, 3)) + 4.0
    model = regressor(standardize=standardize).fit(X, X[:, 0])
    usual = X[:1].copy()
    usual[0, 1] = X[:, 1].mean()
    gap = usual.copy()
    gap[0, 1] = np.nan
    np.testing.assert_allclose(model.predict(gap), model.predict(usual), rtol=1e-6)


def test_a_pickle_reads_the_same_table():
    model = classifier().fit(FRAME, LABEL)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(FRAME), model.predict_proba(FRAME))


def test_the_module_takes_the_columns_as_numbers():
    model = classifier().fit(FRAME, LABEL)
    outputs = model.module_(torch.from_numpy(model.to_numbers(FRAME))).numpy()
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0], model.decision_function(FRAME), rtol=1e-6, atol=1e-9)


def test_onnx_takes_the_columns_as_numbers(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = classifier().fit(FRAME, LABEL)
    model.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (outputs,) = session.run(None, {"X": model.to_numbers(FRAME)})
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0], model.decision_function(FRAME), rtol=1e-6, atol=1e-9)


def test_a_stream_of_frames():
    model = classifier()
    for start in range(0, N, 100):
        model.partial_fit(FRAME[start : start + 100], LABEL[start : start + 100], classes=["cheap", "dear"])
    assert model.score(FRAME, LABEL) > 0.6


# --- features of all sizes --------------------------------------------------------------------------------------------


def test_what_lies_far_out_is_clipped_smoothly():
    X = RANDOM.normal(size=(501, 3)) * [1.0, 1e6, 1e-6] + [0.0, 1e7, 0.0]
    scaling = SmoothClip.of(X, None)
    np.testing.assert_allclose(scaling.median, np.median(X, 0))
    scaled = scaling(X)
    assert np.abs(scaled).max() < 3.0
    np.testing.assert_allclose(scaled.std(0), scaled.std(0).mean(), rtol=0.1)
    far = scaling(np.array([[1e300, -1e300, 0.0]]))
    np.testing.assert_allclose(far[0, :2], [3.0, -3.0])


def test_quartiles_of_weighted_samples_are_those_of_repeated_ones():
    X = RANDOM.normal(size=(60, 4))
    counts = RANDOM.randint(1, 4, 60)
    weighted, repeated = SmoothClip.of(X, counts.astype(float)), SmoothClip.of(np.repeat(X, counts, 0), None)
    assert np.array_equal(weighted.median, repeated.median)
    assert np.array_equal(weighted.unit, repeated.unit)


def test_columns_of_few_values_have_half_their_range_for_a_unit():
    X = np.stack([np.arange(40) % 10 == 0, np.full(40, 0.1)], 1).astype(float)
    scaling = SmoothClip.of(X, None)
    np.testing.assert_allclose(scaling.unit, [0.5, 1.0])


def test_the_module_clips_as_predict_does():
    X = RANDOM.normal(size=(N, 3)).astype(np.float32)
    model = regressor(max_iter=2).fit(X, X[:, 0])
    far = X[:2].copy()
    far[:, 1] = [1e30, -3e38]
    np.testing.assert_allclose(model.module_(torch.from_numpy(far)).numpy()[:, 0], model.predict(far), rtol=1e-4)


def test_numbers_at_the_end_of_their_range():
    X = np.stack([np.where(np.arange(N) % 3 == 0, 1.7e308, -1.7e308), RANDOM.normal(size=N)], 1)
    y = (X[:, 0] > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classifier(max_iter=20).fit(X, y).score(X, y) == 1.0


def test_quartiles_of_many_rows_are_not_those_of_every_so_manieth(monkeypatch):
    monkeypatch.setattr("ipdlam.estimators.scaling.QUARTILE_ROWS", 100)
    hours = (np.arange(2400) % 24).astype(float)[:, None]
    assert abs(SmoothClip.of(hours, None).median[0] - 11.5) < 3.0


def test_an_outlier_does_not_spoil_a_training():
    X = RANDOM.normal(size=(N, 3))
    y = X[:, 0] + X[:, 1]
    spoiled = X.copy()
    spoiled[0] = 1e9
    assert regressor(max_iter=30).fit(spoiled, y).score(X, y) > 0.95
    assert regressor(max_iter=30, standardize=True).fit(spoiled, y).score(X, y) < 0.5


# --- sparse samples ---------------------------------------------------------------------------------------------------


@methods
@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_sparse_samples_train_as_dense_ones(form, batch_size):
    X = RANDOM.normal(size=(N, 8)) * (RANDOM.rand(N, 8) < 0.3)
    y = (X[:, 0] + X[:, 1] > 0.1).astype(int)
    settings = {"batch_size": batch_size, "max_iter": 5}
    dense = classifier(standardize=True, **settings).fit(X, y)
    thin = classifier(**settings).fit(form(X), y)  # where most is zero, quartiles say nothing
    np.testing.assert_allclose(thin.decision_function(form(X)), dense.decision_function(X), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(thin.decision_function(X), dense.decision_function(X), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
def test_large_sparse_samples_are_dense_a_batch_at_a_time(weighted, monkeypatch):
    X = sparse.random(N, 20, 0.2, format="csr", random_state=0)
    y = np.asarray(X[:, 0].toarray()[:, 0] > 0.1, int)
    weight = RANDOM.randint(1, 3, N) if weighted else None
    monkeypatch.setattr("ipdlam.estimators.perceptron.DENSE_CELLS", 0)
    seen = []
    made = DrawnBatches.__init__

    def spy(self, *arguments):
        seen.append(arguments)
        made(self, *arguments)

    monkeypatch.setattr(DrawnBatches, "__init__", spy)
    model = classifier(max_iter=20).fit(X, y, sample_weight=weight)
    assert len(seen) == 1
    assert model.score(X, y) > 0.9
    epochs = model.n_iter_
    assert model.partial_fit(X, y).n_iter_ == epochs + 1


def test_sparse_samples_of_all_sizes():
    X = sparse.random(N, 4, 0.5, format="lil", random_state=0)
    X[0, 1] = 1e200
    X[:, 2] = np.nan
    y = X[:, 0].toarray()[:, 0] > 0.2
    model = classifier(max_iter=20).fit(X.tocsr(), y)
    assert model.score(X.tocsr(), y) > 0.9
    assert all(np.isfinite(coef).all() for coef in model.coefs_)
    assert np.isfinite(model.to_numbers(X.tocsr())).all()
    with pytest.raises(ValueError, match=r"categorical_features=\[0\] is not for sparse X"):
        classifier(categorical_features=[0]).fit(X.tocsr(), y)
    gaps = np.where(RANDOM.rand(N, 2) < 0.1, np.nan, RANDOM.normal(size=(N, 2)))
    assert len(classifier(max_iter=1).fit(gaps, y).predict(sparse.csr_matrix((3, 2)))) == 3


def test_too_many_columns_are_refused_with_a_remedy():
    wide = sparse.csr_matrix((10, 30000))
    with pytest.raises(ValueError, match=r"30000 columns, but at most 20000.*TruncatedSVD"):
        classifier().fit(wide, np.arange(10) % 2)


# --- labels -----------------------------------------------------------------------------------------------------------

LABELLED, LABELS = make_multilabel_classification(400, 12, n_classes=4, random_state=0)


@methods
@pytest.mark.parametrize("loss", ["cross_entropy", "squared", "hinge"])
def test_several_labels_to_a_sample(loss, batch_size):
    model = classifier(loss=loss, batch_size=batch_size, max_iter=30).fit(LABELLED, LABELS)
    found = model.predict(LABELLED)
    assert found.shape == LABELS.shape
    assert set(np.unique(found)) <= {0, 1}
    usual = LABELS.mean(0) > 0.5
    assert (found == LABELS).mean() > (usual == LABELS).mean() + 0.05
    assert list(model.classes_) == [0, 1, 2, 3]
    if loss != "hinge":
        chances = model.predict_proba(LABELLED)
        assert chances.shape == LABELS.shape
        assert np.array_equal(chances > 0.5, found == 1)
        np.testing.assert_allclose(chances.mean(0), LABELS.mean(0), atol=0.08)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(model.predict_log_proba(LABELLED), np.log(chances), atol=1e-5)


def test_labels_may_be_sparse_and_are_held_out():
    thin = classifier(max_iter=5).fit(LABELLED, sparse.csr_matrix(LABELS))
    assert np.array_equal(thin.predict(LABELLED), classifier(max_iter=5).fit(LABELLED, LABELS).predict(LABELLED))
    assert len(classifier(max_iter=5, early_stopping=True).fit(LABELLED, LABELS).validation_scores_) >= 1


def test_labels_have_no_weights_of_classes_and_keep_their_number():
    with pytest.raises(ValueError, match="class_weight is for classes"):
        classifier(class_weight="balanced").fit(LABELLED, LABELS)
    model = classifier(warm_start=True, max_iter=2).fit(LABELLED, LABELS)
    with pytest.raises(ValueError, match="y has 3 columns of labels, but had 4"):
        model.fit(LABELLED, LABELS[:, :3])
    assert model.set_params(warm_start=False).fit(LABELLED, LABELS[:, 0]).predict(LABELLED).ndim == 1


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
@pytest.mark.parametrize("odd", [2 * LABELS - 1, LABELS + 1], ids=["-1 and 1", "1 and 2"])
def test_labels_are_zero_and_one(loss, odd):
    with pytest.raises(ValueError, match=r"y holds -?\d among several labels to a sample; give 0 and 1"):
        classifier(loss=loss).fit(LABELLED, odd)
    with pytest.raises(ValueError, match="classes is for classes"):
        classifier().partial_fit(LABELLED, LABELS, classes=[0, 1])


# --- rare classes -----------------------------------------------------------------------------------------------------


def test_rare_classes_are_found():
    """Five positives among 5000, as a balanced logistic regression finds them."""
    random = np.random.RandomState(1)
    y = np.zeros(5000, int)
    y[::1000] = 1
    X = random.normal(size=(5000, 5)) + 3.0 * y[:, None]
    assert recall_score(y, LogisticRegression(class_weight="balanced").fit(X, y).predict(X)) == 1.0
    model = IPDLAMClassifier(class_weight="balanced", random_state=0).fit(X, y)
    assert recall_score(y, model.predict(X)) == 1.0
    assert model.predict(X).mean() < 0.02


def test_draws_follow_the_chances():
    chances = np.array([1.0, 0.0, 3.0, 4.0])
    batches = DrawnBatches(lambda rows: rows[:, None].astype(float), torch.arange(4), None, 2, 0, chances)
    assert len(batches) == 2
    drawn = np.concatenate([y.numpy() for _ in range(500) for _, y in batches])
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / len(drawn), chances / 8.0, atol=0.02)
    every = DrawnBatches(lambda rows: rows[:, None].astype(float), torch.arange(4), None, 3, 0)
    assert sorted(int(label) for _, y in every for label in y) == [0, 1, 2, 3]


# --- quantiles and members --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_a_quantile_is_what_so_many_targets_are_below(quantile):
    random = np.random.RandomState(0)
    X = random.normal(size=(3000, 2))
    y = X[:, 0] + random.exponential(size=3000) * (1.0 + (X[:, 1] > 0))
    model = regressor(loss="quantile", quantile=quantile).fit(X[:2000], y[:2000])
    assert (y[2000:] < model.predict(X[2000:])).mean() == pytest.approx(quantile, abs=0.04)


def test_quantiles_of_several_targets_and_of_no_batches():
    y = RANDOM.exponential(size=(400, 2))
    model = regressor(loss="quantile", quantile=0.8).fit(LABELLED, y)
    np.testing.assert_allclose((y < model.predict(LABELLED)).mean(0), 0.8, atol=0.08)
    with pytest.raises(ValueError, match="loss='quantile' needs mini-batches"):
        regressor(loss="quantile", batch_size=None).fit(LABELLED, y)


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1, "half"])
def test_a_quantile_that_is_none_is_named(quantile):
    with pytest.raises((ValueError, TypeError), match="quantile"):
        regressor(loss="quantile", quantile=quantile).fit(LABELLED, LABELLED[:, 0])


@methods
@pytest.mark.parametrize("hidden", [(), (6,), (6, 5)], ids=str)
def test_members_are_one_network_in_the_end(hidden, batch_size):
    y = LABELS[:, 0]
    model = classifier(hidden_layer_sizes=hidden, n_members=3, batch_size=batch_size, max_iter=3).fit(LABELLED, y)
    outputs = model.module_(torch.from_numpy(LABELLED)).numpy()
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0], model.decision_function(LABELLED), rtol=1e-6, atol=1e-9)
    first = classifier(hidden_layer_sizes=hidden, batch_size=batch_size, max_iter=3).fit(LABELLED, y)
    assert not np.array_equal(model.decision_function(LABELLED), first.decision_function(LABELLED))


def test_members_help():
    random = np.random.RandomState(0)
    X = random.normal(size=(800, 6))
    y = np.sin(2.0 * X[:, 0]) * X[:, 1] + 0.5 * random.normal(size=800)
    one, five = (
        np.mean(
            [
                regressor(n_members=n, max_iter=40, alpha=0.0, random_state=s)
                .fit(X[:400], y[:400])
                .score(X[400:], y[400:])
                for s in (0, 1)
            ]
        )
        for n in (1, 5)
    )
    assert five > one


def test_members_go_on():
    model = classifier(n_members=2, max_iter=2, warm_start=True).fit(LABELLED, LABELS[:, 0])
    before = model.decision_function(LABELLED)
    assert model.fit(LABELLED, LABELS[:, 0]).n_iter_ == 4
    assert not np.array_equal(before, model.decision_function(LABELLED))
    assert model.set_params(n_members="auto").fit(LABELLED, LABELS[:, 0]).n_iter_ == 6
    assert len(model._networks) == 2
    with pytest.raises(ValueError, match="n_members"):
        model.set_params(n_members=3).fit(LABELLED, LABELS[:, 0])


@pytest.mark.parametrize("make", [classifier, regressor])
def test_members_stream_and_a_pickle_of_them_goes_on(make):
    y = LABELS[:, 0] if make is classifier else LABELLED[:, 0] * LABELLED[:, 1]
    model = make(n_members=3).partial_fit(LABELLED, y)
    assert [type(network) for network in model._networks] == [nn.Sequential] * 3
    first = [network[0].weight for network in model._networks]
    assert not torch.equal(first[0], first[1])
    before = copy.deepcopy(first)
    again = pickle.loads(pickle.dumps(model)).partial_fit(LABELLED, y)
    model.partial_fit(LABELLED, y)
    assert not torch.equal(before[0], model._networks[0][0].weight)
    for own, other in zip(model._networks, again._networks, strict=True):
        assert torch.equal(own[0].weight, other[0].weight)
    assert make().partial_fit(LABELLED, y)._networks[1:] == []  # a stream has one unless it is told


@pytest.mark.parametrize("loss", ["cross_entropy", "squared", "hinge"])
def test_members_of_one_start_are_one_network(loss, monkeypatch):
    """Side by side, copies learn what one learns alone: to rounding, over several batches and with weights."""
    y, weight = LABELS[:, 0], np.linspace(0.5, 2.0, len(LABELLED))
    settings = {"loss": loss, "batch_size": len(LABELLED) // 3, "max_iter": 3, "standardize": False}
    one = classifier(n_members=1, **settings).fit(LABELLED, y, sample_weight=weight)
    seeds = perceptron.Perceptron._seeds
    monkeypatch.setattr(perceptron.Perceptron, "_seeds", lambda *given: seeds(*given)[:1] * 3)
    three = classifier(n_members=3, **settings).fit(LABELLED, y, sample_weight=weight)
    assert len(three._networks) == 3
    found = three.decision_function(LABELLED)
    np.testing.assert_allclose(found, one.decision_function(LABELLED), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(three.loss_curve_, one.loss_curve_, rtol=1e-7)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_members_of_large_samples_are_given_batch_by_batch(make, monkeypatch):
    random = np.random.RandomState(0)
    X = random.normal(size=(300, 4))
    y = X[:, 0] > 0 if make is classifier else X[:, 0]
    monkeypatch.setattr(perceptron, "DENSE_CELLS", 2000)  # one member's inputs are fewer, those of two are more
    given = []
    loader = perceptron.DrawnBatches
    monkeypatch.setattr(perceptron, "DrawnBatches", lambda *settings: given.append(1) or loader(*settings))
    for members in (1, 2):
        model = make(n_members=members, max_iter=10).fit(X, y)
        assert model.score(X, y) > 0.8
        assert len(given) == members - 1
    assert not torch.equal(model._networks[0][0].weight, model._networks[1][0].weight)


def test_enough_samples_have_several_members():
    random = np.random.RandomState(0)
    X = random.normal(size=(1000, 2))
    y = (X[:, 0] > 0).astype(int)
    for make, several in ((classifier, 2), (regressor, 3)):
        for rows, batch_size, members in ((999, "auto", 1), (1000, "auto", several), (1000, None, 1)):
            model = make(max_iter=1, hidden_layer_sizes=(3,), batch_size=batch_size).fit(X[:rows], y[:rows])
            assert len(model._networks) == members
    assert regressor(max_iter=1, hidden_layer_sizes=(3,))._member_count(10000) == 1  # large batches share nothing


@pytest.mark.parametrize("n_members", ["three", 0, 1.5])
def test_a_number_of_members_that_is_none_is_named(n_members):
    with pytest.raises((ValueError, TypeError), match="n_members"):
        classifier(n_members=n_members).fit(LABELLED, LABELS[:, 0])


def test_members_stop_early_together():
    random = np.random.RandomState(0)
    X = random.normal(size=(300, 4))
    y = X[:, 0] + random.normal(size=300)
    model = regressor(n_members=2, early_stopping=True, max_iter=40, n_iter_no_change=3).fit(X, y)
    assert len(model._networks) == 2
    assert model.n_iter_ < 40
    best = -max(model.validation_scores_)  # the mean loss of the two, in scaled units
    assert 0.1 < best < 1.0


@pytest.mark.parametrize("make", [classifier, regressor])
def test_several_batches_are_trained_in_float32_and_predicted_in_the_precision_of_the_data(make, monkeypatch):
    given = []
    fit = perceptron.MiniBatchIPDLAM.fit
    monkeypatch.setattr(
        perceptron.MiniBatchIPDLAM,
        "fit",
        lambda self, *args, **named: given.append(self.network.dtype) or fit(self, *args, **named),
    )
    X = np.random.RandomState(0).normal(size=(200, 4))
    y = (X[:, 0] > 0).astype(float)
    for rows, standardize, wanted in (
        (200, "robust", torch.float32), (64, "robust", torch.float64), (200, True, torch.float64)
    ):  # fmt: skip
        model = make(max_iter=2, standardize=standardize).fit(X[:rows], y[:rows])
        assert given.pop() == wanted
        assert {parameter.dtype for parameter in model.module_.parameters()} == {torch.float64}
        assert model._raw(X).dtype == torch.float64
    narrow = make(max_iter=2).fit(X.astype(np.float32), y)
    assert {parameter.dtype for parameter in narrow.module_.parameters()} == {torch.float32}


def test_ctrl_c_keeps_the_members_that_are_trained(monkeypatch):
    """Those of the full-batch method, which come one after the other."""
    listen, met = Plateau.__call__, []

    def interrupt(self, record):
        listen(self, record)
        met.append(record)
        if len(met) == 5:  # two epochs of the third member
            raise KeyboardInterrupt

    monkeypatch.setattr(Plateau, "__call__", interrupt)
    model = classifier(n_members=4, max_iter=2, batch_size=None)
    with pytest.warns(UserWarning, match="interrupted by the user"):
        model.fit(LABELLED, LABELS[:, 0])
    assert len(model._networks) == 2
    assert model.n_iter_ == 2
    monkeypatch.undo()
    again = classifier(n_members=2, max_iter=2, batch_size=None).fit(LABELLED, LABELS[:, 0])
    assert np.array_equal(again.decision_function(LABELLED), model.decision_function(LABELLED))


# --- early stopping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [load_iris, load_wine, load_diabetes])
def test_early_stopping_costs_no_accuracy_on_small_tables(load):
    X, y = load(return_X_y=True)
    make = IPDLAMRegressor if load is load_diabetes else IPDLAMClassifier
    plain, early = (
        np.mean([cross_val_score(make(random_state=seed, early_stopping=stop), X, y, cv=4).mean() for seed in (0, 1)])
        for stop in (False, True)
    )
    assert early > plain - 0.02


def test_a_fraction_that_leaves_nothing_is_named():
    with pytest.raises(ValueError, match=r"validation_fraction=0.999 holds back all of the 400 samples"):
        classifier(early_stopping=True, validation_fraction=0.999).fit(LABELLED, LABELS[:, 0])


def test_weights_of_pandas_and_of_classes_together():
    weight = pd.Series(RANDOM.rand(400) + 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = classifier(max_iter=2).fit(LABELLED, LABELS[:, 0], sample_weight=weight)
        classifier(max_iter=2, class_weight="balanced").fit(LABELLED, LABELS[:, 0], sample_weight=weight)
    assert model.n_iter_ == 2
    for wrong in ("balance", [1, 2]):
        with pytest.raises(ValueError, match="class_weight must be 'balanced', None or weights in a dictionary"):
            classifier(class_weight=wrong).fit(LABELLED, LABELS[:, 0])


def test_a_stream_that_is_refused_leaves_nothing():
    model = classifier()
    with pytest.raises(ValueError, match="not among the classes"):
        model.partial_fit(FRAME, LABEL, classes=["a", "b"])
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "n_features_in_")
