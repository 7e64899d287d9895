"""The targets of a mini-batch are exact minimisers, and with one batch of all data they are those of the engine."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from certify import assert_lowest, local_steps, normal, perturbations, signed_magnitudes, slope, wide_grid
from ipdlam import MiniBatchIPDLAM
from ipdlam.fullbatch.moments import Moments
from ipdlam.fullbatch.updates import aim_z, update_a, update_hidden_z, update_output_z, update_W
from ipdlam.minibatch.batch import Part
from ipdlam.minibatch.sweep import REACH, output_change, sweep
from ipdlam.network.graph import Graph, as_drawing
from ipdlam.network.linalg import Gram, gain
from ipdlam.network.nodes import Activate, Pulling
from ipdlam.prox import ACTIVATIONS, LOSSES
from problems import make_data, make_model

WIDTHS = [4, 6, 5, 3]
M = 30
DELTA, RHO = 2.5, 0.3


def targets_of(loss, y, outputs):
    return y if y.ndim == 2 else LOSSES[loss]().encode(y, outputs, torch.float64)


def forward(model, X):
    """z and a by layer, from the modules themselves."""
    z, a, l = {}, {0: X}, 0
    for module in model:
        if isinstance(module, nn.Linear):
            l += 1
            z[l] = module(a[l - 1]).detach()
            a[l] = z[l]
        else:
            a[l] = module(z[l])
    del a[l]
    return z, a


def weights(model):
    return {l: module.weight.detach().clone() for l, module in enumerate(model[::2], start=1)}


def size(z):
    return float(z.square().mean().sqrt())


def hidden_change(activation, a_star, z, r):
    """What a node asks of its inputs where its outputs are wanted at ``a_star``."""
    return Activate("", (0,), activation).pull(a_star - activation.value(z), [z], None, None, Pulling(r))[0]


def input_change(change, W, distance):
    """The wish for the inputs of a Linear layer, stretched to a root mean square."""
    model = nn.Sequential(nn.Linear(*reversed(W.shape), bias=False, dtype=W.dtype))
    with torch.no_grad():
        model[0].weight.copy_(W)
        (pull,) = Graph(model)[1].pull(change, [None], None, None, Pulling())
    return pull * (distance / size(pull) if size(pull) > 0.0 else 0.0)


def wishes(model, X, first, delta, sizes):
    """What :func:`sweep` gives the layers of a perceptron; ``sizes`` are those of the inputs of its activations."""
    graph, found = Graph(model), {}
    with torch.no_grad():
        passed = graph.run(X, as_drawing(graph, None, len(X), None))
        reaches = dict(zip(graph.activations, sizes, strict=True))
        sweep(graph, passed, first, delta, reaches, Part(len(X)), found.__setitem__)
    return found


# --- each is the minimiser it says it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weight", [0.01, 0.4, 30.0])
def test_no_outputs_are_better_than_those_wanted_of_the_last_layer(loss, weight):
    targets = targets_of(loss, make_data(40, 4, 3, loss)[1], 3)
    z = 3.0 * normal(40, 3, seed=1)
    found = z + output_change(LOSSES[loss](), targets, z.clone(), weight)

    def objective(x):
        return LOSSES[loss]().value(targets.expand_as(x), x) + weight / 2 * (x - z).square().sum(-1)

    grid = torch.cat([wide_grid()[::4], local_steps()])
    along = torch.zeros(3, len(grid), 1, 3, dtype=torch.float64)  # every output by itself
    for j in range(3):
        along[j, :, 0, j] = grid
    for candidates in (found + perturbations((40, 3), seed=2), (found + along).flatten(0, 1), z[None]):
        assert_lowest(objective, found, candidates, 1e-12 * (1.0 + objective(found)), loss)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("r", [1.0, 4.0, 100.0])
def test_no_outputs_are_better_than_those_wanted_of_a_hidden_layer(activation, r):
    sigma = ACTIVATIONS[activation]()
    z = torch.cat([signed_magnitudes(150, seed=3, high=1.0), torch.zeros(5, dtype=torch.float64)])
    a_star = sigma.value(z) + 2.0 * normal(155, seed=4)  # also where sigma has no values
    found = z + hidden_change(sigma, a_star, z.clone(), r)

    def objective(x):
        return (sigma.value(x) - a_star).square() + r * (x - z).square()

    grid = torch.cat([wide_grid()[:, None].expand(-1, 155), found + local_steps()[:, None], z[None]])
    for candidates in (grid, found + perturbations((155,), seed=5)):
        assert_lowest(objective, found, candidates, 1e-12 * (1.0 + objective(found)), activation)


def test_inputs_minimise_the_linear_model_with_the_proximal_weight_that_their_distance_implies():
    W, b, a, change = (normal(*shape, seed=i) for i, shape in enumerate([(3, 5), (3,), (20, 5), (20, 3)]))
    z_star = a @ W.mT + b + change
    step = input_change(change, W, 0.07)
    assert size(step) == pytest.approx(0.07, rel=1e-12)
    gradient = slope(lambda inputs: (z_star - inputs @ W.mT - b).square().sum() / 2, a)
    mu = -float((gradient * step).sum() / step.square().sum())  # the one for which no other length is better
    assert mu > 0.0

    def objective(x):
        return (gradient * x).sum((-2, -1)) + mu / 2 * x.square().sum((-2, -1))

    assert_lowest(objective, step, step + perturbations((20, 5), seed=9), 1e-12 * objective(step).abs(), "inputs")


def test_inputs_that_nothing_pulls_at_stay():
    W = normal(3, 5, seed=0)
    assert not input_change(torch.zeros(7, 3, dtype=torch.float64), W, 0.1).any()
    assert not input_change(normal(7, 3, seed=1), torch.zeros_like(W), 0.1).any()
    assert not input_change(normal(7, 3, seed=1), W, 0.0).any()


# --- with one batch of all data, they are the engine's ----------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_targets_are_the_z_updates_of_the_engine_from_a_forward_pass(activation, loss):
    model = make_model(WIDTHS, activation)
    X, y = make_data(M, 4, 3, loss)
    if activation == "identity":
        pytest.skip("a node of the identity has nothing to solve: it hands the wish on, whatever its length")
    targets, W = targets_of(loss, y, 3), weights(model)
    z, a = forward(model, X)
    sizes = {l: size(z[l]) for l in z}
    first = output_change(LOSSES[loss](), targets, z[3], RHO * (1.0 + DELTA))
    changes = wishes(model, X, first, DELTA, [sizes[1], sizes[2]])
    assert list(changes) == [3, 2, 1]

    def aim(l):
        P = a[l - 1] @ W[l].mT + model[2 * l - 2].bias.detach()
        return aim_z(P, z[l], z[l].clone(), 0.0, DELTA)

    torch.testing.assert_close(z[3] + changes[3], update_output_z(LOSSES[loss](), targets, aim(3), RHO, DELTA))
    for l in (2, 1):
        a_star = a[l] + input_change(changes[l + 1], W[l + 1], REACH * sizes[l])
        new = update_hidden_z(ACTIVATIONS[activation](), a_star, aim(l), DELTA)
        torch.testing.assert_close(z[l] + changes[l], new, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_inputs_move_as_the_a_update_of_the_engine_does_where_its_proximal_weight_is_large(activation):
    model = make_model(WIDTHS, activation)
    z, a = forward(model, make_data(M, 4, 3)[0])
    W, b = model[4].weight.detach(), model[4].bias.detach()
    change = normal(M, 3, seed=7)
    ours = input_change(change, W, 1.0)
    apart = []
    for delta in (1e1, 1e3, 1e6):
        K = gain(W, 1.0 + delta, "layer 3")
        sigma = ACTIVATIONS[activation]()
        theirs = update_a(sigma, z[2], a[2], a[2].clone(), z[3] + change, W, b, K, 0.0, delta) - a[2]
        apart.append(float((theirs / size(theirs) - ours).abs().max()))
    assert apart[0] > 1e-3  # the exact update also weighs the inputs against each other
    assert apart[0] > 30 * apart[1] > 900 * apart[2]
    torch.testing.assert_close(theirs / size(theirs), ours, rtol=1e-4, atol=1e-5)


def one_step(bias, activation="tanh"):
    """The first step of a trainer on a batch of everything, and what of it goes to each layer's direction."""
    model = make_model(WIDTHS, activation)
    for linear in model[::2]:
        if not bias:
            linear.bias = None
    before = weights(model), {l: copy.deepcopy(linear.bias) for l, linear in enumerate(model[::2], start=1)}
    X, y = make_data(M, 4, 3)
    original = copy.deepcopy(model)
    z, a = forward(model, X)
    # The rank is that of all inputs.
    trainer = MiniBatchIPDLAM(model, start="keep", inertia=0.0, proximity=DELTA, penalty=RHO, rank=10)
    trainer.state_dict()  # begins a run
    length = trainer._state.stepper.length(0.0)
    trainer.step(X, y)
    state = trainer._state.stepper
    first = output_change(LOSSES["squared"](), y, z[3], RHO * (1.0 + DELTA))
    changes = wishes(original, X, first, DELTA, [size(z[1]), size(z[2])])
    for l in (1, 2, 3):
        linear, unit = model[2 * l - 2], length * state._unit(l)
        N = (linear.weight.detach() - before[0][l]) / unit
        N_b = None if linear.bias is None else ((linear.bias - before[1][l]) / unit).detach()
        yield l, N, N_b, before[0][l], z[l], changes[l], a[l - 1], float(state.memories[l].damping)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_without_bias_the_weights_move_as_in_the_w_update_of_the_engine(activation):
    for l, N, N_b, W, z, change, a, damping in one_step(bias=False, activation=activation):
        assert N_b is None
        Z = z + change
        moments = Moments(Z.mT @ a, Gram(a.mT @ a, 1e-16, f"layer {l}"), a.sum(0), Z.sum(0), float(M))
        new = update_W(moments, W, W, None, 0.0, M * damping, RHO, None, None)
        torch.testing.assert_close(N, new - W, rtol=1e-7, atol=1e-9)


def test_with_bias_weights_and_biases_move_to_the_least_squares_solution_with_an_undamped_bias():
    for _, N, N_b, _, _, change, a, damping in one_step(bias=True):
        width = a.shape[1]
        rows = torch.cat([torch.cat([a, torch.ones(M, 1, dtype=a.dtype)], 1), torch.zeros(width, width + 1)])
        for j in range(width):
            rows[M + j, j] = (M * damping) ** 0.5  # the proximal term: nothing on the bias, the last column
        goal = torch.cat([change, torch.zeros(width, change.shape[1])])
        solution = torch.linalg.lstsq(rows, goal, driver="gelsd").solution
        torch.testing.assert_close(N, solution[:-1].mT, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(N_b, solution[-1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_hidden_layer_moves_by_the_length_of_the_step(scale):
    """It is measured in the outputs of the layer, so that the scale of inputs and targets does not matter."""
    model = make_model(WIDTHS, "relu")
    X, y = make_data(M, 4, 3)
    z, _ = forward(model, scale * X)
    linear = copy.deepcopy(model[0])
    MiniBatchIPDLAM(model, step=0.3, start="keep", inertia=0.0).step(scale * X, scale * y)
    moved = model[0](scale * X).detach() - linear(scale * X).detach()
    assert size(moved) == pytest.approx(0.3 * size(z[1]) * 0.05 / 3**0.5, rel=1e-9)  # the first of 20; three layers


# --- a network of one layer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_one_layer_is_least_squares(bias):
    X, y = make_data(M, 4, 3)
    X = X + 1.0  # or a bias would not matter
    model = nn.Sequential(nn.Linear(4, 3, bias=bias, dtype=torch.float64))
    trainer = MiniBatchIPDLAM(model, proximity=0.5)
    for _ in range(600):
        trainer.step(X, y)
    design = torch.cat([X, torch.ones(M, 1, dtype=X.dtype)], 1) if bias else X
    solution = torch.linalg.lstsq(design, y).solution
    torch.testing.assert_close(model[0].weight.detach(), solution[:4].mT, rtol=1e-6, atol=1e-8)
    if bias:
        torch.testing.assert_close(model[0].bias.detach(), solution[4], rtol=1e-6, atol=1e-8)


def test_one_layer_with_weight_decay_is_ridge_regression():
    """Decay balances the step: ``decay W M = (Y - X W^T)^T X / (m (1 + rho (1 + delta)))``, ``M = C + damping I``."""
    X, y = make_data(M, 4, 3)
    model = nn.Sequential(nn.Linear(4, 3, bias=False, dtype=torch.float64))
    trainer = MiniBatchIPDLAM(model, weight_decay=0.2, proximity=0.5, penalty=RHO)
    for _ in range(600):
        trainer.step(X, y)
    pull = 0.2 * (1.0 + RHO * 1.5)
    C = X.mT @ X / M
    strength = pull * 0.5 * float(C.diagonal().mean())
    design = torch.cat([(1.0 + pull) ** 0.5 * X, (M * strength) ** 0.5 * torch.eye(4, dtype=X.dtype)])
    goal = torch.cat([(1.0 + pull) ** -0.5 * y, torch.zeros(4, 3, dtype=X.dtype)])
    solution = torch.linalg.lstsq(design, goal).solution
    torch.testing.assert_close(model[0].weight.detach(), solution.mT, rtol=1e-6, atol=1e-8)
