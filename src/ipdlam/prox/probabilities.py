"""The probabilities of classes that the outputs of a network stand for, where its loss estimates any."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PROBABILITIES = ("cross_entropy", "logistic", "squared")  # losses whose best outputs are functions of probabilities


def logits(loss: str, outputs: Tensor) -> Tensor:
    """What the softmax makes probabilities of, for a loss by its name."""
    if loss == "cross_entropy":
        return outputs
    if outputs.shape[1] == 1:
        return torch.cat([torch.zeros_like(outputs), outputs], 1)
    return nn.functional.logsigmoid(outputs)


def nearest_probabilities(outputs: Tensor) -> Tensor:
    """``argmin_p ||p - outputs||`` over ``p >= 0`` that add up to 1: a shift, and a cut at zero; the order stays."""
    outputs = outputs - outputs.amax(1, keepdim=True)  # the same answer, and the digits of large ones are not lost
    falling = outputs.sort(1, descending=True).values
    ranks = torch.arange(1, outputs.shape[1] + 1, dtype=outputs.dtype)
    shifts = (falling.cumsum(1) - 1.0) / ranks  # if so many were positive
    positive = (falling > shifts).sum(1, keepdim=True)
    return (outputs - shifts.gather(1, positive - 1)).clamp_min_(0.0)


def probabilities(loss: str, outputs: Tensor) -> Tensor:
    """One for every class: the softmax of the outputs; for the squared loss, the nearest to the outputs."""
    return nearest_probabilities(outputs) if loss == "squared" else logits(loss, outputs).softmax(1)
