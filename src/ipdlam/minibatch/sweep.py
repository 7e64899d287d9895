"""Back down the graph: from where the outputs are wanted to where those of every layer are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ipdlam.minibatch.batch import Part
from ipdlam.network.graph import Graph, Pass
from ipdlam.network.nodes import Pulling, Wish
from ipdlam.prox import Loss

REACH = 0.02  # how far the targets of activations lie, in units of their inputs' size

Received = Callable[[int, Tensor], None]


def output_change(loss: Loss, targets: Tensor, z: Tensor, weight: float) -> Tensor:
    """``z* - z`` for the outputs, ``z* = argmin_x L(targets, x) + (weight / 2) ||x - z||^2``."""
    return loss._prox(targets, z, weight).sub_(z)


def sweep(
    graph: Graph,
    passed: Pass,
    first: Tensor,
    proximity: float,
    reaches: Mapping[int, float],
    part: Part,
    receive: Received,
) -> None:
    """Give every layer ``l`` its wish, ``z_l* - z_l``: ``receive(l, wish)``. That for the outputs is ``first``.

    Nodes pull (:mod:`ipdlam.network.nodes`). Through a linear map the size of a wish does not matter. Before an
    activation it is stretched until its root mean square is ``REACH`` times the size that the inputs had at the start
    (``reaches``, by node): the step of a proximal-linear method with a weight of its own for each activation. Every
    such size is one of the whole batch, so that several processes meet once for each activation.

    Where paths meet (below a residual connection), wishes add up as they would without the stretching. To this end
    each has a ``scale``: divided by it, it is what it would be if all stretches were 1, and an active ReLU passed all
    of it.
    """
    wishes: dict[int, tuple[Wish, float]] = {len(graph.nodes) - 1: (first, 1.0)}
    for number in range(len(graph.nodes) - 1, 0, -1):
        node = graph.nodes[number]
        if number not in wishes:
            continue
        wish, scale = wishes.pop(number)
        if number in graph.layer_at and graph[graph.layer_at[number]].trains and isinstance(wish, Tensor):
            receive(graph.layer_at[number], wish)
        if not any(node.wanted):
            continue
        pulling = Pulling()
        if not node.linear:
            assert isinstance(wish, Tensor)
            size, r = part.size(wish), 1.0 + proximity
            pulling = Pulling(r, REACH * reaches[number] / size if size > 0.0 else 0.0)
            scale *= (pulling.stretch or 1.0) / (1.0 + r)
        pulled = node.pull(wish, passed.inputs(node), passed.values[number], passed.kept[number], pulling)
        for source, wanted, new in zip(node.sources, node.wanted, pulled, strict=True):
            if wanted and new is not None:
                wishes[source] = added(wishes[source], (new, scale)) if source in wishes else (new, scale)


def added(one: tuple[Wish, float], other: tuple[Wish, float]) -> tuple[Wish, float]:
    """Two wishes for the same value, the other one brought to the scale of the first."""
    (a, scale), (b, other_scale) = one, other
    if isinstance(a, dict) or isinstance(b, dict):
        assert isinstance(a, dict)
        assert isinstance(b, dict)
        both = dict(a)
        for place, tensor in b.items():
            new = tensor * (scale / other_scale)
            both[place] = both[place] + new if place in both else new
        return both, scale
    return torch.add(a, b, alpha=scale / other_scale), scale
