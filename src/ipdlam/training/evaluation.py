"""Loss and accuracy of the true forward pass, which is what a user gets; a small Phi proves nothing about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ipdlam.distributed.group import SERIAL, Group
from ipdlam.network.model import evaluating
from ipdlam.network.objective import weighted_sum
from ipdlam.network.samples import Samples
from ipdlam.prox import Loss


@dataclass(frozen=True)
class Evaluation:
    """Sums over samples, and their weighted means; ``accuracy`` is None for real targets."""

    total_loss: float
    correct: float | None
    count: float = 1.0  # how much the samples count together

    @property
    def loss(self) -> float:
        return self.total_loss / self.count

    @property
    def accuracy(self) -> float | None:
        return None if self.correct is None else self.correct / self.count

    def of_all(self, group: Group) -> Evaluation:
        """That of the samples of all processes."""
        total_loss, correct, count = group.total(self.total_loss, self.correct or 0.0, self.count)
        return Evaluation(total_loss, None if self.correct is None else correct, count)


def evaluate(model: nn.Module, loss: Loss, samples: Samples, chunk_size: int) -> Evaluation:
    """Run the model on the samples, chunk by chunk."""
    total_loss = correct = total_weight = 0.0
    with torch.no_grad(), evaluating(model):
        for rows in samples.rows(chunk_size):
            weight = None if samples.weight is None else samples.weight[rows]
            outputs = model(samples.inputs(rows))
            total_weight += rows.stop - rows.start if weight is None else float(weight.double().sum())
            total_loss += weighted_sum(
                loss.value(samples.targets(loss, rows, outputs.shape[1], outputs.dtype), outputs), weight
            )
            labels = samples.labels(loss, rows)
            if labels is not None:
                correct += weighted_sum(loss.predict(outputs) == labels, weight)
    return Evaluation(total_loss, correct if samples.labelled or samples.encoded else None, total_weight)


def scores(
    model: nn.Module,
    loss: Loss,
    samples: Samples,
    validation: Samples | None,
    chunk_size: int,
    group: Group = SERIAL,
) -> dict[str, Any]:
    """The fields of a record that the true forward pass fills; means over the samples of all processes."""
    train = evaluate(model, loss, samples, chunk_size).of_all(group)
    found = {"train_loss": train.loss, "train_accuracy": train.accuracy}
    if validation is not None:
        held_out = evaluate(model, loss, validation, chunk_size).of_all(group)
        found |= {"validation_loss": held_out.loss, "validation_accuracy": held_out.accuracy}
    return found


@torch.no_grad()
def regression_scores(model: nn.Module, samples: Samples, unit: Tensor | None = None) -> dict[str, float | None]:
    """R², and the root mean square and the mean size of the errors, in the units of the targets.

    ``unit`` is what scaled targets were divided by. Several outputs are averaged. R² of targets that are all the same
    is None.
    """
    rows = samples.rows(8192)
    with evaluating(model):
        outputs = torch.cat([model(samples.inputs(part)).double().cpu() for part in rows])
    goals = torch.cat([samples.goals(part).double().cpu() for part in rows])
    errors = (outputs - goals) * (1.0 if unit is None else unit.double().cpu())
    spread = (goals - goals.mean(0)).square().mean(0)
    explained = 1.0 - (outputs - goals).square().mean(0) / spread
    return {
        "r2": float(explained.mean()) if bool((spread > 0.0).all()) else None,
        "rmse": float(errors.square().mean(0).sqrt().mean()),
        "mae": float(errors.abs().mean()),
    }
