"""Where the mini-batch method gets its batches from, and what it refuses."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ipdlam
from ipdlam import MiniBatchIPDLAM
from ipdlam.minibatch.batch import Part
from problems import make_data, make_model

WIDTHS = [5, 8, 7, 3]
N = 60
X, Y = make_data(N, 5, 3, "cross_entropy")
TARGETS = make_data(N, 5, 3, "squared")[1]


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("batch_size", [1, 7, 59, N, 1000])
def test_every_sample_is_met_once_an_epoch_in_a_new_order(batch_size, monkeypatch):
    met = []
    real = ipdlam.minibatch.step.Stepper.update
    monkeypatch.setattr(
        ipdlam.minibatch.step.Stepper,
        "update",
        lambda self, batch, part: (met.append(batch.X), real(self, batch, part))[1],
    )
    trainer = MiniBatchIPDLAM(make_model(WIDTHS), batch_size=batch_size)
    trainer.fit(X, Y, epochs=2)
    assert [len(batch) for batch in met[: len(met) // 2]] == [len(part) for part in X.split(batch_size)]
    first, second = torch.cat(met).split(N)
    assert torch.equal(first.sort(0).values, X.sort(0).values)
    assert not torch.equal(first, second)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in trainer.model.parameters())


class Stream(IterableDataset):
    """A DataLoader of it has a ``len`` that fails."""

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Again:
    """What can be gone through again and again, and knows no length."""

    def __iter__(self):
        return iter([(X[:40], Y[:40]), (X[40:], Y[40:])])


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TensorDataset(X, Y), 16),
        DataLoader(TensorDataset(X, Y, torch.ones(N).double()), 16),
        DataLoader(Stream(), 16),
        Again(),
        [(X.numpy(), Y.numpy())],
        [[X, Y]] * 3,
        [(X[:1], Y[:1])] * 9,
    ],
    ids=["DataLoader", "with weights", "stream", "without len", "numpy", "lists", "batches of one"],
)
def test_batches_may_come_from_any_iterable(loader):
    trainer = MiniBatchIPDLAM(make_model(WIDTHS))
    history = trainer.fit(loader, epochs=12, validation_data=(X, Y))
    assert len(history) == 12
    assert history[-1].train_loss < history[0].train_loss
    assert history[-1].validation_accuracy is not None
    assert 0.0 <= history[-1].train_accuracy <= 1.0  # as met on the way


def test_a_loader_gives_what_the_same_batches_give_one_by_one():
    looped, loaded = make_model(WIDTHS), make_model(WIDTHS)
    batches = list(zip(X.split(16), Y.split(16), strict=True))
    trainer = MiniBatchIPDLAM(looped, horizon=12)
    met = [[trainer.step(*batch) for batch in batches] for _ in range(3)]
    history = MiniBatchIPDLAM(loaded).fit(batches, epochs=3)
    assert same(weights(looped), weights(loaded))
    rows = torch.tensor([float(len(x)) for x, _ in batches])
    assert history.column("loss") == pytest.approx([float(torch.tensor(losses) @ rows) for losses in met], rel=1e-6)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (((x, y) for x, y in [(X, Y)]), TypeError, "an iterator is empty after one epoch, give what it iterates over"),
        (iter([(X, Y)]), TypeError, "an iterator is empty after one epoch"),
        ("digits", TypeError, "X must be an array or an iterable of batches (x, y), got str"),
        (5, TypeError, "X must be an array or an iterable of batches (x, y), got int"),
        (TensorDataset(X, Y), TypeError, "X must be an array or an iterable of batches (x, y), got TensorDataset"),
        ([], ValueError, "X has no batches"),
        ((X, Y), TypeError, "a batch must be (x, y) or (x, y, sample_weight), got Tensor"),
        ([(X,)], TypeError, "a batch must be (x, y) or (x, y, sample_weight), got tuple of 1"),
        ([{"x": X}], TypeError, "got dict"),
        ([(X.float(), Y)], TypeError, "x is torch.float32, but the model is torch.float64; convert one of them"),
        ([(X, TARGETS.float())], TypeError, "y is torch.float32, but the model is torch.float64"),
        ([(X, Y, torch.ones(N).half())], TypeError, "half precision is not supported"),
        ([(X.to("meta"), Y)], TypeError, "x must be a dense tensor with values, got layout torch.strided on meta"),
        ([(X.tolist(), Y)], TypeError, "x must be a torch tensor or a numpy array, got list"),
        ([(X[:, :4], Y)], ValueError, "X has shape (60, 4), but the first layer takes 5 inputs a row"),
        ([(X[0], Y)], ValueError, "X must be a matrix with one row a sample"),
        ([(X[:0], Y[:0])], ValueError, "X is empty"),
        ([(X, Y[:9])], ValueError, "they differ in their number of samples"),
        ([(X, Y + 1)], ValueError, "holds the label 3"),
        ([(X, TARGETS[:, :2])], ValueError, "y has shape (60, 2), but the last layer has 3 outputs a row"),
        ([(X, Y, -torch.ones(N))], TypeError, "sample_weight is torch.float32"),
        ([(X, Y, -torch.ones(N).double())], ValueError, "weights must be >= 0"),
        ([(X * math.nan, Y)], ValueError, "X holds nan at (0, 0)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_batches_that_cannot_be_learned_from_are_refused_and_leave_the_model_alone(given, error, message):
    model = make_model(WIDTHS)
    before = weights(model)
    with pytest.raises(error, match=re.escape(message)):
        MiniBatchIPDLAM(model).fit(given, epochs=2)
    assert same(weights(model), before)
    if isinstance(given, list) and given and isinstance(given[0], tuple) and len(given[0]) > 1:
        with pytest.raises(error, match=re.escape(message)):
            MiniBatchIPDLAM(model).step(*given[0])
        assert same(weights(model), before)


def test_an_array_needs_targets_and_a_loader_does_not():
    trainer = MiniBatchIPDLAM(make_model(WIDTHS))
    with pytest.raises(ValueError, match="y is missing"):
        trainer.fit(X)
    with pytest.raises(TypeError, match="an iterable of batches is given alone"):
        trainer.fit([(X, Y)], Y)


def test_a_batch_with_nan_is_skipped_where_the_user_says_so():
    bad = X.clone()
    bad[3, 2] = math.nan
    model, twin = make_model(WIDTHS), make_model(WIDTHS)
    trainer, other = MiniBatchIPDLAM(model, bad_batches="skip"), MiniBatchIPDLAM(twin, bad_batches="skip")
    for _ in range(3):
        trainer.step(X, TARGETS)
        other.step(X, TARGETS)
        with pytest.warns(UserWarning, match=r"a batch was skipped: x holds NaN or infinity \(\d so far\)") as caught:
            assert math.isnan(trainer.step(bad, TARGETS))
        assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"y holds NaN or infinity \(4 so far\)"):
        trainer.step(X, TARGETS / 0.0)
    assert same(weights(model), weights(twin))
    first, second = trainer.state_dict(), other.state_dict()
    assert first["counters"] == second["counters"]
    assert same(first["tensors"].values(), second["tensors"].values())
    with pytest.warns(UserWarning, match="skipped"):
        history = trainer.fit([(X, TARGETS), (bad, TARGETS)], epochs=1)
    assert history[0].loss / N == history[0].train_loss  # of the good batch alone
    assert trainer._state.skipped == 1


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "l2"}, "loss must be one of squared, .*, got 'l2'"),
        ({"step": 0.0}, r"step must be a finite number > 0 and <= 1e\+30, got 0.0"),
        *[({name: 0.0}, f"{name} must be a finite number > 0, got 0.0") for name in ("proximity", "penalty")],
        *[({name: math.nan}, f"{name} must be a finite number") for name in ("step", "inertia", "weight_decay")],
        ({"inertia": 1.0}, "inertia must be below 1, got 1.0"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number >= 0, got -1.0"),
        *[({name: 0}, f"{name} must be an integer >= 1, got 0") for name in ("rank", "batch_size", "horizon")],
        ({"chunk_size": 0}, "chunk_size must be an integer >= 1, got 0"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"start": "random"}, "start must be one of auto, rescale, keep, got 'random'"),
        ({"bad_batches": None}, "bad_batches must be one of refuse, skip, got None"),
    ],
    ids=str,
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        MiniBatchIPDLAM(make_model(WIDTHS), **settings)


@pytest.mark.parametrize("rows", [255, 511, 512, 513, 1000])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_looked_at_does_not_depend_on_who_holds_it(rows, weighted):
    weight = 1.0 + torch.arange(rows) % 3 if weighted else None
    whole = Part.made(weight, rows)
    chosen, some = whole.thinned(256, 7)
    numbers = torch.arange(rows)[chosen]
    assert len(numbers) == some.rows == (256 if rows >= 512 else rows)
    assert some.share is None or float(some.share.sum()) == pytest.approx(1.0)
    joined, places = [], []
    for positions in (torch.arange(0, rows, 3), torch.arange(rows)[torch.arange(rows) % 3 > 0], torch.arange(0)):
        part = Part.made(None if weight is None else weight[positions], rows, positions=positions)
        own, kept = part.thinned(256, 7)
        joined.append(positions[own])
        places.append(torch.arange(rows)[positions] if kept.positions is positions else kept.positions)
    assert torch.equal(torch.cat(joined).sort().values, numbers)
    assert torch.equal(torch.cat(places).sort().values, torch.arange(some.rows))
    if rows >= 512:
        assert not torch.equal(numbers, torch.arange(rows)[whole.thinned(256, 8)[0]])


def test_samples_that_come_in_turns_are_all_remembered():
    """A class in every other row of a large batch."""
    y = torch.arange(512) % 2
    x = torch.randn(512, 6, generator=torch.Generator().manual_seed(0)) + 5.0 * torch.nn.functional.one_hot(y, 6)
    trainer = MiniBatchIPDLAM(make_model([6, 8, 2], dtype=torch.float32), loss="cross_entropy", start="keep")
    for _ in range(10):
        trainer.step(x, y)
    mean = trainer._state.stepper.memories[1].mean
    assert torch.allclose(mean[:2], x.mean(0)[:2], atol=0.3)
