"""The settings of a run, validated when they are made."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, Union

from ipdlam.checks import check_integer, check_number
from ipdlam.fullbatch.orders import Order, resolve_order
from ipdlam.prox import LOSSES, REGULARIZERS, Loss, Regularizer
from ipdlam.prox.registry import by_name, describe, rebuild

T = TypeVar("T")

RegularizerLike = Union[str, Regularizer, None]


class Inertia(NamedTuple):
    """The weights of the last change in the inertial points."""

    z: float  # alpha in the paper
    weights: float  # beta, for W and b
    a: float  # gamma


class WeightProximity(NamedTuple):
    """The weights of the proximal terms of W and of b, for each sample."""

    W: float  # kappa delta
    b: float


@dataclass(frozen=True)
class PenaltySchedule:
    """``rho_(k+1) = min(growth rho_k, maximum)`` from ``initial``: line 8 of Algorithm 1.

    >>> [round(PenaltySchedule(0.1, 2.0, 0.5).at(k), 3) for k in (1, 2, 3, 4, 100000)]
    [0.1, 0.2, 0.4, 0.5, 0.5]
    """

    initial: float  # rho_0 in the paper
    growth: float  # theta
    maximum: float  # rho bar

    def __post_init__(self) -> None:
        check_number("penalty", self.initial, low=0.0, strict=True)
        check_number("penalty_growth", self.growth, low=1.0)
        check_number("penalty_max", self.maximum, low=0.0, strict=True)
        if self.maximum < self.initial:
            raise ValueError(
                f"penalty_max must be at least penalty, got penalty_max={self.maximum!r} and penalty={self.initial!r}"
            )

    def at(self, iteration: int) -> float:
        """The penalty of an iteration; the first one is 1."""
        exponent = max(iteration - 1, 0)
        if exponent * math.log(self.growth) >= math.log(self.maximum / self.initial):
            return self.maximum if self.growth > 1.0 else self.initial
        return float(self.initial * self.growth**exponent)


@dataclass(frozen=True)
class PenaltyFunction:
    """A penalty of the user's own: ``rho`` as a function of the iteration, the first of which is 1.

    >>> PenaltyFunction(lambda iteration: 0.1 * iteration**2).at(3)
    0.9
    """

    function: Callable[[int], float]

    def at(self, iteration: int) -> float:
        """The penalty of an iteration."""
        return check_number(f"penalty at iteration {iteration}", self.function(iteration), low=0.0, strict=True)


@dataclass(frozen=True)
class Settings:
    """What defines a run besides the model and the data."""

    loss: Loss
    regularizers: tuple[Regularizer | None, ...]  # R_l, one for each layer
    inertia: Inertia
    proximity: float  # delta
    weight_proximity: WeightProximity | None  # of W and b, for each sample; None: delta in all, as printed
    penalty: PenaltySchedule | PenaltyFunction  # rho_0, theta, rho bar
    order: Order
    chunk_size: int

    def __post_init__(self) -> None:
        for name, value in zip(("z", "W and b", "a"), self.inertia, strict=True):
            check_number(f"inertia ({name})", value, low=0.0)
        check_number("proximity", self.proximity, low=0.0)
        if self.weight_proximity is not None:
            for name, value in self.weight_proximity._asdict().items():
                check_number(f"weight_proximity ({name})", value, low=0.0)
        check_integer("chunk_size", self.chunk_size, low=1)
        if max(self.inertia) >= 1.0:
            warnings.warn(
                f"inertia {max(self.inertia):g} is 1 or more: the paper (Table 1) reports an objective of 5510 at 1.0, "
                "where 0.7 reaches 0.03, and divergence to NaN above; use a value below 1",
                UserWarning,
                stacklevel=5,
            )
        if max(self.inertia) > 0.0 and max(self.proximity, *(self.weight_proximity or (0.0,))) == 0.0:
            warnings.warn(
                "inertia acts through the proximal term, so it has no effect at proximity 0", UserWarning, stacklevel=5
            )

    @property
    def is_dlam(self) -> bool:
        """Whether there is neither inertia nor any proximal term."""
        return max(*self.inertia, self.proximity, *(self.weight_proximity or ())) == 0.0

    def deltas_of_weights(self, n: float) -> tuple[float, float]:
        """The weights of the proximal terms of W and of b over ``n`` samples."""
        if self.weight_proximity is None:
            return self.proximity, self.proximity
        return n * self.weight_proximity.W, n * self.weight_proximity.b

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; losses and regularisers by their names in the registries."""
        if isinstance(self.penalty, PenaltyFunction):
            raise ValueError(
                "penalty is a function, which cannot be saved; save the weights of the model, or give penalty, "
                "penalty_growth and penalty_max"
            )
        return {
            "loss": describe("loss", self.loss, LOSSES),
            "regularizers": [describe("regularizer", R, REGULARIZERS) for R in self.regularizers],
            "inertia": list(self.inertia),
            "proximity": self.proximity,
            "weight_proximity": None if self.weight_proximity is None else list(self.weight_proximity),
            "penalty": dataclasses.asdict(self.penalty),
            "order": [str(block) for block in self.order],
            "chunk_size": self.chunk_size,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Settings:
        """The inverse of :meth:`to_dict`."""
        own = fields.get("weight_proximity")  # older checkpoints have none
        return cls(
            rebuild("loss", fields["loss"], LOSSES),
            tuple(None if R is None else rebuild("regularizer", R, REGULARIZERS) for R in fields["regularizers"]),
            Inertia(*fields["inertia"]),
            fields["proximity"],
            None if own is None else WeightProximity(*own),
            PenaltySchedule(**fields["penalty"]),
            resolve_order(fields["order"], len(fields["regularizers"])),
            fields["chunk_size"],
        )


def resolve_settings(
    layers: int,
    loss: str | Loss,
    regularizer: RegularizerLike | Sequence[RegularizerLike],
    inertia: float | tuple[float, float, float],
    proximity: float,
    weight_proximity: float | tuple[float, float] | None,
    penalty: PenaltySchedule | PenaltyFunction,
    order: str | Iterable[str | tuple[str, int]],
    chunk_size: int,
) -> Settings:
    """Names become objects, one inertia becomes three and one regulariser one for each layer."""
    if isinstance(inertia, (tuple, list)):
        if len(inertia) != 3:
            raise ValueError(f"inertia must be a number or three (z, W and b, a), got {inertia!r}")
        inertias = Inertia(*inertia)
    else:
        inertias = Inertia(inertia, inertia, inertia)
    own = None
    if isinstance(weight_proximity, (tuple, list)):
        if len(weight_proximity) != 2:
            raise ValueError(f"weight_proximity must be None, a number or two (W, b), got {weight_proximity!r}")
        own = WeightProximity(*weight_proximity)
    elif weight_proximity is not None:
        own = WeightProximity(weight_proximity, weight_proximity)
    if isinstance(regularizer, (tuple, list)):
        if len(regularizer) != layers:
            raise ValueError(f"regularizer must be one or one for each of the {layers} layers, got {len(regularizer)}")
        regularizers = tuple(resolve_regularizer(item) for item in regularizer)
    else:
        regularizers = (resolve_regularizer(regularizer),) * layers  # type: ignore[arg-type]
    resolved_loss = by_name("loss", loss, LOSSES, Loss)  # type: ignore[type-abstract]
    return Settings(
        resolved_loss, regularizers, inertias, proximity, own, penalty, resolve_order(order, layers), chunk_size
    )


def resolve_regularizer(regularizer: RegularizerLike) -> Regularizer | None:
    """A regulariser by name, or itself, or none."""
    return None if regularizer is None else by_name("regularizer", regularizer, REGULARIZERS, Regularizer)  # type: ignore[type-abstract]
