"""scikit-learn estimators: perceptrons trained by alternating minimisation, for pipelines, searches and pickles.

The only room that knows scikit-learn; ``pip install scikit-learn`` brings it. ``perceptron`` is what classifier and
regressor share, ``parameters`` their settings. Data come in through ``reading``, tables through ``columns``.
``scaling`` brings features and targets to one size, ``batches`` draws samples, ``stopping`` ends a training, and
``members`` makes one network of several. Imported here: ``fullbatch``, ``minibatch`` and what they import. Begin with
``perceptron``.
"""

try:
    from ipdlam.estimators.classifier import IPDLAMClassifier
    from ipdlam.estimators.regressor import IPDLAMRegressor
except ImportError as error:
    if "sklearn" not in str(error):
        raise
    raise ImportError(f"scikit-learn 1.6 or newer is needed ({error}); pip install 'scikit-learn>=1.6'") from error

__all__ = ["IPDLAMClassifier", "IPDLAMRegressor"]
