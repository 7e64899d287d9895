"""Saved models: what is written comes back, and a file that was damaged or made up is refused before it does harm."""

from __future__ import annotations

import itertools
import json
import pickle
import struct
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ipdlam import FileError
from ipdlam.network.initialise import mlp
from ipdlam.prox import ACTIVATIONS, LOSSES
from ipdlam.runs.model_file import FORMAT, Preparation, TrainedModel, load_model

GENERATOR = torch.Generator().manual_seed(0)
X = 3.0 + 2.0 * torch.randn(50, 4, generator=GENERATOR)


def make(activation="relu", dtype=torch.float32, loss="squared", classes=("ant", "bee", "c,\n"), scaled=True):
    widths = (4, 6, 5, 1 if classes is None or (len(classes) == 2) else len(classes))
    mean = torch.full((4,), 3.0, dtype=dtype) if scaled else None
    scale = torch.tensor([2.0, 2.0, 2.0, 1.0], dtype=dtype) if scaled else None
    model = mlp(widths, activation, "he", 1, dtype, "cpu")
    columns = ("a", "b b", "ü", "") if scaled else None
    label, ready = "species" if scaled else None, Preparation(mean=mean, scale=scale)
    return TrainedModel(model, widths, activation, loss, classes, columns, label, ready)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    make().save(path)
    return path


def by_hand(path, inputs):
    """The network from its file alone, without the library."""
    tensors = load_file(path)
    z = inputs.to(tensors["0.weight"].dtype)
    if "input.mean" in tensors:
        z = (z - tensors["input.mean"]) / tensors["input.scale"]
    layers = sum(name.endswith("weight") for name in tensors)
    for index in range(layers):
        z = z @ tensors[f"{2 * index}.weight"].T + tensors[f"{2 * index}.bias"]
        if index + 1 < layers:
            z = z.clamp_min(0.0)
    return z


@pytest.mark.parametrize("widths", [(4, 3), (7, 17, 16, 2)])
@pytest.mark.parametrize("seed", [0, 5])
def test_the_weights_of_torch_are_those_that_torch_draws(widths, seed):
    made = mlp(widths, "relu", "torch", seed, torch.float32, "cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in made[::2]:
            drawn = nn.Linear(layer.in_features, layer.out_features)
            assert torch.equal(layer.weight, drawn.weight)
            assert torch.equal(layer.bias, drawn.bias)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_model_survives_the_trip(tmp_path, activation, dtype, scaled):
    made = make(activation, dtype, scaled=scaled)
    made.save(tmp_path / "m.safetensors")
    loaded = load_model(tmp_path / "m.safetensors")
    for name in ("widths", "activation", "loss", "classes", "columns", "label"):
        assert getattr(loaded, name) == getattr(made, name), name
    for name in ("mean", "scale"):
        one, other = getattr(loaded.preparation, name), getattr(made.preparation, name)
        assert (one is None and other is None) or (torch.equal(one, other) and one.dtype == dtype)
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
        assert loaded.model.state_dict()[name].dtype == dtype
    assert [type(module) for module in loaded.model] == [type(module) for module in made.model]
    assert torch.equal(loaded.outputs(X), made.outputs(X))
    assert loaded.labels(loaded.outputs(X)) == made.labels(made.outputs(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predictions_are_those_of_the_weights(tmp_path, dtype):
    made = make(dtype=dtype)
    made.save(tmp_path / "m.safetensors")
    expected = by_hand(tmp_path / "m.safetensors", X)
    torch.testing.assert_close(load_model(tmp_path / "m.safetensors").outputs(X), expected)
    assert made.labels(made.outputs(X)) == [made.classes[index] for index in expected.argmax(1)]


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_and_real_targets(tmp_path, loss):
    made = make(loss=loss, classes=None)
    made.save(tmp_path / "m.safetensors")
    assert load_model(tmp_path / "m.safetensors").loss == loss
    assert load_model(tmp_path / "m.safetensors").classes is None


def test_the_sign_of_one_output_tells_two_classes(tmp_path):
    made = make(loss="hinge", classes=("no", "yes"))
    made.save(tmp_path / "m.safetensors")
    loaded = load_model(tmp_path / "m.safetensors")
    assert loaded.labels(torch.tensor([[-1.0], [0.5]])) == ["no", "yes"]


def test_rows_are_visited_in_chunks(tmp_path):
    made = make(dtype=torch.float64)
    torch.testing.assert_close(made.outputs(X, chunk_size=7), made.outputs(X))
    assert made.outputs(X[:0]).shape == (0, 3)


@pytest.mark.parametrize("inputs", [X[:, :3], X[0], X.reshape(50, 2, 2)])
def test_inputs_of_another_shape_are_refused(inputs):
    with pytest.raises(ValueError, match="the model takes 4 inputs a row, but the data have shape"):
        make().outputs(inputs)


def test_saving_replaces_the_file_and_leaves_nothing_else(saved):
    before = saved.read_bytes()
    make().save(saved)
    assert saved.read_bytes() == before  # the same model is the same file
    make(activation="tanh").save(saved)
    assert load_model(saved).activation == "tanh"
    assert [path.name for path in saved.parent.iterdir()] == ["model.safetensors"]


def test_saving_into_no_folder(tmp_path):
    with pytest.raises(FileError, match=r"was not written: the folder .* does not exist"):
        make().save(tmp_path / "nowhere" / "m.safetensors")


def test_initialisation_by_torch_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    one, other = (mlp((3, 2, 1), "relu", "torch", 7, torch.float32, "cpu") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


# --- damaged and hostile files ----------------------------------------------------------------------------------------


def refused(path, words=""):
    with pytest.raises(FileError) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def reforge(path, tensors=None, metadata=None, **about):
    """Write the file anew by somebody who knows the format; None removes."""
    content = load_file(path)
    for name, tensor in (tensors or {}).items():
        content.pop(name, None)
        if tensor is not None:
            content[name] = tensor
    header = json.loads(path.read_bytes()[8 : 8 + struct.unpack("<Q", path.read_bytes()[:8])[0]])["__metadata__"]
    if metadata is None:
        metadata = {"ipdlam": json.dumps({**json.loads(header["ipdlam"]), **about})}
    save_file(content, path, metadata=metadata)


def test_missing_empty_and_foreign_files(tmp_path):
    refused(tmp_path / "nowhere.safetensors", "does not exist")
    refused(tmp_path, "is not a model that ipdlam saved")
    for content in (b"", b"\0" * 8, b"hello", b"\xff" * 100):
        (tmp_path / "m").write_bytes(content)
        refused(tmp_path / "m", "is not a model that ipdlam saved")
    refused(tmp_path / "m" / "below a file")


def test_truncated_files(saved):
    content = saved.read_bytes()
    for length in (1, 7, 8, 9, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:length])
        refused(saved)
    saved.write_bytes(content + b"\0")
    refused(saved)


def test_a_flipped_bit_of_the_header_is_refused_or_harmless(saved):
    """It may turn one name of a class into another; it may not raise anything else, nor change a shape."""
    content = saved.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    refusals = 0
    for place, bit in itertools.product(range(0, end, 2), (0, 6)):
        saved.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
        try:
            loaded = load_model(saved)
        except FileError:
            refusals += 1
        else:
            assert loaded.widths == (4, 6, 5, 3)
            assert loaded.outputs(X).shape == (50, 3)
    assert refusals > end // 2


class Bomb:
    """What an unpickler would run."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was opened')",))


def test_a_renamed_pickle_is_not_opened(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    refused(path, "is not a model that ipdlam saved")
    torch.save(nn.Linear(2, 2).state_dict(), path)
    refused(path, "is not a model that ipdlam saved")


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"format": FORMAT},
        {"ipdlam": json.dumps({"format": FORMAT})},
        {"ipdlam": json.dumps({"format": "ipdlam model 2"})},
        *({"ipdlam": text} for text in ("", "{}", "[]", "3", "null", '"text"', "{", "[" * 100_000)),
    ],
)
def test_metadata_that_are_missing_or_nonsense(saved, metadata):
    reforge(saved, metadata=metadata)
    refused(saved, "is not a model that ipdlam saved")


@pytest.mark.parametrize(
    "about",
    [
        {"widths": [10**9, 10**9, 10**9, 3]},
        {"widths": [4, 10**9, 5, 3]},
        {"widths": [4, 6, 5]},
        {"widths": [4, 6, 5, 3, 3]},
        {"widths": [4]},
        {"widths": []},
        {"widths": [4.0, 6, 5, 3]},
        {"widths": [4, 6, 5, "3"]},
        {"widths": [-4, 6, 5, 3]},
        {"widths": 3},
        {"widths": None},
        {"widths": {"4": 6}},
        {"activation": "maxout"},
        {"activation": ["relu"]},
        {"activation": None},
        {"loss": "os.system"},
        {"loss": {}},
        {"dtype": "float64"},
        {"dtype": "int8"},
        {"dtype": []},
        {"classes": "abc"},
        {"classes": ["a", "b"]},
        {"classes": ["a", "b", 3]},
        {"classes": []},
        {"classes": {"a": 1, "b": 2, "c": 3}},
        {"columns": ["a"]},
        {"columns": [1, 2, 3, 4]},
        {"columns": "abcd"},
        {"label": 3},
        {"label": ["a"]},
    ],
    ids=str,
)
def test_descriptions_that_do_not_fit_the_weights(saved, about):
    reforge(saved, **about)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(saved, "is not a model that ipdlam saved")


@pytest.mark.parametrize("name", ["format", "widths", "activation", "loss", "dtype", "classes", "columns", "label"])
def test_descriptions_with_something_left_out(saved, name):
    described = {
        **{"format": FORMAT, "widths": [4, 6, 5, 3], "activation": "relu", "loss": "squared", "dtype": "float32"},
        **{"classes": None, "columns": None, "label": None},
    }
    reforge(saved, metadata={"ipdlam": json.dumps(described)})
    assert load_model(saved).classes is None
    described.pop(name)
    reforge(saved, metadata={"ipdlam": json.dumps(described)})
    refused(saved, "is not a model that ipdlam saved")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"0.weight": None}, "its tensor 0.weight has the shape None"),
        ({"4.bias": None}, "its tensor 4.bias has the shape None"),
        ({"0.weight": torch.zeros(4, 6)}, "its tensor 0.weight has the shape (4, 6)"),
        ({"2.bias": torch.zeros(1)}, "its tensor 2.bias has the shape (1,)"),
        ({"2.bias": torch.zeros(())}, "its tensor 2.bias has the shape ()"),
        ({"stranger": torch.zeros(2)}, "its tensor stranger"),
        ({"0.weight": torch.zeros(6, 4, dtype=torch.float64)}, "0.weight is torch.float64"),
        ({"0.weight": torch.zeros(6, 4, dtype=torch.int8)}, "0.weight is torch.int8"),
        ({"0.weight": torch.full((6, 4), float("nan"))}, "not finite"),
        ({"input.mean": None}, "its tensor input.mean has the shape None"),
        ({"input.scale": None}, "its tensor input.scale has the shape None"),
        ({"input.mean": torch.zeros(1)}, "its tensor input.mean has the shape (1,)"),
        ({"input.scale": torch.zeros(4)}, "not positive"),
        ({"input.scale": torch.full((4,), float("inf"))}, "not finite"),
    ],
)
def test_tensors_that_do_not_fit(saved, tensors, words):
    reforge(saved, tensors)
    refused(saved, words)


def test_a_header_that_promises_more_than_the_file_holds(saved):
    header = json.dumps({"0.weight": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4 * 10**18]}})
    saved.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 64)
    refused(saved)
    saved.write_bytes(struct.pack("<Q", 2**63 - 1) + b"{}")
    refused(saved)
