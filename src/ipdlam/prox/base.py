"""The one definition and scaling of every proximal operator in the library.

========================  ==================================================================
activation ``sigma``      ``prox(w, v, r) = argmin_x (sigma(x) - w)^2 + r (x - v)^2``
loss ``L``                ``prox(y, v, r) = argmin_x L(y, x) + (r / 2) ||x - v||^2``
regulariser ``R``         ``prox(v, r)    = argmin_x R(x) + (r / 2) ||x - v||^2``
========================  ==================================================================

``r > 0`` always multiplies the proximity term, so a large ``r`` keeps ``x`` near ``v``.
Every object holds the value and its prox together. ``prox`` checks its operands; the engine calls ``_prox``,
which trusts them (its inputs were checked once, and a non-finite iterate is caught in the objective).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self


def check_operands(r: float | Tensor, **tensors: Tensor) -> None:
    """Refuse what no prox is defined for: ``r <= 0``, infinities and NaN, integer, half and unequal precisions."""
    weights = torch.as_tensor(r, dtype=torch.float64)
    if not bool((torch.isfinite(weights) & (weights > 0)).all()):
        raise ValueError(f"r must be finite and > 0, got {r}")
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name} must be float32 or float64, got {tensor.dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds NaN or infinity; a proximal operator needs finite operands")
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        given = ", ".join(f"{name}: {tensor.dtype}" for name, tensor in tensors.items())
        raise TypeError(f"operands must share one precision, got {given}")


def select(mask: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """``chosen`` where ``mask`` is 1 and ``other`` where it is 0, exactly.

    ``mask`` is a float tensor of zeros and ones. ``lerp`` returns its end points to the bit at 0 and 1 and is
    vectorised; ``torch.where`` on the CPU is some twenty times slower.
    """
    return torch.lerp(other, chosen, mask)


def as_mask(condition: Tensor, like: Tensor) -> Tensor:
    """A condition as the float mask that :func:`select` takes."""
    return condition.to(like.dtype)


class Activation(ABC):
    """An activation ``sigma`` with the operator ``S^sigma`` of the paper (section 2, Notation)."""

    module: ClassVar[type[nn.Module]]

    @classmethod
    def from_module(cls, module: nn.Module) -> Self:
        """The operator for a PyTorch activation module; overridden where the module has parameters."""
        del module
        return cls()

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """``sigma(x)``, elementwise."""

    @abstractmethod
    def _prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        """What :meth:`prox` returns, for operands of one shape that are known to be good.

        It must be the *global* minimiser, in a tensor of its own, and leave its operands alone.
        """

    def prox(self, w: Tensor, v: Tensor, r: float) -> Tensor:
        """Global minimiser of ``(sigma(x) - w)^2 + r (x - v)^2`` over ``x``, elementwise."""
        check_operands(r, w=w, v=v)
        w, v = torch.broadcast_tensors(w, v)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return self._prox(w, v, r)

    def prox_objective(self, x: Tensor, w: Tensor, v: Tensor, r: float) -> Tensor:
        """What :meth:`prox` minimises."""
        return (self.value(x) - w).square() + r * (x - v).square()


class Loss(ABC):
    """A loss ``L(y, x)``, separable over samples, with the operator ``P^L`` of the paper.

    ``targets`` are what :meth:`encode` makes of class labels, or real targets of the shape of ``x``.
    """

    @property
    def is_own_envelope(self) -> bool:
        """Whether its Moreau envelope is the loss itself, up to a factor."""
        return False

    @abstractmethod
    def value(self, targets: Tensor, x: Tensor) -> Tensor:
        """The loss of every sample: shape ``(N, d)`` in, ``(N,)`` out."""

    @abstractmethod
    def _prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        """What :meth:`prox` returns, for good operands, in a tensor of its own; the operands are left alone."""

    def prox(self, targets: Tensor, v: Tensor, r: float) -> Tensor:
        """Minimiser of ``L(targets, x) + (r / 2) ||x - v||^2`` over ``x``, row by row."""
        check_operands(r, targets=targets, v=v)
        self.check_targets(targets)
        with torch.no_grad():
            return self._prox(targets, v, r)

    def prox_objective(self, targets: Tensor, x: Tensor, v: Tensor, r: float) -> Tensor:
        """What :meth:`prox` minimises, one value for every sample."""
        return self.value(targets, x) + 0.5 * r * (x - v).square().sum(-1)

    def encode(self, labels: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
        """Class indices as targets: one-hot rows, unless the loss says otherwise."""
        return nn.functional.one_hot(labels, outputs).to(dtype)

    def classes(self, outputs: int) -> int:
        """How many classes a network with this many outputs can tell apart under this loss."""
        return outputs

    def predict(self, x: Tensor) -> Tensor:
        """The class that outputs ``x`` stand for."""
        return x.argmax(dim=-1)

    def check_targets(self, targets: Tensor) -> None:
        """Refuse real targets that the loss is not defined for."""
        del targets

    def decode(self, targets: Tensor) -> Tensor | None:
        """The class indices that real targets encode, if every row is what :meth:`encode` makes of one; else None."""
        outputs = targets.shape[-1]
        if self.classes(outputs) < 2 or not len(targets):
            return None
        labels = self.predict(targets)
        return labels if torch.equal(self.encode(labels, outputs, targets.dtype), targets) else None


class Regularizer(ABC):
    """A regulariser ``R(W)``, separable over the entries of ``W``.

    ``relative=True`` measures strength in units of penalty times number of samples (``rho N``): the same value then
    fits any amount of data and any penalty schedule. ``relative=False`` is the plain ``R(W)`` of the paper.
    """

    relative: bool = False
    curvature: float = 0.0  # the part (curvature / 2) ||W||^2, which the W update solves for in closed form

    @abstractmethod
    def value(self, W: Tensor) -> Tensor:
        """``R(W)``, a scalar."""

    @abstractmethod
    def _prox(self, v: Tensor, r: float | Tensor) -> Tensor:
        """What :meth:`prox` returns, for good operands, in a tensor of its own; the operands are left alone."""

    def prox(self, v: Tensor, r: float | Tensor) -> Tensor:
        """Minimiser of ``R(x) + (r / 2) ||x - v||^2``; ``r`` may hold one weight for every entry."""
        check_operands(r, v=v)
        with torch.no_grad():
            return self._prox(v, r.to(v.dtype) if isinstance(r, Tensor) else r)

    @property
    def is_quadratic(self) -> bool:
        """Whether ``R`` is nothing but its curvature, so that the W update needs no iteration."""
        return False

    def _prox_of_rest(self, v: Tensor, r: float | Tensor) -> Tensor:
        """The prox of ``R`` without its curvature; overridden where both parts are there."""
        return self._prox(v, r)

    def scale(self, penalty: float, samples: float) -> float:
        """What ``R`` is multiplied by in ``Phi``."""
        return penalty * samples if self.relative else 1.0

    def scale_over_penalty(self, penalty: float, samples: float) -> float:
        """:meth:`scale` divided by the penalty, as the W update needs it; exactly constant where it is relative."""
        return samples if self.relative else 1.0 / penalty
