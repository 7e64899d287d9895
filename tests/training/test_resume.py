"""Every trainer, saved and taken up again: to the bit, by whoever can, and nothing that does not fit."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import forked
from contracts import (
    CLASSES,
    HELD_OUT,
    TARGETS,
    TRAINERS,
    VALIDATION,
    WEIGHT,
    X_NEW,
    N,
    X,
    Y,
    equal,
    every_class,
    every_trainer,
    network,
    script,
    weights,
)
from ipdlam import CheckpointError
from ipdlam.checkpoint import format as checkpoints
from ipdlam.training.callbacks import Checkpoints
from problems import assert_same_runs, make_model, same


def data_of(trainer):
    return {"validation_data": VALIDATION, **({"sample_weight": WEIGHT} if trainer.takes_weights else {})}


@every_trainer
@pytest.mark.parametrize(("done", "dtype"), [(0, torch.float32), (1, torch.float64), (4, torch.float32)])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(trainer, tmp_path, done, dtype):
    data, loss = data_of(trainer), "squared" if dtype is torch.float32 else "cross_entropy"
    whole, first = (trainer.make(network(dtype=dtype), loss=loss) for _ in range(2))
    trainer.fit(whole, 8, **data)
    if done:
        trainer.fit_until(first, 8, done, **data)
    else:
        trainer.fit(first, 0, **data)
    first.save(tmp_path / "c")
    second = trainer.kind.load(tmp_path / "c", network(seed=3, dtype=dtype), X, Y, **data)
    assert second.settings_dict() == whole.settings_dict()
    assert second.history.column("seconds") == first.history.column("seconds")
    assert len(second.history) == done
    assert_same_runs(first, second)
    history = trainer.go_on(second, 8 - done)
    assert history is second.history
    assert_same_runs(whole, second)
    seconds = history.column("seconds")
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0] > 0.0


@every_trainer
def test_saving_changes_nothing(trainer, tmp_path):
    plain, saving = trainer.make(), trainer.make()
    trainer.fit(plain, 5)
    trainer.fit(saving, 5, callbacks=[lambda record: saving.save(tmp_path / "c")])
    assert_same_runs(plain, saving)


@every_trainer
def test_the_best_weights_and_the_patience_survive(trainer, tmp_path, monkeypatch):
    """Scores are those of the script: the best is the third, and three evaluations without a better one end the run."""
    scores, rules = [0.1, 0.2, 0.9, 0.5, 0.6, 0.7, 0.8], {"restore_best": True, "patience": 3}
    script(monkeypatch, training=scores)
    whole, first = trainer.make(), trainer.make()
    history = trainer.fit(whole, 9, **rules)
    assert (history.stop_reason, len(history), history.best.iteration) == ("patience", 6, 3)
    script(monkeypatch, training=scores)
    trainer.fit_until(first, 9, 5, **rules)
    first.save(tmp_path / "c")
    second = trainer.kind.load(tmp_path / "c", network(seed=9), X, Y)
    resumed = trainer.go_on(second, 4, **rules)
    assert resumed.stop_reason == "patience"
    assert_same_runs(whole, second)


@every_trainer
def test_a_light_checkpoint_holds_weights_and_settings(trainer, tmp_path):
    run = trainer.make(loss="cross_entropy")
    trainer.fit(run, 2)
    run.save(tmp_path / "light", light=True)
    run.save(tmp_path / "exact")
    sizes = [sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in ("light", "exact")]
    assert sizes[0] < sizes[1]
    assert run.checkpoint_bytes(light=True) < run.checkpoint_bytes()
    for name in ("light", "exact"):
        loaded = trainer.kind.load(tmp_path / name, network(seed=4))
        assert same(loaded.model, run.model)
        assert loaded.settings_dict() == run.settings_dict()
        with pytest.raises(RuntimeError, match="no run has been started"):
            trainer.go_on(loaded, 1)
        assert len(trainer.fit(loaded, 1)) == 1
    with pytest.raises(CheckpointError, match=r"light checkpoint.*load it without data and call fit"):
        trainer.kind.load(tmp_path / "light", network(), X, Y)


@every_trainer
def test_a_series_of_checkpoints(trainer, tmp_path):
    run = trainer.make()
    trainer.fit(run, 7, callbacks=[Checkpoints(run, tmp_path, every=2)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-00000004", "iteration-00000006"]
    resumed = trainer.kind.load(tmp_path, network(seed=2), X, Y)
    assert len(resumed.history) == 6
    trainer.go_on(resumed, 1, callbacks=[Checkpoints(resumed, tmp_path, every=1)])
    assert_same_runs(run, resumed)
    with pytest.raises(CheckpointError, match="holds iteration-00000007 of another run"):
        Checkpoints(trainer.make(), tmp_path)


def go_on_elsewhere(folder):
    """What another process does with the runs it finds."""
    for name in CLASSES:
        trainer = TRAINERS[name]
        run = trainer.kind.load(f"{folder}/{name}", network(seed=8), X, Y)
        trainer.go_on(run, 3)
        run.save(f"{folder}/{name}")


def test_another_process_goes_on(tmp_path):
    runs = {}
    for name in CLASSES:
        trainer = TRAINERS[name]
        runs[name] = trainer.make()
        trainer.fit_until(runs[name], 5, 2)
        runs[name].save(tmp_path / name)
    process = forked.Forked(forked.call, __file__, "go_on_elsewhere", str(tmp_path))
    said, _ = process.communicate()
    assert process.returncode == 0, said
    for name, run in runs.items():
        trainer = TRAINERS[name]
        trainer.go_on(run, 3)
        assert_same_runs(run, trainer.kind.load(tmp_path / name, network(), X, Y))


@every_class
def test_a_run_whose_validation_overflows_can_be_resumed(trainer, tmp_path):
    model = network(dtype=torch.float32)
    held_out = 1e30 * X_NEW, torch.zeros(HELD_OUT, 3)
    run = trainer.make(model)
    history = trainer.fit(run, 2, X, TARGETS, validation_data=held_out, restore_best=True)
    assert history[-1].validation_loss == math.inf
    assert history.best is None
    run.save(tmp_path / "c")
    again = trainer.kind.load(tmp_path / "c", copy.deepcopy(model), X, TARGETS, validation_data=held_out)
    assert len(trainer.go_on(again, 1)) == 3


# --- what does not fit ----------------------------------------------------------------------------------------------


def saved(trainer, folder):
    """A run of three iterations with validation data."""
    run = trainer.make(network(dtype=torch.float32))
    trainer.fit(run, 3, validation_data=VALIDATION)
    run.save(folder)
    return folder


def load(trainer, path, model=None, **changes):
    data = {"X": X, "y": Y, "validation_data": VALIDATION, **changes}
    return trainer.kind.load(path, network(dtype=torch.float32) if model is None else model, **data)


@every_class
def test_other_data_are_refused_by_name(trainer, tmp_path):
    path = saved(trainer, tmp_path / "c")
    load(trainer, path)
    for change, words in (
        ({"X": X + 1e-6}, "training X was"),
        ({"y": Y.roll(1)}, "training y was"),
        ({"X": X[:-1], "y": Y[:-1]}, "training X was"),
        ({"sample_weight": torch.ones(N)}, "training sample_weight was None"),
        ({"validation_data": (VALIDATION[0], VALIDATION[1].roll(1))}, "validation y was"),
    ):
        if "sample_weight" in change and not trainer.takes_weights:
            continue
        model = network(seed=1, dtype=torch.float32)
        with pytest.raises(CheckpointError, match=f"does not fit: the sha256 of {words}"):
            load(trainer, path, model, **change)
        assert same(model, network(seed=1, dtype=torch.float32))  # the user's model is left alone


@every_class
def test_another_model_is_refused_by_name(trainer, tmp_path):
    path = saved(trainer, tmp_path / "c")
    without_bias = network(dtype=torch.float32)
    without_bias[0].bias = None
    for model, words in (
        (network(), "the model's dtype was 'float32' and is 'float64'"),
        (nn.Sequential(nn.Linear(5, 3)), "layers were 3 and are 1"),
        (make_model([5, 9, 7, 3], dtype=torch.float32), "the model's layers 1 outputs was 8 and is 9"),
        (make_model([5, 8, 7, 3], "relu6", dtype=torch.float32), "layers 1 activation"),
        (without_bias, "layers 1 bias was True and is False"),
    ):
        before = weights(model)
        with pytest.raises(CheckpointError, match=words):
            load(trainer, path, model)
        assert equal(before, weights(model))


@every_class
def test_other_trainers_refuse_it_by_name(trainer, tmp_path):
    path = saved(trainer, tmp_path / "c")
    name = trainer.saved_as or trainer.kind.__name__
    others = {TRAINERS[other].kind for other in CLASSES} - {trainer.kind}
    for other in {kind for kind in others if kind.__name__ != name}:
        with pytest.raises(CheckpointError, match=rf"of a run of {name}; load it with {name}\.load"):
            other.load(path, network(dtype=torch.float32), X, Y, validation_data=VALIDATION)


@every_class
def test_validation_data_belong_to_the_run(trainer, tmp_path):
    run = trainer.make()
    run.start(X, Y, validation_data=VALIDATION)
    run.save(tmp_path / "with")
    with pytest.raises(CheckpointError, match="was saved with validation data; load it with validation_data"):
        trainer.kind.load(tmp_path / "with", network(), X, Y)
    run.start(X, Y)
    run.save(tmp_path / "without")
    with pytest.raises(CheckpointError, match="was saved without validation data; load it without"):
        trainer.kind.load(tmp_path / "without", network(), X, Y, validation_data=VALIDATION)


# --- damaged and hostile files --------------------------------------------------------------------------------------


def reseal(folder, change):
    """A manifest that was changed by somebody who knows the format."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    change(manifest)
    (folder / "manifest.json").write_text(checkpoints.seal(manifest))


NONSENSE = {
    "version": lambda m: m.update(version=2),
    "format": lambda m: m.update(format="pickle"),
    "no files": lambda m: m.update(files=3),
    "a file": lambda m: m.update(files=[{"name": 3, "bytes": 1, "sha256": ""}]),
    "content": lambda m: m.update(content=[]),
    "no settings": lambda m: m["content"].pop("settings"),
    "no run": lambda m: m["content"].pop("run"),
    "trainer": lambda m: m["content"].update(trainer="Nobody"),
    "history": lambda m: m["content"]["run"].update(history=[]),
    "empty record": lambda m: m["content"]["run"].update(history=[{}]),
    "best score": lambda m: m["content"]["run"].update(best_score="high"),
    "a loss that runs": lambda m: m["content"]["settings"].update(loss={"name": "os.system"}),
    "a surprise of the loss": lambda m: m["content"]["settings"].update(loss={"name": "squared", "surprise": 1}),
    "no loss": lambda m: m["content"]["settings"].pop("loss"),
}


@every_class
def test_a_manifest_with_nonsense_is_refused(trainer, tmp_path):
    path = saved(trainer, tmp_path / "c")
    whole = (path / "manifest.json").read_text()
    for name, change in NONSENSE.items():
        reseal(path, change)
        try:
            load(trainer, path)
        except CheckpointError:
            pass
        else:
            pytest.fail(f"{name} was not refused")
        (path / "manifest.json").write_text(whole)
    load(trainer, path)


def put(name, change):
    return lambda tensors: tensors.update({name: change(tensors["W1@0"])})


MISFITS = {
    "missing": lambda tensors: tensors.pop("W1@0"),
    "short": put("W1@0", lambda W: W[:-1].clone()),
    "of another type": put("W1@0", lambda W: W.double()),
    "of no rows": put("W1@0", lambda W: torch.tensor(1.0)),
    "a part too many": put("W1@1", lambda W: W[1:].clone()),
    "a part beyond": put("W1@99", lambda W: W.clone()),
    "a stranger": put("stranger@0", lambda W: torch.zeros(3)),
    "a stranger without a place": put("stranger", lambda W: torch.zeros(3)),
}


@every_class
def test_tensors_that_do_not_fit_are_refused(trainer, tmp_path):
    path = saved(trainer, tmp_path / "c")
    file, manifest = path / "state-00000.safetensors", (path / "manifest.json").read_text()
    whole = file.read_bytes()
    for name, change in MISFITS.items():
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        size, digest = file.stat().st_size, checkpoints.sha256(file)
        reseal(path, lambda m, size=size, digest=digest: m["files"][0].update(bytes=size, sha256=digest))
        model = network(seed=1, dtype=torch.float32)
        try:
            load(trainer, path, model)
        except CheckpointError:
            pass
        else:
            pytest.fail(f"{name} was not refused")
        assert same(model, network(seed=1, dtype=torch.float32)), name  # the user's model is left alone
        file.write_bytes(whole)
        (path / "manifest.json").write_text(manifest)
    load(trainer, path)


def test_what_the_loops_of_this_module_try_is_refused_for_its_reason(tmp_path):
    """A checkpoint that is sealed again without a change is whole."""
    trainer = TRAINERS["ipdlam"]
    path = saved(trainer, tmp_path / "c")
    reseal(path, lambda m: None)
    assert len(load(trainer, path).history) == 3
