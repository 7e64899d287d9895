"""Small networks and data for the tests of the engine."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from ipdlam.prox import ACTIVATIONS, LOSSES


def make_model(widths, activation="relu", seed=0, dtype=torch.float64):
    """An MLP with weights of a moderate size, drawn from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    modules = []
    for inputs, outputs in itertools.pairwise(widths):
        linear = nn.Linear(inputs, outputs, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(torch.randn(outputs, inputs, generator=generator) * inputs**-0.5)
            linear.bias.copy_(0.1 * torch.randn(outputs, generator=generator))
        modules += [linear, ACTIVATIONS[activation].module()]
    return nn.Sequential(*modules[:-1])


def make_data(samples, inputs, outputs, loss="squared", seed=0, dtype=torch.float64):
    """Inputs and targets that fit the loss: labels for those that classify, real numbers for the others."""
    generator = torch.Generator().manual_seed(1000 + seed)
    X = torch.randn(samples, inputs, generator=generator, dtype=dtype)
    if loss in ("squared", "huber", "absolute", "quantile"):
        return X, torch.randn(samples, outputs, generator=generator, dtype=dtype)
    return X, torch.randint(0, LOSSES[loss]().classes(outputs), (samples,), generator=generator)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def without_seconds(history):
    return [{**record.to_dict(), "seconds": None} for record in history]


def assert_same_runs(one, other):
    """Whatever the rest of the run depends on, to the last bit."""
    assert same(one.model, other.model)
    assert without_seconds(one.history) == without_seconds(other.history)
    first, second = one._state.tensors(), other._state.tensors()
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name][:], second[name][:]), name
    counters = [{**run._state.counters(), "seconds": None, "history": None} for run in (one, other)]
    assert counters[0] == counters[1]
