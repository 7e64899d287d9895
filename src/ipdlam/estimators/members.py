"""Several networks as one: side by side while they are trained, and as a plain network of their mean afterwards."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ipdlam.estimators.scaling import Array
from ipdlam.network.blocks import BlockLinear


def linear_layers(module: nn.Sequential) -> list[nn.Linear]:
    """The layers with weights, from the inputs to the outputs."""
    return [layer for layer in module if isinstance(layer, nn.Linear)]


@torch.no_grad()
def joined(networks: Sequence[nn.Sequential], dtype: torch.dtype | None = None) -> nn.Sequential:
    """A network whose outputs are those of ``networks``, all of one shape, one after the other: to be trained.

    Its inputs are those of the networks, one after the other, too: each has its own. A single network is itself, unless
    another ``dtype`` is wanted than it has.

    >>> nets = [nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)) for _ in range(2)]
    >>> x = torch.ones(1, 2)
    >>> torch.allclose(joined(nets)(torch.cat([x, 2 * x], 1)), torch.cat([nets[0](x), nets[1](2 * x)], 1))
    True
    """
    dtype = linear_layers(networks[0])[0].weight.dtype if dtype is None else dtype
    if len(networks) == 1:
        same = linear_layers(networks[0])[0].weight.dtype == dtype
        return networks[0] if same else copy.deepcopy(networks[0]).to(dtype)
    modules: list[nn.Module] = []
    for place in zip(*networks, strict=True):
        layers = [layer for layer in place if isinstance(layer, nn.Linear)]
        if not layers:
            modules.append(copy.deepcopy(place[0]))
            continue
        outputs, inputs = layers[0].weight.shape
        whole = BlockLinear(len(layers), inputs, outputs, dtype)
        whole.weight.copy_(torch.cat([layer.weight for layer in layers]))
        whole.bias.copy_(torch.cat([layer.bias for layer in layers]))
        modules.append(whole)
    return nn.Sequential(*modules)


def beside(array: Array, orders: Sequence[Any]) -> Array:
    """What the members are given, or are to give, side by side: the rows of ``array`` in an order for each of them."""
    return array if len(orders) == 1 else np.concatenate([array[order] for order in orders], 1)


def in_order(members: int) -> list[slice]:
    """The same rows for every member."""
    return [slice(None)] * members


def in_orders(members: int, rows: int, seed: int) -> list[Array]:
    """The rows in an order of its own for every member, the first one's being that of the rows.

    Members that met the same batches would err alike: what the last batches of a training were is much of what its
    network has not learned.
    """
    random = np.random.default_rng(seed)
    return [np.arange(rows), *(random.permutation(rows) for _ in range(members - 1))]


def member_count(whole: nn.Sequential, outputs: int) -> int:
    """How many networks of so many outputs :func:`joined` has made one of."""
    last: Any = whole[-1]
    return len(last.weight) // outputs


@torch.no_grad()
def separate(whole: nn.Sequential, networks: Sequence[nn.Sequential]) -> None:
    """Give ``networks`` the weights that they have in what :func:`joined` made of them."""
    if whole is networks[0]:
        return
    for layer, *own in zip(whole, *networks, strict=True):
        if not isinstance(layer, (nn.Linear, BlockLinear)):  # of one network, or of several
            continue
        for part, W, b in zip(own, layer.weight.chunk(len(own)), layer.bias.chunk(len(own)), strict=True):
            part.weight.copy_(W)
            part.bias.copy_(b)


@torch.no_grad()
def averaged(networks: Sequence[nn.Sequential]) -> nn.Sequential:
    """A plain network whose outputs are the means of those of ``networks``, all of one shape.

    Hidden layers stand side by side and do not see each other, so that their matrices have blocks on the diagonal.

    >>> nets = [nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)) for _ in range(2)]
    >>> x = torch.ones(1, 2)
    >>> torch.allclose(averaged(nets)(x), (nets[0](x) + nets[1](x)) / 2)
    True
    """
    if len(networks) == 1:
        return copy.deepcopy(networks[0]).requires_grad_(False)
    modules: list[nn.Module] = []
    last = len(linear_layers(networks[0]))
    depth = 0
    for place in zip(*networks, strict=True):
        layers = [layer for layer in place if isinstance(layer, nn.Linear)]
        if not layers:
            modules.append(copy.deepcopy(place[0]))
            continue
        depth += 1
        W, b = side_by_side(layers, depth == 1, depth == last)
        linear = nn.Linear(W.shape[1], W.shape[0], device="meta").to_empty(device="cpu").to(W.dtype)
        linear.weight.copy_(W)
        linear.bias.copy_(b)
        modules.append(linear)
    return nn.Sequential(*modules).requires_grad_(False)


def side_by_side(layers: list[nn.Linear], first: bool, last: bool) -> tuple[Tensor, Tensor]:
    """One layer of all members: they share the inputs of the first layer, and the last one takes their mean."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers]
    bias = torch.stack(biases).mean(0) if last else torch.cat(biases)
    if first:
        return (torch.stack(weights).mean(0) if last else torch.cat(weights)), bias
    if last:
        return torch.cat(weights, 1) / len(weights), bias
    blocks: Tensor = torch.block_diag(*weights)  # type: ignore[no-untyped-call]
    return blocks, bias
