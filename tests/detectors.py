"""Detectors of back-propagation: what builds a graph or runs a backward operator is an error within them."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class BackPropagationError(AssertionError):
    pass


class NoBackwardOperators(TorchDispatchMode):
    """Refuses every operator that only a backward pass calls."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "backward" in str(func):
            raise BackPropagationError(f"{func} was called")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_graph():
    """With gradients on, nothing may be saved for a backward pass."""

    def refuse(tensor):
        raise BackPropagationError(f"a tensor of shape {tuple(tensor.shape)} was saved for a backward pass")

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(refuse, lambda tensor: tensor):
        yield


@contextmanager
def no_back_propagation():
    """Both detectors at once: no graph is built, and no backward operator runs."""
    with no_graph(), NoBackwardOperators():
        yield
