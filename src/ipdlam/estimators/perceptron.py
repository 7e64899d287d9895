"""What the classifier and the regressor share: data in, one of the two trainers, a plain network out."""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABCMeta, abstractmethod
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn
from typing_extensions import Self

from ipdlam.estimators.onnx import write_onnx
from ipdlam.estimators.parameters import Parameters
from ipdlam.estimators.scaling import Array, Scaling
from ipdlam.estimators.stopping import Plateau
from ipdlam.fullbatch.trainer import IPDLAM
from ipdlam.minibatch.batch import default_batch_size
from ipdlam.minibatch.trainer import MiniBatchIPDLAM
from ipdlam.network.initialise import mlp
from ipdlam.network.linalg import all_finite
from ipdlam.network.samples import from_numpy

CHUNK = 8192  # rows that are predicted at a time


class Perceptron(Parameters, metaclass=ABCMeta):
    """See :class:`ipdlam.estimators.IPDLAMClassifier`."""

    several_targets: ClassVar[bool]  # whether y may be a matrix
    _trainer: MiniBatchIPDLAM | None  # of partial_fit
    _fitted_loss: str
    _streams_with: dict[str, Any]  # the settings of that trainer
    loss_curve_: list[float]

    # --- what classes and real targets differ in -----------------------------------------------------------------

    @abstractmethod
    def _learn_targets(self, y: Array, weight: Array | None, classes: Any = None) -> None:
        """Remember what the first targets say: classes, or columns and their units."""

    @abstractmethod
    def _check_targets(self, y: Array) -> None:
        """Refuse targets that do not suit the first ones."""

    def _check_range(self, y: Array, dtype: Any) -> None:
        """Refuse targets that a network of this precision cannot give."""
        del y, dtype

    @abstractmethod
    def _encode(self, y: Array) -> Array:
        """The targets as the trainers take them."""

    @abstractmethod
    def _outputs(self) -> int:
        """How many outputs the network has."""

    def _balance(self, y: Array, weight: Array | None) -> Array | None:
        """The samples' weights, with those of their classes."""
        del y
        return weight

    def _strata(self, y: Array, fewest: int) -> Array | None:
        """What the samples that are held out are drawn evenly from, where ``fewest`` can hold one of each."""
        del y, fewest
        return None

    def _target_scaling(self) -> Scaling | None:
        """The unit of the outputs, where it is not that of the targets."""
        return None

    # --- training ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on all samples; with ``warm_start`` from the weights of the last training.

        ``sample_weight`` are weights >= 0. In one batch a weight of 2 is a sample given twice; over several batches a
        sample is met once an epoch whatever its weight, so that a huge one is not worth as many copies.
        """
        self._check_settings()
        earlier = dict(self.__dict__)
        try:
            self._fit(X, y, sample_weight)
        except (TypeError, ValueError):  # refused before anything was learned: what was learned earlier stays
            self.__dict__.clear()
            self.__dict__.update(earlier)
            raise
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        random, held = check_random_state(self.random_state), None
        first = not (self.warm_start and hasattr(self, "n_iter_"))
        if first:
            self.__dict__.pop("n_iter_", None)  # nothing predicts until this training has ended
        X, y, weight = self._check_data(X, y, sample_weight, first, least=2)
        self._check_range(y, X.dtype if first else self._precision())
        if first:
            self._learn_targets(y, weight)
        else:
            self._check_targets(y)
        X, y, weight = counted(X, y, self._balance(y, weight))
        if self.early_stopping:
            X, y, weight, held = self._hold_out(X, y, weight, random)
        seed = draw_seed(random)
        self._begin(X, weight, seed, first)
        validation = None if held is None else (self._inputs(held[0]), self._encode(held[1]), held[2])
        self._train(X, y, weight, validation, seed, first)

    def _train(self, X: Array, y: Array, weight: Array | None, validation: Any, seed: int, first: bool) -> None:
        samples = float(len(X) if weight is None else weight.sum())
        batches = self.batch_size is not None
        plateau = Plateau(
            self.tol,
            None if self.early_stopping else self.n_iter_no_change,
            samples if batches else None,
            type(self).__name__ if self.verbose else None,
        )
        common: dict[str, Any] = {
            "sample_weight": weight,
            "validation_data": validation,
            "restore_best": self.early_stopping,
            "patience": self.n_iter_no_change if self.early_stopping else None,
            "callbacks": [plateau],
        }
        inputs, targets = self._inputs(X), self._encode(y)
        if batches:
            trainer = self._batch_trainer(seed, "rescale" if first else "keep")
            every = 1 if self.early_stopping else self.max_iter  # a forward pass over all samples is not free
            history = trainer.fit(inputs, targets, epochs=self.max_iter, evaluate_every=every, **common)
        else:
            plateau.keeps = None if self.early_stopping else self._network
            whole = IPDLAM(self._network, **self._full_batch_settings())
            history = whole.fit(inputs, targets, iterations=self.max_iter, **common)
            if plateau.best_weights:  # the method leaves its best network behind (docs/results/reproduction.md)
                self._network.load_state_dict(plateau.best_weights)
        if history.stop_reason == "interrupted" and not history:
            raise KeyboardInterrupt  # there is nothing to go on with
        self._publish(plateau.losses, first)
        if self.early_stopping:
            earlier = getattr(self, "validation_scores_", [])
            scores = (math.nan if record.score is None else record.score for record in history)
            self.validation_scores_ = [*earlier, *scores]
        if history.stop_reason == "interrupted":
            warnings.warn(f"interrupted by the user after {len(history)} iterations", UserWarning, stacklevel=4)
        elif history.stop_reason == "iterations" and not batches and plateau.falling:  # batches come to rest by plan
            warnings.warn(
                f"the training loss was still falling when max_iter={self.max_iter} was reached; more iterations would "
                "fit the samples better",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        """One pass over the samples in the order in which they are given."""
        self._check_settings()
        if self.early_stopping:
            raise ValueError("early_stopping is for fit; partial_fit makes one pass and has nothing to stop")
        first = not hasattr(self, "n_iter_")
        X, y, weight = self._check_data(X, y, sample_weight, first, least=1)
        self._check_range(y, X.dtype if first else self._precision())
        if first:
            self._learn_targets(y, weight, classes)
        self._check_targets(y)  # also those of the first call: they need not be of every class
        X, y, weight = counted(X, y, self._balance(y, weight))
        seed = draw_seed(check_random_state(self.random_state))
        trainer = None if first else self._trainer
        self._begin(X, weight, seed, first)
        if trainer is None or self._streams_with != self._batch_settings():  # its memory begins anew
            trainer, self._streams_with = self._batch_trainer(seed, "auto" if first else "keep"), self._batch_settings()
        inputs, targets, weight = (self._in_precision(array) for array in (self._inputs(X), self._encode(y), weight))
        total, count = 0.0, 0.0
        size = self._batch_rows() or default_batch_size(len(X))
        for start in range(0, len(X), size):
            rows = slice(start, start + size)
            some = None if weight is None else weight[rows]
            samples = float(len(inputs[rows]) if some is None else some.sum())
            total += samples * trainer.step(inputs[rows], targets[rows], some)
            count += samples
        self._trainer = trainer  # here, since one that failed cannot go on
        self._publish([total / count], first)
        return self

    def _begin(self, X: Array, weight: Array | None, seed: int, first: bool) -> None:
        """The scale of the inputs and a network, or those of the last training."""
        shape = (X.shape[1], *self._hidden(), self._outputs()), self._activation()
        if first:
            self._scaling = Scaling.of(X, weight) if self.standardize else None
            dtype = torch.float32 if X.dtype == np.float32 else torch.float64
            self._network, self._shape = mlp(*shape, "he", seed, dtype, "cpu"), shape
            self.__dict__.pop("validation_scores_", None)
        elif shape != self._shape:
            raise ValueError(
                f"hidden_layer_sizes, activation and loss give the network {shape}, but the one to go on with is "
                f"{self._shape}; set them back, or fit a clone"
            )
        self._trainer = None  # of other weights, also where this training fails
        self._fitted_loss = self.loss  # what predictions are made by, whatever is set later

    def _batch_trainer(self, seed: int, start: str) -> MiniBatchIPDLAM:
        size = self._batch_rows()
        return MiniBatchIPDLAM(self._network, batch_size=size, seed=seed, start=start, **self._batch_settings())

    def _publish(self, losses: list[float], first: bool) -> None:
        """What users of scikit-learn look for after a training."""
        self.n_layers_, self.n_outputs_ = len(self._shape[0]), self._shape[0][-1]
        if first:
            self.loss_curve_ = []
        self.loss_curve_ += losses
        self.loss_, self.n_iter_ = self.loss_curve_[-1], len(self.loss_curve_)

    @property
    def module_(self) -> nn.Sequential:
        """A copy of the trained network, a plain ``nn.Sequential`` of raw features: the scaling is in its layers."""
        check_is_fitted(self)
        module = copy.deepcopy(self._network).requires_grad_(False)
        layers, of_targets = linear_layers(module), self._target_scaling()
        if self._scaling is not None:
            self._scaling.take_into_inputs(layers[0])
        if of_targets is not None:
            of_targets.take_into_outputs(layers[-1])
        return module

    @property
    def coefs_(self) -> list[Array]:
        """Copies of the weight matrices of ``module_``, inputs by outputs."""
        return [layer.weight.numpy().T for layer in linear_layers(self.module_)]

    @property
    def intercepts_(self) -> list[Array]:
        """Copies of the biases of ``module_``."""
        return [layer.bias.numpy() for layer in linear_layers(self.module_)]

    # --- data ----------------------------------------------------------------------------------------------------

    def _check_data(self, X: Any, y: Any, sample_weight: Any, first: bool, least: int) -> tuple[Array, Array, Any]:
        X, y = validate_data(
            self,
            X,
            y,
            dtype=[np.float64, np.float32],
            multi_output=self.several_targets,
            y_numeric=self.several_targets,
            reset=first,
            ensure_min_samples=least,
        )
        if sample_weight is None:
            return X, y, None
        return counted(X, y, _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True))

    def _hold_out(self, X: Array, y: Array, weight: Array | None, random: Any) -> tuple[Array, Array, Any, Any]:
        held_out = math.ceil(self.validation_fraction * len(X))
        strata = self._strata(y, min(held_out, len(X) - held_out))
        kept, aside = train_test_split(
            np.arange(len(X)), test_size=self.validation_fraction, random_state=random, stratify=strata
        )
        some, held = (None, None) if weight is None else (weight[kept], weight[aside])
        return X[kept], y[kept], some, (X[aside], y[aside], held)

    def _inputs(self, X: Array) -> Array:
        return X if self._scaling is None else self._scaling(X)

    def _in_precision(self, array: Any) -> Any:
        """Real numbers as the network's own are; the trainers' loops convert nothing."""
        dtype = self._precision()
        return array.astype(dtype, copy=False) if array is not None and array.dtype.kind == "f" else array

    def _precision(self) -> Any:
        """NumPy's type of the network's numbers."""
        return linear_layers(self._network)[0].weight.detach().numpy().dtype

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_iter_")

    # --- prediction ----------------------------------------------------------------------------------------------

    def _raw(self, X: Any) -> Tensor:
        """The outputs of the network, in the units of the trainers' targets."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        dtype = linear_layers(self._network)[0].weight.dtype
        chunks = (self._inputs(X[start : start + CHUNK]) for start in range(0, len(X), CHUNK))
        with torch.no_grad(), np.errstate(over="ignore"):  # an overflow is found below, with its place
            outputs = torch.cat([self._network(from_numpy("X", chunk).to(dtype)) for chunk in chunks])
        if not all_finite(outputs):
            row = int((~torch.isfinite(outputs)).nonzero()[0, 0])
            largest = X[row, np.abs(X[row]).argmax()]
            raise ValueError(
                f"X holds {largest} in row {row}, for which the outputs of the network are not finite in {dtype}; "
                "remove or mend the row, or train on samples of that size, in float64"
            )
        return outputs

    def export_onnx(self, path: str | PathLike[str]) -> None:
        """Write the network as an ONNX file that takes a batch ``X`` of any number of rows and gives ``outputs``.

        Needs ``pip install onnx onnxscript``. The file holds :attr:`module_`: raw features in, for a classifier what
        ``decision_function`` is made of, for a regressor the targets.
        """
        check_is_fitted(self)
        write_onnx(self.module_, self.n_features_in_, path)


def linear_layers(module: nn.Sequential) -> list[nn.Linear]:
    """The layers with weights, from the inputs to the outputs."""
    return [layer for layer in module if isinstance(layer, nn.Linear)]


def counted(X: Array, y: Array, weight: Array | None) -> tuple[Array, Array, Array | None]:
    """The samples without those of weight zero."""
    if weight is None or (weight > 0).all():
        return X, y, weight
    if not (weight > 0).any():
        raise ValueError(
            "the weight of every sample is zero, by sample_weight or class_weight; at least one must count"
        )
    return X[weight > 0], y[weight > 0], weight[weight > 0]


def draw_seed(random: Any) -> int:
    """A seed for torch from a random state of NumPy."""
    return int(random.randint(np.iinfo(np.int32).max))
