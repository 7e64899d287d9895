"""Models are read while other threads use theirs: torch.fx replaces what a module does when it is called, for all."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from contracts import says
from ipdlam import MiniBatchIPDLAM, UnsupportedModelError

PATIENCE = 30.0  # seconds


class Waiting(nn.Module):
    """A model whose forward pass waits until others have worked."""

    def __init__(self, started, done):
        super().__init__()
        self.layer, self.started, self.done = nn.Linear(3, 2), started, done

    def forward(self, x):
        self.started.set()
        assert self.done.wait(PATIENCE)
        return self.layer(x)


def test_a_model_is_read_while_another_thread_calls_its_own():
    started, done, failed = threading.Event(), threading.Event(), []

    def work():
        try:
            assert started.wait(PATIENCE)
            own = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
            assert own(torch.ones(2, 4)).shape == (2, 1)
            assert isinstance(own[0].weight, nn.Parameter)
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    other = threading.Thread(target=work)
    other.start()
    model = Waiting(started, done)
    trainer = MiniBatchIPDLAM(model)
    other.join()
    assert not failed
    assert trainer.network.last == 1
    assert "module_call_wrapper" not in nn.Module.__call__.__qualname__


class Lingering(nn.Module):
    """A model whose forward pass gives another one some time to come in between."""

    def __init__(self, inside, other):
        super().__init__()
        self.layer, self.inside, self.other = nn.Linear(3, 2), inside, other

    def forward(self, x):
        self.inside.set()
        self.other.wait(1.0)
        return self.layer(x)


def test_two_models_are_read_one_after_the_other():
    """Two tracers at once would put back what the other one has put in place.

    The second begins within the first, and would end after it.
    """
    before = nn.Module.__call__
    first_inside, second_inside, first_done = threading.Event(), threading.Event(), threading.Event()
    failed = []

    def read(model, begin, done):
        try:
            assert begin.wait(PATIENCE)
            MiniBatchIPDLAM(model)
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    at_once = threading.Event()
    at_once.set()
    first = (Lingering(first_inside, second_inside), at_once, first_done)
    second = (Lingering(second_inside, first_done), first_inside, threading.Event())
    threads = [threading.Thread(target=read, args=arguments) for arguments in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left, nn.Module.__call__ = nn.Module.__call__, before  # other tests need it
    assert not failed
    assert left is before


class Nested(nn.Module):
    """A model that makes a trainer in its forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        MiniBatchIPDLAM(nn.Sequential(nn.Linear(2, 2)))
        return self.layer(x)


def test_a_forward_pass_that_makes_a_trainer_is_refused_and_waits_for_nobody():
    before = nn.Module.__call__
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match=says("makes a trainer", "outside of forward")):
            MiniBatchIPDLAM(Nested())
    assert nn.Module.__call__ is before
    MiniBatchIPDLAM(nn.Linear(3, 2))
