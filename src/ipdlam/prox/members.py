"""The loss of several networks whose outputs stand side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ipdlam.prox.base import Loss


@dataclass(frozen=True)
class OfMembers(Loss):
    """``sum_k L(y_k, x_k)``: the outputs ``x_k`` and the targets ``y_k`` of each member after those of the one before.

    A sum over members, so that every one of them has the prox of ``loss``. Class labels are those of all members; the
    class that outputs stand for is that of their mean.

    >>> from ipdlam.prox.losses import Squared
    >>> OfMembers(Squared(), 2).value(torch.zeros(1, 2), torch.tensor([[1.0, 2.0]]))
    tensor([2.5000])
    """

    loss: Loss
    members: int

    @property
    def is_own_envelope(self) -> bool:
        return self.loss.is_own_envelope

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        return self.loss.value(self._each(targets), self._each(x)).view(-1, self.members).sum(1)

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        return self.loss._prox(self._each(targets), self._each(v), r).view(v.shape)

    def encode(self, labels: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        return self.loss.encode(labels, outputs // self.members, dtype).repeat(1, self.members)

    def classes(self, outputs: int) -> int:
        return self.loss.classes(outputs // self.members)

    def predict(self, x: Tensor) -> Tensor:
        return self.loss.predict(x.view(len(x), self.members, -1).mean(1))

    def check_targets(self, targets: Tensor) -> None:
        self.loss.check_targets(self._each(targets))

    def _each(self, x: Tensor) -> Tensor:
        """A row for every member of every sample."""
        return x.reshape(len(x) * self.members, -1)
