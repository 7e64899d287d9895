"""The settings of both estimators: their names are arguments of the constructor, as scikit-learn wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator

from ipdlam import defaults
from ipdlam.checks import check_integer, check_number
from ipdlam.fullbatch.trainer import IPDLAM
from ipdlam.minibatch.batch import default_batch_size
from ipdlam.minibatch.trainer import MiniBatchIPDLAM
from ipdlam.network.initialise import mlp
from ipdlam.prox import ACTIVATIONS, Loss, Ridge

ALIASES = {"logistic": "sigmoid"}  # scikit-learn's name
PIECES = 4  # what n_pieces="auto" stands for where there are enough samples
MEMBERS_FROM = 1000  # samples that n_members="auto" needs for several: of fewer, the mean was no better than one
MEMBERS_BELOW = defaults.FEW_SAMPLES  # in the large batches of more, each member costs as much as the first
DECAY_OF_A_STREAM = 0.01  # what alpha=None stands for where nobody knows how many samples there will be


class Parameters(BaseEstimator):
    """What can be set; see :class:`ipdlam.estimators.IPDLAMClassifier`."""

    losses: ClassVar[tuple[str, ...]]  # the names that make sense
    # What alpha=None stands for on mini-batches: the first over n^1.5, n the number of samples, and at most the second.
    # The more samples there are, the less has to be said beside them. Batches of fewer samples than usual are more
    # steps, each of which pulls by so much less. The full-batch method has a default of its own.
    decays: ClassVar[tuple[float, float]]
    members: ClassVar[int]  # what n_members="auto" stands for where there are enough samples
    # How many samples n_pieces="auto" needs for pieces; below, and where it is infinite, there are none.
    pieces_from: ClassVar[float]

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (256,),
        activation: str = "relu",
        *,
        loss: str = "squared",
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
        self.categorical_features = categorical_features
        self.n_pieces = n_pieces
        self.n_members = n_members
        self.step = step
        self.inertia = inertia
        self.proximity = proximity
        self.penalty = penalty

    def _batch_rows(self, samples: int) -> int:
        """Samples to a batch."""
        return default_batch_size(samples) if self.batch_size == "auto" else int(self.batch_size)  # type: ignore[arg-type]

    def _piece_count(self, samples: float | None) -> int:
        """How many pieces a column has; ``samples`` is None where they come as a stream."""
        if self.n_pieces != "auto":
            return int(self.n_pieces)
        several = samples is not None and self.batch_size is not None and samples >= self.pieces_from
        return PIECES if several else 0

    def _member_count(self, samples: float | None) -> int:
        """How many networks are trained; ``samples`` is None where they come as a stream."""
        if self.n_members != "auto":
            return int(self.n_members)
        several = samples is not None and self.batch_size is not None and MEMBERS_FROM <= samples < MEMBERS_BELOW
        return self.members if several else 1

    def _loss_name(self) -> str:
        """The loss that is trained with."""
        return self.loss

    def _loss(self) -> str | Loss:
        """The same, as the trainers take it."""
        return self._loss_name()

    def _hidden(self) -> list[int]:
        sizes = (
            self.hidden_layer_sizes
            if isinstance(self.hidden_layer_sizes, (Sequence, np.ndarray))
            else [self.hidden_layer_sizes]
        )
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
        if isinstance(self.n_members, str) and self.n_members != "auto":
            raise ValueError(f'n_members must be "auto" or an integer >= 1, got {self.n_members!r}')
        if self.n_members != "auto":
            check_integer("n_members", self.n_members, 1)  # type: ignore[arg-type]
        for name in ("early_stopping", "warm_start"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not isinstance(self.standardize, (bool, np.bool_)) and self.standardize != "robust":
            raise ValueError(f"standardize must be 'robust', True or False, got {self.standardize!r}")
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
        if isinstance(self.n_pieces, str) and self.n_pieces != "auto":
            raise ValueError(f'n_pieces must be "auto" or an integer >= 0, got {self.n_pieces!r}')
        if self.n_pieces != "auto" and check_integer("n_pieces", self.n_pieces, 0) == 1:  # type: ignore[arg-type]
            raise ValueError("n_pieces must be 0 or at least 2, got 1: a single piece says what its column says")
        # The trainers know the rest, such as which inertia is too much: they are asked about a network of no use.
        smallest = mlp((1, 1), "relu", "torch", 0, torch.float64, "cpu")
        if self.batch_size is None:
            IPDLAM(smallest, **self._full_batch_settings())
        else:
            MiniBatchIPDLAM(smallest, **self._batch_settings(None))

    def _batch_settings(self, samples: float | None, batch_rows: int = defaults.BATCH_SIZE_OF_FEW) -> dict[str, Any]:
        """Of :class:`ipdlam.MiniBatchIPDLAM`; ``samples`` is None where they come as a stream."""
        usual = DECAY_OF_A_STREAM
        if samples is not None:
            usual = min(self._decay_of_a_sample() / samples**1.5, self.decays[1])
        usual *= min(1.0, batch_rows / defaults.BATCH_SIZE_OF_FEW)
        decay = usual if self.alpha is None else self.alpha
        # The output side of the metric has not been tried on tables.
        return {**self._settings(), "step": self.step, "weight_decay": decay, "output_rank": 0}

    def _decay_of_a_sample(self) -> float:
        """What alpha=None stands for with one sample, were it not bounded."""
        return self.decays[0]

    def _full_batch_settings(self) -> dict[str, Any]:
        """Of :class:`ipdlam.IPDLAM`."""
        return self._settings() if self.alpha is None else {**self._settings(), "regularizer": Ridge(self.alpha)}

    def _settings(self) -> dict[str, Any]:
        """Those that both methods have; what is None is left to them."""
        proximity = {} if self.proximity is None else {"proximity": self.proximity}
        return {"loss": self._loss(), "inertia": self.inertia, "penalty": self.penalty, **proximity}


def uses_batches(estimator: Parameters) -> bool:
    """Whether ``partial_fit`` exists: the full-batch method needs all samples at once."""
    if estimator.batch_size is None:
        raise AttributeError("partial_fit is for the mini-batch method; batch_size=None is the full-batch one")
    return True
