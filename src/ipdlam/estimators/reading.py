"""Data in: what scikit-learn's users have, checked and brought to rows of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_X_y, validate_data

from ipdlam.estimators.columns import Columns, as_pandas, is_frame, names_of, refuse_dates, values_of
from ipdlam.estimators.scaling import Array

FLOATS = (np.float64, np.float32)
DENSE_CELLS = 1 << 25  # sparse samples of no more cells than these are made dense at once
# The mini-batch method remembers the second moment of a layer's inputs: a square matrix of their number.
MOST_COLUMNS = 20000


@dataclass(frozen=True)
class Rows:
    """Samples that have been read: X an array or sparse, y as the user gave it, and weights where there are any."""

    X: Any
    y: Array
    weight: Array | None

    def __len__(self) -> int:
        return len(self.y)

    def picked(self, rows: Any) -> Rows:
        """Some of them, by number or by mask; all of them where None."""
        if rows is None:
            return self
        return Rows(self.X[rows], self.y[rows], None if self.weight is None else self.weight[rows])

    def counted(self) -> Rows:
        """Those that count: the others have the weight zero."""
        if self.weight is None or (self.weight > 0).all():
            return self
        if not (self.weight > 0).any():
            raise ValueError(
                "the weight of every sample is zero, by sample_weight or class_weight; at least one must count"
            )
        return self.picked(self.weight > 0)


class Reader:
    """How X is read: as a table whose columns are known, or as an array of numbers."""

    def __init__(self, columns: Columns | None) -> None:
        self.columns = columns  # None where X is numbers without gaps

    @classmethod
    def of(cls, X: Any, categorical_features: Any) -> Reader:
        """As the first samples say; columns of an array are categories only where they are listed."""
        listed = categorical_features is not None and not isinstance(categorical_features, str)
        if issparse(X):
            if listed:
                raise ValueError(
                    f"categorical_features={categorical_features!r} is not for sparse X; make the columns of the "
                    "categories yourself, or give X as a DataFrame or an array"
                )
            return cls(None)
        refuse_dates(X)
        if not is_frame(X) and not listed:
            return cls(None)  # whether there are gaps is known when it is an array of numbers
        table = as_pandas(X) if is_frame(X) else check_array(X, dtype=None, ensure_all_finite=False)
        return cls(Columns.of(table, categorical_features))

    def fit(self, estimator: BaseEstimator, X: Any, y: Any, first: bool, **checks: Any) -> tuple[Any, Array]:
        """X as numbers, without gaps where the first samples had some, and y."""
        checks = {"dtype": FLOATS, "accept_sparse": "csr", "ensure_all_finite": "allow-nan", **checks}
        refuse_dates(X)
        if self.columns is None:
            with naming_columns(X):
                X, y = validate_data(estimator, X, y, reset=first, **checks)
            if first and not issparse(X) and has_gaps(X):
                self.columns = Columns.of(X, None)
                X = X if self.columns is None else self.columns(X, X.dtype)
        else:
            validate_data(estimator, X, reset=first, skip_check_array=True)
            X, y = check_X_y(self._numbers(X), y, estimator=estimator, **checks)
        refuse_too_wide(X)
        return X, y.toarray() if issparse(y) else y

    def __call__(self, estimator: BaseEstimator, X: Any) -> Any:
        """X of a prediction as numbers."""
        refuse_dates(X)
        if self.columns is None:
            checks = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan"}
            with naming_columns(X):
                return validate_data(estimator, X, dtype=FLOATS, reset=False, **checks)
        validate_data(estimator, X, reset=False, skip_check_array=True)
        return check_array(self._numbers(X), dtype=FLOATS, estimator=estimator, input_name="X")

    def _numbers(self, X: Any) -> Array:
        assert self.columns is not None
        X = X.toarray() if issparse(X) else X
        table = as_pandas(X) if is_frame(X) else check_array(X, dtype=None, ensure_all_finite=False)
        dtype = table.dtype if not is_frame(X) and table.dtype == np.float32 else np.float64
        return self.columns(table, dtype)


@contextmanager
def naming_columns(X: Any) -> Iterator[None]:
    """Say which column holds what is no number, where scikit-learn says only what it holds."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if is_frame(X) and "feature" not in str(error):
            table = as_pandas(X)
            values_of(table, names_of(table), [False] * table.shape[1])  # refuses it by name
        elif "could not convert" in str(error):
            raise ValueError(f"{error}; name columns of text in categorical_features, or give a DataFrame") from None
        raise


def has_gaps(X: Array) -> bool:
    """Whether some number is NaN; without a mask of the size of X."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isnan(X.sum(0)).any())


def refuse_too_wide(X: Any) -> None:
    """Refuse more columns than the method can remember the second moments of."""
    if X.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"X has {X.shape[1]} columns, but at most {MOST_COLUMNS} can be trained on: the method remembers how every "
            "two of them vary together. Use fewer, by TruncatedSVD, SelectKBest or a HashingVectorizer of fewer "
            "features"
        )


def dense(X: Any) -> Array:
    """Rows as an array."""
    rows: Array = X.toarray() if issparse(X) else X
    return rows
