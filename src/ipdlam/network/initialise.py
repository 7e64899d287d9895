"""Initial weights, drawn from a generator of their own: the global random state is never touched."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ipdlam.checks import check_integer
from ipdlam.network.mlp import Network

INITIALISATIONS = ("paper", "he")


def initialise(model: nn.Sequential, scheme: str = "paper", seed: int = 0) -> nn.Sequential:
    """Set the model's weights and biases in place, and return it.

    ``"paper"``: weights N(0, 0.01^2), biases 0.1 (section 3). ``"he"``: weights N(0, 2 / inputs), biases 0.
    """
    if scheme not in INITIALISATIONS:
        raise ValueError(f"scheme must be one of {', '.join(INITIALISATIONS)}, got {scheme!r}")
    check_integer("seed", seed, low=0)
    network = Network(model)
    generator = torch.Generator().manual_seed(int(seed))
    W: dict[int, Tensor] = {}
    b: dict[int, Tensor | None] = {}
    for l in network.numbers:
        layer = network[l]
        deviation, bias = (0.01, 0.1) if scheme == "paper" else (math.sqrt(2.0 / layer.inputs), 0.0)
        W[l] = deviation * torch.randn(layer.outputs, layer.inputs, generator=generator, dtype=torch.float64)
        b[l] = None if layer.linear.bias is None else torch.full((layer.outputs,), bias, dtype=torch.float64)
    network.write(W, b)
    return model
