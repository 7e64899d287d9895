"""When a training of an estimator has converged: ``tol`` and ``n_iter_no_change`` as scikit-learn means them."""

from __future__ import annotations

import math

from torch import Tensor, nn

from ipdlam.errors import StopTraining
from ipdlam.training.history import Record


class Plateau:
    """A callback that collects the mean losses, and ends a training that does not lower them any more.

    An epoch that does not beat the best loss by ``tol`` is one without change; ``patience`` of them in a row are the
    end. What is watched is the loss of the samples held out, ``held_out``, or of those trained on: losses are sums over
    ``samples`` as they were met; without that number those of the forward pass are taken, since the loss of a record of
    the full-batch method is that of z_L, which the network does not give. The loss of ``members`` side by side is their
    sum, and what is watched is their mean. The loss, and not the accuracy: of a dozen samples held out, the first epoch
    may well know as many as the last.
    """

    def __init__(
        self,
        tol: float,
        patience: int,
        samples: float | None,
        talks_as: str | None,
        held_out: bool = False,
        members: int = 1,
    ) -> None:
        self.tol, self.patience, self.samples, self.talks_as, self.held_out = tol, patience, samples, talks_as, held_out
        self.members = members
        self.losses: list[float] = []  # of the samples trained on
        self.best, self.best_epoch, self.unchanged = float("inf"), 0, 0
        self.keeps: nn.Module | None = None  # the network whose weights of the best loss are wanted
        self.best_weights: dict[str, Tensor] = {}

    def __call__(self, record: Record) -> None:
        loss = self.mean_loss(record)
        self.losses.append(loss)
        watched: float | None = loss
        if self.held_out:
            watched = None if record.validation_loss is None else record.validation_loss / self.members
        if watched is None or not math.isfinite(watched):
            watched = float("inf")
        self.unchanged = 0 if watched <= self.best - self.tol else self.unchanged + 1
        if watched < self.best:
            self.best, self.best_epoch = watched, len(self.losses)
            if self.keeps is not None:
                self.best_weights = {name: weight.clone() for name, weight in self.keeps.state_dict().items()}
        if self.talks_as is not None:
            scored = record.validation_loss is not None and record.score is not None
            score = f", validation score {record.score:.6g}" if scored else ""
            print(f"{self.talks_as}: iteration {record.iteration}, loss {loss:.6g}{score}", flush=True)
        if self.unchanged >= self.patience:
            raise StopTraining("tol")

    def mean_loss(self, record: Record) -> float:
        """The loss of a sample."""
        if self.samples is not None:
            return record.loss / (self.samples * self.members)
        assert record.train_loss is not None  # the full-batch method evaluates every iteration
        return record.train_loss
