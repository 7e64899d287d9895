"""Networks and their initial weights, drawn from a generator of their own: the global random state is never touched."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from ipdlam.checks import check_integer
from ipdlam.network.mlp import Network
from ipdlam.prox import ACTIVATIONS

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


def mlp(
    widths: tuple[int, ...], activation: str, initialisation: str, seed: int, dtype: torch.dtype, device: str
) -> nn.Sequential:
    """A perceptron of these widths; ``"torch"`` are the weights that PyTorch draws after ``torch.manual_seed(seed)``.

    They come from a generator of their own: the global one is shared with other threads.
    """
    modules: list[nn.Module] = []
    generator = torch.Generator().manual_seed(seed)
    for inputs, outputs in itertools.pairwise(widths):
        linear = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
        nn.init.kaiming_uniform_(linear.weight, a=math.sqrt(5.0), generator=generator)
        bound = 1.0 / math.sqrt(inputs)
        nn.init.uniform_(linear.bias, -bound, bound, generator=generator)
        modules += [linear, ACTIVATIONS[activation].module()]
    model = nn.Sequential(*modules[:-1]).to(device, dtype)
    return initialise(model, initialisation, seed=seed) if initialisation in INITIALISATIONS else model
