"""Levelled moves of convolutions: all directions of a layer's outputs go the same way far, where that costs little."""

from __future__ import annotations

import torch
from torch import Tensor

from ipdlam.network.graph import Graph

LEVELLING = 0.2  # of the products of a step: what levelled moves may cost
LEVEL_STEPS = 5
WIDE = 1.7  # times as wide as tall a matrix has to be for its Gram matrix to be iterated by itself


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
            costs[l] = level_cost(short, long)
    for l, cost in sorted(costs.items(), key=lambda item: item[1]):
        most -= cost
        if most < 0.0:
            break
        found.append(l)
    return sorted(found)


def level_cost(short: int, long: int) -> float:
    """The multiplications and additions of :func:`level`."""
    if long > WIDE * short:
        return 4.0 * short * short * long + (8.0 * LEVEL_STEPS - 6.0) * short**3
    return (4.0 * short * short * long + 2.0 * short**3) * LEVEL_STEPS


def level(move: Tensor) -> Tensor:
    """The matrix with the singular vectors of ``move`` and singular values near 1, by a Newton-Schulz iteration.

    The quintic of Jordan (2024), which lifts small singular values fast and ends between 0.7 and 1.2. A step is
    ``X <- Q(A) X`` with ``A = X X^T``, and ``A <- Q A Q``: where ``X`` is much wider than tall, the small matrices are
    iterated by themselves and multiplied out once.
    """
    tall = move.shape[0] > move.shape[1]
    X = move.mT if tall else move
    X = X / torch.linalg.matrix_norm(X).clamp_min(torch.finfo(X.dtype).tiny)
    short, long = X.shape
    if long > WIDE * short:
        X = torch.mm(_levelling(X @ X.mT), X)
    else:
        for _ in range(LEVEL_STEPS):
            X = torch.mm(_quintic(X @ X.mT), X)
    return X.mT if tall else X


def _levelling(A: Tensor) -> Tensor:
    """The product of all ``Q``, given the first ``A``. All of them are polynomials in it: they commute."""
    Q = total = _quintic(A)
    for _ in range(LEVEL_STEPS - 1):
        A = Q @ A @ Q
        Q = _quintic(A)
        total = Q @ total
    return total


def _quintic(A: Tensor) -> Tensor:
    """``Q`` of a step."""
    Q: Tensor = torch.addmm(A, A, A, beta=-4.7750, alpha=2.0315)
    Q.diagonal().add_(3.4445)
    return Q


def as_matrix(W: Tensor) -> Tensor:
    """A weight as a matrix with a row for each output; scales of a norm stay a vector."""
    return W if W.ndim < 3 else W.reshape(len(W), -1)
