"""Narrow products in the mini-batch method: what they change, and what stays float32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from contracts import says
from ipdlam import IPDLAM, CheckpointError, MiniBatchIPDLAM, StopTraining
from ipdlam.checkpoint import format as checkpoints
from ipdlam.minibatch import levelling
from ipdlam.minibatch.step import Stepper
from ipdlam.network.arithmetic import PLAIN
from problems import assert_same_runs, make_data, make_model, same

WIDTHS = [40, 64, 48, 3]
X, Y = make_data(200, 40, 3, "cross_entropy", dtype=torch.float32)
BATCHES = list(zip(X.split(32), Y.split(32), strict=True))


def network(seed=0, dtype=torch.float32):
    return make_model(WIDTHS, seed=seed, dtype=dtype)


def pictures():
    """A network whose second convolution, norm and hidden Linear layer have everything that can be narrow."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Unflatten(1, (1, 5, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2)),
            *(nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(192, 40), nn.ReLU(), nn.Linear(40, 3)),
        )


def narrow(model, **settings):
    return MiniBatchIPDLAM(model, precision="bfloat16", batch_size=32, **settings)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def differences(make):
    """How far the step of every parameter is from that in float32, and the layers whose moves were levelled."""
    start, full, low = (make() for _ in range(3))
    trainer = MiniBatchIPDLAM(full, start="keep")
    trainer.step(*BATCHES[0])
    narrow(low, start="keep").step(*BATCHES[0])
    steps, exact = (
        [after - before for after, before in zip(weights(m), weights(start), strict=True)] for m in (low, full)
    )
    found = [float((a - b).norm() / b.norm()) for a, b in zip(steps, exact, strict=True)]
    return found, list(trainer._state.stepper.levelled)


@pytest.mark.parametrize("make", [network, pictures])
def test_a_step_differs_from_that_in_float32_by_rounding(make, monkeypatch):
    monkeypatch.setattr(levelling, "LEVELLING", 0.1)  # no moves but those of the first convolution are levelled
    found, levelled = differences(make)
    assert levelled == ([1] if make is pictures else [])
    assert 1e-4 < max(found) < 0.05


def test_levelling_lifts_the_rounding_of_the_small_directions_with_them():
    found, levelled = differences(pictures)
    assert levelled == [1, 2]
    assert 1e-4 < max(found) < 0.1


@pytest.mark.parametrize("make", [network, pictures])
def test_it_learns_as_well(make):
    losses = [
        MiniBatchIPDLAM(make(), batch_size=32, precision=precision).fit(X, Y, epochs=5)[-1].train_loss
        for precision in ("float32", "bfloat16")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


@pytest.mark.parametrize("make", [network, pictures])
def test_all_that_is_kept_stays_float32(make):
    model = make()
    trainer = narrow(model)
    trainer.fit(X, Y, epochs=1)
    floats = [tensor for tensor in trainer._state.stepper.tensors().values() if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in (*floats, *model.parameters())} == {torch.float32}
    # Float32 has digits that bfloat16 has not: nothing was rounded on its way into the weights and moves.
    kept = [*trainer._state.stepper.move_W.values(), *(p.detach() for p in model.parameters())]
    assert not any(torch.equal(tensor, tensor.bfloat16().float()) for tensor in kept)
    assert model(X).dtype == torch.float32
    assert trainer.network.arithmetic is PLAIN  # as it was before


@pytest.mark.parametrize("make", [network, pictures])
def test_a_surrounding_autocast_means_the_same(make):
    set_so, surrounded, stepped, both = (make() for _ in range(4))
    history = narrow(set_so).fit(X, Y, epochs=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = MiniBatchIPDLAM(surrounded, batch_size=32).fit(X, Y, epochs=2)
        narrow(both).fit(X, Y, epochs=2)
        assert torch.is_autocast_enabled("cpu")
    assert same(surrounded, set_so)
    assert same(both, set_so)
    assert again[-1].train_loss == history[-1].train_loss
    assert surrounded[-1].weight.dtype == torch.float32
    full = make()
    MiniBatchIPDLAM(full, batch_size=32).fit(X, Y, epochs=2)
    assert not same(full, set_so)
    # Without a surrounding autocast the next step is full again.
    trainer, other = MiniBatchIPDLAM(stepped), MiniBatchIPDLAM(full)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trainer.step(*BATCHES[0])
    other.load_state_dict(trainer.state_dict())
    full.load_state_dict(stepped.state_dict())
    trainer.step(*BATCHES[1])
    other.step(*BATCHES[1])
    assert same(stepped, full)


def test_a_step_that_fails_leaves_no_narrow_products(monkeypatch):
    trainer = narrow(network())

    def fail(self, batch, progress):
        assert self.network.arithmetic.narrow is torch.bfloat16
        raise RuntimeError("no")

    monkeypatch.setattr(Stepper, "update", fail)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="no"):
            trainer.step(*BATCHES[0])
        assert torch.is_autocast_enabled("cpu")
    with pytest.raises(RuntimeError, match="no"):
        trainer.fit(X, Y, epochs=1)
    assert trainer.network.arithmetic is PLAIN
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("epochs", [1, 3])
def test_it_resumes_to_the_bit(tmp_path, epochs):
    def stop(record):
        if record.epoch == epochs:
            raise StopTraining

    whole, first = narrow(network()), narrow(network())
    whole.fit(X, Y, epochs=4)
    first.fit(X, Y, epochs=4, callbacks=[stop])
    first.save(tmp_path / "c")
    second = MiniBatchIPDLAM.load(tmp_path / "c", network(seed=3), X, Y)
    assert second.settings.precision == "bfloat16"
    second.continue_fit(epochs=4 - epochs)
    assert_same_runs(whole, second)


def test_state_dicts_keep_it_and_refuse_another():
    whole, first = narrow(network(), horizon=9), narrow(network(), horizon=9)
    for batch in BATCHES:
        whole.step(*batch)
    for batch in BATCHES[:3]:
        first.step(*batch)
    state, model = first.state_dict(), copy.deepcopy(first.model)
    assert state["settings"]["precision"] == "bfloat16"
    second = narrow(model, horizon=9)
    second.load_state_dict(state)
    for batch in BATCHES[3:]:
        second.step(*batch)
    assert same(second.model, whole.model)
    with pytest.raises(ValueError, match=says("precision", "bfloat16", "float32")):
        MiniBatchIPDLAM(network(), horizon=9).load_state_dict(state)


def test_what_was_saved_before_the_setting_is_float32(tmp_path, monkeypatch):
    trainer = MiniBatchIPDLAM(network(), batch_size=32)
    trainer.fit(X, Y, epochs=1)
    old = {name: value for name, value in trainer.settings_dict().items() if name != "precision"}
    with monkeypatch.context() as patch:
        patch.setattr(MiniBatchIPDLAM, "settings_dict", lambda self: old)
        trainer.save(tmp_path / "c")
    loaded = MiniBatchIPDLAM.load(tmp_path / "c", network(seed=3), X, Y)
    assert loaded.settings.precision == "float32"
    assert_same_runs(loaded, trainer)
    state = trainer.state_dict()
    del state["settings"]["precision"]
    MiniBatchIPDLAM(network()).load_state_dict(state)
    with pytest.raises(CheckpointError, match=says("precision", "float32", "bfloat16")):
        narrow(network()).take_up(checkpoints.read_checkpoint(tmp_path / "c"), X, Y)


def test_what_cannot_be_narrow_is_refused_by_name():
    with pytest.raises(ValueError, match=says("precision must be one of float32, bfloat16, got 'float16'")):
        MiniBatchIPDLAM(network(), precision="float16")
    refusal = says("precision is 'bfloat16'", "the model is torch.float64", "model.float()")
    with pytest.raises(ValueError, match=refusal):
        narrow(network(dtype=torch.float64))
    model = network()
    trainer = narrow(model)
    model.double()
    with pytest.raises(ValueError, match=refusal):
        trainer.fit(X.double(), Y, epochs=1)


def test_where_it_changes_nothing_a_warning_says_so():
    small = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    with pytest.warns(UserWarning, match=says("precision='bfloat16' changes nothing", "fewer than 32 inputs")):
        narrow(small)
    with pytest.raises(ValueError, match=says("precision must be one of", "got ['bfloat16']")):
        MiniBatchIPDLAM(small, precision=["bfloat16"])


def test_autocast_with_float16_is_refused_and_leaves_the_model():
    model = network()
    before = copy.deepcopy(model)
    with torch.autocast("cpu", dtype=torch.float16):
        for train in (lambda t: t.fit(X, Y, epochs=1), lambda t: t.step(*BATCHES[0])):
            with pytest.raises(ValueError, match=says("torch.autocast", "torch.float16", "dtype=torch.bfloat16")):
                train(MiniBatchIPDLAM(model))
    assert same(model, before)
    MiniBatchIPDLAM(model).fit(X, Y, epochs=1)


def test_the_full_batch_method_and_float64_stay_exact_in_autocast():
    plain, mixed = network(), network()
    IPDLAM(plain).fit(X, Y, iterations=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        IPDLAM(mixed).fit(X, Y, iterations=2)
    assert same(plain, mixed)
    plain, mixed = network(dtype=torch.float64), network(dtype=torch.float64)
    MiniBatchIPDLAM(plain).fit(X.double(), Y, epochs=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        MiniBatchIPDLAM(mixed).fit(X.double(), Y, epochs=1)
    assert same(plain, mixed)
