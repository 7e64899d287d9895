"""Loss and accuracy of the true forward pass, which is what a user gets; a small Phi proves nothing about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ipdlam.inputs import Samples
from ipdlam.objective import weighted_sum
from ipdlam.prox import Loss


@dataclass(frozen=True)
class Evaluation:
    """Weighted means over samples; ``accuracy`` is None for real targets."""

    loss: float
    accuracy: float | None


def evaluate(model: nn.Sequential, loss: Loss, samples: Samples, chunk_size: int) -> Evaluation:
    """Run the model on the samples, chunk by chunk."""
    total_loss = correct = total_weight = 0.0
    with torch.no_grad():
        for rows in samples.rows(chunk_size):
            weight = None if samples.weight is None else samples.weight[rows]
            outputs = model(samples.X[rows])
            total_weight += rows.stop - rows.start if weight is None else float(weight.double().sum())
            total_loss += weighted_sum(loss.value(samples.targets(loss, rows, outputs.shape[1]), outputs), weight)
            if samples.labelled:
                correct += weighted_sum(loss.predict(outputs) == samples.y[rows], weight)
    return Evaluation(total_loss / total_weight, correct / total_weight if samples.labelled else None)


def scores(
    model: nn.Sequential, loss: Loss, samples: Samples, validation: Samples | None, chunk_size: int
) -> dict[str, Any]:
    """The fields of a record that the true forward pass fills."""
    train = evaluate(model, loss, samples, chunk_size)
    found = {"train_loss": train.loss, "train_accuracy": train.accuracy}
    if validation is not None:
        held_out = evaluate(model, loss, validation, chunk_size)
        found |= {"validation_loss": held_out.loss, "validation_accuracy": held_out.accuracy}
    return found
