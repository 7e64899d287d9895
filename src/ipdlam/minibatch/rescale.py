"""The first batch: layers are rescaled until every one of them carries a signal, unless the model knows something."""

from __future__ import annotations

import torch

from ipdlam.minibatch.batch import part_of
from ipdlam.minibatch.sweep import forward
from ipdlam.network.mlp import Network
from ipdlam.network.samples import Samples
from ipdlam.prox import Loss

CONSTANT = 1e-5  # a deviation below this part of the size is rounding
UNTRAINED = 0.8  # a model that has learned something has less than this part of the loss of mixed-up outputs
START_WEIGHT = 0.1  # of the proximal term of the outputs that the start is scaled for
START_SPREAD = 1.0 / 3.0  # the outputs' deviation at the start, in units of their targets'


def rescale(network: Network, loss: Loss, batch: Samples) -> None:
    """Scale and shift every layer so that its outputs on the batch have mean 0 and deviation 1 over the samples.

    The last layer's get the mean, and a third of the deviation, of the targets of outputs of zero. Every
    initialisation then starts from the same signal, however deep the network. Without bias there is no shift.
    """
    layers, a, part = len(network), batch.X, part_of(batch)
    targets = batch.targets(loss, slice(None), network.outputs)
    for l in network.numbers:
        W, b = network.weight(l), network.bias(l)
        z = a @ W.mT  # beside a bias, small inputs would be rounded off
        mean = part.mean_row(z) if b is not None else z.new_zeros(z.shape[1])
        deviation, size = part.complete(part.size_of(z - mean), part.size_of(z))
        varies = deviation > CONSTANT * size
        scale, shift = torch.full_like(mean, 1.0 / deviation if varies else 1.0), torch.zeros_like(mean)
        if l == layers:  # outputs may have units of their own
            goal = loss._prox(targets, torch.zeros_like(z), START_WEIGHT)
            centre = part.mean_row(goal)
            scale *= START_SPREAD * part.mean_row((goal - centre).square()).sqrt()
            shift = centre if b is not None else shift
        W.mul_(scale.unsqueeze(1))
        if b is not None:
            torch.addcmul(shift, scale, mean, value=-1.0, out=b)
        if l < layers:
            a = network.activation(l).value((z - mean) * scale)


def knows_something(network: Network, loss: Loss, batch: Samples) -> bool:
    """Whether the model has been trained: its loss is much lower than with the outputs of other samples.

    Where those are as good, in a batch of one class, it must be much lower than that of outputs of zero.
    """
    outputs, part = forward(network, batch.X).z[len(network)], part_of(batch)
    targets = batch.targets(loss, slice(None), network.outputs)
    others = part.of_others(outputs)  # neighbours may be alike
    own, mixed, nothing = part.complete(
        *(part.mean_of(loss.value(targets, x).unsqueeze(1)) for x in (outputs, others, torch.zeros_like(outputs)))
    )
    return own < UNTRAINED * mixed or own < 0.5 * UNTRAINED * nothing
