"""The faster of torch's two routines for float32 products: taken where it is as exact, kept by a run, given back."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import ipdlam
from ipdlam import CheckpointError
from ipdlam.network import matmul
from ipdlam.network.blocks import BlockLinear
from ipdlam.network.graph import Graph
from ipdlam.network.matmul import FAST, USUAL, multiplying, routine_for, usable
from ipdlam.network.mlp import Network
from problems import assert_same_runs, make_data, make_model

WIDTHS = (256, 256, 3)  # as small as a network may be that gains something
X, Y = make_data(90, WIDTHS[0], WIDTHS[-1], "cross_entropy", dtype=torch.float32)
TRAINERS = {"ipdlam": ipdlam.IPDLAM, "minibatch": ipdlam.MiniBatchIPDLAM}
every_method = pytest.mark.parametrize("kind", TRAINERS.values(), ids=TRAINERS)


def model(seed=0, dtype=torch.float32, widths=WIDTHS):
    return make_model(widths, seed=seed, dtype=dtype)


def setting():
    return torch.get_float32_matmul_precision()


def watched(seen):
    """A callback that notes what torch is told while a run goes on."""
    return [lambda record: seen.append(setting())]


def length(kind):
    return {"epochs" if kind is ipdlam.MiniBatchIPDLAM else "iterations": 2}


@pytest.fixture
def fast(monkeypatch):
    """A machine on which the fast routine is worth it."""
    monkeypatch.setattr(matmul, "fast_is_exact", lambda: True)
    monkeypatch.setattr(matmul, "speed_up", lambda threads: 2.0)


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(matmul, "speed_up", lambda threads: 1.1)


def test_both_are_measured():
    assert matmul.fast_is_exact() in (True, False)
    assert 0.01 < matmul.speed_up(torch.get_num_threads()) < 100.0
    assert setting() == "highest"


def test_rounding_to_bfloat16_is_not_exact(monkeypatch):
    narrow = torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda A, B: narrow(A.bfloat16(), B.bfloat16()).float() if setting() == "medium" else narrow(A, B)
    )
    assert not matmul.fast_is_exact.__wrapped__()


def test_only_large_float32_networks_on_the_processor(fast):
    assert routine_for(Network(model())) == FAST
    assert routine_for(Network(model(dtype=torch.float64))) == USUAL
    assert routine_for(Network(model(widths=(255, 256, 256)))) == FAST  # the largest layer counts
    assert routine_for(Network(model(widths=(255, 256, 3)))) == USUAL
    for width, routine in ((255, USUAL), (256, FAST)):  # blocks are multiplied one by one
        blocks = nn.Sequential(nn.Linear(5, 2 * width), nn.ReLU(), BlockLinear(2, width, 256, torch.float32))
        assert routine_for(Graph(blocks)) == routine


def test_not_where_it_gains_little(fast, slow):
    assert routine_for(Network(model())) == USUAL


def test_not_where_it_rounds(fast, monkeypatch):
    monkeypatch.setattr(matmul, "fast_is_exact", lambda: False)
    assert routine_for(Network(model())) == usable(FAST) == USUAL


@pytest.mark.parametrize("chosen", ["high", "medium"])
def test_what_the_user_has_told_torch_stays(fast, chosen):
    torch.set_float32_matmul_precision(chosen)
    try:
        assert routine_for(Network(model())) == USUAL
        with multiplying(FAST):
            assert setting() == chosen
        assert setting() == chosen
    finally:
        torch.set_float32_matmul_precision("highest")


def test_settings_by_backend_are_left_alone(fast, monkeypatch):
    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert routine_for(Network(model())) == USUAL


def test_it_is_given_back_after_nesting_and_errors():
    with multiplying(FAST):
        with multiplying(FAST), multiplying(USUAL):
            assert setting() == "medium"
        assert setting() == "medium"
    with pytest.raises(ArithmeticError), multiplying(FAST):
        raise ArithmeticError
    assert setting() == "highest"


def test_threads_that_overlap_give_it_back_together():
    inside, leave = threading.Barrier(2), threading.Event()
    seen = []

    def first():
        with multiplying(FAST):
            inside.wait()
        seen.append(setting())  # the other one is still inside
        leave.set()

    def second():
        with multiplying(FAST):
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen, setting()) == (["medium"], "highest")


@every_method
def test_a_run_takes_it_and_gives_it_back(fast, kind):
    seen = []
    trainer = kind(model(), loss="cross_entropy")
    trainer.fit(X, Y, callbacks=watched(seen), **length(kind))
    assert seen == ["medium"] * 2
    assert setting() == "highest"


@every_method
def test_it_changes_rounding_alone(kind, monkeypatch):
    if not matmul.fast_is_exact():
        pytest.skip("this processor's fast routine rounds to bfloat16, so that no run takes it")
    monkeypatch.setattr(matmul, "speed_up", lambda threads: 2.0)
    one, other = model(), model()
    kind(one, loss="cross_entropy").fit(X, Y, **length(kind))
    monkeypatch.setattr(matmul, "speed_up", lambda threads: 1.0)
    kind(other, loss="cross_entropy").fit(X, Y, **length(kind))
    torch.testing.assert_close(one(X), other(X), rtol=1e-3, atol=1e-3)


@every_method
def test_a_run_keeps_its_routine_when_it_is_resumed(fast, kind, tmp_path, monkeypatch):
    whole, first = (kind(model(), loss="cross_entropy") for _ in range(2))
    for trainer in (whole, first):
        trainer.fit(X, Y, **length(kind))
    first.save(tmp_path / "c")
    monkeypatch.setattr(matmul, "speed_up", lambda threads: 1.0)  # a busier moment, another machine
    second = kind.load(tmp_path / "c", model(seed=1), X, Y)
    assert second._state.products == FAST
    for trainer in (whole, second):
        trainer.continue_fit(**length(kind))
    assert_same_runs(whole, second)


@every_method
def test_where_it_is_not_exact_a_resumed_run_goes_on_without(fast, kind, tmp_path, monkeypatch):
    trainer = kind(model(), loss="cross_entropy")
    trainer.fit(X, Y, **length(kind))
    trainer.save(tmp_path / "c")
    monkeypatch.setattr(matmul, "fast_is_exact", lambda: False)
    assert kind.load(tmp_path / "c", model(seed=1), X, Y)._state.products == USUAL


@every_method
def test_checkpoints_of_before_go_on_as_before(fast, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(matmul, "speed_up", lambda threads: 1.0)
    trainer = kind(model(), loss="cross_entropy")
    trainer.fit(X, Y, **length(kind))
    counters = trainer._state.counters()
    assert counters.pop("products") == USUAL
    monkeypatch.setattr(trainer._state, "counters", lambda: counters)
    trainer.save(tmp_path / "c")
    monkeypatch.setattr(matmul, "speed_up", lambda threads: 2.0)
    assert kind.load(tmp_path / "c", model(seed=1), X, Y)._state.products == USUAL


def test_a_routine_that_there_is_not_is_refused(tmp_path, monkeypatch):
    trainer = ipdlam.IPDLAM(model())
    trainer.fit(X, Y, iterations=1)
    monkeypatch.setattr(trainer._state, "products", "cuda")
    trainer.save(tmp_path / "c")
    with pytest.raises(CheckpointError, match="'cuda', which is none of usual, fast"):
        ipdlam.IPDLAM.load(tmp_path / "c", model(), X, Y)


def test_a_loop_of_ones_own_and_its_state(fast, monkeypatch):
    trainer = ipdlam.MiniBatchIPDLAM(model(), loss="cross_entropy")
    seen = []
    monkeypatch.setattr(nn.functional, "linear", noting(nn.functional.linear, seen))
    trainer.step(X, Y)
    assert "medium" in seen
    assert setting() == "highest"
    state = trainer.state_dict()
    assert state["products"] == FAST
    monkeypatch.setattr(matmul, "speed_up", lambda threads: 1.0)
    other = ipdlam.MiniBatchIPDLAM(model(seed=1), loss="cross_entropy")
    other.load_state_dict(state)
    assert other._state.products == FAST
    other.load_state_dict({key: value for key, value in state.items() if key != "products"})  # of before
    assert other._state.products == USUAL


def noting(function, seen):
    def call(*given, **named):
        seen.append(setting())
        return function(*given, **named)

    return call
