"""``--network``: networks for images by name, and those that a function in a file of the user's gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import ipdlam
from ipdlam.network.architectures import ARCHITECTURES
from ipdlam.network.graph import Graph
from ipdlam.runs.config import NETWORKS, ConfigError, TrainConfig
from ipdlam.runs.networks import NamedNetwork
from shell import ipdlam_run

OWN = """
from torch import nn

def make(shape, outputs):
    return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Dropout(0.1), nn.Linear(4 * 9, outputs))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def wrong(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs + 1))

def words():
    return "no model"
"""


def test_the_names_are_those_of_the_architectures():
    assert set(ARCHITECTURES) == set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_each_can_be_trained(name: str):
    torch.manual_seed(0)
    model = ARCHITECTURES[name]((3, 32, 32), 10)
    graph = Graph(model)
    X = torch.rand(2, 3, 32, 32)
    graph.try_on(X)
    assert graph.outputs == 10
    with torch.no_grad():
        torch.testing.assert_close(graph.run(X).output, model.eval()(X), rtol=1e-4, atol=1e-5)


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "networks.py"
    path.write_text(OWN)
    return path


def train(tmp_path, network, *more, code=0):
    """The folder of a run, and what it said."""
    folder = tmp_path / "run"
    arguments = ("train", "digits", "--network", network, "--limit", "300", "--output", folder, "--quiet", *more)
    return folder, " ".join(ipdlam_run(*arguments, code=code)[1].split())


def test_a_run_is_resumed_evaluated_and_predicted_with(tmp_path):
    folder, _ = train(tmp_path, "cnn", "--epochs", "2")
    once = json.loads(ipdlam_run("evaluate", folder, "--json")[0])
    assert once["test set"]["accuracy"] > 0.7
    ipdlam_run("train", "--resume", folder, "--epochs", "4", "--quiet")
    more = json.loads(ipdlam_run("evaluate", folder, "--json")[0])
    assert more["training samples"]["loss"] < once["training samples"]["loss"]


def test_a_function_of_the_users_is_run_only_where_it_is_named(tmp_path, own):
    folder, _ = train(tmp_path, f"{own}:make", "--epochs", "8")
    words = ipdlam_run("evaluate", folder, code=2)[1]
    assert "whose code is not run unasked; say --network" in " ".join(words.split())
    named = json.loads(ipdlam_run("evaluate", folder, "--network", f"{own}:make", "--json")[0])
    assert named["test set"]["accuracy"] > 0.5


def test_images_in_a_file_are_predicted(tmp_path, own):
    """Also by a network of the user's, where that is named; images have a row of pixels each."""
    folder, _ = train(tmp_path, f"{own}:make", "--epochs", "8")
    data = ipdlam.datasets.load("digits")
    np.savez(tmp_path / "new.npz", X=data.X[:40].numpy())
    words = ipdlam_run("predict", folder, tmp_path / "new.npz", code=2)[1]
    assert "whose code is not run unasked; say --network" in " ".join(words.split())
    named = ("predict", folder, tmp_path / "new.npz", "--network", f"{own}:make")
    header, *rows = ipdlam_run(*named)[0].split()
    assert header == "prediction"
    assert len(rows) == 40
    assert np.mean([int(row) == label for row, label in zip(rows, data.y[:40].tolist(), strict=True)]) > 0.7
    np.savez(tmp_path / "pictures.npz", X=data.images[0][:40].numpy())
    assert ipdlam_run(*named[:2], tmp_path / "pictures.npz", *named[3:])[0].split()[1:] == rows


def test_without_arguments(tmp_path, own):
    folder, _ = train(tmp_path, f"{own}:fixed", "--method", "ipdlam", "--iterations", "2")
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("wrong", "gives outputs of the shape (2, 11) for two samples, but (2, 10) is needed"),
        ("words", "gives a str, but must give an nn.Module"),
        ("absent", "cannot be made: AttributeError"),
    ],
)
def test_bad_functions_are_refused(own, function: str, words: str):
    with pytest.raises(ConfigError) as refused:
        NamedNetwork(f"{own}:{function}", (1, 8, 8)).make(10, 0)
    assert words in str(refused.value)


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"network must be one of cnn, vgg5, resnet8, or file\.py:function, got 'mlp'"
    ):
        TrainConfig(network="mlp")
    with pytest.raises(ConfigError, match="hidden means nothing to --network cnn"):
        TrainConfig(network="cnn", hidden=(5,))
    with pytest.raises(ConfigError, match="there is no file"):
        NamedNetwork(f"{tmp_path}/none.py:make", (1, 8, 8)).make(10, 0)
    with pytest.raises(ConfigError, match="network cnn is for images"):
        NamedNetwork("cnn", (5,)).make(10, 0)
    with pytest.raises(ConfigError, match="network vgg5 is too deep for images of 8 x 8"):
        NamedNetwork("vgg5", (1, 8, 8)).make(10, 0)


def test_a_convolution_is_no_case_for_the_papers_method(tmp_path):
    _, words = train(tmp_path, "cnn", "--method", "ipdlam", "--iterations", "2", code=2)
    assert "ipdlam.MiniBatchIPDLAM trains models with it" in words
