"""A perceptron for classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted
from torch import nn
from typing_extensions import Self

from ipdlam import defaults
from ipdlam.estimators.parameters import uses_batches
from ipdlam.estimators.perceptron import Perceptron
from ipdlam.estimators.scaling import Array
from ipdlam.prox import LOSSES
from ipdlam.prox.losses import MarginLoss
from ipdlam.prox.probabilities import PROBABILITIES, logits, probabilities

FEW_CLASSES = 5  # so many are pulled to zero alike; the label of more says more, and needs less beside it


def has_probabilities(estimator: IPDLAMClassifier) -> bool:
    """Whether ``predict_proba`` exists."""
    loss = getattr(estimator, "_fitted_loss", estimator.loss)
    if loss not in PROBABILITIES:
        known = ", ".join(PROBABILITIES)
        raise AttributeError(f"predict_proba needs a loss that estimates probabilities ({known}), got {loss!r}")
    return True


class IPDLAMClassifier(ClassifierMixin, Perceptron):
    """A multilayer perceptron for classes, trained by alternating minimisation: nothing is back-propagated.

    The names are those of ``sklearn.neural_network.MLPClassifier`` where the meaning is the same.

    Parameters
    ----------
    hidden_layer_sizes, activation
        The widths of the hidden layers, and a name in ``ipdlam.prox.ACTIVATIONS`` (``"logistic"`` is ``"sigmoid"``).
    loss
        A name in ``ipdlam.prox.LOSSES``. ``predict_proba`` is there for ``cross_entropy`` (the softmax of the outputs),
        ``logistic`` (a sigmoid for every class, made to add up to 1) and ``squared`` (the outputs, which estimate
        probabilities, moved to the nearest ones that are >= 0 and add up to 1); the others say nothing about them.
        Where ``y`` holds several labels to a sample, ``cross_entropy`` is the logistic loss of each of them.
    alpha
        How strongly the weights are pulled to zero, in the units of the method: ``weight_decay`` on mini-batches
        (by default less for more samples), the relative ridge of the full-batch method (default 1e-5).
    batch_size
        ``"auto"`` (64 samples, or 512 from 10000 on) or a number: :class:`ipdlam.MiniBatchIPDLAM`. None:
        :class:`ipdlam.IPDLAM`, the full-batch method of the paper.
    max_iter
        Epochs, or iterations of the full-batch method. The steps on mini-batches descend over all of them, so a larger
        number is another training, not only a longer one.
    tol, n_iter_no_change
        Training ends when that many epochs in a row have not lowered the best loss by ``tol``.
    early_stopping, validation_fraction
        Set samples aside, end after ``n_iter_no_change`` epochs without a lower loss of them, and keep the weights of
        the best one. Below 10000 samples, where those set aside are missed, a second training is planned on all samples
        for as many epochs as were best. A ``ConvergenceWarning`` says where the last epoch of ``max_iter`` was best.
    warm_start
        Go on from the weights, the scaling and the columns of the last ``fit``.
    random_state
        Of the initial weights, the order of the samples and those held out.
    verbose
        Print the loss of every epoch.
    standardize
        ``"robust"``: features are centred at their median, divided by the distance of their quartiles, and clipped
        smoothly at 3 units (sparse ones: as with True). True: mean 0 and deviation 1. False: as they are.
        ``partial_fit`` scales all samples as its first ones say.
    categorical_features
        Which columns hold categories: ``"from_dtype"``, those of a DataFrame that hold text or are of type category;
        names, numbers or a mask; None. A category becomes a column of 0 and 1.
    n_pieces
        So many pieces to a column: beside itself, its parts between quantiles, each risen from 0 to 1 where it is
        passed. A network then need not learn where targets bend. ``"auto"``: none for classes; 4 for real targets on
        mini-batches from 500 samples on. 0: none. Sparse samples have none.
    n_members
        Train so many networks, on mini-batches side by side in one pass, and average their outputs. ``"auto"``: on
        mini-batches of 1000 to 9999 samples 2 for classes and 3 for real targets, else 1. A ``partial_fit`` of none
        before trains 1.
    class_weight
        ``"balanced"``, or weights of the classes in a dictionary. Mini-batches meet a sample as often as its weight
        says; the full-batch method weights it. ``partial_fit`` weights it too, and does not know what is balanced.
    step, inertia, proximity, penalty
        As in the two methods; ``proximity`` None is 3 on mini-batches and 1 without. ``step`` is for mini-batches.

    Attributes
    ----------
    module_
        A copy of the trained network as a plain ``nn.Sequential``, from features to outputs: the scaling is in its
        modules. Of a table with categories or gaps it takes the columns as numbers (docs/guide/estimators.md).
    classes_, coefs_, intercepts_, loss_, loss_curve_, n_iter_, n_layers_, n_outputs_, n_features_in_, feature_names_in_
        As in ``MLPClassifier``, but that two classes have two outputs unless the loss is one of margins. With
        ``early_stopping`` also ``validation_scores_``: accuracies, or of a regressor and of labels minus the loss in
        scaled units.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> IPDLAMClassifier(random_state=0, tol=0.1).fit(X, y).score(X, y) > 0.95
    True
    """

    losses = tuple(name for name in LOSSES if name != "quantile")
    decays = (1000.0, 0.1)
    members = 2
    pieces_from = math.inf
    several_targets = False

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (128, 128),
        activation: str = "relu",
        *,
        loss: str = "cross_entropy",
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
        class_weight: Any = None,
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
        self.class_weight = class_weight

    @available_if(uses_batches)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One pass over some samples, with steps that do not descend; only for the mini-batch method.

        The first call needs ``classes``, all that will ever come, unless ``y`` holds every one of them. It says how
        features are scaled and where the network starts, so give it a fair, mixed part of the samples.
        """
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight={self.class_weight!r} needs all samples at once; give partial_fit the weights of the "
                "classes in a dictionary"
            )
        if classes is not None and hasattr(self, "n_iter_") and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes are {list(classes)!r}, but were {self.classes_.tolist()!r} in the first call")
        return self._partial_fit(X, y, sample_weight, classes)

    def predict(self, X: Any) -> Array:
        """The class of every row."""
        outputs = self._raw(X)
        if self._labels:
            return (outputs > midway(self._fitted_loss)).numpy().astype(np.int64)
        found: Array = self.classes_[LOSSES[self._fitted_loss]().predict(outputs).numpy()]
        return found

    def decision_function(self, X: Any) -> Array:
        """The outputs of the network; for two classes how much more speaks for the second one."""
        outputs = self._raw(X).numpy()
        if len(self.classes_) > 2 or self._labels:
            return outputs
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs[:, 1] - outputs[:, 0]

    @available_if(has_probabilities)
    def predict_proba(self, X: Any) -> Array:
        """The probability of every class, in the order of ``classes_``; of several labels, that of each."""
        outputs = self._raw(X)
        if self._labels:
            return (outputs.clamp(0.0, 1.0) if self._fitted_loss == "squared" else outputs.sigmoid()).numpy()
        return probabilities(self._fitted_loss, outputs).numpy()

    @available_if(has_probabilities)
    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of :meth:`predict_proba`."""
        check_is_fitted(self)
        if self._labels and self._fitted_loss == "logistic":
            return nn.functional.logsigmoid(self._raw(X)).numpy()
        if self._fitted_loss != "squared":  # also where the probability itself is too small to be a number
            return logits(self._fitted_loss, self._raw(X)).log_softmax(1).numpy()
        with np.errstate(divide="ignore"):
            logarithms: Array = np.log(self.predict_proba(X))
        return logarithms

    def _check_settings(self) -> None:
        weights = self.class_weight
        if (
            weights is not None
            and not isinstance(weights, Mapping)
            and not (isinstance(weights, str) and weights == "balanced")
        ):
            raise ValueError(f"class_weight must be 'balanced', None or weights in a dictionary, got {weights!r}")
        super()._check_settings()

    def _learn_targets(self, y: Array, weight: Array | None, classes: Any = None) -> None:
        del weight
        self._labels = y.ndim == 2
        if self._labels:
            for name, given in (("class_weight", self.class_weight), ("classes", classes)):
                if given is not None:
                    raise ValueError(f"{name} is for classes, but y holds several labels to a sample; leave it out")
            check_labels(y)
            self.classes_ = np.arange(y.shape[1])
            return
        check_classification_targets(y)
        known = np.unique(y if classes is None else classes)
        if len(known) < 2:
            name, only = type(self).__name__, known.tolist()[0]
            raise ValueError(f"{name} needs samples of 2 or more classes, but y holds one class: {only!r}")
        self.classes_ = known

    def _check_targets(self, y: Array) -> None:
        if self._labels or y.ndim == 2:
            columns, known = (1 if y.ndim == 1 else y.shape[1]), (len(self.classes_) if self._labels else 1)
            if columns != known:
                raise ValueError(f"y has {columns} columns of labels, but had {known} in the first training")
            check_labels(y)
            return
        check_classification_targets(y)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y holds {unknown.tolist()[0]!r}, which is not among the classes {self.classes_.tolist()!r}"
            )

    def _encode(self, y: Array) -> Array:
        if self._labels:
            labels = y.astype(self._precision())
            return 2.0 * labels - 1.0 if midway(self._loss_name()) == 0.0 else labels
        return np.searchsorted(self.classes_, y)

    def _loss_name(self) -> str:
        """Several labels are questions of their own, each with two answers: the cross-entropy is the logistic loss."""
        return "logistic" if self.loss == "cross_entropy" and getattr(self, "_labels", False) else self.loss

    def _decay_of_a_sample(self) -> float:
        classes = 2 if self._labels else len(self.classes_)
        return self.decays[0] * min(1.0, FEW_CLASSES / classes)

    def _takes_several(self, y: Any) -> bool:
        if y is None or getattr(y, "ndim", None) == 1:
            return False
        return bool(type_of_target(y) == "multilabel-indicator")

    def _draws_by_weight(self) -> bool:
        return self.class_weight is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _outputs(self) -> int:
        if self._labels:
            return len(self.classes_)
        classes = len(self.classes_)
        return 1 if classes == 2 and LOSSES[self.loss]().classes(1) == 2 else classes

    def _balance(self, y: Array, weight: Array | None) -> Array | None:
        if self.class_weight is None:
            return weight
        labels = self._encode(y)
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":  # for a weight of 2 is two samples
            totals = np.bincount(labels, weight, len(self.classes_))
            of_classes = totals.sum() / (np.count_nonzero(totals) * np.where(totals > 0, totals, 1.0))
        else:  # the samples of a batch need not be of every class
            of_classes = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
            if not (of_classes >= 0.0).all() or not np.isfinite(of_classes).all():
                raise ValueError(f"class_weight must hold finite weights >= 0, got {self.class_weight!r}")
        balanced: Array = of_classes[labels]
        return balanced if weight is None else balanced * weight

    def _strata(self, y: Array, fewest: int) -> Array | None:
        if self._labels:
            return None
        counts = np.unique(y, return_counts=True)[1]
        return y if counts.min() >= 2 and fewest >= len(counts) else None


def midway(loss: str) -> float:
    """Where the output for a label tells nothing: losses of margins have targets of -1 and 1, others of 0 and 1."""
    return 0.0 if issubclass(LOSSES[loss], MarginLoss) else 0.5


def check_labels(y: Array) -> None:
    """Refuse labels that are not 0 or 1."""
    strange = np.setdiff1d(y, (0, 1))
    if len(strange):
        raise ValueError(f"y holds {strange.tolist()[0]!r} among several labels to a sample; give 0 and 1")
