"""Baselines that are stopped and taken up again: every optimizer, to the bit, and nothing that does not fit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from ipdlam import DLAM, IPDLAM, CheckpointError
from ipdlam.baselines import BCD, DLADMM, OPTIMIZERS, BackPropagation
from ipdlam.checkpoint import format as checkpoints
from ipdlam.network.initialise import mlp
from ipdlam.prox import ACTIVATIONS, Huber
from problems import assert_same_runs, make_data, make_model, same

WIDTHS = [5, 8, 7, 3]
X, Y = make_data(60, 5, 3, "cross_entropy", dtype=torch.float32)
VALIDATION = make_data(25, 5, 3, "cross_entropy", seed=1, dtype=torch.float32)
LEARNABLE = (X[:30], Y[:30])  # unlike other labels drawn at random
WEIGHT = torch.arange(60) % 4 * 0.5  # some of them zero


def network(seed=0, dtype=torch.float32):
    return make_model(WIDTHS, seed=seed, dtype=dtype)


@pytest.mark.parametrize(("epochs", "dtype"), [(1, torch.float64), (4, torch.float32)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_goes_on_with_the_bits_of_one_that_never_stopped(tmp_path, optimizer, epochs, dtype):
    settings = {"loss": Huber(0.7), "learning_rate": 0.03, "batch_size": 16, "seed": 5, "chunk_size": 11}
    data = {"sample_weight": WEIGHT, "validation_data": VALIDATION}
    whole = BackPropagation(network(dtype=dtype), optimizer, **settings)
    whole.fit(X, Y, epochs=9, **data)
    first = BackPropagation(network(dtype=dtype), optimizer, **settings)
    first.fit(X, Y, epochs=epochs, **data)
    first.save(tmp_path / "c")
    model = network(seed=3, dtype=dtype)
    second = BackPropagation.load(tmp_path / "c", model, X, Y, **data)
    assert second.settings_dict() == whole.settings_dict()
    assert second.history.column("seconds") == first.history.column("seconds")
    assert second._state.seconds == first._state.seconds
    assert_same_runs(first, second)
    history = second.continue_fit(epochs=9 - epochs)
    assert history is second.history
    assert_same_runs(whole, second)
    assert history[-1].seconds > second._state.history[0].seconds > 0.0


@pytest.mark.parametrize("kind", [BCD, DLADMM, DLAM])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_goes_on(tmp_path, kind, activation):
    """The identity's a is z itself unless it is copied, and then one would be loaded over the other."""

    def deep(seed=0):
        return mlp((5, 6, 6, 3), activation, "he", seed, torch.float32, "cpu")

    whole, first = kind(deep()), kind(deep())
    whole.fit(X, Y, iterations=5)
    first.fit(X, Y, iterations=3)
    first.save(tmp_path / "c")
    second = kind.load(tmp_path / "c", deep(seed=3), X, Y)
    second.continue_fit(iterations=2)
    assert_same_runs(whole, second)


def test_loading_leaves_the_gradients_of_the_user(tmp_path):
    trainer = BackPropagation(network())
    trainer.fit(X, Y, epochs=2)
    trainer.save(tmp_path / "c")
    model = network(seed=1)
    model(X).sum().backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    BackPropagation.load(tmp_path / "c", model, X, Y)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_a_checkpoint_of_adam_holds_two_moments_for_every_weight():
    trainer = BackPropagation(network(), "adam")
    trainer.fit(X, Y, epochs=1)
    assert trainer.checkpoint_bytes() > 3 * trainer.checkpoint_bytes(light=True)


# --- after another trainer --------------------------------------------------------------------------------------------


def test_a_run_goes_on_after_another_trainer(tmp_path):
    model = network()
    first = IPDLAM(model)
    before = first.fit(X, Y, iterations=3, validation_data=VALIDATION)
    second = BackPropagation(model, "adam", batch_size=16)
    second.start(X, Y, validation_data=VALIDATION, after=first)
    assert list(second.history) == list(before)
    second.continue_fit(epochs=1)
    second.save(tmp_path / "c")
    history = second.continue_fit(epochs=1)
    assert history.column("iteration") == [1, 2, 3, 4, 5]
    assert history.column("optimizer") == [None, None, None, "adam", "adam"]
    assert history.column("seconds") == sorted(history.column("seconds"))
    assert history[3].seconds > before[-1].seconds
    assert (history.handover, len(before)) == (3, 3)
    alone = network()
    IPDLAM(alone).fit(X, Y, iterations=3)
    BackPropagation(alone, "adam", batch_size=16).fit(X, Y, epochs=2)
    assert same(model, alone)
    resumed = BackPropagation.load(tmp_path / "c", network(seed=7), X, Y, validation_data=VALIDATION)
    resumed.continue_fit(epochs=1)
    assert_same_runs(second, resumed)


def test_it_comes_after_a_trainer_of_the_same_model_that_has_begun():
    trainer, model = BackPropagation(network()), network()
    with pytest.raises(ValueError, match="after is a trainer of another model"):
        trainer.start(X, Y, after=IPDLAM(model))
    with pytest.raises(RuntimeError, match="no run has been started"):
        BackPropagation(model).start(X, Y, after=IPDLAM(model))


def test_the_best_score_is_that_of_both_and_patience_begins_anew():
    model = network()
    first = IPDLAM(model, regularizer=None)
    before = first.fit(X, Y, iterations=40, validation_data=VALIDATION, restore_best=True, patience=5)
    assert before.stop_reason == "patience"
    warm = [parameter.detach().clone() for parameter in model.parameters()]
    second = BackPropagation(model, "sgd", learning_rate=1e-9)  # which changes next to nothing
    second.start(X, Y, validation_data=VALIDATION, after=first)
    assert second._state.progress.best_score == before.best.score
    history = second.continue_fit(epochs=40, restore_best=True, patience=2)
    assert (history.stop_reason, len(history) - len(before)) == ("patience", 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), warm, strict=True))  # those of the best score


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    trainer = BackPropagation(network(), "adam", batch_size=16)
    trainer.fit(X, Y, epochs=2, validation_data=VALIDATION)
    trainer.save(tmp_path / "c")
    return tmp_path / "c"


def load(path, model=None):
    return BackPropagation.load(path, network() if model is None else model, X, Y, validation_data=VALIDATION)


def reseal(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    change(manifest)
    (folder / "manifest.json").write_text(checkpoints.seal(manifest))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["content"]["settings"].update(optimizer="os.system"),
        lambda m: m["content"]["settings"].update(optimizer="sgd"),  # which has no moments
        lambda m: m["content"]["settings"].update(learning_rate=-1.0),
        lambda m: m["content"]["settings"].update(surprise=1),
        lambda m: m["content"]["settings"].pop("loss"),
        lambda m: m["content"]["run"].update(has_moments=False),
        lambda m: m["content"]["run"].pop("has_moments"),
        lambda m: m["content"]["run"].update(history=[]),
        lambda m: m["content"].update(trainer="Nobody"),
    ],
)
def test_a_manifest_with_nonsense_about_an_optimizer_is_refused(saved, change):
    reseal(saved, change)
    with pytest.raises(CheckpointError):
        load(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("moments0.exp_avg@0"),
        lambda tensors: tensors.pop("order@0"),
        lambda tensors: tensors.update({"order@0": torch.full_like(tensors["order@0"], 7)}),
        lambda tensors: tensors.update({"order@0": tensors["order@0"][:-1].clone()}),
        lambda tensors: tensors.update({"moments0.exp_avg@0": tensors["moments0.exp_avg@0"].double()}),
        lambda tensors: tensors.update({"moments0.surprise@0": torch.zeros(3)}),
        lambda tensors: tensors.update({"W1@0": tensors["W1@0"] * torch.nan}),
    ],
)
def test_tensors_of_an_optimizer_that_do_not_fit_are_refused(saved, change):
    file = saved / "state-00000.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    reseal(saved, lambda m: m["files"][0].update(bytes=file.stat().st_size, sha256=checkpoints.sha256(file)))
    model = network(seed=1)
    with pytest.raises(CheckpointError):
        load(saved, model)
    assert same(model, network(seed=1))


def test_an_iteration_of_bcd_that_fails_leaves_the_weights_before_it(monkeypatch):
    """Also the first one."""
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = BCD(model)
    trainer.start(X, Y)
    real, calls = BCD._visit, []

    def failing(self, state, l):
        calls.append(l)
        if len(calls) == 2:
            raise RuntimeError("no luck")
        real(self, state, l)

    monkeypatch.setattr(BCD, "_visit", failing)
    with pytest.raises(RuntimeError, match="no luck"):
        trainer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
