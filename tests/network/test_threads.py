"""Models are read while other threads use theirs: torch.fx replaces what a module does when it is called, for all."""

from __future__ import annotations

import threading

import torch
from torch import nn

from ipdlam import MiniBatchIPDLAM

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
    assert nn.Module.__call__ is type(nn.Linear(1, 1)).__call__
    assert "module_call_wrapper" not in nn.Module.__call__.__qualname__


def test_two_models_are_read_one_after_the_other():
    """Tracers that replace and put back the same thing at the same time would leave one of theirs in place."""
    before = nn.Module.__call__
    models = [nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)) for _ in range(24)]
    threads = [threading.Thread(target=MiniBatchIPDLAM, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nn.Module.__call__ is before
