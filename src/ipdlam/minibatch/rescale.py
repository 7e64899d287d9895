"""The first batch: layers are rescaled until every one of them carries a signal, unless the model knows something."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ipdlam.minibatch.batch import Part, part_of
from ipdlam.network.graph import Graph, as_drawing
from ipdlam.network.layers import LayerNode, LinearNode
from ipdlam.network.nodes import Node
from ipdlam.network.samples import Samples
from ipdlam.prox import Loss

CONSTANT = 1e-5  # a deviation below this part of the size is rounding
UNTRAINED = 0.8  # a model that has learned something has less than this part of the loss of mixed-up outputs
START_WEIGHT = 0.1  # of the proximal term of the outputs that the start is scaled for
START_SPREAD = 1.0 / 3.0  # the outputs' deviation at the start, in units of their targets'


def rescale(graph: Graph, loss: Loss, batch: Samples, generator: torch.Generator | None = None) -> None:
    """Scale and shift every layer so that its outputs on the batch have mean 0 and deviation 1 over the samples.

    The last layer's get the mean, and a third of the deviation, of the targets of outputs of zero. Every
    initialisation then starts from the same signal, however deep the network. Without bias there is no shift. Norms
    and embeddings, and what is frozen, stay as they are.
    """
    part = part_of(batch)
    targets = batch.targets(loss, slice(None), graph.outputs, graph.dtype)
    last = None if graph.last is None else graph[graph.last]

    def before(node: Node, inputs: list[Any]) -> None:
        if not isinstance(node, LayerNode) or node.diagonal or not node.steps("weight"):
            return
        W, b = node.weight, node.bias if node.steps("bias") else None
        shape = (-1, *(1,) * (W.ndim - 2)) if W.ndim > 2 else (-1,)  # a channel's numbers, or a unit's
        z = node.effect(inputs[0], None, W, None)  # beside a bias, small inputs would be rounded off
        mean = mean_of_units(z, part, node) if b is not None else z.new_zeros(len(W))
        deviation, size = part.complete(part.size_of(z - mean.view(shape)), part.size_of(z))
        varies = deviation > CONSTANT * size
        scale, shift = torch.full_like(mean, 1.0 / deviation if varies else 1.0), torch.zeros_like(mean)
        if node is last:  # outputs may have units of their own
            goal = loss._prox(targets, torch.zeros_like(targets), START_WEIGHT)
            centre = part.mean_row(goal)
            scale *= START_SPREAD * part.mean_row((goal - centre).square()).sqrt()
            shift = centre if b is not None else shift
        W.mul_(scale.view(-1, *(1,) * (W.ndim - 1)))
        if b is not None:
            torch.addcmul(shift, scale, mean, value=-1.0, out=b)

    graph.run(batch.X, as_drawing(graph, generator, part.rows, part.positions), before)


def mean_of_units(z: Tensor, part: Part, layer: LayerNode) -> Tensor:
    """The mean of every unit, or channel, over samples and positions."""
    if z.ndim > 2:
        z = z.flatten(1, -2).mean(1) if isinstance(layer, LinearNode) else z.flatten(2).mean(2)
    return part.mean_row(z)


def knows_something(graph: Graph, loss: Loss, batch: Samples) -> bool:
    """Whether the model has been trained: its loss is much lower than with the outputs of other samples.

    Where those are as good, in a batch of one class, it must be much lower than that of outputs of zero.
    """
    outputs, part = graph.run(batch.X).output, part_of(batch)
    targets = batch.targets(loss, slice(None), graph.outputs, graph.dtype)
    others = part.of_others(outputs)  # neighbours may be alike
    own, mixed, nothing = part.complete(
        *(part.mean_of(loss.value(targets, x).unsqueeze(1)) for x in (outputs, others, torch.zeros_like(outputs)))
    )
    return own < UNTRAINED * mixed or own < 0.5 * UNTRAINED * nothing
