"""What the classifier and the regressor share: data in, one of the two trainers, a plain network out."""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor, nn
from typing_extensions import Self

from ipdlam.estimators.batches import DrawnBatches
from ipdlam.estimators.members import (
    averaged,
    beside,
    in_order,
    in_orders,
    joined,
    linear_layers,
    member_count,
    separate,
)
from ipdlam.estimators.onnx import write_onnx
from ipdlam.estimators.parameters import Parameters
from ipdlam.estimators.pieces import Pieces
from ipdlam.estimators.reading import DENSE_CELLS, Reader, Rows, dense, has_gaps
from ipdlam.estimators.scaling import Array, Clamp, Scaling, SmoothClip
from ipdlam.estimators.stopping import Plateau
from ipdlam.fullbatch.trainer import IPDLAM
from ipdlam.minibatch.batch import unit_of
from ipdlam.minibatch.trainer import MiniBatchIPDLAM
from ipdlam.network.initialise import mlp
from ipdlam.network.linalg import all_finite
from ipdlam.network.samples import from_numpy
from ipdlam.prox import LOSSES, Loss
from ipdlam.prox.members import OfMembers
from ipdlam.prox.registry import by_name

CHUNK = 8192  # rows that are predicted, or made inputs in another precision, at a time
REFIT_BELOW = 10000  # samples: from here on, those held out for early stopping are not missed


class Perceptron(Parameters, metaclass=ABCMeta):
    """See :class:`ipdlam.estimators.IPDLAMClassifier`."""

    several_targets: ClassVar[bool]  # whether y may be a matrix
    _trainer: MiniBatchIPDLAM | None  # of partial_fit
    _fitted_loss: str
    _scaling: Scaling | SmoothClip | Pieces | None  # from features to the inputs of the networks
    _networks: list[nn.Sequential]  # the members
    _streams_with: dict[str, Any]  # the settings of that trainer
    loss_curve_: list[float]

    # --- what classes and real targets differ in -----------------------------------------------------------------

    @abstractmethod
    def _learn_targets(self, y: Array, weight: Array | None, classes: Any = None) -> None:
        """Remember what the first targets say: classes, or columns and their units."""

    @abstractmethod
    def _check_targets(self, y: Array) -> None:
        """Refuse targets that do not suit the first ones."""

    def _meet_targets(self, y: Array, first: bool) -> None:
        """See the targets of a training that begins, the ``first`` one or one that goes on."""
        del y, first

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

    def _takes_several(self, y: Any) -> bool:
        """Whether ``y`` may be a matrix."""
        del y
        return self.several_targets

    def _draws_by_weight(self) -> bool:
        """Whether weights say how often samples are met, not how much they count when they are."""
        return False

    def _strata(self, y: Array, fewest: int) -> Array | None:
        """What the samples that are held out are drawn evenly from, where ``fewest`` can hold one of each."""
        del y, fewest
        return None

    def _target_scaling(self) -> Scaling | None:
        """The unit of the outputs, where it is not that of the targets."""
        return None

    def _target_range(self) -> tuple[Array, Array] | None:
        """The least and the most that outputs may be, where there is such."""
        return None

    # --- training ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on all samples; with ``warm_start`` from the weights of the last training.

        ``sample_weight`` are weights >= 0. In one batch a weight of 2 is a sample given twice; over several batches a
        sample is met once an epoch whatever its weight, so that a huge one is not worth as many copies. With
        ``class_weight`` a sample is met as often as both weights say.
        """
        self._check_settings()
        with self._as_it_was():
            self._fit(X, y, sample_weight)
        return self

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """Data that are refused, before anything is learned from them, leave what was learned earlier."""
        earlier = dict(self.__dict__)
        try:
            yield
        except (TypeError, ValueError):
            self.__dict__.clear()
            self.__dict__.update(earlier)
            raise

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        random = check_random_state(self.random_state)
        first = not (self.warm_start and hasattr(self, "n_iter_"))
        if first:
            self.__dict__.pop("n_iter_", None)  # nothing predicts until this training has ended
        rows = self._check_data(X, y, sample_weight, first, least=2)
        self._check_range(rows.y, rows.X.dtype if first else self._precision())
        if first:
            self._learn_targets(rows.y, rows.weight)
        else:
            self._check_targets(rows.y)
        self._meet_targets(rows.y, first)
        rows = self._balanced(rows)
        kept, held = self._hold_out(rows, random) if self.early_stopping else (None, None)
        seeds = self._seeds(random, len(rows), first)
        self._begin(rows.picked(kept), seeds, first, self._piece_count(len(rows)))
        curves: list[list[float]] = []
        # The full-batch method trains one member after the other.
        groups = [self._networks] if self.batch_size is not None else [[network] for network in self._networks]
        for group, seed in zip(groups, seeds, strict=False):
            whole = joined(group, self._training_type(len(rows)))
            losses, interrupted = self._train(whole, rows, kept, held, seed, first)
            if interrupted and curves:  # the members that are trained are enough
                break
            separate(whole, group)
            curves.append(losses)
            if interrupted:
                break
        self._networks = [network for group in groups[: len(curves)] for network in group]
        self._publish(mean_curve(curves), first)

    def _train(
        self, network: nn.Sequential, rows: Rows, kept: Array | None, held: Array | None, seed: int, first: bool
    ) -> tuple[list[float], bool]:
        """Train one network; the losses of its epochs, and whether the user has ended it.

        Some samples are ``kept`` and others ``held`` back, where it is to stop early. With few samples those held back
        are missed. So they only say how many epochs are best, and a second training from the same start is planned on
        all samples for so many epochs.
        """
        if held is None:
            return self._run(network, rows, None, seed, first, self.max_iter)[:2]
        start = copy.deepcopy(network.state_dict())
        training = self._run(network, rows.picked(kept), rows.picked(held), seed, first, self.max_iter)
        losses, interrupted, best_epoch = training
        if not best_epoch or len(rows) >= REFIT_BELOW or interrupted:
            return losses, interrupted
        network.load_state_dict(start)
        return self._run(network, rows, None, seed, first, best_epoch)[:2]

    def _run(
        self, network: nn.Sequential, rows: Rows, held: Rows | None, seed: int, first: bool, epochs: int
    ) -> tuple[list[float], bool, int]:
        """One training: the losses of its epochs, whether the user has ended it, and which epoch was best.

        Where samples are ``held`` back, the network ends with the weights that are best on them.
        """
        batches, weight = self.batch_size is not None, rows.weight
        drawn = batches and self._draws_by_weight()
        samples = float(len(rows) if weight is None or drawn else weight.sum())
        talks_as = type(self).__name__ if self.verbose else None
        members = member_count(network, self._outputs())
        counted = samples if batches else None
        plateau = Plateau(self.tol, self.n_iter_no_change, counted, talks_as, held is not None, members)
        if held is not None or not batches:  # the full-batch method leaves its best network behind on the way
            plateau.keeps = network
        validation = None
        if held is not None:
            same = in_order(members)
            validation = beside(self._inputs(dense(held.X)), same), self._targets(held.y, same), held.weight
        common: dict[str, Any] = {"validation_data": validation, "callbacks": [plateau]}
        if batches:
            known = samples if weight is None or drawn else samples / unit_of(torch.tensor(weight))
            trainer = self._batch_trainer(network, len(rows), known, seed, "rescale" if first else "keep", members)
            # A forward pass over all samples is not free.
            common |= {"epochs": epochs, "evaluate_every": 1 if held is not None else epochs}
            if drawn or self._is_large(rows.X, members):
                history = trainer.fit(self._loader(rows, members, seed, drawn, precision_of(network)), **common)
            else:  # a weight is that of a row, and so the same for all members
                orders = in_orders(members, len(rows), seed) if weight is None else in_order(members)
                own = self._all_inputs(rows.X, precision_of(network))
                inputs, targets = beside(own, orders), self._targets(rows.y, orders)
                history = trainer.fit(inputs, targets, sample_weight=weight, **common)
        else:
            whole, inputs = IPDLAM(network, **self._full_batch_settings()), self._inputs(dense(rows.X))
            targets = self._encode(rows.y)
            history = whole.fit(inputs, targets, iterations=epochs, sample_weight=weight, **common)
        if plateau.best_weights:
            network.load_state_dict(plateau.best_weights)
        if held is not None:
            scores = [math.nan if record.score is None else record.score for record in history]
            self.validation_scores_ = [*getattr(self, "validation_scores_", []), *scores]
            if history.stop_reason == "iterations" and plateau.best_epoch == len(history) > 1:
                warnings.warn(
                    f"the loss of the samples held out was still falling when max_iter={self.max_iter} was reached; "
                    "more iterations would help",
                    ConvergenceWarning,
                    stacklevel=5,
                )
        if history.stop_reason == "interrupted":
            if not history:
                raise KeyboardInterrupt  # there is nothing to go on with
            warnings.warn(f"interrupted by the user after {len(history)} iterations", UserWarning, stacklevel=5)
        return plateau.losses, history.stop_reason == "interrupted", plateau.best_epoch

    def _all_inputs(self, X: Any, dtype: Any) -> Array:
        """The inputs of all samples in the precision of a training; where it is another one, some rows at a time."""
        if self._precision() == dtype:
            return self._inputs(dense(X))
        found = np.empty((X.shape[0], self._shape[0][0]), dtype)
        for start in range(0, len(found), CHUNK):
            found[start : start + CHUNK] = self._inputs(dense(X[start : start + CHUNK]))
        return found

    def _is_large(self, X: Any, members: int) -> bool:
        """Whether the inputs of the networks are far larger than X, so that they are made batch by batch."""
        wider = issparse(X) or isinstance(self._scaling, Pieces) or members > 1
        return wider and X.shape[0] * self._shape[0][0] * members > DENSE_CELLS

    def _targets(self, y: Array, orders: Sequence[Any]) -> Array:
        """The targets of all members side by side, each in its order; those of several are never labels."""
        targets = self._encode(y)
        if len(orders) > 1 and targets.ndim == 1:
            loss = by_name("loss", self._loss(), LOSSES, Loss)  # type: ignore[type-abstract]
            dtype = linear_layers(self._networks[0])[0].weight.dtype
            targets = loss.encode(torch.from_numpy(targets), self._outputs(), dtype).numpy()
        return beside(targets, orders)

    def _training_type(self, rows: int) -> torch.dtype:
        """Clipped samples of several batches need no more than float32, which takes half of the time of float64.

        Others may be of any size. A single batch is done soon, and weights are to be repetitions in it to the digit.
        """
        own = linear_layers(self._networks[0])[0].weight.dtype
        scaling = self._scaling.scaling if isinstance(self._scaling, Pieces) else self._scaling
        several = self.batch_size is not None and rows > self._batch_rows(rows)
        return torch.float32 if several and isinstance(scaling, SmoothClip) else own

    def _loader(self, rows: Rows, members: int, seed: int, drawn: bool, dtype: Any) -> DrawnBatches:
        """The samples batch by batch, in this precision, where they are not gone through as they are."""
        same = in_order(members)
        goals = torch.from_numpy(in_precision(self._targets(rows.y, same), dtype))
        weights, chances = (None, rows.weight) if drawn else (in_precision(rows.weight, dtype), None)

        def inputs(numbers: Array) -> Array:
            return beside(self._inputs(dense(rows.X[numbers])).astype(dtype, copy=False), same)

        return DrawnBatches(inputs, goals, weights, self._batch_rows(len(rows)), seed, chances)

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        """One pass over the samples in the order in which they are given."""
        self._check_settings()
        if self.early_stopping:
            raise ValueError("early_stopping is for fit; partial_fit makes one pass and has nothing to stop")
        with self._as_it_was():
            self._stream(X, y, sample_weight, classes)
        return self

    def _stream(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> None:
        first = not hasattr(self, "n_iter_")
        rows = self._check_data(X, y, sample_weight, first, least=1)
        self._check_range(rows.y, rows.X.dtype if first else self._precision())
        if first:
            self._learn_targets(rows.y, rows.weight, classes)
        self._check_targets(rows.y)  # also those of the first call: they need not be of every class
        self._meet_targets(rows.y, first)
        rows = self._balanced(rows)
        seeds = self._seeds(check_random_state(self.random_state), None, first)
        trainer = None if first else self._trainer
        self._begin(rows, seeds, first, self._piece_count(None))
        members = len(seeds)
        if trainer is None or self._streams_with != self._batch_settings(None):  # its memory begins anew
            begin = "auto" if first else "keep"
            trainer = self._batch_trainer(joined(self._networks), None, None, seeds[0], begin, members)
            self._streams_with = self._batch_settings(None)
        total, count = 0.0, 0.0
        size, same = self._batch_rows(len(rows)), in_order(members)
        for start in range(0, len(rows), size):
            some = rows.picked(slice(start, start + size))
            given = (beside(self._inputs(dense(some.X)), same), self._targets(some.y, same), some.weight)
            samples = float(len(some) if some.weight is None else some.weight.sum())
            total += samples * trainer.step(*(in_precision(array, self._precision()) for array in given))
            count += samples
        whole = trainer.model
        assert isinstance(whole, nn.Sequential)
        separate(whole, self._networks)
        self._trainer = trainer  # here, since one that failed cannot go on
        self._publish([total / (count * members)], first)

    def _seeds(self, random: Any, samples: int | None, first: bool) -> list[int]:
        """One for each member; ``samples`` is None where they come as a stream."""
        known = not first and self.n_members == "auto"
        return [draw_seed(random) for _ in range(len(self._networks) if known else self._member_count(samples))]

    def _begin(self, rows: Rows, seeds: list[int], first: bool, pieces: int) -> None:
        """The scale of the inputs and networks, or those of the last training; ``pieces`` to a column."""
        X = rows.X
        if first:
            kind = SmoothClip if self.standardize == "robust" and not issparse(X) else Scaling
            found = kind.of(X, rows.weight)
            self._scaling, self._usual = found if self.standardize else None, found.usual
            if pieces and not issparse(X):
                self._scaling = Pieces.of(X, rows.weight, pieces, self._scaling)
        width = X.shape[1] + (len(self._scaling.column) if isinstance(self._scaling, Pieces) else 0)
        shape = (width, *self._hidden(), self._outputs()), self._activation()
        if first:
            dtype = torch.float32 if X.dtype == np.float32 else torch.float64
            self._networks, self._shape = [mlp(*shape, "he", seed, dtype, "cpu") for seed in seeds], shape
            self.__dict__.pop("validation_scores_", None)
        elif shape != self._shape or len(seeds) != len(self._networks):
            raise ValueError(
                f"hidden_layer_sizes, activation, loss and n_members give {len(seeds)} x the network {shape}, but what "
                f"there is to go on with is {len(self._networks)} x {self._shape}; set them back, or fit a clone"
            )
        self._trainer = None  # of other weights, also where this training fails
        self._fitted_loss = self._loss_name()  # what predictions are made by, whatever is set later

    def _batch_trainer(
        self, network: nn.Sequential, rows: int | None, samples: float | None, seed: int, start: str, members: int = 1
    ) -> MiniBatchIPDLAM:
        """``samples`` is for how many the ``rows`` count; a stream has neither."""
        size = None if rows is None else self._batch_rows(rows)
        settings = self._batch_settings(samples) if size is None else self._batch_settings(samples, size)
        if members > 1:
            settings["loss"] = OfMembers(by_name("loss", settings["loss"], LOSSES, Loss), members)
        return MiniBatchIPDLAM(network, batch_size=size, seed=seed, start=start, **settings)

    def _publish(self, losses: list[float], first: bool) -> None:
        """What users of scikit-learn look for after a training."""
        self.n_layers_, self.n_outputs_ = len(self._shape[0]), self._shape[0][-1]
        if first:
            self.loss_curve_ = []
        self.loss_curve_ += losses
        self.loss_, self.n_iter_ = self.loss_curve_[-1], len(self.loss_curve_)

    @property
    def module_(self) -> nn.Sequential:
        """A copy of the trained network, a plain ``nn.Sequential`` of raw features: the scaling is in its modules."""
        check_is_fitted(self)
        module = averaged(self._networks)
        of_targets = self._target_scaling()
        if of_targets is not None:
            of_targets.take_into_outputs(linear_layers(module)[-1])
        ends = self._target_range()
        if ends is not None:
            dtype = linear_layers(module)[-1].weight.dtype
            module.append(Clamp(*(torch.as_tensor(end).to(dtype) for end in ends)))
        return module if self._scaling is None else self._scaling.put_before(module)

    @property
    def coefs_(self) -> list[Array]:
        """Copies of the weight matrices of ``module_``, inputs by outputs; the first one's inputs are scaled ones."""
        return [layer.weight.numpy().T for layer in linear_layers(self.module_)]

    @property
    def intercepts_(self) -> list[Array]:
        """Copies of the biases of ``module_``."""
        return [layer.bias.numpy() for layer in linear_layers(self.module_)]

    # --- data ----------------------------------------------------------------------------------------------------

    def _check_data(self, X: Any, y: Any, sample_weight: Any, first: bool, least: int) -> Rows:
        if first:
            self._reader = Reader.of(X, self.categorical_features)
        several = self._takes_several(y)
        checks = {"multi_output": several, "y_numeric": self.several_targets, "ensure_min_samples": least}
        X, y = self._reader.fit(self, X, y, first, **checks)
        if sample_weight is None:
            return Rows(X, y, None)
        weight = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        return Rows(X, y, weight).counted()

    def _balanced(self, rows: Rows) -> Rows:
        """The samples with the weights of their classes."""
        return Rows(rows.X, rows.y, self._balance(rows.y, rows.weight)).counted()

    def _hold_out(self, rows: Rows, random: Any) -> tuple[Array, Array]:
        """The numbers of the samples to train on, and of those that are held back."""
        y = rows.y
        held_out = math.ceil(self.validation_fraction * len(y))
        if held_out >= len(y):
            raise ValueError(
                f"validation_fraction={self.validation_fraction} holds back all of the {len(y)} samples that count; "
                "give a smaller one, or leave early_stopping out"
            )
        strata = self._strata(y, min(held_out, len(y) - held_out))
        kept, held = train_test_split(
            np.arange(len(y)), test_size=self.validation_fraction, random_state=random, stratify=strata
        )
        return kept, held

    def _inputs(self, X: Array) -> Array:
        """What the networks are given. A gap that the first samples did not have is a usual value."""
        if has_gaps(X):
            X = np.where(np.isnan(X), self._usual, X)
        return X if self._scaling is None else self._scaling(X)

    def _precision(self) -> Any:
        """NumPy's type of the networks' numbers."""
        return precision_of(self._networks[0])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_iter_")

    # --- prediction ----------------------------------------------------------------------------------------------

    def _raw(self, X: Any) -> Tensor:
        """The outputs of the networks on average, in the units of the trainers' targets."""
        check_is_fitted(self)
        X = self._reader(self, X)
        dtype = linear_layers(self._networks[0])[0].weight.dtype
        chunks = (self._inputs(dense(X[start : start + CHUNK])) for start in range(0, X.shape[0], CHUNK))
        with torch.no_grad(), np.errstate(over="ignore"):  # an overflow is found below, with its place
            outputs = torch.cat([self._mean_outputs(from_numpy("X", chunk).to(dtype)) for chunk in chunks])
        if not all_finite(outputs):
            row = int((~torch.isfinite(outputs)).nonzero()[0, 0])
            given = dense(X[row : row + 1])[0]
            raise ValueError(
                f"X holds {given[np.abs(given).argmax()]} in row {row}, for which the outputs of the network are not "
                f"finite in {dtype}; remove or mend the row, or train on samples of that size, in float64"
            )
        return outputs

    def _mean_outputs(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self._networks[0](inputs)
        for network in self._networks[1:]:
            outputs += network(inputs)
        return outputs if len(self._networks) == 1 else outputs / len(self._networks)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def to_numbers(self, X: Any) -> Array:
        """What :attr:`module_` takes for these samples: categories as columns of 0 and 1, gaps filled, not scaled."""
        check_is_fitted(self)
        numbers = dense(self._reader(self, X))
        return np.where(np.isnan(numbers), self._usual, numbers) if has_gaps(numbers) else numbers

    @property
    def number_names_(self) -> list[str]:
        """The names of the columns of :meth:`to_numbers`."""
        check_is_fitted(self)
        if self._reader.columns is not None:
            return self._reader.columns.named()
        return list(getattr(self, "feature_names_in_", [f"x{number}" for number in range(self.n_features_in_)]))

    def export_onnx(self, path: str | PathLike[str]) -> None:
        """Write the network as an ONNX file that takes a batch ``X`` of any number of rows and gives ``outputs``.

        Needs ``pip install onnx onnxscript``. The file holds :attr:`module_`: raw features in, for a classifier what
        ``decision_function`` is made of, for a regressor the targets.
        """
        write_onnx(self.module_, len(self._usual), path)


def mean_curve(curves: list[list[float]]) -> list[float]:
    """The mean loss of several networks, epoch by epoch; one that has ended stays where it was."""
    longest = max(len(curve) for curve in curves)
    padded = [curve + curve[-1:] * (longest - len(curve)) for curve in curves]
    return [sum(losses) / len(curves) for losses in zip(*padded, strict=True)]


def precision_of(network: nn.Sequential) -> Any:
    """NumPy's type of a network's numbers."""
    return next(network.parameters()).detach().numpy().dtype


def in_precision(array: Any, dtype: Any) -> Any:
    """Real numbers as the network's own are; the trainers' loops convert nothing."""
    return array.astype(dtype, copy=False) if array is not None and array.dtype.kind == "f" else array


def draw_seed(random: Any) -> int:
    """A seed for torch from a random state of NumPy."""
    return int(random.randint(np.iinfo(np.int32).max))
