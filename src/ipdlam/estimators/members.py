"""Several networks as one: the mean of the outputs of perceptrons is the output of a wider perceptron."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def linear_layers(module: nn.Sequential) -> list[nn.Linear]:
    """The layers with weights, from the inputs to the outputs."""
    return [layer for layer in module if isinstance(layer, nn.Linear)]


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
