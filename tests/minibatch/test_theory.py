"""What docs/method/minibatch.md says of the mini-batch method's relation to the gradient, checked against autograd."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import ipdlam
from ipdlam.minibatch import sweep as targets
from ipdlam.minibatch.batch import Part
from ipdlam.minibatch.step import Stepper, StepSettings
from ipdlam.network.graph import Graph, as_drawing
from ipdlam.network.samples import Samples
from ipdlam.prox import LOSSES

LARGE = 1e7  # a penalty at which the prox of a loss is its gradient, to seven digits


def network(activation: type[nn.Module], widths: tuple[int, ...] = (6, 9, 8, 7, 3)) -> Graph:
    torch.manual_seed(3)
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        modules += [nn.Linear(inputs, outputs), activation()]
    return Graph(nn.Sequential(*modules[:-1]).double())


def gradients(net: Graph, loss: str, X: Tensor, goal: Tensor) -> dict[int, Tensor]:
    """The negative gradient of the summed loss by every layer's z, by autograd."""
    z, a = {}, X
    for module in net.model:
        a = module(a)
        if isinstance(module, nn.Linear):
            z[len(z) + 1] = a
            a.retain_grad()
    LOSSES[loss]().value(goal, a).sum().backward()
    return {l: -tensor.grad for l, tensor in z.items()}


def changes(net: Graph, loss: str, X: Tensor, goal: Tensor, proximity: float, penalty: float) -> dict[int, Tensor]:
    """The targets' distance from the forward pass, layer by layer."""
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        passed = net.run(X, as_drawing(net, None, len(X), None))
        first = targets.output_change(LOSSES[loss](), goal, passed.output, penalty * (1.0 + proximity))
        reaches = dict.fromkeys(net.activations, 1.0)
        targets.sweep(net, passed, first, proximity, reaches, Part(len(X)), found.__setitem__)
    return found


def data(loss: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (20,), generator=generator)
    return X, LOSSES[loss]().encode(labels, 3, torch.float64)


def cosine(x: Tensor, y: Tensor) -> float:
    return float((x * y).sum() / (x.norm() * y.norm()))


@pytest.mark.parametrize("loss", ["squared", "cross_entropy", "logistic"])
def test_for_relu_and_small_changes_the_targets_point_down_the_gradient(loss: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "REACH", 1e-7)
    net, (X, goal) = network(nn.ReLU), data(loss)
    found, wanted = changes(net, loss, X, goal, 3.0, LARGE), gradients(net, loss, X, goal)
    for l in net.numbers:
        assert cosine(found[l], wanted[l]) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, nn.Softplus])
def test_for_other_activations_one_layer_below_the_factor_lies_within_its_bounds(
    activation: type[nn.Module], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(targets, "REACH", 1e-5)
    delta = 3.0
    net, (X, goal) = network(activation, (6, 9, 3)), data("squared")
    found, wanted = changes(net, "squared", X, goal, delta, LARGE), gradients(net, "squared", X, goal)
    pull = found[2] @ net[2].weight
    size = targets.REACH / float(pull.square().mean().sqrt())  # 1 / mu
    factor = found[1] / (wanted[1] / (LARGE * (1.0 + delta)) * size)
    assert float(factor.min()) >= 1.0 / (2.0 + delta) - 1e-3
    assert float(factor.max()) <= 1.0 / (1.0 + delta) + 1e-3


def test_with_the_default_reach_the_sweep_is_close_to_the_gradient_but_not_equal():
    net, (X, goal) = network(nn.ReLU), data("squared")
    found, wanted = changes(net, "squared", X, goal, 3.0, 0.1), gradients(net, "squared", X, goal)
    assert 0.9 < cosine(found[1], wanted[1]) < 1.0 - 1e-9


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_in_the_limit_a_small_step_lowers_the_loss_of_its_batch(loss: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "REACH", 1e-6)
    net, (X, goal) = network(nn.ReLU), data(loss)
    state = Stepper(net, StepSettings(LOSSES[loss](), 1e-3, 0.0, 3.0, LARGE, 64, 0.0))
    batch = Samples(X, goal, None)
    with torch.no_grad():
        before, after = state.update(batch, 0.0), float(LOSSES[loss]().value(goal, net.model(X)).mean())
    assert after < before


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_with_the_output_side_of_the_metric_it_does_so_too(loss: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "REACH", 1e-6)
    net, (X, goal) = network(nn.ReLU), data(loss)
    state = Stepper(net, StepSettings(LOSSES[loss](), 1e-3, 0.0, 3.0, LARGE, 64, 0.0, output_rank=2))
    batch = Samples(X, goal, None)
    with torch.no_grad():
        for _ in range(8):  # from the second one on, the wishes of 16 samples are known
            before, after = state.update(batch, 0.0), float(LOSSES[loss]().value(goal, net.model(X)).mean())
            assert after < before
    assert all(float(memory.shrink.max()) > 0.1 for memory in state.wish_memories.values())


def test_one_layer_and_the_squared_loss_step_straight_to_the_damped_least_squares_solution():
    torch.manual_seed(1)
    X, goal = torch.randn(50, 4, dtype=torch.float64), torch.randn(50, 2, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(4, 2).double())
    trainer = ipdlam.MiniBatchIPDLAM(model, step=1.0, proximity=1e-9, penalty=1e-9, batch_size=50, start="keep")
    trainer.fit(X, goal, epochs=400)
    inputs = torch.cat([X, torch.ones(50, 1, dtype=torch.float64)], 1)
    solution = torch.linalg.lstsq(inputs, goal).solution
    torch.testing.assert_close(model[0].weight.detach(), solution[:4].mT, rtol=1e-3, atol=1e-4)
