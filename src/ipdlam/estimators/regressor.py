"""A perceptron for real targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.metaestimators import available_if
from typing_extensions import Self

from ipdlam.estimators.parameters import uses_batches
from ipdlam.estimators.perceptron import Perceptron
from ipdlam.estimators.scaling import Array, Scaling


class IPDLAMRegressor(RegressorMixin, Perceptron):
    """A multilayer perceptron for real targets, one or several, trained by alternating minimisation.

    Targets are brought to mean 0 and deviation 1 inside, so that losses and steps do not depend on their units;
    ``loss_curve_`` is in these units, ``module_`` gives raw targets. ``loss`` is ``squared``, ``huber`` or
    ``absolute``; all else is as in :class:`ipdlam.estimators.IPDLAMClassifier`.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> IPDLAMRegressor(random_state=0, tol=0.1).fit(X, y).score(X, y) > 0.5
    True
    """

    losses = ("squared", "huber", "absolute")
    several_targets = True

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
        return outputs[:, 0] if self._flat else outputs

    def _learn_targets(self, y: Array, weight: Array | None, classes: Any = None) -> None:
        del classes
        self._flat = y.ndim == 1
        self._units = Scaling.of(columns_of(y), weight)

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def columns_of(y: Array) -> Array:
    """The targets as a matrix of floating-point numbers."""
    return y.reshape(len(y), -1).astype(np.float32 if y.dtype == np.float32 else np.float64, copy=False)
