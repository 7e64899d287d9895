"""From a configuration to data, network and trainer."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ipdlam.baselines import BCD, DLADMM, OPTIMIZERS, BackPropagation, BatchByBatch
from ipdlam.datasets import Dataset, load, warn_of_constants
from ipdlam.distributed.group import Span
from ipdlam.fullbatch.trainer import DLAM, IPDLAM
from ipdlam.minibatch.batch import default_batch_size
from ipdlam.minibatch.trainer import MiniBatchIPDLAM
from ipdlam.network.initialise import mlp
from ipdlam.network.samples import Samples
from ipdlam.prox import LOSSES, REGULARIZERS, Regularizer
from ipdlam.runs.config import ConfigError, TrainConfig, as_weight_proximity, blamed_on_settings
from ipdlam.runs.model_file import Preparation, TrainedModel, centre
from ipdlam.runs.networks import NamedNetwork
from ipdlam.training.evaluation import regression_scores
from ipdlam.training.trainer import Trainer

TRAINERS: dict[str, Any] = {
    "minibatch": MiniBatchIPDLAM,
    "ipdlam": IPDLAM,
    "dlam": DLAM,
    "bcd": BCD,
    "dladmm": DLADMM,
    "batch-by-batch": BatchByBatch,  # for the experiments alone
}
"""Name to class of every method that does not back-propagate; ``OPTIMIZERS`` has the others."""


def make_trainer(method: str, model: nn.Module, seed: int, settings: Mapping[str, Any]) -> Trainer[Any]:
    """A method by name, with its settings; the seed is that of the order of the samples, where they are shuffled."""
    if method in OPTIMIZERS:
        return BackPropagation(model, method, seed=seed, **settings)
    shuffled = {"seed": seed} if method == "minibatch" else {}
    trainer: Trainer[Any] = TRAINERS[method](model, **settings, **shuffled)
    return trainer


@dataclass(frozen=True)
class Split:
    """What a job trains and scores on; inputs are ready for the network."""

    X: Tensor
    y: Tensor
    validation: tuple[Tensor, Tensor] | None
    scored_on: str  # "test set", "held-out samples", "training samples"
    preparation: Preparation  # of the inputs
    targets: tuple[Tensor, Tensor] | None  # mean and deviation of real targets, which are scaled by them

    def part(self, rank: int, size: int) -> Split:
        """What one of several processes trains and scores on: a block of consecutive samples of each."""

        def own(array: Tensor) -> Tensor:
            return array[Span.even(rank, size, len(array)).rows]

        validation = None if self.validation is None else (own(self.validation[0]), own(self.validation[1]))
        return dataclasses.replace(self, X=own(self.X), y=own(self.y), validation=validation)


class RawSplit(NamedTuple):
    """What a job trains and scores on, as it was read."""

    X: Tensor
    y: Tensor
    validation: tuple[Tensor, Tensor] | None
    scored_on: str


def columns_in(text: str | None) -> list[str]:
    """The columns of a table that a setting names or numbers."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def set_aside(data: Dataset, config: TrainConfig) -> RawSplit:
    """Set validation samples aside, as the configuration says."""
    X, y = data.X[: config.limit], data.y[: config.limit]
    wanted = config.validation
    if wanted == "auto":
        wanted = "0.2" if data.X_test is None else "test"
    if wanted == "test":
        if data.X_test is None or data.y_test is None:
            raise ConfigError(
                f"validation is 'test', but {data.name} has no test set; hold out a fraction, such as 0.2"
            )
        return RawSplit(X, y, (data.X_test, data.y_test), "test set")
    if wanted == "none":
        return RawSplit(X, y, None, "training samples")
    held_out = round(float(wanted) * len(X))
    if not 0 < held_out < len(X):
        raise ConfigError(f"validation {wanted} of {len(X)} samples leaves none to train or to score on")
    shuffled = torch.randperm(len(X), generator=torch.Generator().manual_seed(config.seed))
    aside, kept = shuffled[:held_out].sort().values, shuffled[held_out:].sort().values
    return RawSplit(X[kept], y[kept], (X[aside], y[aside]), "held-out samples")


def split(data: Dataset, config: TrainConfig) -> Split:
    """Set validation samples aside, prepare inputs and real targets, and convert them to the configured precision."""
    raw, dtype = set_aside(data, config), getattr(torch, config.dtype)
    standardize = config.standardize if config.standardize is not None else data.kind == "table"
    gaps = data.encoding is not None
    if gaps:
        refuse_empty_columns(data, raw.X)
    prepare = Preparation.of(raw.X, standardize=standardize, gaps=gaps)
    targets = None if data.classes is not None else centre(raw.y)

    def goals(y: Tensor) -> Tensor:
        return y if targets is None else ((y.double() - targets[0]) / targets[1]).to(dtype)

    X = prepare(raw.X).to(dtype)
    if data.kind == "table":
        remedy = "use --dtype float64" if standardize else "leave out --no-standardize, or use --dtype float64"
        warn_of_constants(data, raw.X, X, remedy)
    validation = raw.validation and (prepare(raw.validation[0]).to(dtype), goals(raw.validation[1]))
    return Split(X, goals(raw.y), validation, raw.scored_on, prepare, targets)


def refuse_empty_columns(data: Dataset, X: Tensor) -> None:
    """Refuse a column of numbers without a number: there is nothing to learn from it, and no median."""
    empty = X.isnan().all(0).nonzero().flatten().tolist()
    if empty:
        name = data.inputs[empty[0]]
        raise ConfigError(f"{data.name}: {name} holds no number in the training samples; leave it out (--drop)")


def make_regularizer(name: str, strength: float | None) -> Regularizer | None:
    """A regulariser with its strength, or with its own."""
    if name == "none":
        return None
    kind = REGULARIZERS[name]
    if strength is None:
        return kind()
    names = [field.name for field in dataclasses.fields(kind) if field.name != "relative"]  # type: ignore[arg-type]
    return kind(**dict.fromkeys(names, strength))


class Problem:
    """The data of a configuration, split and scaled, and the networks and trainers made for them."""

    def __init__(self, config: TrainConfig, *, progress: bool = False) -> None:
        self.config = config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        with blamed_on_settings():
            self.data = load(
                config.data,
                config.data_dir,
                offline=config.offline,
                label=config.label,
                task=config.task,
                progress=progress,
                dtype=torch.float64,
                drop=columns_in(config.drop),
                gaps=True,
                categories=columns_in(config.categories),
            )
        self.split = split(self.data, config)
        hidden = config.hidden if config.network is None else ()
        self.widths = (self.split.X.shape[1], *hidden, self._outputs())
        self.network = None if config.network is None else NamedNetwork(config.network, self._sample_shape())

    @property
    def title(self) -> str:
        """The data and the network, in a line."""
        shape = "-".join(str(width) for width in self.widths)
        return f"{self.data.name}, {shape if self.network is None else self.network.name}"

    @property
    def heading(self) -> str:
        """The data, the network and how many samples, in a line."""
        split = self.split
        scored = "" if split.validation is None else f", scored on {len(split.validation[0])} ({split.scored_on})"
        kind = "regression" if self.data.classes is None else f"{len(self.data.classes)} classes"
        return f"{self.title}, {kind}: {len(split.X)} samples{scored}"

    def make_model(self, config: TrainConfig | None = None) -> nn.Module:
        """The network with its initial weights, the same at every call; another configuration may change its seed."""
        config = self.config if config is None else config
        dtype = getattr(torch, config.dtype)
        try:
            torch.empty(0, device=config.device)
        except (RuntimeError, AssertionError) as error:  # torch's word on an unknown or missing device
            raise ConfigError(f"device {config.device!r} cannot be used: {str(error).splitlines()[0]}") from error
        if self.network is not None:
            return self.network.make(self.widths[-1], config.seed).to(config.device, dtype)
        try:
            return mlp(self.widths, config.activation, config.initialisation, config.seed, dtype, config.device)
        except (RuntimeError, TypeError) as error:  # no memory for it, or a width beyond 64 bits
            raise ConfigError(
                f"a network of the widths {'-'.join(map(str, self.widths))} cannot be made: it needs more memory than "
                "there is; choose smaller ones for --hidden"
            ) from error

    def make_trainer(self, model: nn.Module, config: TrainConfig | None = None) -> Trainer[Any]:
        """The method of the configuration, or of another one, with its settings."""
        config = self.config if config is None else config
        with blamed_on_settings():
            return make_trainer(config.chosen, model, config.seed, self._arguments(config))

    def make_optimizer(self, model: nn.Module) -> BackPropagation | None:
        """The optimizer of the second stage with its settings, where the configuration has one."""
        config = self.config
        if config.then is None:
            return None
        own = {"learning_rate": config.second_rate, "batch_size": self.batch_size(config.then_batch_size)}
        with blamed_on_settings():
            common = {"loss": config.loss, "chunk_size": config.chunk_size}
            optimizer = make_trainer(config.then, model, config.seed, {**common, **own})
        assert isinstance(optimizer, BackPropagation)
        return optimizer

    def _arguments(self, config: TrainConfig) -> dict[str, Any]:
        """The settings of a configuration as its trainer takes them."""
        own = config.suited()
        given = {name: value for name, value in own.items() if name not in ("iterations", "epochs")}
        if "inertia" in own:
            given["inertia"] = own["inertia"] if len(own["inertia"]) == 3 else own["inertia"][0]
        if "weight_proximity" in own:
            weights = as_weight_proximity(own["weight_proximity"])
            given["weight_proximity"] = weights[0] if weights is not None and len(weights) == 1 else weights
        if "batch_size" in own:
            given["batch_size"] = self.batch_size(own["batch_size"])
        if "regularizer" in own:
            given["regularizer"] = make_regularizer(own["regularizer"], given.pop("regularizer_strength"))
        if "order" in own and "," in own["order"]:
            given["order"] = [part.strip() for part in own["order"].split(",")]
        if own.get("storage") is not None:
            given["storage"] = Path(os.path.expanduser(own["storage"]))
        return {"loss": config.loss, "chunk_size": config.chunk_size, **given}

    def batch_size(self, given: int | None) -> int:
        """The samples to a batch, or what suits their number where it is not given."""
        return default_batch_size(len(self.split.X)) if given is None else given

    def errors(self, model: nn.Module) -> dict[str, float | None] | None:
        """R², RMSE and MAE of a regression on what it is scored on, in the targets' units; None for classes."""
        split = self.split
        if split.targets is None:
            return None
        X, y = (split.X, split.y) if split.validation is None else split.validation
        device = next(model.parameters()).device
        return regression_scores(model, Samples(X.to(device), y.to(device), None), split.targets[1])

    def describe(self, model: nn.Module) -> TrainedModel:
        """The trained network with all that a prediction needs."""
        config, data = self.config, self.data
        return TrainedModel(
            model,
            self.widths,
            config.activation,
            config.loss,
            data.classes,
            data.columns,
            config.label if data.label is None else data.label,
            self.split.preparation,
            data.encoding,
            self.split.targets,
            self.network,
        )

    def _sample_shape(self) -> tuple[int, ...]:
        """What a sample is to a network: an image where the data are images, else a row of numbers."""
        return self.data.image_shape or (self.split.X.shape[1],)

    def _outputs(self) -> int:
        if self.data.classes is None:
            return self.split.y.shape[1]
        classes = len(self.data.classes)
        if classes == 1:
            raise ConfigError(f"{self.data.name} holds one class, {self.data.classes[0]!r}; there is nothing to learn")
        # A margin loss tells two classes by the sign of one output.
        return 1 if classes == 2 and LOSSES[self.config.loss]().classes(1) == 2 else classes
