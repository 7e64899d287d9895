"""scikit-learn's own checks of the estimators: both methods, both kinds of targets, and no expected failures."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from ipdlam.estimators import IPDLAMClassifier, IPDLAMRegressor

ESTIMATORS = [
    kind(hidden_layer_sizes=(20,), batch_size=batch_size, max_iter=10)
    for kind in (IPDLAMClassifier, IPDLAMRegressor)
    for batch_size in ("auto", None)
]


# The checks train on few samples for few iterations, which says nothing about convergence.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)
