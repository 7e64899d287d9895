"""Losses and their exact proximal operators ``P^L(y, v, r) = argmin_x L(y, x) + (r / 2) ||x - v||^2``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ipdlam.checks import check_number
from ipdlam.prox.base import Loss
from ipdlam.prox.newton import largest
from ipdlam.prox.softmax import NEWTON_STEPS, STEADY, CrossEntropy

LOGISTIC_STEPS = 40  # an upper limit: the loop ends when every element has converged


@dataclass(frozen=True)
class Squared(Loss):
    """``L(y, x) = ||x - y||^2 / 2``, the loss of the paper; class labels become one-hot rows.

    >>> Squared().prox(torch.tensor([[1.0]]), torch.tensor([[0.0]]), 3.0)
    tensor([[0.2500]])
    """

    @property
    def is_own_envelope(self) -> bool:
        return True

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        return 0.5 * (x - targets).square().sum(-1)

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        return torch.lerp(v, targets, 1.0 / (1.0 + r))


@dataclass(frozen=True)
class Huber(Loss):
    """``d^2 / 2`` where ``|d| <= threshold`` and ``threshold (|d| - threshold / 2)`` beyond, ``d = x - y``."""

    threshold: float = 1.0

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold, low=0.0, strict=True)

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        distance = (x - targets).abs()
        inner = distance.clamp_max(self.threshold)
        return (inner * (distance - 0.5 * inner)).sum(-1)

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        # The pull towards y is the smaller of the quadratic one and the constant one.
        pull = ((targets - v) / (1.0 + r)).clamp_(-self.threshold / r, self.threshold / r)
        return v + pull


@dataclass(frozen=True)
class Absolute(Loss):
    """``L(y, x) = ||x - y||_1``: the prox moves ``v`` towards ``y`` by at most ``1 / r``."""

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        return (x - targets).abs().sum(-1)

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        # One clamp on y rather than a step from v: where y is within reach, y itself is the answer, to the bit.
        return torch.minimum(torch.maximum(targets, v - 1.0 / r), v + 1.0 / r)


@dataclass(frozen=True)
class Quantile(Loss):
    """``level d`` where ``d = y - x >= 0`` and ``(level - 1) d`` below: the pinball loss, ``0 < level < 1``.

    Its minimiser over constants is the quantile of that level of the targets. The prox moves ``v`` towards ``y`` by at
    most ``level / r`` upwards and ``(1 - level) / r`` downwards, and stops at ``y``. With ``level = 0.5`` it is half
    the absolute loss.

    >>> y, v = torch.tensor([[3.0, -3.0]]), torch.zeros(1, 2)
    >>> Quantile(0.9).prox(y, v, 1.0)
    tensor([[ 0.9000, -0.1000]])
    """

    level: float = 0.5

    def __post_init__(self) -> None:
        if check_number("level", self.level, low=0.0, high=1.0, strict=True) == 1.0:
            raise ValueError(f"level must be in (0, 1), got {self.level!r}; 0.9 is what nine of ten targets are below")

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        d = targets - x
        return torch.maximum(self.level * d, (self.level - 1.0) * d).sum(-1)

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        # As for the absolute loss: where y is within reach, y itself is the answer, to the bit.
        return torch.minimum(torch.maximum(targets, v - (1.0 - self.level) / r), v + self.level / r)


class MarginLoss(Loss):
    """One against rest: targets -1 and +1 for every output, the loss a function of the margin ``y x``.

    A network with one output tells two classes apart by its sign.
    """

    def encode(self, labels: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        positive = labels.unsqueeze(-1) if outputs == 1 else super().encode(labels, outputs, dtype)
        return 2.0 * positive.to(dtype) - 1.0

    def classes(self, outputs: int) -> int:
        return 2 if outputs == 1 else outputs

    def predict(self, x: Tensor) -> Tensor:
        return (x[..., 0] > 0).long() if x.shape[-1] == 1 else x.argmax(dim=-1)

    def check_targets(self, targets: Tensor) -> None:
        wrong = targets.abs() != 1.0
        if bool(wrong.any()):
            binary = bool(((targets == 0.0) | (targets == 1.0)).all())
            raise ValueError(
                f"{type(self).__name__} needs targets of -1 and +1, got {float(targets[wrong][0])!r}; "
                f"{'write 2 * y - 1, ' if binary else ''}or give class indices as integers"
            )


@dataclass(frozen=True)
class Hinge(MarginLoss):
    """``max(0, 1 - y x)``: ``x = v``, ``y`` or ``v + y / r`` (the paper prints ``v + 1 / y``)."""

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        return (1.0 - targets * x).clamp_min(0.0).sum(-1)

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        return v + targets * (1.0 - targets * v).clamp_(0.0, 1.0 / r)


@dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    """``max(0, 1 - y x)^2``."""

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        return (1.0 - targets * x).clamp_min(0.0).square().sum(-1)

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        return v + targets * (1.0 - targets * v).clamp_min_(0.0).mul_(2.0 / (2.0 + r))


@dataclass(frozen=True)
class Logistic(MarginLoss):
    """``log(1 + exp(-y x))``.

    With the margin ``m = y v`` the prox is ``v + y t`` where ``r t = s(-(m + t))`` and ``s`` is the logistic function.
    In ``u = log(t)`` this reads ``log(r) + u + softplus(m + exp(u)) = 0``: increasing and convex, so Newton's method
    from above converges monotonically for every ``m`` and ``r``. Where ``r`` is at least 1/4, it converges in ``t``,
    too, from 0, and each step costs less.

    >>> x = Logistic().prox(torch.tensor([[1.0]]), torch.tensor([[0.0]]), 0.5)
    >>> torch.allclose(0.5 * x, torch.sigmoid(-x))
    True
    """

    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        return torch.logaddexp(-targets * x, torch.zeros_like(x)).sum(-1)

    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        margin = (targets * v).double()
        if r >= STEADY and (t := self._step(margin, r, torch.finfo(v.dtype).eps)) is not None:
            return t.mul_(targets).add_(v).to(v.dtype)
        log_r = torch.full_like(margin, math.log(r))
        # Both are upper bounds of t; the second is sharp when r is small.
        u = torch.minimum(-log_r, torch.log((-margin).clamp_min(0.0) + torch.log1p(torch.exp(-log_r))))
        for _ in range(LOGISTIC_STEPS):
            t = torch.exp(u)
            exponent = margin + t
            value = log_r + u + torch.logaddexp(exponent, torch.zeros_like(exponent))
            step = value / (1.0 + torch.sigmoid(exponent) * t)
            u = u - step
            if bool((step.abs() <= 1e-14 * (1.0 + u.abs())).all()):
                break
        return (v.double() + targets * torch.exp(u)).to(v.dtype)

    @staticmethod
    def _step(margin: Tensor, r: float, eps: float) -> Tensor | None:
        """The root ``t`` of ``r t = s(-(margin + t))`` by Newton's method from 0; None if some entry takes longer."""
        t = torch.zeros_like(margin)
        for _ in range(NEWTON_STEPS):
            s = torch.add(margin, t).neg_().sigmoid_()
            step = torch.sub(s, t, alpha=r).div_(torch.addcmul(s, s, s, value=-1.0).add_(r))
            t += step
            # The error after a step is below its square over r.
            if t.numel() == 0 or largest(step) <= math.sqrt(0.01 * eps * min(r, 1.0)):
                return t
        return None


LOSSES: dict[str, type[Loss]] = {
    "squared": Squared,
    "huber": Huber,
    "absolute": Absolute,
    "quantile": Quantile,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
    "logistic": Logistic,
    "cross_entropy": CrossEntropy,
}
"""Name to loss. Add a subclass of :class:`Loss` here and ``IPDLAM(model, loss=name)`` trains with it."""
