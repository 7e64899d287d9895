"""The mini-batch method stopped anywhere, even within an epoch, and taken up again to the bit."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ipdlam import CheckpointError, DivergenceError, MiniBatchIPDLAM, StopTraining
from ipdlam.checkpoint import format as checkpoints
from ipdlam.minibatch.step import Stepper
from ipdlam.prox import Huber
from problems import assert_same_runs, make_data, make_model, same

WIDTHS = [5, 8, 7, 3]
X, Y = make_data(60, 5, 3, "cross_entropy", dtype=torch.float32)
VALIDATION = make_data(25, 5, 3, "cross_entropy", seed=1, dtype=torch.float32)
WEIGHT = torch.arange(60) % 4 * 0.5  # some of them zero
BATCHES = list(zip(X.split(16), Y.split(16), strict=True))


@pytest.fixture(autouse=True)
def hears_ctrl_c():
    """Where the tests run in the background, the shell has made them deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def network(seed=0, dtype=torch.float32):
    return make_model(WIDTHS, seed=seed, dtype=dtype)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def stop_at(epoch):
    def callback(record):
        if record.epoch == epoch:
            raise StopTraining

    return callback


def interrupt_in_batch(monkeypatch, number, how):
    """Once, in the batch of this number, counted from 1 over the whole run."""
    real, seen = Stepper.update, []

    def update(self, batch, progress):
        seen.append(None)
        if len(seen) == number:
            how()
        return real(self, batch, progress)

    monkeypatch.setattr(Stepper, "update", update)


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


# --- fit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epochs", [1, 4, 8])
def test_it_goes_on_with_the_bits_of_one_that_never_stopped(tmp_path, epochs, dtype):
    settings = {
        "loss": Huber(0.7),
        "step": 0.3,
        "weight_decay": 0.01,
        "batch_size": 7,
        "seed": 5,
        "rank": 3,
        "output_rank": 2,
    }
    data = {"sample_weight": WEIGHT, "validation_data": VALIDATION}
    whole, first = (MiniBatchIPDLAM(network(dtype=dtype), **settings) for _ in range(2))
    whole.fit(X, Y, epochs=9, **data)
    first.fit(X, Y, epochs=9, callbacks=[stop_at(epochs)], **data)
    first.save(tmp_path / "c")
    second = MiniBatchIPDLAM.load(tmp_path / "c", network(seed=3, dtype=dtype), X, Y, **data)
    assert second.settings_dict() == whole.settings_dict()
    assert_same_runs(first, second)
    assert len(second.history) == epochs
    second.continue_fit(epochs=9 - epochs)  # the nine epochs that were planned: the steps go on descending
    assert_same_runs(whole, second)


def test_the_plan_is_kept_as_far_as_it_reaches_and_made_anew_beyond():
    trainer = MiniBatchIPDLAM(network(), batch_size=16)
    trainer.fit(X, Y, epochs=6, callbacks=[stop_at(2)])
    trainer.continue_fit(epochs=1)
    assert trainer._state.planned == (0, 6)
    before = weights(trainer.model)
    trainer.continue_fit(epochs=5)
    assert trainer._state.planned == (3, 8)
    assert not all(torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))


@pytest.mark.parametrize("number", [1, 6, 12])  # the first, one in the middle of an epoch, and the last of one
@pytest.mark.parametrize("restore_best", [False, True])
def test_ctrl_c_in_a_batch_ends_it_after_that_batch(tmp_path, monkeypatch, number, restore_best):
    whole, first = (MiniBatchIPDLAM(network(), batch_size=16) for _ in range(2))
    data = {"validation_data": VALIDATION, "restore_best": restore_best}
    whole.fit(X, Y, epochs=5, **data)
    interrupt_in_batch(monkeypatch, number, ctrl_c)
    history = first.fit(X, Y, epochs=5, **data)
    monkeypatch.undo()
    done = len(history)
    assert (done, history.stop_reason) == ((number - 1) // 4, "interrupted")
    assert first._state.stepper.batches == number  # the batch was finished, and is not taken twice
    first.save(tmp_path / "c")
    second = MiniBatchIPDLAM.load(tmp_path / "c", network(seed=3), X, Y, validation_data=VALIDATION)
    for trainer in (first, second):
        trainer.continue_fit(epochs=5 - done, restore_best=restore_best)
        assert_same_runs(whole, trainer)


def test_ctrl_c_belongs_to_the_user_again_after_a_batch():
    handler = signal.getsignal(signal.SIGINT)
    trainer = MiniBatchIPDLAM(network())
    trainer.fit(X, Y, epochs=1)
    trainer.step(X, Y)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("error", [RuntimeError("no luck"), KeyboardInterrupt()])
def test_a_batch_that_fails_half_way_leaves_the_weights_before_the_epoch(monkeypatch, error):
    """Some layers are a step ahead of others: no run can go on from there."""
    model, real, calls = network(), Stepper._move, []

    def failing(self, l, *rest):
        calls.append(l)
        if len(calls) == 3 * 4 + 3 + 2:  # three layers, four batches to an epoch: the second layer of the sixth batch
            raise error
        real(self, l, *rest)

    kept = {}
    trainer = MiniBatchIPDLAM(model, batch_size=16)
    monkeypatch.setattr(Stepper, "_move", failing)
    with suppress(RuntimeError):  # Ctrl-C ends fit as usual
        trainer.fit(X, Y, epochs=3, callbacks=[lambda record: kept.update({record.epoch: weights(model)})])
    assert trainer.history.stop_reason in ("RuntimeError", "interrupted")
    assert len(kept) == 1
    assert all(torch.equal(a, b) for a, b in zip(weights(model), kept[1], strict=True))
    with pytest.raises(RuntimeError, match="the last epoch did not end"):
        trainer.continue_fit(epochs=1)


def test_it_goes_on_from_the_last_iterate_also_after_restore_best():
    runs = [MiniBatchIPDLAM(network(), batch_size=16) for _ in range(2)]
    settings = {"epochs": 12, "validation_data": (X[:9], Y.roll(1)[:9]), "callbacks": [stop_at(8)]}
    for trainer, best in zip(runs, (False, True), strict=True):
        history = trainer.fit(X, Y, restore_best=best, **settings)
    assert history.best.epoch < 8
    assert not same(runs[0].model, runs[1].model)  # or this test shows nothing
    for trainer in runs:
        trainer.continue_fit(epochs=2)
    assert same(runs[0].model, runs[1].model)


def test_a_loop_of_steps_goes_on_from_the_model_as_it_is_and_so_does_its_state():
    """After restore_best the model holds the best weights, and they are what a user saves beside the state."""
    first, second = MiniBatchIPDLAM(network()), MiniBatchIPDLAM(network(seed=2))
    first.fit(X, Y, epochs=8, restore_best=True, validation_data=(X[:9], Y.roll(1)[:9]))
    best = weights(first.model)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(weights(first.model), best, strict=True))
    for trainer in (first, second):
        trainer.step(*BATCHES[0])
    assert same(first.model, second.model)


def test_a_run_of_steps_cannot_be_saved_as_one_that_can_be_loaded_with_data(tmp_path):
    trainer = MiniBatchIPDLAM(network())
    trainer.step(*BATCHES[0])
    with pytest.raises(CheckpointError, match=r"save state_dict\(\), or light=True"):
        trainer.save(tmp_path / "c")
    trainer.save(tmp_path / "light", light=True)


def test_the_descent_of_a_loop_of_steps_begins_where_fit_ended():
    trainer = MiniBatchIPDLAM(network(), horizon=4)
    trainer.fit(X, Y, epochs=3)
    before = weights(trainer.model)
    trainer.step(*BATCHES[0])
    assert not all(torch.equal(a, b) for a, b in zip(weights(trainer.model), before, strict=True))


def test_a_loader_goes_on_with_the_next_epoch(tmp_path):
    whole, first = (MiniBatchIPDLAM(network()) for _ in range(2))
    loader = DataLoader(TensorDataset(X, Y), 16)
    whole.fit(loader, epochs=4, validation_data=VALIDATION)
    first.fit(loader, epochs=4, validation_data=VALIDATION, callbacks=[stop_at(2)])
    first.save(tmp_path / "c")
    second = MiniBatchIPDLAM.load(tmp_path / "c", network(seed=2), loader, validation_data=VALIDATION)
    second.continue_fit(epochs=2)
    assert_same_runs(whole, second)
    with pytest.raises(CheckpointError, match="does not fit: the sha256 of training was None"):
        MiniBatchIPDLAM.load(tmp_path / "c", network(), X, Y, validation_data=VALIDATION)


def fails(tensors, path):
    path.write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def network_with_state():
    """A network whose checkpoint holds running statistics and draws, beside its weights."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(36, 3),
    )  # fmt: skip


def test_a_full_disk_costs_no_run_of_a_network(tmp_path, monkeypatch):
    """A checkpoint that was not written is reported. The run goes on from what is saved, with the bits of one whole."""
    torch.manual_seed(0)
    images, labels = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
    trainer = MiniBatchIPDLAM(network_with_state())
    trainer.fit(images, labels, epochs=4, callbacks=[stop_at(1)])
    trainer.save(tmp_path / "c")
    trainer.continue_fit(epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", fails)
        with pytest.raises(CheckpointError, match=r"c was not written: .*Nothing in memory is lost"):
            trainer.save(tmp_path / "c")
    trainer.continue_fit(epochs=2)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    resumed = MiniBatchIPDLAM.load(tmp_path / "c", network_with_state(), images, labels)
    assert resumed.iteration == 1
    resumed.continue_fit(epochs=3)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


# --- a loop of the user's ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [0, 1, 6, 57])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_loop_of_steps_goes_on_with_the_bits_of_one_that_never_stopped(tmp_path, done, on_disk):
    settings = {"horizon": 70, "loss": Huber(0.5), "inertia": 0.5}
    whole, first, second = (MiniBatchIPDLAM(network(seed), **settings) for seed in (0, 0, 3))
    order = [BATCHES[i % 4] for i in range(70)]
    for batch in order:
        whole.step(*batch)
    for batch in order[:done]:
        first.step(*batch)
    saved = {"model": first.model.state_dict(), "trainer": first.state_dict()}
    if on_disk:
        torch.save(saved, tmp_path / "c.pt")
        saved = torch.load(tmp_path / "c.pt", weights_only=True)
    second.model.load_state_dict(saved["model"])
    second.load_state_dict(saved["trainer"])
    if not on_disk and done:
        first.step(*order[done])  # the state holds copies
    for batch in order[done:]:
        second.step(*batch)
    assert same(whole.model, second.model)
    one, other = whole.state_dict(), second.state_dict()
    assert one["counters"] == other["counters"]
    assert all(torch.equal(one["tensors"][name], other["tensors"][name]) for name in one["tensors"])


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (network(), {"step": 0.1}, "step was 0.5 and is 0.1"),
        (network(), {"loss": "hinge"}, "loss name was 'squared' and is 'hinge'"),
        (make_model([5, 9, 7, 3], dtype=torch.float32), {}, "layers 1 outputs was 8 and is 9"),
        (make_model([5, 8, 3], dtype=torch.float32), {}, "layers were 3 and are 2"),
        (make_model(WIDTHS, "tanh", dtype=torch.float32), {}, "activation name was 'ReLU' and is 'Tanh'"),
        (network(dtype=torch.float64), {}, "dtype was 'float32' and is 'float64'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_state_of_another_trainer_is_refused_by_name(model, settings, message):
    # The default size of chunks depends on the network: that is not the difference to be named.
    trainer, other = MiniBatchIPDLAM(network(), chunk_size=1), MiniBatchIPDLAM(model, **settings, chunk_size=1)
    trainer.step(X, Y)
    with pytest.raises(ValueError, match=f"the state is of another trainer: .*{message}"):
        other.load_state_dict(trainer.state_dict())


def test_ctrl_c_in_a_loop_of_steps_comes_after_the_batch(monkeypatch):
    trainer, twin = MiniBatchIPDLAM(network()), MiniBatchIPDLAM(network())
    interrupt_in_batch(monkeypatch, 2, ctrl_c)
    trainer.step(X, Y)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(X, Y)
    monkeypatch.undo()
    trainer.step(X, Y)
    for _ in range(3):
        twin.step(X, Y)
    assert same(trainer.model, twin.model)


def test_a_step_that_fails_leaves_the_weights_as_they_were():
    trainer = MiniBatchIPDLAM(network())
    trainer.step(X, Y)
    before = weights(trainer.model)
    with pytest.raises(DivergenceError, match="the loss of batch 2 is not finite"):
        trainer.step(1e30 * X, Y)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))
    assert trainer.step(X, Y) > 0.0  # a batch whose loss is not finite teaches nothing, and does no harm


def test_a_loop_of_steps_has_no_data_to_go_on_with():
    trainer = MiniBatchIPDLAM(nn.Sequential(nn.Linear(5, 3)))
    with pytest.raises(RuntimeError, match="no run has been started"):
        trainer.continue_fit(epochs=1)
    trainer.step(X, Y)
    with pytest.raises(RuntimeError, match=r"one of step\(x, y\) and has no data of its own; call fit"):
        trainer.continue_fit(epochs=1)
