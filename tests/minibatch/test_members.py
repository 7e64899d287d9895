"""Networks side by side in one model: blocks of layers, each with a metric of its own, and the sum of their losses."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from certify import normal
from ipdlam import MiniBatchIPDLAM
from ipdlam.minibatch.input_memory import BlockMemory, InputMemory
from ipdlam.network.blocks import BlockLinear, merge, split
from ipdlam.network.linalg import complete_symmetric
from ipdlam.prox import LOSSES
from ipdlam.prox.members import OfMembers

CPU = torch.device("cpu")


def network(seed=0, hidden=12, outputs=3):
    torch.manual_seed(seed)
    layers = [nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 7), nn.Tanh(), nn.Linear(7, outputs)]
    return nn.Sequential(*layers).double()


@torch.no_grad()
def together(networks):
    """The same networks as one, written down layer by layer."""
    modules = []
    for place in zip(*networks, strict=True):
        if isinstance(place[0], nn.Linear):
            (outputs, inputs), W = place[0].weight.shape, torch.cat([layer.weight for layer in place])
            layer = BlockLinear(len(place), inputs, outputs, W.dtype) if modules else nn.Linear(inputs, len(W))
            layer.weight = nn.Parameter(W)
            layer.bias = nn.Parameter(torch.cat([layer.bias for layer in place]))
            modules.append(layer)
        else:
            modules.append(copy.deepcopy(place[0]))
    return nn.Sequential(*modules)


def data(loss, rows=60):
    X = normal(rows, 5, seed=1)
    labels = (X[:, 0] + X[:, 1] * X[:, 2]).argsort().argsort() * 3 // rows
    return X, (labels if loss == "cross_entropy" else torch.stack([X[:, 0], X[:, 1].sin(), X[:, 2] * X[:, 3]], 1))


def doubled(y, members):
    return y if y.ndim == 1 else y.repeat(1, members)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize(("hidden", "rank", "batch"), [(12, 64, 16), (12, 2, 16), (12, 2, 6), (40, 8, 16)])
@pytest.mark.parametrize("weighted", [False, True])
def test_copies_side_by_side_learn_what_one_learns_alone(loss, hidden, rank, batch, weighted):
    (X, y), members = data(loss), 3
    weight = normal(len(X), seed=7).abs() + 0.1 if weighted else None
    settings = {"rank": rank, "output_rank": 0, "batch_size": batch, "weight_decay": 0.01, "start": "rescale"}
    alone = network(hidden=hidden)
    whole = together([copy.deepcopy(alone) for _ in range(members)])
    one = MiniBatchIPDLAM(alone, loss=loss, **settings).fit(X, y, sample_weight=weight, epochs=6)
    joint = OfMembers(LOSSES[loss](), members)
    all_of_them = MiniBatchIPDLAM(whole, loss=joint, **settings).fit(
        X, doubled(y, members), sample_weight=weight, epochs=6
    )
    np.testing.assert_allclose(whole(X).detach(), alone(X).repeat(1, members).detach(), rtol=1e-6, atol=1e-7)
    assert one[-1].loss < 0.9 * one[0].loss
    np.testing.assert_allclose(all_of_them[-1].loss, members * one[-1].loss, rtol=1e-7)
    if loss == "cross_entropy":
        assert all_of_them[-1].train_accuracy == one[-1].train_accuracy


def test_networks_side_by_side_learn_what_each_learns_alone_but_for_the_lengths_of_steps():
    """They share what lengths are measured by, so members that differ go steps of slightly other lengths."""
    X, y = data("squared")
    settings = {"batch_size": 16, "seed": 3, "start": "rescale"}
    networks = [network(seed) for seed in range(3)]
    whole = together(networks)
    MiniBatchIPDLAM(whole, loss=OfMembers(LOSSES["squared"](), 3), **settings).fit(X, doubled(y, 3), epochs=5)
    joint = whole(X).detach().chunk(3, 1)
    starts = [net(X).detach() for net in networks]
    for net in networks:
        MiniBatchIPDLAM(net, **settings).fit(X, y, epochs=5)
    for own, start, net in zip(joint, starts, networks, strict=True):
        moved, apart = (net(X).detach() - start).norm(), (own - net(X).detach()).norm()
        assert apart < 0.2 * moved
    others = (joint[0] - networks[1](X).detach()).norm()
    assert others > 2.0 * (joint[0] - networks[0](X).detach()).norm()  # each is itself


def test_a_run_of_members_goes_on_where_it_was_stopped(tmp_path):
    (X, y), joint = data("squared"), OfMembers(LOSSES["squared"](), 2)
    y = doubled(y, 2)

    def trainer():
        return MiniBatchIPDLAM(together([network(0), network(1)]), loss=joint, batch_size=16, rank=4)

    straight, stopped = trainer(), trainer()
    for _ in range(3):
        for batch in (slice(0, 30), slice(30, 60)):
            straight.step(X[batch], y[batch])
    for batch in (slice(0, 30), slice(30, 60)):
        stopped.step(X[batch], y[batch])
    stopped = pickle.loads(pickle.dumps(stopped))
    for _ in range(2):
        for batch in (slice(0, 30), slice(30, 60)):
            stopped.step(X[batch], y[batch])
    assert torch.equal(stopped.model(X), straight.model(X))


@pytest.mark.parametrize("rank", [2, 6])  # thin products with U, or one with the inverse
@pytest.mark.parametrize("centred", [True, False])
def test_a_memory_of_blocks_is_one_of_each(rank, centred):
    width, blocks = 6 if rank == 6 else 9, 3
    whole = BlockMemory(blocks, width, rank, 0.7, centred, torch.float64, CPU)
    each = [InputMemory(width, rank, 0.7, centred, torch.float64, CPU) for _ in range(blocks)]
    for seed in range(5):
        x = normal(11, blocks * width, seed=seed) @ normal(blocks * width, blocks * width, seed=9) + 1.0
        whole.remember(split(x, blocks), None, rows=len(x))
        whole.refresh()
        for own, part in zip(each, x.chunk(blocks, 1), strict=True):
            own.remember(part, None)
            own.refresh()
    B = normal(blocks, 4, width, seed=20)
    for k, own in enumerate(each):
        np.testing.assert_allclose(whole.solve(B)[k], own.solve(B[k]), rtol=1e-10, atol=1e-12)
        leverage = whole.leverage(B, whole.image(B))[k]
        np.testing.assert_allclose(leverage, own.leverage(B[k], own.image(B[k])), rtol=1e-10)
    assert whole.samples == each[0].samples == 55
    np.testing.assert_allclose(whole.freedom, np.mean([own.freedom for own in each]), rtol=1e-12)
    assert all(tensor.is_contiguous() for tensor in whole.tensors().values())
    second = [complete_symmetric(own.second.clone()) for own in whole.each]
    whole.put_back([tensor.clone() for tensor in whole.sums()])  # as after a sum over one process
    for own, before in zip(whole.each, second, strict=True):
        np.testing.assert_allclose(complete_symmetric(own.second.clone()), before, rtol=1e-12)
    whole.tensors()["mean"].zero_()  # what a checkpoint is read into is what the blocks have
    assert all(float(own.mean.abs().max()) == 0.0 for own in whole.each)


def test_blocks_are_layers_that_do_not_see_each_other():
    layer = BlockLinear(2, 3, 4, torch.float64)
    layer.weight.data, layer.bias.data = normal(8, 3, seed=1), normal(8, seed=2)
    x = normal(5, 6, seed=3)
    for own, part in zip(layer(x).chunk(2, 1), range(2), strict=True):
        W, b = layer.weight[4 * part : 4 * part + 4], layer.bias[4 * part : 4 * part + 4]
        np.testing.assert_allclose(own.detach(), (x[:, 3 * part : 3 * part + 3] @ W.mT + b).detach(), rtol=1e-12)
    assert torch.equal(merge(split(x, 2)), x)


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_members_is_the_sum_and_its_prox_that_of_each(name):
    loss, labels = LOSSES[name](), torch.tensor([0, 2, 1, 1])
    joint, x = OfMembers(loss, 2), normal(4, 6, seed=4)
    targets = joint.encode(labels, 6, torch.float64)
    one = loss.encode(labels, 3, torch.float64)
    joint.check_targets(targets)
    assert torch.equal(targets, torch.cat([one, one], 1))
    parts = x.chunk(2, 1)
    np.testing.assert_allclose(joint.value(targets, x), sum(loss.value(one, part) for part in parts), rtol=1e-12)
    found = joint.prox(targets, x, 0.7)
    np.testing.assert_allclose(found, torch.cat([loss.prox(one, part, 0.7) for part in parts], 1), rtol=1e-9)
    least = joint.prox_objective(targets, found, x, 0.7)
    for seed in range(20):
        near = found + 0.01 * normal(4, 6, seed=seed)
        assert bool((joint.prox_objective(targets, near, x, 0.7) >= least - 1e-9).all())
    assert torch.equal(joint.predict(x), loss.predict((parts[0] + parts[1]) / 2))
    assert joint.classes(6) == loss.classes(3)
    assert joint.is_own_envelope == (name == "squared")
