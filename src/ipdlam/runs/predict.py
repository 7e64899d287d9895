"""What a saved model is worth: its scores on data, and its predictions for a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ipdlam.datasets import Dataset, load, read_inputs
from ipdlam.datasets.tables import listed, separator
from ipdlam.errors import FileError
from ipdlam.network.graph import Graph
from ipdlam.network.samples import check_samples
from ipdlam.prox import LOSSES
from ipdlam.prox.probabilities import PROBABILITIES
from ipdlam.prox.probabilities import probabilities as class_probabilities
from ipdlam.runs.config import ConfigError, TrainConfig, blamed_on_settings
from ipdlam.runs.folder import RunFolder
from ipdlam.runs.model_file import TrainedModel, load_model
from ipdlam.runs.problem import columns_in, set_aside
from ipdlam.training.evaluation import evaluate, regression_scores


def read_trained(path: Path, network: str | None = None) -> tuple[TrainedModel, TrainConfig | None]:
    """The model of a run folder with its configuration, or of a model file alone; the caller has named it."""
    try:
        if not path.is_dir():
            return load_model(path, network), None
        folder = RunFolder.open(path)
        if folder.model.is_file():
            return load_model(folder.model, network), folder.read_config()
    except FileError as error:
        raise ConfigError(str(error)) from error
    raise ConfigError(f"{path} holds no model yet; finish the run: ipdlam train --resume {path}")


def evaluate_run(
    path: Path, data: str | None, data_dir: str | None, network: str | None = None
) -> dict[str, dict[str, Any]]:
    """What a saved model is worth on its own data, or on others, by part: samples, mean loss, accuracy or errors."""
    trained, config = read_trained(path, network)
    if config is None and data is None:
        raise ConfigError(f"{path} is a model without a run; say which data: --data DATA")
    config = TrainConfig(label=trained.label) if config is None else config
    own = data is None
    if data is not None:
        table = separator(Path(data)) is not None  # other kinds of files have no columns to choose from
        task = "regression" if trained.classes is None else "classification"
        label = (trained.label or config.label) if table else None
        drop = config.drop if table and trained.columns is None else None  # columns with names are found by them
        config = dataclasses.replace(
            config, data=data, label=label, drop=drop, task=task, limit=None, validation="auto"
        )
    found: dict[str, dict[str, Any]] = {}
    with blamed_on_settings():
        loaded = load(
            config.data,
            data_dir or config.data_dir,
            offline=config.offline,
            label=config.label,
            task=config.task,
            dtype=torch.float64,
            drop=columns_in(config.drop),
            gaps=True,
            encoding=trained.encoding,
        )
        if not own and loaded.X_test is None:
            parts = {"all samples": (loaded.X, loaded.y)}
        else:
            raw = set_aside(loaded, config)
            parts = {"training samples": (raw.X, raw.y)}
            if raw.validation is not None:
                parts[raw.scored_on] = raw.validation
        graph, loss = Graph(trained.model), LOSSES[trained.loss]()
        for name, (X, y) in parts.items():
            inputs = trained.inputs(same_columns(trained, loaded, X))
            goals = same_classes(trained, loaded, y)
            if trained.classes is None:
                goals = trained.goals(goals).to(inputs.dtype)
            samples = check_samples(graph, loss, inputs, goals)
            scores = evaluate(trained.model, loss, samples, 8192)
            found[name] = {"samples": len(samples), "loss": scores.loss, "accuracy": scores.accuracy}
            if trained.classes is None:
                unit = None if trained.units is None else trained.units[1]
                found[name] |= regression_scores(trained.model, samples, unit)
    return found


def same_columns(trained: TrainedModel, data: Dataset, X: Tensor) -> Tensor:
    """The inputs in the order of the columns that the model was trained on, where both have names."""
    if trained.columns is None or data.columns is None or trained.columns == data.columns:
        return X
    missing = [name for name in trained.columns if data.columns.count(name) != 1]
    if missing:
        raise ConfigError(
            f"{data.name} has {data.columns.count(missing[0]) or 'no'} column {missing[0]!r}, which the model was "
            f"trained on; {listed(data.columns, missing[0])}"
        )
    return X[:, [data.columns.index(name) for name in trained.columns]]


def same_classes(trained: TrainedModel, data: Dataset, y: Tensor) -> Tensor:
    """The labels of the data as the model numbers its classes."""
    if (trained.classes is None) != (data.classes is None):
        kinds = ("real targets", "classes")
        raise ConfigError(
            f"the model was trained for {kinds[trained.classes is not None]}, but {data.name} holds "
            f"{kinds[data.classes is not None]}"
        )
    if trained.classes is None or data.classes is None or trained.classes == data.classes:
        return y
    if len(data.classes) == len(trained.classes) and data.kind == "images":
        return y  # names of images differ from data set to data set; their numbers are what was learnt
    places = {name: index for index, name in enumerate(trained.classes)}
    unknown = [name for name in data.classes if name not in places]
    if unknown:
        raise ConfigError(f"{data.name} holds the class {unknown[0]!r}, which the model was not trained on")
    return torch.tensor([places[name] for name in data.classes])[y]


def predict_file(
    path: Path, file: Path, *, scores: bool = False, probabilities: bool = False, network: str | None = None
) -> tuple[list[str], list[list[object]]]:
    """A header and one row of predictions for every sample in a file."""
    trained, config = read_trained(path, network)
    if probabilities and (trained.classes is None or trained.loss not in PROBABILITIES):
        what = "a regression" if trained.classes is None else f"a model of the loss {trained.loss}"
        raise ConfigError(
            f"probabilities are for classes and the losses {', '.join(PROBABILITIES)}; {path} is {what}: leave them out"
        )
    label = trained.label if config is None or config.label is None else config.label
    drop = [] if config is None else columns_in(config.drop)
    try:
        X = read_inputs(file, trained.columns, label, gaps=True, encoding=trained.encoding, drop=drop)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    try:
        outputs = trained.outputs(X)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
    if trained.classes is None:
        header = ["prediction"] if outputs.shape[1] == 1 else [f"prediction {i}" for i in range(outputs.shape[1])]
        return header, outputs.tolist()
    header, columns = ["prediction"], []
    if probabilities:
        header += [f"probability {name}" for name in trained.classes]
        columns.append(class_probabilities(trained.loss, outputs.double().cpu()))
    if scores:
        named = trained.classes if outputs.shape[1] == len(trained.classes) else trained.classes[1:]
        header += [f"output {name}" for name in named]
        columns.append(outputs)
    rows: list[list[object]] = [[label] for label in trained.labels(outputs)]
    for numbers in columns:
        for row, own in zip(rows, numbers.tolist(), strict=True):
            row.extend(own)
    return header, rows
