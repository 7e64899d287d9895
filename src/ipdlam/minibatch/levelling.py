"""Levelled moves of convolutions: all directions of a layer's outputs go the same way far, where that costs little."""

from __future__ import annotations

import torch
from torch import Tensor

from ipdlam.network.graph import Graph

LEVELLING = 0.2  # of the products of a step: what levelled moves may cost
LEVEL_STEPS = 5


def affordable(graph: Graph, positions: dict[int, int], batch: int) -> list[int]:
    """The hidden layers whose moves are levelled: as many as cost little beside the products of a step.

    ``positions`` are the rows that a sample has at each layer, ``batch`` the samples of all processes. Convolutions,
    with many rows for each sample, are cheap to level. Wide Linear layers are not.
    """
    if graph.chain is not None:  # perceptrons gain nothing from it
        return []
    products = {l: 6.0 * batch * positions[l] * graph.weight(l).numel() for l in graph.numbers}
    most = LEVELLING * sum(products.values())
    found: list[int] = []
    costs = {}
    for l, layer in enumerate(graph.layers, start=1):
        if not layer.diagonal and layer.blocks == 1 and l != graph.last and layer.steps("weight"):
            short, long = sorted(as_matrix(layer.weight).shape)
            costs[l] = (4.0 * short * short * long + 2.0 * short**3) * LEVEL_STEPS
    for l, cost in sorted(costs.items(), key=lambda item: item[1]):
        most -= cost
        if most < 0.0:
            break
        found.append(l)
    return sorted(found)


def level(move: Tensor) -> Tensor:
    """The matrix with the singular vectors of ``move`` and singular values near 1, by a Newton-Schulz iteration.

    The quintic of Jordan (2024), which lifts small singular values fast and ends between 0.7 and 1.2.
    """
    tall = move.shape[0] > move.shape[1]
    X = move.mT if tall else move
    X = X / torch.linalg.matrix_norm(X).clamp_min(torch.finfo(X.dtype).tiny)
    for _ in range(LEVEL_STEPS):
        A = X @ X.mT
        X = torch.addmm(X, torch.addmm(A, A, A, beta=-4.7750, alpha=2.0315), X, beta=3.4445)
    return X.mT if tall else X


def as_matrix(W: Tensor) -> Tensor:
    """A weight as a matrix with a row for each output; scales of a norm stay a vector."""
    return W if W.ndim < 3 else W.reshape(len(W), -1)
