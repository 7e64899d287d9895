"""Multilayer perceptrons in one safetensors file: weights, architecture, and what turns raw inputs into predictions."""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ipdlam.checkpoint.files import write_file
from ipdlam.datasets import varying
from ipdlam.datasets.columns import Column
from ipdlam.errors import FileError
from ipdlam.network.initialise import mlp
from ipdlam.network.model import evaluating
from ipdlam.prox import ACTIVATIONS, LOSSES
from ipdlam.runs.networks import NamedNetwork

FORMAT = "ipdlam model 1"


@dataclass(frozen=True)
class Preparation:
    """What turns raw inputs into those of a network: gaps filled and flagged, then mean 0 and deviation 1.

    It is worked out in float64: where a mean is large, a difference has no digits to spare.
    """

    fill: Tensor | None = None  # for gaps (NaN), by column; None where there can be none
    flags: tuple[int, ...] = ()  # the columns with gaps: each gets another one, which is 1 where there was a gap
    mean: Tensor | None = None
    scale: Tensor | None = None

    @classmethod
    def of(cls, X: Tensor, *, standardize: bool, gaps: bool) -> Preparation:
        """As the samples say: where there may be ``gaps``, now or later, one becomes the median of its column."""
        found = cls()
        if gaps:
            flags = tuple(X.isnan().any(0).nonzero().flatten().tolist())
            found = cls(X.double().nanmedian(0).values, flags)
        if not standardize:
            return found
        mean, scale = centre(found(X))
        return dataclasses.replace(found, mean=mean, scale=scale)

    def __call__(self, X: Tensor) -> Tensor:
        """Raw inputs, prepared."""
        ready = X
        if self.fill is not None:
            gaps = X.isnan()
            ready = torch.where(gaps, self.fill.to(X.dtype), X)
            if self.flags:
                ready = torch.cat([ready, gaps[:, list(self.flags)].to(X.dtype)], 1)
        if self.mean is None or self.scale is None:
            return ready
        return (ready.double() - self.mean.double()) / self.scale.double()

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds of it."""
        held = {"fill": self.fill, "mean": self.mean, "scale": self.scale}
        return {f"input.{name}": tensor.cpu() for name, tensor in held.items() if tensor is not None}


def centre(X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every column, in float64; those of a constant column are its value and 1."""
    exact = X.double()
    mean, deviation = exact.mean(0), exact.std(0, correction=0)
    # Differences in the last digits are rounding, and those whose squares are less than float64 can hold are none.
    varies = varying(exact) & (deviation > 8 * torch.finfo(exact.dtype).eps * mean.abs())
    return torch.where(varies, mean, exact[0]), torch.where(varies, deviation, 1.0)


@dataclass(frozen=True)
class TrainedModel:
    """A model with all that a prediction needs."""

    model: nn.Module
    widths: tuple[int, ...]
    activation: str
    loss: str
    classes: tuple[str, ...] | None  # None for real targets
    columns: tuple[str, ...] | None  # names of the features, where the data had any
    label: str | None  # the name of the label column
    preparation: Preparation = Preparation()
    encoding: tuple[Column, ...] | None = None  # how the features of a text table become raw inputs
    units: tuple[Tensor, Tensor] | None = None  # mean and deviation of real targets: the network gives scaled ones
    network: NamedNetwork | None = None  # where it is no perceptron of these widths

    @property
    def raw_inputs(self) -> int:
        """How many numbers a row has before it is prepared."""
        return self.widths[0] - len(self.preparation.flags)

    def inputs(self, X: Tensor) -> Tensor:
        """Raw inputs as the model takes them."""
        if X.ndim != 2 or X.shape[1] != self.raw_inputs:
            raise ValueError(
                f"the model takes {self.raw_inputs} inputs a row, but the data have shape {tuple(X.shape)}"
            )
        weight = next(self.model.parameters())
        return self.preparation(X).to(weight.device, weight.dtype)

    @torch.no_grad()
    def outputs(self, X: Tensor, chunk_size: int = 8192) -> Tensor:
        """The last layer of the network for every row; of a regression in the units of its targets."""
        starts = range(0, max(1, len(X)), chunk_size)
        with evaluating(self.model):
            found = torch.cat([self.model(self.inputs(X[start : start + chunk_size])) for start in starts])
        return found if self.units is None else found.double() * self.units[1] + self.units[0]

    def goals(self, y: Tensor) -> Tensor:
        """Real targets as the network gives them."""
        return y if self.units is None else (y.double() - self.units[0]) / self.units[1]

    def labels(self, outputs: Tensor) -> list[str]:
        """The names of the predicted classes."""
        assert self.classes is not None
        return [self.classes[index] for index in LOSSES[self.loss]().predict(outputs).tolist()]

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        tensors |= self.preparation.tensors()
        if self.units is not None:
            tensors |= {"output.mean": self.units[0].cpu(), "output.scale": self.units[1].cpu()}
        about: dict[str, Any] = {
            "format": FORMAT,
            "widths": list(self.widths),
            "activation": self.activation,
            "loss": self.loss,
            "dtype": str(next(self.model.parameters()).dtype).removeprefix("torch."),
            "classes": None if self.classes is None else list(self.classes),
            "columns": None if self.columns is None else list(self.columns),
            "label": self.label,
            "flags": list(self.preparation.flags),
            "encoding": None if self.encoding is None else [column.to_dict() for column in self.encoding],
        }
        if self.network is not None:
            about["network"] = self.network.to_dict()
        # One entry: safetensors writes several in any order, and the same model is to be the same file.
        write_file(path, save(tensors, metadata={"ipdlam": json.dumps(about)}))


def load_model(path: Path, network: str | None = None) -> TrainedModel:
    """Read what :meth:`TrainedModel.save` wrote; anything else is refused, and no code is run.

    But for that of ``network``, a function in a file of the user's, which has to be given again.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
        about = json.loads(metadata.get("ipdlam", "{}"))
        if about.get("format") != FORMAT:
            raise ValueError(f"its format is {about.get('format')!r}, not {FORMAT!r}")
        named = None if about.get("network") is None else NamedNetwork.from_dict(about["network"], network)
        widths, dtype = check_tensors(tensors, about, named)  # before a network of the stated size is made
        for name, registry in (("activation", ACTIVATIONS), ("loss", LOSSES)):
            if about[name] not in registry:
                raise ValueError(f"its {name} {about[name]!r} is in no registry")
        flags = tuple(about.get("flags", ()))
        fill, mean, scale = (tensors.pop(f"input.{name}", None) for name in ("fill", "mean", "scale"))
        middle, spread = tensors.pop("output.mean", None), tensors.pop("output.scale", None)
        units = None if middle is None or spread is None else (middle, spread)
        encoding = about.get("encoding")
        encoding = None if encoding is None else tuple(Column.from_dict(fields) for fields in encoding)
        if named is None:
            model: nn.Module = mlp(widths, about["activation"], "torch", 0, dtype, "cpu")
        else:
            model = named.make(widths[-1], 0).to(dtype)
        model.load_state_dict(tensors)
        classes, columns = check_names("classes", about), check_names("columns", about)
        by_sign = widths[-1] == 1 and LOSSES[about["loss"]]().classes(1) == 2
        if classes is not None and len(classes) != (2 if by_sign else widths[-1]):
            raise ValueError(f"it has {len(classes)} classes for {widths[-1]} outputs")
        raw = widths[0] - len(flags)
        if encoding is not None and sum(column.width for column in encoding) != raw:
            raise ValueError(f"its columns have {sum(column.width for column in encoding)} inputs, its network {raw}")
        features = raw if encoding is None else len(encoding)
        if columns is not None and len(columns) != features:
            raise ValueError(f"it has {len(columns)} names for {features} inputs")
        label = about["label"]
        if not (label is None or isinstance(label, str)):
            raise TypeError(f"its label is {label!r}, not a name")
    except FileNotFoundError as error:
        raise FileError(f"{path} does not exist") from error
    except (
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        AttributeError,
    ) as error:  # RecursionError is one
        raise FileError(f"{path} is not a model that ipdlam saved: {error}") from error
    ready = Preparation(fill, flags, mean, scale)
    return TrainedModel(
        model, widths, about["activation"], about["loss"], classes, columns, label, ready, encoding, units, named
    )


def check_tensors(
    tensors: dict[str, Tensor], about: Any, network: NamedNetwork | None = None
) -> tuple[tuple[int, ...], torch.dtype]:
    """The widths and the type that a file states, if all of its tensors are of them."""
    widths, dtype = about["widths"], {"float32": torch.float32, "float64": torch.float64}[about["dtype"]]
    if len(widths) < 2 or not all(type(width) is int and width > 0 for width in widths):
        raise ValueError(f"its widths are {widths!r}")
    shapes: dict[str, tuple[int, ...]] = {}
    if network is not None:
        shapes |= network.shapes(widths[-1])
    else:
        for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            shapes |= {f"{2 * index}.weight": (outputs, inputs), f"{2 * index}.bias": (outputs,)}
    if "input.mean" in tensors or "input.scale" in tensors:
        shapes |= {"input.mean": (widths[0],), "input.scale": (widths[0],)}
    flags = about.get("flags", [])
    raw = widths[0] - len(flags)
    if not all(type(place) is int and 0 <= place < raw for place in flags) or sorted(set(flags)) != flags:
        raise ValueError(f"its flags are {flags!r}")
    if flags or "input.fill" in tensors:
        shapes["input.fill"] = (raw,)
    if "output.mean" in tensors or "output.scale" in tensors:
        shapes |= {"output.mean": (widths[-1],), "output.scale": (widths[-1],)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != shapes:
        wrong = next(name for name in (*shapes, *found) if found.get(name) != shapes.get(name))
        raise ValueError(
            f"its tensor {wrong} has the shape {found.get(wrong)}, but a model of the widths {list(widths)} has "
            f"{shapes.get(wrong)}"
        )
    for name, tensor in tensors.items():
        exact = name.startswith(("input.", "output.")) and tensor.dtype == torch.float64
        exact = exact or (network is not None and not tensor.is_floating_point())  # batches that a norm has counted
        if not (exact or tensor.dtype == dtype) or not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"its tensor {name} is {tensor.dtype}, or not finite; stated is {dtype}")
    for name in ("input.scale", "output.scale"):
        if name in tensors and not bool((tensors[name] > 0).all()):
            raise ValueError(f"its {name} holds a number that is not positive")
    return tuple(widths), dtype


def check_names(name: str, about: Any) -> tuple[str, ...] | None:
    """A list of names, or None."""
    names = about[name]
    if names is not None and not (isinstance(names, list) and all(isinstance(item, str) for item in names)):
        raise TypeError(f"its {name} are not a list of names")
    return None if names is None else tuple(names)
