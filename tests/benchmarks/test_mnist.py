"""Real images, where they are at hand: set IPDLAM_DATA to a folder that holds mnist/*.gz."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ipdlam
import mnist

pytestmark = pytest.mark.skipif(mnist.find("mnist") is None, reason="MNIST not found through IPDLAM_DATA")


def make_network(hidden):
    model = nn.Sequential(
        nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )
    return ipdlam.initialise(model, "paper", seed=0)


@pytest.fixture(scope="module")
def data():
    return mnist.load("mnist")


def test_a_small_network_learns_the_digits(data):
    (X, y), test = data
    model = make_network(150)
    history = ipdlam.IPDLAM(model).fit(X[:6000], y[:6000], iterations=8, validation_data=test)
    assert history[-1].validation_accuracy > 0.80
    assert (model(test[0]).argmax(1) == test[1]).double().mean() == pytest.approx(history[-1].validation_accuracy)


def test_dlam_with_pixels_that_are_always_black(data):
    (X, y), test = data
    model = make_network(100)
    black = (X[:3000] == 0).all(0)
    assert black.sum() > 50
    history = ipdlam.DLAM(model, regularizer=None).fit(X[:3000], y[:3000], iterations=3, validation_data=test)
    assert history[-1].validation_accuracy > 0.7
    assert torch.all(model[0].weight[:, black].abs() < 1e-5), "minimum norm: a pixel that tells nothing has no weight"


@pytest.mark.slow
def test_the_network_of_the_paper(data):
    """The known behaviour at full size: about 93 % after one iteration and 94.5 % after three."""
    (X, y), test = data
    history = ipdlam.IPDLAM(make_network(1500), regularizer=None).fit(X, y, iterations=3, validation_data=test)
    first, _, third = history.column("validation_accuracy")
    assert 0.925 < first < 0.94
    assert 0.938 < third < 0.952
