"""When a training of an estimator has converged: ``tol`` and ``n_iter_no_change`` as scikit-learn means them."""

from __future__ import annotations

from torch import Tensor, nn

from ipdlam.errors import StopTraining
from ipdlam.training.history import Record


class Plateau:
    """A callback that collects the mean losses, and ends a training that does not lower them any more.

    An epoch that does not beat the best loss by ``tol`` is one without change; ``patience`` of them in a row are the
    end, unless it is None. Losses are sums over ``samples`` as they were met; without that number those of the forward
    pass are taken, since the loss of a record of the full-batch method is that of z_L, which the network does not give.
    """

    def __init__(
        self, tol: float, patience: int | None, samples: float | None, talks_as: str | None, stop_after: int | None
    ) -> None:
        self.tol, self.patience, self.samples, self.talks_as = tol, patience, samples, talks_as
        self.stop_after = stop_after  # so many epochs, whatever the losses are
        self.losses: list[float] = []
        self.best, self.unchanged = float("inf"), 0
        self.keeps: nn.Module | None = None  # the network whose weights of the best loss are wanted
        self.best_weights: dict[str, Tensor] = {}

    def __call__(self, record: Record) -> None:
        loss = self.mean_loss(record)
        self.losses.append(loss)
        self.unchanged = 0 if loss <= self.best - self.tol else self.unchanged + 1
        if loss < self.best:
            self.best = loss
            if self.keeps is not None:
                self.best_weights = {name: weight.clone() for name, weight in self.keeps.state_dict().items()}
        if self.talks_as is not None:
            scored = record.validation_loss is not None and record.score is not None
            score = f", validation score {record.score:.6g}" if scored else ""
            print(f"{self.talks_as}: iteration {record.iteration}, loss {loss:.6g}{score}", flush=True)
        if self.stop_after is not None and len(self.losses) >= self.stop_after:
            raise StopTraining("stop_after")
        if self.patience is not None and self.unchanged >= self.patience:
            raise StopTraining("tol")

    def mean_loss(self, record: Record) -> float:
        """The loss of a sample."""
        if self.samples is not None:
            return record.loss / self.samples
        assert record.train_loss is not None  # the full-batch method evaluates every iteration
        return record.train_loss
