"""Baselines that are stopped and taken up again: every optimizer, to the bit, and nothing that does not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import ipdlam
from ipdlam import DLAM, IPDLAM, CheckpointError
from ipdlam.baselines import BCD, DLADMM, OPTIMIZERS, BackPropagation, BatchByBatch
from ipdlam.checkpoint import format as checkpoints
from ipdlam.prox import ACTIVATIONS, Huber
from ipdlam.runs.model_file import mlp
from ipdlam.training.callbacks import Checkpoints
from problems import assert_same_runs, make_data, make_model, same
from programs import importable

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
    assert second._run.seconds == first._run.seconds
    assert_same_runs(first, second)
    history = second.continue_fit(epochs=9 - epochs)
    assert history is second.history
    assert_same_runs(whole, second)
    assert history[-1].seconds > second._run.history[0].seconds > 0.0


@pytest.mark.parametrize("kind", [BCD, DLADMM, BatchByBatch])
@pytest.mark.parametrize("iterations", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alternating_baselines_go_on_too(tmp_path, kind, iterations, dtype):
    settings = {"loss": "cross_entropy", "chunk_size": 16, **({"penalty": 0.1} if kind is DLADMM else {})}
    if kind is BatchByBatch:
        settings["batch_size"] = 25
    data = {"sample_weight": None if kind is DLADMM else WEIGHT, "validation_data": VALIDATION}
    whole = kind(network(dtype=dtype), **settings)
    whole.fit(X, Y, iterations=8, **data)
    first = kind(network(dtype=dtype), **settings)
    first.fit(X, Y, iterations=iterations, **data)
    first.save(tmp_path / "c")
    second = kind.load(tmp_path / "c", network(seed=3, dtype=dtype), X, Y, **data)
    assert second.settings_dict() == whole.settings_dict()
    second.continue_fit(iterations=8 - iterations)
    assert_same_runs(whole, second)


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


@pytest.mark.parametrize("kind", [IPDLAM, BCD, BackPropagation])
def test_validation_data_belong_to_the_run(tmp_path, kind):
    trainer = kind(network())
    trainer.start(X, Y, validation_data=VALIDATION)
    trainer.save(tmp_path / "with")
    with pytest.raises(CheckpointError, match="was saved with validation data; load it with validation_data"):
        kind.load(tmp_path / "with", network(), X, Y)
    trainer.start(X, Y)
    trainer.save(tmp_path / "without")
    with pytest.raises(CheckpointError, match="was saved without validation data; load it without"):
        kind.load(tmp_path / "without", network(), X, Y, validation_data=VALIDATION)


def test_another_process_goes_on(tmp_path):
    code = (
        "import sys, torch\n"
        "sys.path[:0] = sys.argv[2].split(':')\n"
        "from test_resume import *\n"
        "trainer = BackPropagation.load(sys.argv[1], network(seed=8), X, Y)\n"
        "trainer.continue_fit(epochs=3)\n"
        "trainer.save(sys.argv[1])\n"
    )
    first = BackPropagation(network(), "adamax", learning_rate=0.01, batch_size=7)
    first.fit(X, Y, epochs=4)
    first.save(tmp_path / "c")
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "c"), importable(__file__)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    assert answer.returncode == 0, answer.stderr
    first.continue_fit(epochs=3)
    assert_same_runs(first, BackPropagation.load(tmp_path / "c", network(), X, Y))


def test_the_best_weights_and_the_patience_survive(tmp_path):
    settings = {"learning_rate": 0.02, "batch_size": 16}
    rules = {"restore_best": True, "patience": 6}
    whole = BackPropagation(network(), "rmsprop", **settings)
    history = whole.fit(X, Y, epochs=200, validation_data=LEARNABLE, **rules)
    assert history.stop_reason == "patience"  # or this test shows nothing
    best = history.best.iteration
    assert best > 1
    first = BackPropagation(network(), "rmsprop", **settings)
    first.fit(X, Y, epochs=best + 3, validation_data=LEARNABLE, **rules)
    first.save(tmp_path / "c")
    assert first._run.progress.unimproved == 3
    second = BackPropagation.load(tmp_path / "c", network(seed=9), X, Y, validation_data=LEARNABLE)
    resumed = second.continue_fit(epochs=200, **rules)
    assert resumed.stop_reason == "patience"
    assert_same_runs(whole, second)


def test_saving_changes_nothing(tmp_path):
    plain, saving = (BackPropagation(network(), "adam", batch_size=16) for _ in range(2))
    plain.fit(X, Y, epochs=5)
    saving.fit(X, Y, epochs=5, callbacks=[lambda record: saving.save(tmp_path / "c")])
    assert_same_runs(plain, saving)


def test_loading_leaves_the_gradients_of_the_user(tmp_path):
    trainer = BackPropagation(network())
    trainer.fit(X, Y, epochs=2)
    trainer.save(tmp_path / "c")
    model = network(seed=1)
    model(X).sum().backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    BackPropagation.load(tmp_path / "c", model, X, Y)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_a_series_of_checkpoints(tmp_path):
    trainer = BackPropagation(network(), batch_size=16)
    trainer.fit(X, Y, epochs=7, callbacks=[Checkpoints(trainer, tmp_path, every=2)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-00000004", "iteration-00000006"]
    resumed = BackPropagation.load(tmp_path, network(seed=2), X, Y)
    assert len(resumed.history) == 6
    resumed.continue_fit(epochs=1, callbacks=[Checkpoints(resumed, tmp_path, every=1)])
    assert_same_runs(trainer, resumed)
    with pytest.raises(CheckpointError, match="holds iteration-00000007 of another run"):
        Checkpoints(BackPropagation(network()), tmp_path)


def test_a_light_checkpoint_holds_weights_and_settings(tmp_path):
    trainer = BackPropagation(network(), "adam", loss="cross_entropy", learning_rate=0.01)
    trainer.fit(X, Y, epochs=2)
    trainer.save(tmp_path / "light", light=True)
    trainer.save(tmp_path / "exact")
    assert trainer.checkpoint_bytes() > 3 * trainer.checkpoint_bytes(light=True)  # two moments for every weight
    for name in ("light", "exact"):
        loaded = BackPropagation.load(tmp_path / name, network(seed=4))
        assert same(loaded.model, trainer.model)
        assert loaded.settings_dict() == trainer.settings_dict()
        with pytest.raises(RuntimeError, match="no run has been started"):
            loaded.continue_fit(epochs=1)
    with pytest.raises(CheckpointError, match=r"light checkpoint.*load it without data and call fit"):
        BackPropagation.load(tmp_path / "light", network(), X, Y)


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
    assert second._run.progress.best_score == before.best.score
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": X + 1e-6}, "training X was"),
        ({"y": Y.roll(1)}, "training y was"),
        ({"sample_weight": torch.ones(60)}, "training sample_weight was None"),
        ({"validation_data": (VALIDATION[0], VALIDATION[1].roll(1))}, "validation y was"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_data_are_refused_by_name(saved, change, words):
    model = network(seed=1)
    with pytest.raises(CheckpointError, match=f"does not fit: the sha256 of {words}"):
        BackPropagation.load(saved, model, **{"X": X, "y": Y, "validation_data": VALIDATION, **change})
    assert same(model, network(seed=1))  # the user's model is left alone


def test_another_model_is_refused_by_name(saved):
    with pytest.raises(CheckpointError, match="the model's dtype was 'float32' and is 'float64'"):
        load(saved, network(dtype=torch.float64))
    with pytest.raises(CheckpointError, match="the model's layers 1 outputs was 8 and is 9"):
        load(saved, make_model([5, 9, 7, 3], dtype=torch.float32))


@pytest.mark.parametrize("kind", [IPDLAM, DLAM, BCD, DLADMM])
def test_other_trainers_refuse_it_by_name(saved, kind):
    with pytest.raises(CheckpointError, match=r"of a run of BackPropagation; load it with BackPropagation\.load"):
        kind.load(saved, network(), X, Y, validation_data=VALIDATION)


def test_it_refuses_the_runs_of_others(tmp_path):
    trainer = IPDLAM(network())
    trainer.fit(X, Y, iterations=1)
    trainer.save(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"of a run of IPDLAM; load it with IPDLAM\.load"):
        BackPropagation.load(tmp_path / "c", network(), X, Y)


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
def test_a_manifest_with_nonsense_is_refused(saved, change):
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
def test_tensors_that_do_not_fit_are_refused(saved, change):
    file = saved / "state-00000.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    reseal(saved, lambda m: m["files"][0].update(bytes=file.stat().st_size, sha256=checkpoints.sha256(file)))
    model = network(seed=1)
    with pytest.raises(CheckpointError):
        load(saved, model)
    assert same(model, network(seed=1))


def test_an_epoch_that_did_not_end_cannot_be_saved(tmp_path):
    trainer = BackPropagation(network(), "sgd", learning_rate=1e20)
    with pytest.raises(ipdlam.DivergenceError):
        trainer.fit(X, Y, epochs=50)
    with pytest.raises(RuntimeError, match="the last epoch did not end"):
        trainer.save(tmp_path / "c")
    with pytest.raises(RuntimeError, match="the last epoch did not end"):
        trainer.continue_fit(epochs=1)


def test_epochs_are_checked():
    trainer = BackPropagation(network())
    with pytest.raises(RuntimeError, match="no run has been started"):
        trainer.continue_fit(epochs=1)
    trainer.start(X, Y)
    with pytest.raises(ValueError, match="epochs must be an integer >= 0, got -1"):
        trainer.continue_fit(epochs=-1)


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
