"""A forward pass, and back down a sweep of proximal steps that says where every layer's outputs are wanted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ipdlam.minibatch.batch import Part
from ipdlam.network.mlp import Network
from ipdlam.prox import Activation, Loss

REACH = 0.02  # how far the targets of hidden layers lie, in units of their outputs' size


@dataclass(frozen=True)
class Forward:
    """A forward pass: ``z_l`` by layer, and ``a_l``, of which ``a_0`` is the input."""

    z: dict[int, Tensor]
    a: dict[int, Tensor]


def forward(network: Network, X: Tensor) -> Forward:
    """The model on a batch, every layer kept."""
    z, a = {}, {0: X}
    for l in network.numbers:
        z[l] = torch.nn.functional.linear(a[l - 1], network.weight(l), network.bias(l))
        if l < len(network):
            a[l] = network.activation(l).value(z[l])
    return Forward(z, a)


def output_change(loss: Loss, targets: Tensor, z: Tensor, weight: float) -> Tensor:
    """``z* - z`` for the last layer, ``z* = argmin_x L(targets, x) + (weight / 2) ||x - z||^2``."""
    return loss._prox(targets, z, weight).sub_(z)


def input_change(
    change: Tensor, W: Tensor, distance: float, part: Part | None = None, pulled: tuple[Tensor, float] | None = None
) -> Tensor:
    """``a* - a`` for the inputs of a layer whose outputs are to change by ``change``.

    A proximal-linear step: the minimiser of the linear model of ``||z* - a W^T - b||^2 / 2`` around the inputs plus
    ``(mu / 2) ||a* - a||^2``, that is ``change W / mu``, with the one ``mu`` that makes its root mean square
    ``distance``, over the batch of which the samples are a ``part``. Zero where ``change W`` is. ``pulled`` is
    ``change W``, to be overwritten, and its size, where they are known.
    """
    if pulled is None:
        pull = change @ W
        pulled = pull, (part or Part(len(pull))).size(pull)
    pull, size = pulled
    return pull.mul_(distance / size if size > 0.0 else 0.0)


def hidden_change(activation: Activation, a_star: Tensor, z: Tensor, r: float) -> Tensor:
    """``z* - z`` for a hidden layer, ``z* = argmin_x (sigma(x) - a*)^2 + r (x - z)^2``."""
    return activation._prox(a_star, z, r).sub_(z)


def sweep(
    network: Network,
    W: dict[int, Tensor],
    z: dict[int, Tensor],
    a: dict[int, Tensor],
    first: Tensor,
    proximity: float,
    sizes: dict[int, float],
    part: Part | None = None,
    pulled: tuple[Tensor, float] | None = None,
) -> dict[int, Tensor]:
    """``z_l* - z_l`` of every layer, given that of the last one, ``first``.

    ``z`` and ``a`` are those of a fresh forward pass, so that ``a_l = sigma_l(z_l)`` and ``z_l = a_(l-1) W_l^T + b_l``:
    the z update of the paper, with the proximal weight ``r = 1 + delta``, has then nothing else to weigh against.
    ``part`` and ``pulled`` are those of :func:`input_change`, the latter for the last layer. Every layer's targets
    depend on the size of the pull from above, so several processes meet once for each layer below.
    """
    changes = {len(network): first}
    for l in range(len(network), 1, -1):
        a_star = input_change(changes[l], W[l], REACH * sizes[l - 1], part, pulled).add_(a[l - 1])
        changes[l - 1] = hidden_change(network.activation(l - 1), a_star, z[l - 1], 1.0 + proximity)
        pulled = None
    return changes
