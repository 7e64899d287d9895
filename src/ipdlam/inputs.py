"""The samples a run works on, checked before any work: a clear error names the array, the place and the remedy."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from typing import Union

import numpy as np
import torch
from torch import Tensor

from ipdlam.linalg import all_finite
from ipdlam.network import Network
from ipdlam.prox import Loss

ArrayLike = Union[Tensor, np.ndarray]
ValidationData = Union[tuple[ArrayLike, ArrayLike], tuple[ArrayLike, ArrayLike, Union[ArrayLike, None]]]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


@dataclass(frozen=True)
class Samples:
    """Inputs, targets and weights of N samples, on the model's device and in its precision."""

    X: Tensor
    y: Tensor  # class indices (N,) or real targets (N, outputs)
    weight: Tensor | None

    def __len__(self) -> int:
        return self.X.shape[0]

    @property
    def labelled(self) -> bool:
        """Whether ``y`` holds class indices."""
        return self.y.ndim == 1

    def targets(self, loss: Loss, rows: slice, outputs: int) -> Tensor:
        """What the loss compares the outputs of some rows with."""
        return loss.encode(self.y[rows], outputs, self.X.dtype) if self.labelled else self.y[rows]

    def rows(self, chunk_size: int) -> list[slice]:
        """Consecutive slices of at most ``chunk_size`` rows."""
        return [slice(start, min(start + chunk_size, len(self))) for start in range(0, len(self), chunk_size)]

    def picked(self, which: Tensor) -> Samples:
        """Some of the samples, by number or by mask."""
        return Samples(self.X[which], self.y[which], None if self.weight is None else self.weight[which])

    def counted(self) -> Samples:
        """The samples without those of weight zero: a batch of nothing else would have no mean."""
        if self.weight is None or bool((self.weight > 0).all()):
            return self
        return self.picked(self.weight > 0)

    def fingerprint(self) -> dict[str, str | None]:
        """The sha256 of every array, with its type and shape: what tells data that were changed."""
        arrays = {"X": self.X, "y": self.y, "sample_weight": self.weight}
        return {name: None if array is None else digest(array) for name, array in arrays.items()}


def digest(array: Tensor) -> str:
    """The sha256 of an array's type, shape and numbers."""
    found = hashlib.sha256(f"{array.dtype} {tuple(array.shape)}".encode())
    for start in range(0, array.shape[0], 4096):
        found.update(array[start : start + 4096].cpu().contiguous().numpy().data)
    return found.hexdigest()


def check_samples(
    network: Network, loss: Loss, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, prefix: str = ""
) -> Samples:
    """Everything a run needs of its data, or an error that names what is wrong with which argument."""
    inputs = as_tensor(f"{prefix}X", X)
    if inputs.ndim != 2:
        raise ValueError(
            f"{prefix}X must be a matrix with one row a sample, got shape {shape(inputs)}; X.reshape(len(X), -1) "
            "makes one"
        )
    if inputs.shape[1] != network.inputs:
        raise ValueError(
            f"{prefix}X has shape {shape(inputs)}, but the first layer takes {network.inputs} inputs a row"
        )
    if inputs.shape[0] == 0:
        raise ValueError(f"{prefix}X is empty (shape {shape(inputs)}); give at least one sample")
    outputs = as_tensor(f"{prefix}y", y)
    if outputs.shape[:1] != inputs.shape[:1]:
        raise ValueError(
            f"{prefix}X has shape {shape(inputs)} and {prefix}y has shape {shape(outputs)}: they differ in their "
            "number of samples"
        )
    ready = to_model(f"{prefix}X", inputs, network)
    weight = None if sample_weight is None else check_weight(f"{prefix}sample_weight", sample_weight, inputs, network)
    # With one output and no sign to tell two classes by, integers can only be real targets.
    if outputs.ndim == 1 and outputs.dtype in INTEGERS and loss.classes(network.outputs) > 1:
        goal = check_labels(f"{prefix}y", outputs, loss, network.outputs).to(network.device)
    else:
        goal = to_model(f"{prefix}y", check_real_targets(f"{prefix}y", outputs, network.outputs), network)
        loss.check_targets(goal)
    return Samples(ready, goal, weight)


def check_validation(network: Network, loss: Loss, validation_data: ValidationData) -> Samples:
    """The samples that a run is scored on."""
    if not isinstance(validation_data, (tuple, list)) or len(validation_data) not in (2, 3):
        raise ValueError("validation_data must be (X, y) or (X, y, sample_weight)")
    X, y = validation_data[:2]
    weight = validation_data[2] if len(validation_data) == 3 else None
    return check_samples(network, loss, X, y, weight, prefix="validation ")


def as_tensor(name: str, array: ArrayLike) -> Tensor:
    """A tensor that shares the array's memory where it can; it is only ever read."""
    if not isinstance(array, (Tensor, np.ndarray)) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a torch tensor or a numpy array, got {type(array).__name__}")
    if isinstance(array, np.ndarray):
        array = from_numpy(name, array)
    tensor = array.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(f"{name} is {tensor.dtype}; half precision is not supported, convert it with .float()")
    if tensor.dtype not in (*INTEGERS, torch.float32, torch.float64):
        raise TypeError(f"{name} must hold real numbers, got {tensor.dtype}")
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise TypeError(f"{name} must be a dense tensor with values, got layout {tensor.layout} on {tensor.device}")
    return tensor


def from_numpy(name: str, array: np.ndarray) -> Tensor:
    """The array as a tensor, copied only where torch has no such layout or type."""
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got an array of {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    elif array.dtype == np.longdouble:
        array = array.astype(np.float64)
    elif not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.array(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor do we write to it
        return torch.from_numpy(array)


def shape(tensor: Tensor) -> str:
    """The shape as it is printed in messages."""
    return str(tuple(tensor.shape))


def to_model(name: str, tensor: Tensor, network: Network) -> Tensor:
    """The tensor in the model's precision and on its device; NaN, infinity and overflow are refused by place."""
    converted = tensor.to(network.device, network.dtype)
    if all_finite(converted):  # at once; a sum that overflows is looked at below
        return converted
    for start in range(0, tensor.shape[0], 4096):  # the whole array's mask would cost a quarter of its memory
        finite = torch.isfinite(converted[start : start + 4096])
        if not bool(finite.all()):
            place = (~finite).nonzero()[0].tolist()
            place[0] += start
            raise ValueError(
                f"{name} holds {float(tensor[tuple(place)])} at {tuple(place)}, which is not a finite {network.dtype}; "
                "remove or replace such values, or scale the data, before training"
            )
    return converted


def check_labels(name: str, labels: Tensor, loss: Loss, outputs: int) -> Tensor:
    """Class indices within range."""
    classes = loss.classes(outputs)
    labels = labels.long()
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"{name} holds the label {int(labels[place])} at {place}, but a model with {outputs} outputs has the "
            f"labels 0 ... {classes - 1}"
        )
    return labels


def check_real_targets(name: str, targets: Tensor, outputs: int) -> Tensor:
    """One row of targets for every sample."""
    if targets.ndim == 1 and outputs == 1:
        return targets.unsqueeze(1)
    if targets.ndim != 2 or targets.shape[1] != outputs:
        hint = "; class labels must be integers" if targets.ndim == 1 else ""
        raise ValueError(f"{name} has shape {shape(targets)}, but the last layer has {outputs} outputs a row{hint}")
    return targets


def check_weight(name: str, sample_weight: ArrayLike, inputs: Tensor, network: Network) -> Tensor:
    """One non-negative weight for every sample, not all of them zero."""
    weight = as_tensor(name, sample_weight)
    if weight.shape != inputs.shape[:1]:
        raise ValueError(
            f"{name} has shape {shape(weight)}, but X has shape {shape(inputs)}: one weight a sample is needed"
        )
    ready = to_model(name, weight, network)
    if bool((ready < 0).any()):
        place = int((ready < 0).nonzero()[0, 0])
        raise ValueError(f"{name} holds {float(weight[place])} at {place}; weights must be >= 0")
    if not bool((ready > 0).any()):
        raise ValueError(f"{name} is zero for every sample in {network.dtype}; at least one must count")
    return ready
