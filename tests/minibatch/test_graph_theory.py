"""In the limit of small changes the wish of every layer is the negative gradient, whatever the network is made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ipdlam.minibatch import sweep as targets
from ipdlam.minibatch.batch import Part
from ipdlam.minibatch.step import Stepper, StepSettings
from ipdlam.network.blocks import BlockLinear
from ipdlam.network.graph import Graph, as_drawing
from ipdlam.network.samples import Samples
from ipdlam.prox import LOSSES

LARGE = 1e7  # a penalty at which the prox of a loss is its gradient, to seven digits


class Residual(nn.Module):
    """A block with a shortcut of its own, as in a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        found = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        found += self.shortcut(x)
        return self.relu(found)


class Attention(nn.Module):
    """One head over the four rows of a picture, and a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, 0]
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v))
        return self.head(x.mean(1))


class Branches(nn.Module):
    """Two paths of different kinds put together, and a value that is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.left, self.right = nn.Conv2d(4, 3, 3, padding=1, groups=1), nn.Conv2d(4, 5, 1)
        self.head = nn.Linear(8 * 4 + 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        both = torch.cat([functional.relu(self.left(x)), self.right(x)], dim=1)
        pooled = functional.max_pool2d(both, 2).flatten(1)
        return self.head(torch.cat((pooled, x.mean((2, 3))), 1))


NETWORKS = {
    "pools": lambda: nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 2), nn.LeakyReLU(0.0),
        nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3),
    ),
    "strides": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=2, dilation=2, groups=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(6, 3),
    ),
    "overlap": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding="same"), nn.MaxPool2d(3, stride=1, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3),
        nn.Upsample(scale_factor=2), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ),
    "sequence": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(2, 4, 3, stride=2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 3)
    ),
    "residual": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), Residual(3, 4, 2), Residual(4, 4, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    ),
    "norms": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.LayerNorm(8), nn.ReLU(),
        nn.Linear(8, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3),
    ),
    "blocks": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), BlockLinear(2, 3, 4), nn.ReLU(), nn.Linear(8, 3)
    ),
    "attention": Attention,
    "branches": Branches,
}  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(4)
    model = NETWORKS[name]().double()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
        elif isinstance(module, BlockLinear):
            nn.init.normal_(module.weight)
    return model


def data(loss: str = "squared") -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(12, 2, 4, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (12,), generator=generator)
    return X, LOSSES[loss]().encode(labels, 3, torch.float64)


def products(graph: Graph, loss: str, X: Tensor, goal: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Wish times inputs, and the sum of the wishes, of every layer: what its step is made of."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    with torch.no_grad():
        graph.try_on(X)
        passed = graph.run(X, as_drawing(graph, None, len(X), None))

        def receive(l: int, wish: Tensor) -> None:
            layer = graph[l]
            found[l] = layer.product(wish, passed.inputs(layer)[0], passed.kept[graph.positions[l]])

        first = targets.output_change(LOSSES[loss](), goal, passed.output, LARGE)
        reaches = dict.fromkeys(graph.activations, 1.0)
        targets.sweep(graph, passed, first, 3.0, reaches, Part(len(X)), receive)
    return found


def cosine(x: Tensor, y: Tensor) -> float:
    return float((x * y).sum() / (x.norm() * y.norm()))


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("name", NETWORKS)
def test_for_small_changes_the_wishes_are_the_gradient(name: str, loss: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "REACH", 1e-7)
    model, (X, goal) = made(name), data(loss)
    graph = Graph(model)
    found = products(graph, loss, X, goal)
    LOSSES[loss]().value(goal, model(X)).sum().backward()
    for l in graph.numbers:
        module = graph[l].module
        assert cosine(found[l][0].flatten(), -module.weight.grad.flatten()) == pytest.approx(1.0, abs=1e-5), (
            graph.place(l)
        )
        if graph.bias(l) is not None and module.bias.grad.norm() > 1e-10:  # before a norm a bias does nothing
            assert cosine(found[l][1], -module.bias.grad) == pytest.approx(1.0, abs=1e-5), graph.place(l)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_the_gradient_times_a_positive_definite_matrix(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "REACH", 1e-6)
    model, (X, goal) = made(name), data()
    graph = Graph(model)
    graph.try_on(X)
    stepper = Stepper(graph, StepSettings(LOSSES["squared"](), 1e-4, 0.0, 3.0, LARGE, 64, 0.0))
    LOSSES["squared"]().value(goal, model(X)).sum().backward()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        stepper.update(Samples(X, goal, None), 0.0)
    for layer in graph.layers:  # W and b share a matrix: together they go down
        down = 0.0
        for kind, parameter in layer.module.named_parameters():
            name = next(key for key, value in model.named_parameters() if value is parameter)
            down += float(((parameter.detach() - before[name]) * parameter.grad).sum())
            assert kind in ("weight", "bias")
        assert down < 0.0, layer.place


@pytest.mark.parametrize("name", NETWORKS)
def test_where_the_loss_is_zero_nothing_moves(name: str):
    model, (X, goal) = made(name), data()
    graph = Graph(model)
    graph.try_on(X)
    stepper = Stepper(graph, StepSettings(LOSSES["squared"](), 0.25, 0.0, 1.0, 0.1, 64, 0.0))
    with torch.no_grad():
        for _ in range(5):
            stepper.update(Samples(X, goal, None), 0.0)
        reached = graph.run(X, as_drawing(graph, None, len(X), None)).output.clone()
        before = {key: parameter.clone() for key, parameter in model.named_parameters()}
        assert stepper.update(Samples(X, reached, None), 0.0) == 0.0
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, before[key], rtol=1e-12, atol=1e-12, msg=key)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("residual", "norms")])
def test_at_a_minimum_with_a_loss_left_the_wishes_of_all_samples_cancel(
    name: str, loss: str, monkeypatch: pytest.MonkeyPatch
):
    """Every sample is there twice, with targets on either side of what the model gives: it is best as it is."""
    monkeypatch.setattr(targets, "REACH", 1e-7)
    model, (X, _) = made(name), data()
    graph = Graph(model)
    outputs = model(X).detach()
    off = 0.3 * torch.randn(outputs.shape, generator=torch.Generator().manual_seed(6), dtype=outputs.dtype)
    twice = products(graph, loss, torch.cat([X, X]), torch.cat([outputs + off, outputs - off]))
    once = products(graph, loss, X, outputs + off)
    for l in graph.numbers:
        for both, one in zip(twice[l], once[l], strict=True):
            if float(one.norm()) > 1e-12:
                assert float(both.norm()) < 1e-5 * float(one.norm()), graph.place(l)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pass_gives_what_the_model_gives_and_leaves_it_as_it_was(name: str):
    model, (X, _) = made(name), data()
    graph = Graph(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        inner = graph.run(X, as_drawing(graph, None, len(X), None))
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        torch.testing.assert_close(inner.output, model(X), rtol=1e-12, atol=1e-12)
        model.load_state_dict(before)
        graph.commit(inner)
        wanted = made(name)
        wanted(X)
        for key, value in wanted.state_dict().items():  # running statistics as PyTorch keeps them
            torch.testing.assert_close(model.state_dict()[key], value)
        model.eval()
        torch.testing.assert_close(graph.run(X).output, model(X), rtol=1e-12, atol=1e-12)
