"""What makes a trainer pleasant: bars, plots, loaders to score on, accuracies of encoded targets, plain messages."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ipdlam
from ipdlam.baselines import BCD, DLADMM, BackPropagation

TRAINERS = {
    "IPDLAM": ipdlam.IPDLAM,
    "DLAM": ipdlam.DLAM,
    "MiniBatchIPDLAM": ipdlam.MiniBatchIPDLAM,
    "BCD": BCD,
    "DLADMM": DLADMM,
    "BackPropagation": BackPropagation,
}
every_trainer = pytest.mark.parametrize("kind", TRAINERS.values(), ids=TRAINERS)


def problem(outputs=3, rows=40):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))
    return model, torch.randn(rows, 4), torch.randint(0, max(2, outputs), (rows,))


def rounds(kind, count):
    return {"epochs" if kind in (ipdlam.MiniBatchIPDLAM, BackPropagation) else "iterations": count}


@every_trainer
def test_verbose_shows_a_bar_with_the_scores(kind, capsys):
    model, X, y = problem()
    trainer = kind(model)
    trainer.fit(X, y, **rounds(kind, 2), validation_data=(X, y), verbose=True)
    trainer.continue_fit(**rounds(kind, 1), verbose=True)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "3/3" in shown
    assert "validation accuracy" in shown


@every_trainer
def test_without_verbose_nothing_is_printed(kind, capsys):
    model, X, y = problem()
    kind(model).fit(X, y, **rounds(kind, 1))
    assert capsys.readouterr() == ("", "")


def test_a_history_draws_itself():
    model, X, y = problem()
    figure = ipdlam.IPDLAM(model).fit(X, y, iterations=3).plot("three iterations")
    assert figure.get_suptitle() == "three iterations"
    assert len(figure.axes) == 6


@every_trainer
def test_validation_data_may_be_a_loader(kind):
    model, X, y = problem()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=7)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    first = kind(model).fit(X, y, **rounds(kind, 2), validation_data=loader)
    model.load_state_dict(start)
    second = kind(model).fit(X, y, **rounds(kind, 2), validation_data=(X, y))
    assert first.column("validation_loss") == second.column("validation_loss")
    assert first.column("validation_accuracy") == second.column("validation_accuracy")


@pytest.mark.parametrize("given", [[], 3, "text", [1, 2], [(1,)], [(torch.ones(2, 4), torch.zeros(2), None, 1)]])
def test_what_is_no_validation_data_is_refused(given):
    model, X, y = problem()
    with pytest.raises((ValueError, TypeError), match="validation"):
        ipdlam.IPDLAM(model).fit(X, y, iterations=1, validation_data=given)


def test_a_loader_has_a_training_accuracy():
    model, X, y = problem()
    batches = [(X[:20], y[:20]), (X[20:], y[20:])]
    with torch.no_grad():
        expected = float((model(X[:20]).argmax(1) == y[:20]).float().mean())
    met = []
    trainer = ipdlam.MiniBatchIPDLAM(model, start="keep")
    trainer.fit(batches[:1], epochs=1, callbacks=[lambda record: met.append(record.train_accuracy)])
    assert met == [pytest.approx(expected)]
    history = trainer.fit(batches, epochs=30)
    assert history[-1].train_accuracy > history[0].train_accuracy


@pytest.mark.parametrize("weights", [None, torch.arange(40) % 3 * 1.0])
def test_pixels_may_be_whole_numbers_in_every_batch(weights):
    model, X, y = problem()
    pixels = (50 * X.abs()).byte()
    twin, _, _ = problem()
    first, second = ipdlam.MiniBatchIPDLAM(model), ipdlam.MiniBatchIPDLAM(twin)
    for _ in range(3):
        assert first.step(pixels, y, weights) == second.step(pixels.float(), y, weights)


def test_a_step_past_the_horizon_is_warned_about_once():
    model, X, y = problem()
    trainer = ipdlam.MiniBatchIPDLAM(model, horizon=2)
    for _ in range(2):
        trainer.step(X, y)
    with pytest.warns(UserWarning, match="batch 3 is past the horizon of 2: from here on the steps are zero"):
        trainer.step(X, y)
    trainer.step(X, y)  # filterwarnings = error: a second warning would fail


@pytest.mark.parametrize("loss", ["squared", "cross_entropy", "hinge", "logistic"])
@pytest.mark.parametrize("kind", [ipdlam.IPDLAM, ipdlam.MiniBatchIPDLAM])
def test_targets_that_encode_classes_have_accuracies(loss, kind):
    model, X, y = problem()
    encoded = ipdlam.prox.LOSSES[loss]().encode(y, 3, torch.float32)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    first = kind(model, loss=loss).fit(X, y, **rounds(kind, 2))
    model.load_state_dict(start)
    second = kind(model, loss=loss).fit(X, encoded, **rounds(kind, 2))
    assert first.column("train_accuracy") == second.column("train_accuracy")
    assert None not in second.column("train_accuracy")


def test_signs_have_an_accuracy_and_real_targets_none():
    model, X, y = problem(outputs=1)
    signs = 2.0 * (y % 2)[:, None] - 1.0
    assert ipdlam.MiniBatchIPDLAM(model, loss="logistic").fit(X, signs, epochs=1)[-1].train_accuracy is not None
    assert ipdlam.MiniBatchIPDLAM(model).fit(X, torch.randn(40), epochs=1)[-1].train_accuracy is None


@pytest.mark.parametrize(
    ("outputs", "settings", "target", "says"),
    [
        (1, {"loss": "cross_entropy"}, lambda y: y, "the model has one; give it two or more, or use the loss"),
        (3, {}, lambda y: y[:, None], r"y\.squeeze\(1\)"),
        (1, {"loss": "logistic"}, lambda y: (y % 2).float(), r"write 2 \* y - 1"),
    ],
)
@pytest.mark.parametrize("kind", [ipdlam.IPDLAM, ipdlam.MiniBatchIPDLAM])
def test_mistakes_with_targets_are_answered_with_what_to_write(kind, outputs, settings, target, says):
    model, X, y = problem(outputs)
    with pytest.raises(ValueError, match=says):
        kind(model, **settings).fit(X, target(y))


def test_a_loader_for_a_method_on_all_samples_is_refused_by_its_own_name():
    model, X, y = problem()
    with pytest.raises(TypeError, match=r"IPDLAM takes X and y as arrays, got list; .*MiniBatchIPDLAM"):
        ipdlam.IPDLAM(model).fit([(X, y)])


@pytest.mark.parametrize("module", [nn.Dropout(), nn.BatchNorm1d(6)])
def test_modules_that_are_not_supported_have_a_remedy_that_exists(module):
    model = nn.Sequential(nn.Linear(4, 6), module, nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(ipdlam.UnsupportedModelError, match=r"ipdlam\.MiniBatchIPDLAM trains models with it"):
        ipdlam.IPDLAM(model)
    ipdlam.MiniBatchIPDLAM(model)


def test_a_penalty_of_ones_own_is_a_function_of_the_iteration(tmp_path):
    model, X, y = problem()
    trainer = ipdlam.IPDLAM(model, penalty=lambda iteration: 0.1 * iteration)
    history = trainer.fit(X, y, iterations=3)
    assert history.column("penalty") == pytest.approx([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="penalty is a function, which cannot be saved"):
        trainer.save(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="penalty at iteration 1 must be a finite number > 0, got -1"):
        ipdlam.IPDLAM(model, penalty=lambda iteration: -1).fit(X, y, iterations=1)


def test_a_function_that_says_what_the_settings_say_gives_the_same_bits():
    model, X, y = problem()
    twin, _, _ = problem()
    schedule = ipdlam.IPDLAM(twin).settings.penalty
    ipdlam.IPDLAM(model, penalty=schedule.at).fit(X, y, iterations=4)
    ipdlam.IPDLAM(twin).fit(X, y, iterations=4)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), twin.parameters(), strict=True))


def test_where_z_and_a_live_changes_no_score(tmp_path):
    model, X, y = problem()
    encoded = nn.functional.one_hot(y, 3).float()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    in_memory = ipdlam.IPDLAM(model).fit(X, encoded, iterations=2)
    model.load_state_dict(start)
    on_disk = ipdlam.IPDLAM(model, storage=tmp_path / "z").fit(X, encoded, iterations=2)
    assert in_memory.column("train_accuracy") == on_disk.column("train_accuracy")
    assert None not in on_disk.column("train_accuracy")


def test_batches_that_happen_to_be_one_hot_are_no_classes():
    model, X, _ = problem()
    several = torch.tensor([[1.0, 1.0, 0.0]]).repeat(20, 1)
    one = torch.tensor([[1.0, 0.0, 0.0]]).repeat(20, 1)
    history = ipdlam.MiniBatchIPDLAM(model).fit([(X[:20], one), (X[20:], several)], epochs=1)
    assert history[-1].train_accuracy is None
