"""A perceptron for real targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.metaestimators import available_if
from typing_extensions import Self

from ipdlam import defaults
from ipdlam.checks import check_number
from ipdlam.estimators.parameters import uses_batches
from ipdlam.estimators.perceptron import Perceptron
from ipdlam.estimators.scaling import Array, Scaling
from ipdlam.prox import Loss
from ipdlam.prox.losses import Quantile


class IPDLAMRegressor(RegressorMixin, Perceptron):
    """A multilayer perceptron for real targets, one or several, trained by alternating minimisation.

    Targets are brought to mean 0 and deviation 1 inside, so that losses and steps do not depend on their units;
    ``loss_curve_`` is in these units, ``module_`` gives raw targets. ``loss`` is ``squared``, ``huber``, ``absolute``
    (the median) or ``quantile``: what the part ``quantile`` of the targets is below. With ``clamp`` no prediction lies
    outside the range of the targets trained on; without it, the network goes on in a line. All else is as in
    :class:`ipdlam.estimators.IPDLAMClassifier`.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> IPDLAMRegressor(random_state=0, tol=0.1).fit(X, y).score(X, y) > 0.5
    True
    """

    losses = ("squared", "huber", "absolute", "quantile")
    several_targets = True
    _range: tuple[Array, Array] | None = None  # that predictions stay in, column by column
    decays = (700.0, 0.15)
    members = 3
    pieces_from = 500

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (256,),
        activation: str = "relu",
        *,
        loss: str = "squared",
        quantile: float = 0.5,
        clamp: bool = True,
        alpha: float | None = None,
        batch_size: int | str | None = "auto",
        max_iter: int = 10,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
        standardize: bool | str = "robust",
        categorical_features: Any = "from_dtype",
        n_pieces: int | str = "auto",
        n_members: int | str = "auto",
        step: float = defaults.PERCEPTRON["step"],
        inertia: float = defaults.INERTIA,
        proximity: float | None = None,
        penalty: float = defaults.PENALTY,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            activation,
            loss=loss,
            alpha=alpha,
            batch_size=batch_size,
            max_iter=max_iter,
            tol=tol,
            n_iter_no_change=n_iter_no_change,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            warm_start=warm_start,
            random_state=random_state,
            verbose=verbose,
            standardize=standardize,
            categorical_features=categorical_features,
            n_pieces=n_pieces,
            n_members=n_members,
            step=step,
            inertia=inertia,
            proximity=proximity,
            penalty=penalty,
        )
        self.quantile = quantile
        self.clamp = clamp

    @available_if(uses_batches)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One pass over some samples, with steps that do not descend; only for the mini-batch method.

        The first call says how features and targets are scaled and where the network starts, so give it a fair, mixed
        part of the samples.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> Array:
        """The targets of every row, in the shape that they had in ``fit``."""
        scaled = self._raw(X).numpy()
        outputs = self._units.undo(scaled).astype(scaled.dtype, copy=False)
        if self._range is not None:
            np.clip(outputs, *(ends.astype(outputs.dtype) for ends in self._range), out=outputs)
        return outputs[:, 0] if self._flat else outputs

    def _check_settings(self) -> None:
        if not 0.0 < check_number("quantile", self.quantile) < 1.0:
            raise ValueError(f"quantile must be above 0 and below 1, got {self.quantile!r}")
        if not isinstance(self.clamp, (bool, np.bool_)):
            raise ValueError(f"clamp must be True or False, got {self.clamp!r}")
        if self.loss == "quantile" and self.batch_size is None:
            raise ValueError(
                "loss='quantile' needs mini-batches: the full-batch method does not come near the quantile; leave "
                "batch_size=None out"
            )
        super()._check_settings()

    def _loss(self) -> str | Loss:
        return Quantile(self.quantile) if self.loss == "quantile" else self.loss

    def _learn_targets(self, y: Array, weight: Array | None, classes: Any = None) -> None:
        del classes
        self._flat = y.ndim == 1
        self._units = Scaling.of(columns_of(y), weight)

    def _meet_targets(self, y: Array, first: bool) -> None:
        least, most = columns_of(y).min(0), columns_of(y).max(0)
        if not first and self._range is not None:
            least, most = np.minimum(least, self._range[0]), np.maximum(most, self._range[1])
        self._range = (least, most) if self.clamp else None

    def _check_targets(self, y: Array) -> None:
        columns = columns_of(y).shape[1]
        if columns != self._outputs():
            raise ValueError(f"y has {columns} columns, but had {self._outputs()} in the first training")

    def _check_range(self, y: Array, dtype: Any) -> None:
        largest, most = float(np.abs(y).max()), float(np.finfo(dtype).max)
        if largest > most:
            raise ValueError(
                f"y holds numbers up to {largest:g}, but the network has the precision of X, {np.dtype(dtype)}, which "
                f"ends at {most:g}; give X in float64, or divide y by a unit"
            )

    def _encode(self, y: Array) -> Array:
        return self._units(columns_of(y))

    def _outputs(self) -> int:
        return len(self._units.mean)

    def _target_scaling(self) -> Scaling:
        return self._units

    def _target_range(self) -> tuple[Array, Array] | None:
        return self._range

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def columns_of(y: Array) -> Array:
    """The targets as a matrix of floating-point numbers."""
    return y.reshape(len(y), -1).astype(np.float32 if y.dtype == np.float32 else np.float64, copy=False)
