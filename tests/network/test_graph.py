"""Models of any kind: what trains, what stays as it was, and what is refused by name, place and remedy."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from contracts import equal, says, weights
from ipdlam import IPDLAM, MiniBatchIPDLAM, UnsupportedModelError
from ipdlam.baselines import BackPropagation
from ipdlam.minibatch.epoch import as_batch
from ipdlam.network import nodes
from ipdlam.network.graph import Graph
from ipdlam.network.layers import ConvNode
from ipdlam.network.nodes import Activate, MaxPool

N = 48


def pictures(channels: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Stripes: those of class 1 are upright."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (N,), generator=generator)
    lying = (torch.arange(8) % 4 < 2).to(dtype).expand(8, 8)
    X = torch.where(y.view(-1, 1, 1) == 1, lying, lying.T)[:, None].expand(-1, channels, -1, -1)
    return X + 0.5 * torch.randn(X.shape, generator=generator, dtype=dtype), y


def cnn(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2), *more,
        nn.Flatten(), nn.Linear(96, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 2),
    )  # fmt: skip


class OwnForward(nn.Module):
    """As people write them: functions, shapes, a shortcut, and a submodule of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.bn, self.drop, self.out = nn.BatchNorm2d(4), nn.Dropout2d(0.1), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = x + torch.relu(self.bn(self.conv2(x)))
        x = functional.dropout(self.drop(x), 0.1, self.training)
        return self.out(x.view(x.size(0), -1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(20, 6, padding_idx=0), nn.Linear(6, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(words).mean(1)))


MODELS = {"sequential": cnn, "own forward": OwnForward}


@pytest.mark.parametrize("name", MODELS)
def test_it_learns_in_place_and_the_model_stays_what_it_was(name: str):
    torch.manual_seed(1)
    model, (X, y) = MODELS[name](), pictures()
    kinds = [type(module) for module in model.modules()]
    history = MiniBatchIPDLAM(model, batch_size=16).fit(X, y, epochs=12)
    assert history[-1].train_accuracy >= 0.95
    assert [type(module) for module in model.modules()] == kinds
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model.eval()
    assert float((model(X).argmax(1) == y).float().mean()) == pytest.approx(history[-1].train_accuracy)


def test_words_are_learned_and_the_padding_stays():
    generator = torch.Generator().manual_seed(2)
    X = torch.randint(1, 20, (200, 5), generator=generator)
    X[:, 4] = 0
    y = (X[:, :4] < 10).sum(1).gt(1).long()
    torch.manual_seed(0)
    model = Words()
    padding = model.embedding.weight[0].detach().clone()
    history = MiniBatchIPDLAM(model, batch_size=50).fit(X, y, epochs=30)
    assert history[-1].train_accuracy > 0.9
    assert torch.equal(model.embedding.weight[0], padding)
    with pytest.raises(TypeError, match=says("X is torch.float32", "begins with an Embedding")):
        MiniBatchIPDLAM(model).fit(X.float(), y)


@pytest.mark.parametrize("name", MODELS)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(name: str, tmp_path):
    """Running statistics and what Dropout draws included."""
    model, (X, y) = MODELS[name](), pictures()
    twin = copy.deepcopy(model)
    whole = MiniBatchIPDLAM(twin, batch_size=16)
    whole.fit(X, y, epochs=4)
    half = MiniBatchIPDLAM(model, batch_size=16)
    half.fit(X, y, epochs=4, callbacks=[stop_after(2)])
    half.save(tmp_path / "half")
    again = MODELS[name]()
    resumed = MiniBatchIPDLAM.load(tmp_path / "half", again, X, y)
    resumed.continue_fit(epochs=2)
    wanted, found = twin.state_dict(), again.state_dict()
    assert all(torch.equal(found[key], value) for key, value in wanted.items())
    assert [record.train_loss for record in resumed.history] == [record.train_loss for record in whole.history]


def stop_after(epochs: int):
    def stop(record) -> None:
        if record.iteration == epochs:
            raise KeyboardInterrupt

    return stop


def test_state_dict_and_a_loop_of_ones_own():
    model, (X, y) = cnn(), pictures()
    trainer = MiniBatchIPDLAM(model)
    for _ in range(3):
        trainer.step(X, y)
    saved, twin = trainer.state_dict(), copy.deepcopy(model)
    other = MiniBatchIPDLAM(twin)
    other.load_state_dict(saved)
    trainer.step(X, y)
    other.step(X, y)
    assert equal(weights(model), weights(twin))


def test_the_best_weights_come_with_their_running_statistics():
    model, (X, y) = cnn(), pictures()
    seen = {}

    def look(record) -> None:
        seen[record.iteration] = {key: value.clone() for key, value in model.state_dict().items()}

    trainer = MiniBatchIPDLAM(model, batch_size=16)
    history = trainer.fit(X, y, epochs=5, restore_best=True, callbacks=[look])
    best = max(history, key=lambda record: record.score).iteration
    assert all(torch.equal(value, seen[best][key]) for key, value in model.state_dict().items())


# --- forms of a model -------------------------------------------------------------------------------------------------


def trained(model: nn.Module, X: Tensor, y: Tensor) -> list[Tensor]:
    MiniBatchIPDLAM(model, batch_size=16).fit(X, y, epochs=2)
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_wrapped_or_compiled_model_trains_as_itself():
    X, y = pictures()
    wanted = trained(cnn(), X, y)
    assert equal(trained(nn.DataParallel(cnn()), X, y), wanted)
    assert equal(trained(torch.compile(cnn(), backend="eager"), X, y), wanted)


def test_channels_last_and_evaluation_mode_change_nothing():
    X, y = pictures()
    wanted = trained(cnn(), X, y)
    model = cnn().to(memory_format=torch.channels_last)
    for one, other in zip(trained(model, X.to(memory_format=torch.channels_last), y), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    evaluated = cnn().eval()
    assert equal(trained(evaluated, X, y), wanted)
    assert not any(module.training for module in evaluated.modules())


def test_what_is_frozen_stays_and_the_rest_learns():
    model, (X, y) = cnn(), pictures()
    for parameter in [*model[0].parameters(), model[1].weight]:
        parameter.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    MiniBatchIPDLAM(model, batch_size=16).fit(X, y, epochs=2)
    after = model.state_dict()
    frozen = ("0.weight", "0.bias", "1.weight")
    assert all(torch.equal(after[name], before[name]) for name in frozen)
    assert not any(torch.equal(after[name], before[name]) for name in ("1.bias", "5.weight", "5.bias", "8.weight"))


def test_a_norm_that_was_put_in_evaluation_mode_keeps_its_statistics():
    model, (X, y) = cnn(), pictures()
    model[1].running_mean.fill_(0.3)
    model[1].eval()
    MiniBatchIPDLAM(model, batch_size=16, start="keep").fit(X, y, epochs=1)
    assert bool((model[1].running_mean == 0.3).all())
    assert not model[1].training


def test_a_max_pool_is_taken_before_an_activation_that_rises():
    graph = Graph(cnn())
    kinds = [type(node) for node in graph.nodes]
    assert kinds.index(MaxPool) < kinds.index(Activate)
    graph = Graph(nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 2)))
    assert Activate in [type(node) for node in graph.nodes]


def test_a_copied_trainer_goes_on_alike():
    model, (X, y) = OwnForward(), pictures()
    trainer = MiniBatchIPDLAM(model, batch_size=16)
    trainer.fit(X, y, epochs=4, callbacks=[stop_after(2)])
    twin = copy.deepcopy(trainer)
    trainer.continue_fit(epochs=2)
    twin.continue_fit(epochs=2)
    assert equal(weights(model), weights(twin.model))
    assert twin.model is not model


def test_back_propagation_trains_the_same_models_and_resumes_with_its_draws(tmp_path):
    model, (X, y) = OwnForward(), pictures()
    twin = copy.deepcopy(model)
    BackPropagation(twin, "adam", learning_rate=0.01, batch_size=16).fit(X, y, epochs=4)
    half = BackPropagation(model, "adam", learning_rate=0.01, batch_size=16)
    half.fit(X, y, epochs=2)
    half.save(tmp_path / "half")
    again = OwnForward()
    BackPropagation.load(tmp_path / "half", again, X, y).continue_fit(epochs=2)
    assert equal(weights(again), weights(twin))


# --- the paper's method -----------------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 10), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


def test_a_perceptron_of_ones_own_and_a_flatten_train_as_a_sequential():
    X, y = pictures()
    plain = nn.Sequential(nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 2))
    flat, own = nn.Sequential(nn.Flatten(), *copy.deepcopy(plain)), Perceptron()
    own.fc1, own.fc2 = copy.deepcopy(plain[0]), copy.deepcopy(plain[2])
    IPDLAM(plain).fit(X.flatten(1), y, iterations=3)
    for model in (flat, own):
        IPDLAM(model).fit(X, y, iterations=3)
        assert equal(weights(model), weights(plain))


def test_for_a_convolution_it_points_to_the_mini_batch_method():
    with pytest.raises(UnsupportedModelError, match=says("module 0 (Conv2d)", "ipdlam.MiniBatchIPDLAM")):
        IPDLAM(cnn())
    with pytest.raises(UnsupportedModelError, match=says("module conv1 (Conv2d)", "ipdlam.MiniBatchIPDLAM")):
        IPDLAM(OwnForward())


# --- what is refused --------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = -x
        return self.out(x.flatten(1))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out(left + right)


class TwoOutputs(TwoInputs):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.out(x), x


class OwnParameter(TwoInputs):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x * self.scale)


class InPlace(TwoInputs):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.mul_(2.0))


class Unused(TwoInputs):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class Tied(TwoInputs):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.other(torch.relu(self.inner(x))))


REFUSED = {
    "branch": (Branching, ["Branching cannot be followed", "test_graph.py", "if x.sum() > 0:", "move such a branch"]),
    "two inputs": (TwoInputs, ["takes 2 inputs (left, right)", "put them together"]),
    "two outputs": (TwoOutputs, ["gives a tuple of 2", "return that alone"]),
    "own parameter": (OwnParameter, ["parameter scale is used outside of a layer", "freeze it"]),
    "in place": (InPlace, ["mul_ in forward changes a tensor in place", "x = x.mul(...)"]),
    "unused": (Unused, ["parameter spare.weight has no part in the outputs", "freeze it"]),
    "tied": (Tied, ["module other (Linear): its weight is shared with the weight of module inner", "tied weights"]),
    "recurrent": (lambda: nn.Sequential(nn.LSTM(4, 4)), ["module 0 (LSTM) is not supported", "recurrent"]),
    "attention": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()), ["module 1 (PReLU)", "LeakyReLU"]),
    "alpha dropout": (lambda: nn.Sequential(nn.AlphaDropout(), nn.Linear(4, 2)), ["module 0 (AlphaDropout)", "draws"]),
    "softmax": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Softmax(1)), ["module 1 (Softmax) ends", "cross_entropy"]),
    "activation": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()), ["module 1 (Tanh) ends the model", "remove it"]),
    "padding": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")),
        ["module 0 (Conv2d): padding_mode 'reflect'", "zeros"],
    ),
    "all frozen": (lambda: nn.Sequential(nn.Linear(4, 2)).requires_grad_(False), ["every layer", "frozen", "unfreeze"]),
    "no layer": (lambda: nn.Sequential(nn.Flatten()), ["no layer with parameters"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_are_refused_by_name_place_and_remedy(case: str):
    build, words = REFUSED[case]
    for kind in (MiniBatchIPDLAM, BackPropagation):
        with pytest.raises(UnsupportedModelError, match=says(*words)):
            kind(build())


def before_and_after(model: nn.Module, X: Tensor, y: Tensor, match: str, error: type = ValueError, **settings) -> None:
    """A batch that cannot be learned from is refused, and the model is as it was."""
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=match):
        MiniBatchIPDLAM(model, **settings).step(X, y)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_batches_that_do_not_fit():
    X, y = pictures()
    before_and_after(cnn(), X[:, :, :6], y, says("module 5 (Linear)", "samples of the shape (1, 6, 8)"))
    before_and_after(cnn(), X.expand(-1, 3, -1, -1), y, says("module 0 (Conv2d)", "samples of the shape (3, 8, 8)"))
    nothing = torch.full_like(X, torch.nan)
    before_and_after(cnn(), nothing, y, says("X holds nan at (0, 0, 0, 0)"))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    words = says("module 2 (BatchNorm1d) needs more than one number of a channel", "drop_last=True")
    before_and_after(flat, X[:1], y[:1], words)
    before_and_after(nn.Sequential(nn.Conv2d(1, 2, 3)), X, y, says("gives (2, 2, 6, 6)", "(N, outputs)"))


@pytest.mark.parametrize(("samples", "batch_size"), [(41, 40), (12, 1)])
def test_a_last_batch_of_one_sample_is_refused_before_training(samples: int, batch_size: int):
    X, y = torch.rand(samples, 6), torch.randint(0, 2, (samples,))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    before = copy.deepcopy(model.state_dict())
    words = says(f"batch_size {batch_size} leaves one sample of {samples}", "module 1 (BatchNorm1d)", "another")
    with pytest.raises(ValueError, match=words):
        MiniBatchIPDLAM(model, batch_size=batch_size).fit(X, y, epochs=1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model[1].eval()  # its statistics are its own
    MiniBatchIPDLAM(model, batch_size=batch_size).fit(X, y, epochs=1)
    pictured = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    MiniBatchIPDLAM(pictured, batch_size=batch_size).fit(torch.rand(samples, 1, 4, 4), y, epochs=1)


def test_a_shape_that_changes_between_batches_leaves_the_weights():
    model, (X, y) = cnn(), pictures()
    trainer = MiniBatchIPDLAM(model)
    trainer.step(X, y)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=says("module 5 (Linear)")):
        trainer.step(X[:, :, :6], y)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    trainer.step(X, y)


# --- what people write in forward -------------------------------------------------------------------------------------


class Written(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between, last=None) -> None:
        super().__init__()
        self.a, self.b, self.between, self.last = nn.Linear(6, 6), nn.Linear(6, 2), between, last or (lambda x: x)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            x = x * mask
        return self.last(self.b(self.between(torch.relu(self.a(x)))))


def doubled(h: Tensor) -> Tensor:
    h = h + 0.0
    h *= 2.0
    return h


BETWEEN = {
    "transposed twice": lambda h: h.mT.mT,
    "taken apart and put together": lambda h: torch.stack(h.unbind(1), 1),
    "Fourier and back": lambda h: torch.fft.irfft(torch.fft.rfft(h), n=6),
    "a comparison": lambda h: torch.where(h > 0.3, h, 0.5 * h),
    "a maximum": lambda h: h + h.max(1, keepdim=True)[0],
    "the largest": lambda h: h + h.topk(2)[0].mean(1, keepdim=True),
    "a gate": lambda h: h * torch.sigmoid(h.flip(1)),
    "halves": lambda h: torch.cat(torch.split(h, 3, 1)[::-1], 1),
    "in place, but not again": doubled,
    "einsum": lambda h: torch.einsum("ni,nj->nij", h, h).mean(1),
}


@pytest.mark.parametrize("case", BETWEEN)
def test_wishes_pass_whatever_is_written(case: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ipdlam.minibatch.sweep.REACH", 1e-7)
    torch.manual_seed(3)
    model = Written(BETWEEN[case]).double()
    X, goal = torch.rand(10, 6, dtype=torch.float64), torch.rand(10, 2, dtype=torch.float64)
    before = model.a.weight.detach().clone()
    MiniBatchIPDLAM(model, start="keep", inertia=0.0, step=1e-6, penalty=1e7).step(X, goal)
    (model(X) - goal).square().sum().backward()
    down = -(model.a.weight.grad * (model.a.weight.detach() - before)).sum()
    assert float(down) > 0.0
    assert not [name for name in vars(model) if name.startswith("_tensor_constant")]


def own_constant(h: Tensor) -> Tensor:
    return h * torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0, 3.0])


def test_tracing_leaves_nothing_in_the_model():
    model = Written(own_constant)
    MiniBatchIPDLAM(model)
    assert not [name for name in vars(model) if name.startswith("_tensor_constant")]


class Aliased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(6, 6), nn.Linear(6, 2), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(self.relu(h) + h)


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x.reshape(-1, 3))).reshape(x.shape[0], -1))


class Steps(nn.Module):
    """Nothing can be wished for below a sign."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b((self.a(x) > 0).float())


class Rounded(Steps):
    """torch says that a rounded number has a derivative, and that it is zero."""

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.round(self.a(x)))


class Detached(Steps):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)).detach())


class WithoutGrad(Steps):
    """torch.fx sees nothing of the context."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = torch.relu(self.a(x))
        return self.b(h)


class LayerWithoutGrad(Steps):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            h = self.a(x)
        return self.b(torch.relu(h))


NO_DERIVATIVE = {
    "data": lambda h: h.data,
    "zeros_like": lambda h: torch.zeros_like(h),
    "ones_like": lambda h: torch.ones_like(h) * 2.0,
    "new_full": lambda h: h.new_full(h.shape, 2.0),
    "heaviside": lambda h: torch.heaviside(h, torch.zeros(())),
    "floordiv": lambda h: h // 0.1,
    "floor_divide": lambda h: torch.floor_divide(h, 0.1),
}


@pytest.mark.parametrize("case", NO_DERIVATIVE)
def test_layers_below_what_has_no_derivative_are_refused(case: str):
    X, y = torch.rand(12, 6), torch.randint(0, 2, (12,))
    words = says("module a (Linear): nothing that the loss wishes for reaches it", "freeze it")
    before_and_after(Written(NO_DERIVATIVE[case]), X, y, words, UnsupportedModelError)


def test_a_derivative_that_torch_does_not_have_is_refused_by_place_and_before_training():
    X, y = torch.rand(12, 6), torch.randint(0, 2, (12,))
    model = Written(lambda h: torch.special.zeta(h + 2.0, torch.ones(6)))
    words = says("special_zeta in forward has no derivative", "is not implemented", "freeze")
    before_and_after(model, X, y, words, UnsupportedModelError)
    model.a.requires_grad_(False)
    MiniBatchIPDLAM(model).step(X, y)


class Half(Steps):
    """A shortcut that torch does not follow, beside one that it does."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        with torch.no_grad():
            shortcut = torch.tanh(h)
        return self.b(torch.relu(h) + shortcut)


class HalfDetached(Half):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(torch.relu(h) + torch.tanh(h).detach())


def test_nothing_passes_where_torch_does_not_follow():
    X, y = torch.rand(12, 6), torch.randint(0, 2, (12,))
    found = []
    for kind in (Half, HalfDetached):
        torch.manual_seed(0)
        found.append(trained(kind(), X, y))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_frozen_layer_may_stand_under_no_grad_and_the_callers_mode_does_not_matter():
    X, y = torch.rand(12, 6), torch.randint(0, 2, (12,))
    model = WithoutGrad()
    model.a.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    MiniBatchIPDLAM(model).step(X, y)
    assert torch.equal(model.a.weight, before["a.weight"])
    assert not torch.equal(model.b.weight, before["b.weight"])
    with torch.no_grad():
        MiniBatchIPDLAM(Written(torch.tanh)).step(X, y)
    with pytest.raises(UnsupportedModelError, match=says("module a (Linear) stands under torch.no_grad")):
        IPDLAM(WithoutGrad())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Aliased, ["changes a tensor in place", "inplace=True"]),
        (Folded, ["module a (Linear) gets (4, 3) for 2 samples", "(N, ..., features)"]),
        (Steps, ["module a (Linear): nothing that the loss wishes for reaches it", "freeze it"]),
        (Rounded, ["module a (Linear): nothing that the loss wishes for reaches it", "freeze it"]),
        (Detached, ["module a (Linear): nothing that the loss wishes for reaches it", "freeze it"]),
        (WithoutGrad, ["module a (Linear): nothing that the loss wishes for reaches it", "torch.no_grad", "freeze it"]),
        (LayerWithoutGrad, ["module a (Linear): nothing that the loss wishes for reaches it", "torch.no_grad"]),
    ],
)
def test_models_that_would_be_trained_wrongly_are_refused(build, words):
    X, y = torch.rand(12, 6), torch.randint(0, 2, (12,))
    model = build()
    before = copy.deepcopy(model.state_dict())
    for start in ("keep", "rescale"):
        with pytest.raises(UnsupportedModelError, match=says(*words)):
            MiniBatchIPDLAM(model, start=start).step(X, y)
    with pytest.raises(UnsupportedModelError, match=says(*words)):
        MiniBatchIPDLAM(model, start="keep").fit(X, y, epochs=1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_below_what_is_frozen_nothing_needs_a_wish():
    model = Detached()
    model.a.requires_grad_(False)
    assert MiniBatchIPDLAM(model).fit(torch.rand(12, 6), torch.randint(0, 2, (12,)), epochs=1)


def test_samples_of_another_shape_than_before_are_refused():
    X, y = pictures()
    trainer = MiniBatchIPDLAM(cnn())
    trainer.step(X, y)
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(ValueError, match=says("samples of the shape (1, 6, 8)", "before were of the shape (1, 8, 8)")):
        trainer.step(X[:, :, :6], y)
    assert all(torch.equal(value, before[key]) for key, value in trainer.model.state_dict().items())
    trainer.step(X, y)


def test_nan_that_the_model_makes_or_holds_is_refused_by_place():
    X, y = torch.rand(12, 6), torch.randint(0, 2, (12,))
    with pytest.raises(ValueError, match=says("log in forward gives NaN or infinity before any training")):
        MiniBatchIPDLAM(Written(lambda h: torch.log(-1.0 - h.abs()))).step(X, y)
    model = cnn()
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = torch.nan
    with pytest.raises(UnsupportedModelError, match=says("module 0 (Conv2d): its weight holds NaN")):
        MiniBatchIPDLAM(model).step(*pictures())


def test_the_len_of_a_tensor_has_a_remedy_of_its_own():
    with pytest.raises(UnsupportedModelError, match=says("test_graph.py", "write x.shape[0] instead of len(x)")):
        MiniBatchIPDLAM(Written(lambda h: h.reshape(len(h), -1)))


def test_what_stands_before_the_first_layer_is_not_dropped():
    class Scaled(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(100.0 * x)

    with pytest.raises(UnsupportedModelError, match=says("mul in forward is not supported", "MiniBatchIPDLAM")):
        IPDLAM(Scaled())


def test_a_function_of_softmax_at_the_end_and_other_statistics_are_refused():
    with pytest.raises(UnsupportedModelError, match=says("softmax in forward ends the model", "cross_entropy")):
        MiniBatchIPDLAM(Written(lambda h: h, lambda x: functional.softmax(x, 1)))
    model = nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(UnsupportedModelError, match=says("module 0 (InstanceNorm2d)", "running statistics")):
        MiniBatchIPDLAM(model)


def test_positions_of_words_have_no_sample_weight():
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.out = nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out((self.words(x) + self.places(torch.arange(5))).mean(1))

    X, y = torch.randint(0, 9, (40, 5)), torch.randint(0, 2, (40,))
    assert MiniBatchIPDLAM(Positions()).fit(X, y, epochs=2)
    with pytest.raises(
        ValueError, match=says("module places (Embedding) is the same for all samples", "sample_weight")
    ):
        MiniBatchIPDLAM(Positions()).fit(X, y, sample_weight=torch.rand(40), epochs=1)


def test_what_is_frozen_is_not_remembered():
    model = cnn()
    model[0].requires_grad_(False)
    trainer = MiniBatchIPDLAM(model)
    trainer.step(*pictures())
    assert 1 not in trainer._state.stepper.memories


def test_patches_of_what_is_made_of_no_sample_do_not_go_by_the_samples_places(monkeypatch: pytest.MonkeyPatch):
    """Also where there happen to be as many rows of it as samples are held here."""

    class Template(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("pattern", torch.rand(3, 1, 6))
            self.own, self.common, self.out = nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out((self.own(x) + self.common(self.pattern).mean(0)).flatten(1))

    given, found = {}, ConvNode.memory_rows

    def noted(self: ConvNode, x: Tensor, batch: int, rows: int, positions: Tensor | None) -> Tensor:
        given[self.place] = positions
        return found(self, x, batch, rows, positions)

    trainer, X, y = MiniBatchIPDLAM(Template()), torch.rand(3, 1, 6), torch.tensor([0, 1, 1])
    trainer.step(X, y)
    state = trainer._state
    monkeypatch.setattr(ConvNode, "memory_rows", noted)
    places = torch.tensor([0, 1, 2])
    with torch.no_grad():
        state.stepper.update(as_batch(state.check_batch(False, X, y, None), 3, positions=places), 0.0)
    assert given["module own (Conv1d)"] is places
    assert given["module common (Conv1d)"] is None


@pytest.mark.parametrize("offset", [0.0, 10.0])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_bias_that_trains_alone_finds_the_best_there_is(offset, hidden):
    """Nothing makes up for the mean of the inputs: their weights stay."""
    generator = torch.Generator().manual_seed(0)
    X, goal = (torch.randn(64, width, generator=generator) + shift for width, shift in ((5, offset), (3, 0.0)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), *((nn.ReLU(), nn.Linear(3, 3)) if hidden else ()))
    for module in model[0::2]:
        module.weight.requires_grad_(False)
    before = [module.weight.detach().clone() for module in model[0::2]]
    trainer = MiniBatchIPDLAM(model, batch_size=64, start="keep", horizon=300)
    losses = [trainer.step(X, goal) for _ in range(300)]
    assert all(torch.equal(module.weight, weight) for module, weight in zip(model[0::2], before, strict=True))
    with torch.no_grad():
        rest = goal - model(X)
        best = 0.5 * (rest - rest.mean(0)).square().sum(1).mean()  # of the last bias, given the others
    assert losses[-1] == pytest.approx(float(best), rel=1e-2)
    assert losses[-1] <= losses[0]


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_what_is_frozen_in_the_middle_of_a_run_is_refused_before_anything_is_lost(kind):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    X, y = torch.rand(8, 1, 4, 4), torch.arange(8) % 2
    trainer = MiniBatchIPDLAM(model)
    trainer.step(X, y)
    getattr(model[0], kind).requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"module 0 .* frozen"):
        trainer.step(X, y)
    getattr(model[0], kind).requires_grad_(True)
    trainer.step(X, y)


def lying(shape, how):
    """The same numbers in another order in memory."""
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    if how == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    if how == "a part of a larger one":
        return torch.cat([x, x], dim=1)[:, : shape[1]]
    return x[:1].expand(shape) if how == "repeated" else x


@pytest.mark.parametrize("how", ["in order", "channels last", "a part of a larger one", "repeated"])
@pytest.mark.parametrize("first", ["in order", "channels last", "a part of a larger one"])
def test_pieces_of_operands_lie_side_by_side(first, how):
    shape = (3, 4, 5, 6)
    a, b = lying(shape, first), lying(shape, how)
    with mock.patch.object(nodes, "PIECE", 100):
        for one, other in nodes.pieces(a, b):
            one.sub_(other)
    assert torch.equal(a, lying(shape, first) - lying(shape, how))
