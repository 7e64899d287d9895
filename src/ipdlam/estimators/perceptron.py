"""What the classifier and the regressor share: data in, one of the two trainers, a plain network out."""

from __future__ import annotations

import copy
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Iterable
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn
from typing_extensions import Self

from ipdlam.batches import default_batch_size
from ipdlam.checks import check_integer, check_number
from ipdlam.estimators.onnx import write_onnx
from ipdlam.estimators.scaling import Array, Scaling
from ipdlam.estimators.stopping import Plateau
from ipdlam.inputs import from_numpy
from ipdlam.minibatch import MiniBatchIPDLAM
from ipdlam.models import mlp
from ipdlam.prox import ACTIVATIONS, Ridge
from ipdlam.trainer import IPDLAM

ALIASES = {"logistic": "sigmoid"}  # scikit-learn's name
CHUNK = 8192  # rows that are predicted at a time
# What None stands for: by the mini-batch method, and by the full-batch one.
DEFAULT_ALPHA = (0.01, 1e-5)
DEFAULT_PROXIMITY = (3.0, 1.0)


class Perceptron(BaseEstimator, metaclass=ABCMeta):
    """See :class:`ipdlam.estimators.IPDLAMClassifier`."""

    losses: ClassVar[tuple[str, ...]]  # the names that make sense
    several_targets: ClassVar[bool]  # whether y may be a matrix
    _trainer: MiniBatchIPDLAM | None  # of partial_fit
    _module: nn.Sequential | None
    loss_curve_: list[float]

    def __init__(
        self,
        hidden_layer_sizes: int | Iterable[int] = (100,),
        activation: str = "relu",
        *,
        loss: str = "squared",
        alpha: float | None = None,
        batch_size: int | str | None = "auto",
        max_iter: int = 20,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool = False,
        standardize: bool = True,
        step: float = 0.5,
        inertia: float = 0.7,
        proximity: float | None = None,
        penalty: float = 0.1,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.loss = loss
        self.alpha = alpha
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.standardize = standardize
        self.step = step
        self.inertia = inertia
        self.proximity = proximity
        self.penalty = penalty

    # --- what classes and real targets differ in -----------------------------------------------------------------

    @abstractmethod
    def _learn_targets(self, y: Array, weight: Array | None, classes: Any = None) -> None:
        """Remember what the first targets say: classes, or columns and their units."""

    @abstractmethod
    def _check_targets(self, y: Array) -> None:
        """Refuse targets that do not suit the first ones."""

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

    def _strata(self, y: Array, fewest: float) -> Array | None:
        """What the samples that are held out are drawn evenly from, where ``fewest`` can hold one of each."""
        del y, fewest
        return None

    def _target_scaling(self) -> Scaling | None:
        """The unit of the outputs, where it is not that of the targets."""
        return None

    # --- training ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on all samples; with ``warm_start`` from the weights of the last training.

        ``sample_weight`` are weights >= 0; a weight of 2 is a sample given twice.
        """
        self._check_settings()
        first = not (self.warm_start and hasattr(self, "n_iter_"))
        X, y, weight = self._check_data(X, y, sample_weight, first, least=2)
        random = check_random_state(self.random_state)
        held = None
        if first:
            self._learn_targets(y, weight)
        self._check_targets(y)
        X, y, weight = counted(X, y, self._balance(y, weight))
        if self.early_stopping:
            X, y, weight, held = self._hold_out(X, y, weight, random)
        seed = draw_seed(random)
        self._begin(X, weight, seed, first)
        validation = None if held is None else (self._inputs(held[0]), self._encode(held[1]), held[2])
        self._train(X, y, weight, validation, seed, first)
        return self

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
            ridge = Ridge(self._or_default("alpha", DEFAULT_ALPHA))
            plateau.keeps = None if self.early_stopping else self._network
            whole = IPDLAM(self._network, regularizer=ridge, **self._settings())
            history = whole.fit(inputs, targets, iterations=self.max_iter, **common)
            if plateau.best_weights:  # the full-batch method leaves its best network behind (docs/reproduction.md)
                self._network.load_state_dict(plateau.best_weights)
        self._publish(plateau.losses, first)
        if self.early_stopping:
            earlier = getattr(self, "validation_scores_", [])
            self.validation_scores_ = [*earlier, *(record.score for record in history)]
        if history.stop_reason == "interrupted":
            warnings.warn(f"interrupted by the user after {len(history)} iterations", UserWarning, stacklevel=3)
        elif history.stop_reason == "iterations" and plateau.falling:
            warnings.warn(
                f"the loss was still falling by more than tol={self.tol:g} when max_iter={self.max_iter} was reached; "
                "a larger max_iter may do better",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        """One pass over the samples in the order in which they are given."""
        self._check_settings()
        if self.early_stopping:
            raise ValueError("early_stopping is for fit; partial_fit makes one pass and has nothing to stop")
        first = not hasattr(self, "n_iter_")
        X, y, weight = self._check_data(X, y, sample_weight, first, least=1)
        if first:
            self._learn_targets(y, weight, classes)
        self._check_targets(y)
        X, y, weight = counted(X, y, self._balance(y, weight))
        seed = draw_seed(check_random_state(self.random_state))
        trainer = None if first else self._trainer
        self._begin(X, weight, seed, first)
        trainer = trainer or self._batch_trainer(seed, "auto")
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
        self._trainer = self._module = None  # of other weights, also where this training fails

    def _batch_trainer(self, seed: int, start: str) -> MiniBatchIPDLAM:
        return MiniBatchIPDLAM(
            self._network,
            step=self.step,
            weight_decay=self._or_default("alpha", DEFAULT_ALPHA),
            batch_size=self._batch_rows(),
            seed=seed,
            start=start,
            **self._settings(),
        )

    def _settings(self) -> dict[str, Any]:
        """Those that both methods have."""
        proximity = self._or_default("proximity", DEFAULT_PROXIMITY)
        return {"loss": self.loss, "inertia": self.inertia, "proximity": proximity, "penalty": self.penalty}

    def _or_default(self, name: str, defaults: tuple[float, float]) -> float:
        given = getattr(self, name)
        return defaults[self.batch_size is None] if given is None else given

    def _publish(self, losses: list[float], first: bool) -> None:
        """What users of scikit-learn look for after a training."""
        self.n_layers_, self.n_outputs_ = len(self._shape[0]), self._shape[0][-1]
        self.loss_curve_ = losses if first else [*self.loss_curve_, *losses]
        self.loss_ = self.loss_curve_[-1] if self.loss_curve_ else float("nan")
        self.n_iter_ = len(self.loss_curve_)

    @property
    def module_(self) -> nn.Sequential:
        """The trained network as a plain ``nn.Sequential`` from raw features: the scaling is in its layers."""
        check_is_fitted(self)
        if self._module is None:
            module = copy.deepcopy(self._network).requires_grad_(False)
            layers, of_targets = linear_layers(module), self._target_scaling()
            if self._scaling is not None:
                self._scaling.take_into_inputs(layers[0])
            if of_targets is not None:
                of_targets.take_into_outputs(layers[-1])
            self._module = module
        return self._module

    @property
    def coefs_(self) -> list[Array]:
        """The weight matrices of the layers, inputs by outputs."""
        return [layer.weight.numpy().T for layer in linear_layers(self.module_)]

    @property
    def intercepts_(self) -> list[Array]:
        """The biases of the layers."""
        return [layer.bias.numpy() for layer in linear_layers(self.module_)]

    # --- data and settings ---------------------------------------------------------------------------------------

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
        fraction = self.validation_fraction
        fewest = min(fraction, 1.0 - fraction) * len(X) - 1.0  # samples on the smaller side, at least
        kept, aside = train_test_split(
            np.arange(len(X)), test_size=fraction, random_state=random, stratify=self._strata(y, fewest)
        )
        some, held = (None, None) if weight is None else (weight[kept], weight[aside])
        return X[kept], y[kept], some, (X[aside], y[aside], held)

    def _inputs(self, X: Array) -> Array:
        return X if self._scaling is None else self._scaling(X)

    def _in_precision(self, array: Any) -> Any:
        """Real numbers as the network's own are; the trainers' loops convert nothing."""
        dtype = linear_layers(self._network)[0].weight.detach().numpy().dtype
        return array.astype(dtype, copy=False) if array is not None and array.dtype.kind == "f" else array

    def _batch_rows(self) -> int | None:
        """As the user said; None where the trainer is to choose."""
        return None if self.batch_size == "auto" else int(self.batch_size)  # type: ignore[arg-type]

    def _hidden(self) -> list[int]:
        sizes = self.hidden_layer_sizes if isinstance(self.hidden_layer_sizes, Iterable) else [self.hidden_layer_sizes]
        return [check_integer("hidden_layer_sizes", size, 1) for size in sizes]

    def _activation(self) -> str:
        return ALIASES.get(str(self.activation), self.activation)

    def _check_settings(self) -> None:
        """Before anything is learned: a call with a bad setting leaves an earlier training as it was."""
        self._hidden()
        for name, value, known in (("activation", self._activation(), ACTIVATIONS), ("loss", self.loss, self.losses)):
            if not isinstance(value, str) or value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        for name in ("max_iter", "n_iter_no_change"):
            check_integer(name, getattr(self, name), 1)
        for name in ("early_stopping", "warm_start", "standardize"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        given = [name for name in ("alpha", "proximity") if getattr(self, name) is not None]
        for name in ("tol", "inertia", "penalty", *given):
            check_number(name, getattr(self, name), low=0.0)
        check_number("step", self.step, low=0.0, strict=True)
        if not 0.0 < check_number("validation_fraction", self.validation_fraction) < 1.0:
            raise ValueError(f"validation_fraction must be above 0 and below 1, got {self.validation_fraction!r}")
        if isinstance(self.batch_size, str) and self.batch_size != "auto":
            raise ValueError(f'batch_size must be "auto", None or an integer >= 1, got {self.batch_size!r}')
        if self.batch_size is not None and self.batch_size != "auto":
            check_integer("batch_size", self.batch_size, 1)  # type: ignore[arg-type]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_iter_")

    # --- prediction ----------------------------------------------------------------------------------------------

    def _raw(self, X: Any) -> Tensor:
        """The outputs of the network, in the units of the trainers' targets."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        dtype = linear_layers(self._network)[0].weight.dtype
        chunks = (self._inputs(X[start : start + CHUNK]) for start in range(0, len(X), CHUNK))
        with torch.no_grad():
            return torch.cat([self._network(from_numpy("X", chunk).to(dtype)) for chunk in chunks])

    def export_onnx(self, path: str | PathLike[str]) -> None:
        """Write the network as an ONNX file that takes a batch ``X`` of any number of rows and gives ``outputs``.

        Needs ``pip install 'ipdlam[onnx]'``. The file holds :attr:`module_`: raw features in, for a classifier what
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


def uses_batches(estimator: Perceptron) -> bool:
    """Whether ``partial_fit`` exists: the full-batch method needs all samples at once."""
    if estimator.batch_size is None:
        raise AttributeError("partial_fit is for the mini-batch method; batch_size=None is the full-batch one")
    return True
