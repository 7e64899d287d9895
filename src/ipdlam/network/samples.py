"""The samples a run works on, checked before any work: a clear error names the array, the place and the remedy.

They are in memory, or stay where they are, in a file or in another type, and are read and converted some rows at a
time. The numbers that a pass gets, and where in a cache line they start, are the same either way.
"""

from __future__ import annotations

import hashlib
import mmap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor

from ipdlam.network.linalg import CACHE_LINE, all_finite
from ipdlam.network.model import ModelView
from ipdlam.prox import Loss


class RowSource(ABC):
    """Rows that are made from a memory-mapped file when they are asked for, such as scaled pixels."""

    mapped: np.ndarray  # what they are made from

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """As of an array."""

    @abstractmethod
    def __getitem__(self, rows: slice) -> Tensor:
        """Some rows, in memory."""

    def __len__(self) -> int:
        return self.shape[0]


ArrayLike = Union[Tensor, np.ndarray, RowSource]
Loader = Iterable[Any]  # of batches: (x, y) or (x, y, sample_weight)
ValidationData = Union[tuple[ArrayLike, ArrayLike], tuple[ArrayLike, ArrayLike, Union[ArrayLike, None]], Loader]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


NO_VALIDATION_DATA = "validation_data must be (X, y) or (X, y, sample_weight), or an iterable of such batches"
ROWS_AT_A_TIME = 4096  # when all samples are looked at before a run


@dataclass(frozen=True)
class Samples:
    """Inputs, targets and weights of N samples, on the model's device and in its precision."""

    X: Tensor
    y: Tensor  # class indices (N,) or real targets (N, outputs)
    weight: Tensor | None
    encoded: bool = False  # whether real targets are classes, each in the loss's own encoding

    def __len__(self) -> int:
        return self.X.shape[0]

    def versions(self) -> dict[str, int | None]:
        """How often the numbers have been changed in place, as torch counts it; they may be the caller's own."""
        arrays = {"X": self.X, "y": self.y, "sample_weight": self.weight}
        return {
            name: None if array is None or array.is_inference() else array._version for name, array in arrays.items()
        }

    @property
    def count(self) -> float:
        """How much the samples count together."""
        return float(len(self)) if self.weight is None else float(self.weight.double().sum())

    @property
    def labelled(self) -> bool:
        """Whether ``y`` holds class indices."""
        return self.y.ndim == 1

    def inputs(self, rows: slice) -> Tensor:
        """The inputs of some rows."""
        return self.X[rows]

    def goals(self, rows: slice) -> Tensor:
        """The class indices or the real targets of some rows."""
        return self.y[rows]

    def labels(self, loss: Loss, rows: slice) -> Tensor | None:
        """The class indices of some rows; also of targets that encode classes: one-hot rows, +1 among -1, or a sign."""
        if self.labelled:
            return self.goals(rows)
        return loss.decode(self.goals(rows)) if self.encoded else None

    def targets(self, loss: Loss, rows: slice, outputs: int, dtype: torch.dtype | None = None) -> Tensor:
        """What the loss compares the outputs of some rows with; inputs that are words have not their ``dtype``."""
        return loss.encode(self.goals(rows), outputs, dtype or self.X.dtype) if self.labelled else self.goals(rows)

    def rows(self, chunk_size: int) -> list[slice]:
        """Consecutive slices of at most ``chunk_size`` rows."""
        return [slice(start, min(start + chunk_size, len(self))) for start in range(0, len(self), chunk_size)]

    def picked(self, which: Tensor) -> Samples:
        """Some of the samples, by number or by mask."""
        weight = None if self.weight is None else self.weight[which]
        return Samples(self.X[which], self.y[which], weight, self.encoded)

    def counted(self) -> Samples:
        """The samples without those of weight zero: a batch of nothing else would have no mean."""
        if self.weight is None or bool((self.weight > 0).all()):
            return self
        return self.picked(self.weight > 0)

    def fingerprint(self) -> dict[str, str | None]:
        """The sha256 of every array, with its type and shape: what tells data that were changed."""
        arrays = {"X": self.X, "y": self.y, "sample_weight": self.weight}
        return {name: None if array is None else digest(array) for name, array in arrays.items()}

    def row_digests(self, first: int) -> dict[str, tuple[str, int] | None]:
        """For every array its type and the sum of the sha256 of its rows, each with its number, from ``first`` on.

        The sums of parts add up to that of the whole, however it was divided.
        """
        found: dict[str, tuple[str, int] | None] = {}
        for name, array in (("X", self.X), ("y", self.y), ("sample_weight", self.weight)):
            kind = "" if array is None else f"{array.dtype} {tuple(array.shape[1:])}"
            found[name] = None if array is None else (kind, 0)
        for rows in self.rows(4096):
            pieces = {"X": self.inputs(rows), "y": self.goals(rows)}
            if self.weight is not None:
                pieces["sample_weight"] = self.weight[rows]
            for name, piece in pieces.items():
                before = found[name]
                assert before is not None
                found[name] = (before[0], before[1] + row_digest(piece, first + rows.start))
        return found


class MappedRows:
    """The rows of an array, converted by ``convert(rows, first)`` when they are asked for; ``first`` is their number.

    What was read last of a memory-mapped file is given back to the system's cache, and what comes next is read ahead.
    """

    def __init__(self, name: str, array: ArrayLike, convert: Callable[[Tensor, int], Tensor]) -> None:
        self.name, self.array, self.convert = name, array, convert
        self._last: slice | None = None

    def __getitem__(self, rows: slice) -> Tensor:
        if self._last is not None and self._last != rows:
            advise(self.array, self._last, "MADV_DONTNEED")
        self._last = rows
        advise(self.array, slice(rows.stop, 2 * rows.stop - rows.start), "MADV_WILLNEED")
        given = as_tensor(self.name, self.array[rows])
        ready = self.convert(given, rows.start)
        shared = isinstance(self.array, (Tensor, np.ndarray)) and ready.data_ptr() == address(self.array[rows])
        return ready if shared else placed(ready, rows.start)

    def checked(self, elsewhere: Tensor | None, check: Callable[[Tensor], Any] | None = None) -> Tensor:
        """All rows, converted; or ``elsewhere``, where they stay: NaN and infinity are refused now all the same."""
        pieces = [self.convert(as_tensor(self.name, self.array), 0)] if elsewhere is None else self
        for rows in pieces:
            if check is not None:
                check(rows)
        return rows if elsewhere is None else elsewhere

    def __iter__(self) -> Iterator[Tensor]:
        """All rows, some at a time."""
        length = self.array.shape[0]
        for start in range(0, length, ROWS_AT_A_TIME):
            yield self[slice(start, min(start + ROWS_AT_A_TIME, length))]
        if self._last is not None:
            advise(self.array, self._last, "MADV_DONTNEED")


@dataclass(frozen=True)
class MappedSamples(Samples):
    """Samples whose ``X``, and real targets ``y``, have a shape and a type here, and their numbers elsewhere."""

    X_rows: MappedRows = field(kw_only=True)
    y_rows: MappedRows | None = field(kw_only=True)  # None where y is in memory: class indices
    _digests: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def inputs(self, rows: slice) -> Tensor:
        return self.X_rows[rows]

    def goals(self, rows: slice) -> Tensor:
        return self.y[rows] if self.y_rows is None else self.y_rows[rows]

    def fingerprint(self) -> dict[str, str | None]:
        if not self._digests:  # a pass over all data
            self._digests.update(
                X=digest(self.X, self.X_rows),
                y=digest(self.y, self.y_rows),
                sample_weight=None if self.weight is None else digest(self.weight),
            )
        return dict(self._digests)


def row_digest(rows: Tensor, first: int) -> int:
    """The sum of the sha256 of rows with their numbers."""
    numbered = enumerate(rows.cpu().contiguous().numpy(), start=first)
    digests = (hashlib.sha256(number.to_bytes(8, "little") + row.tobytes()).digest() for number, row in numbered)
    return sum(int.from_bytes(digest, "little") for digest in digests)


def digest(array: Tensor, pieces: Iterable[Tensor] | None = None) -> str:
    """The sha256 of an array's type, shape and numbers; these come in ``pieces`` where they are not in the array."""
    found = hashlib.sha256(f"{array.dtype} {tuple(array.shape)}".encode())
    if pieces is None:
        pieces = (array[start : start + 4096] for start in range(0, array.shape[0], 4096))
    for piece in pieces:
        found.update(piece.cpu().contiguous().numpy().data)
    return found.hexdigest()


def check_samples(
    network: ModelView,
    loss: Loss,
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    prefix: str = "",
    *,
    part: bool = False,
    mapped: bool = False,
) -> Samples:
    """Everything a run needs of its data, or an error that names what is wrong with which argument.

    Where they are a ``part`` of the samples, there may be none, or none that counts. Where they are ``mapped``, they
    are looked at some rows at a time, and no copy is made.
    """
    given = as_given if mapped else as_tensor
    X, y = given(f"{prefix}X", X), given(f"{prefix}y", y)
    if network.flattens and len(X.shape) > 2 and not isinstance(X, RowSource):
        X = X.reshape(X.shape[0], -1)
    check_shapes(network, X, y, prefix, part=part)

    def elsewhere(width: int) -> Tensor | None:
        return torch.empty(X.shape[0], width, dtype=network.dtype, device="meta") if mapped else None

    X_rows = MappedRows(f"{prefix}X", X, lambda rows, first: to_inputs(f"{prefix}X", rows, network, first))
    inputs = X_rows.checked(elsewhere(X.shape[1]))
    if network.inputs is None and len(inputs):
        network.try_on(inputs)
    weight = None
    if sample_weight is not None:
        weight = check_weight(f"{prefix}sample_weight", sample_weight, X.shape, network, part=part)
    y_rows, encoded = None, not part  # several processes would have to agree on it

    def check_goals(rows: Tensor) -> None:
        nonlocal encoded
        loss.check_targets(rows)
        encoded = encoded and loss.decode(rows) is not None

    if has_labels(y, loss, network.outputs):
        goals = to_labels(f"{prefix}y", as_tensor(f"{prefix}y", y), loss, network)
    else:
        y_rows = MappedRows(f"{prefix}y", y, lambda rows, first: real_targets(f"{prefix}y", rows, network, first))
        goals = y_rows.checked(elsewhere(network.outputs), check_goals)
    if mapped:
        return MappedSamples(inputs, goals, weight, encoded and y_rows is not None, X_rows=X_rows, y_rows=y_rows)
    return Samples(inputs, goals, weight, encoded and y_rows is not None)


def check_shapes(network: ModelView, X: ArrayLike, y: ArrayLike, prefix: str, *, part: bool = False) -> None:
    """Refuse what is not one row of inputs and one target for every sample."""
    if len(X.shape) != 2 and (network.inputs is not None or len(X.shape) < 2):
        raise ValueError(
            f"{prefix}X must be a matrix with one row a sample, got shape {shape(X)}; X.reshape(len(X), -1) makes one"
        )
    if network.inputs is not None and X.shape[1] != network.inputs:
        raise ValueError(f"{prefix}X has shape {shape(X)}, but the first layer takes {network.inputs} inputs a row")
    if X.shape[0] == 0 and not part:
        raise ValueError(f"{prefix}X is empty (shape {shape(X)}); give at least one sample")
    if tuple(y.shape[:1]) != tuple(X.shape[:1]):
        raise ValueError(
            f"{prefix}X has shape {shape(X)} and {prefix}y has shape {shape(y)}: they differ in their number of samples"
        )


def has_labels(y: ArrayLike, loss: Loss, outputs: int) -> bool:
    """Whether targets are class indices.

    With one output and no sign to tell two classes by, integers can only be real targets.
    """
    if len(y.shape) != 1 or isinstance(y, RowSource):
        return False
    whole = y.dtype in INTEGERS if isinstance(y, Tensor) else y.dtype.kind in "iub"
    return whole and loss.classes(outputs) > 1


def validation_parts(validation_data: ValidationData) -> tuple[ArrayLike, ArrayLike, ArrayLike | None]:
    """Inputs, targets and weights of the samples that a run is scored on; the batches of a loader are put together."""
    parts: Any = validation_data
    if not isinstance(parts, (tuple, list)) or (parts and all(isinstance(part, (tuple, list)) for part in parts)):
        parts = joined_batches(parts)
    if len(parts) not in (2, 3):
        raise ValueError(NO_VALIDATION_DATA)
    return parts[0], parts[1], parts[2] if len(parts) == 3 else None


def joined_batches(loader: Any) -> list[Tensor]:
    """All batches of a loader as one."""
    if not isinstance(loader, Iterable) or isinstance(loader, (str, bytes)) or is_array(loader):
        raise ValueError(NO_VALIDATION_DATA)
    batches = list(loader)
    if not batches or not all(isinstance(batch, (tuple, list)) and len(batch) in (2, 3) for batch in batches):
        raise ValueError(NO_VALIDATION_DATA)
    if len({len(batch) for batch in batches}) > 1:
        raise ValueError("validation_data: some batches have a sample_weight and others not; give it in all or none")
    names = ("validation X", "validation y", "validation sample_weight")
    return [
        torch.cat([as_tensor(name, part) for part in parts])
        for name, parts in zip(names, zip(*batches, strict=True), strict=False)
    ]


def is_array(X: Any) -> bool:
    """Whether ``X`` is data, and not an iterable of batches."""
    return isinstance(X, (Tensor, np.ndarray, RowSource))


def check_kind(name: str, array: ArrayLike) -> None:
    """Refuse what is no array."""
    if not isinstance(array, (Tensor, np.ndarray, RowSource)) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a torch tensor or a numpy array, got {type(array).__name__}")


def as_tensor(name: str, array: ArrayLike) -> Tensor:
    """A tensor that shares the array's memory where it can; it is only ever read."""
    check_kind(name, array)
    if isinstance(array, RowSource):
        array = array[slice(0, len(array))]
    if isinstance(array, np.ndarray):
        array = from_numpy(name, array)
    tensor = array.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        raise TypeError(
            f"{name} is {tensor.dtype}; half precision is not supported, convert it to float32 (a tensor with .float())"
        )
    if tensor.dtype not in (*INTEGERS, torch.float32, torch.float64):
        raise TypeError(f"{name} must hold real numbers, got {tensor.dtype}")
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        raise TypeError(f"{name} must be a dense tensor with values, got layout {tensor.layout} on {tensor.device}")
    return tensor


def from_numpy(name: str, array: np.ndarray) -> Tensor:
    """The array as a tensor, copied only where torch has no such layout or type."""
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got an array of {array.dtype}")
    if (
        array.dtype.kind == "u"
        and array.dtype.itemsize == 8
        and array.size
        and int(array.max()) > np.iinfo(np.int64).max
    ):
        array = array.astype(np.float64)  # torch computes with no unsigned numbers of 64 bits
    elif array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    elif array.dtype == np.longdouble:
        array = array.astype(np.float64)
    elif not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.array(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor do we write to it
        return torch.from_numpy(array)


def shape(array: ArrayLike) -> str:
    """The shape as it is printed in messages."""
    return str(tuple(array.shape))


def to_inputs(name: str, tensor: Tensor, network: ModelView, first: int = 0) -> Tensor:
    """Inputs as the model takes them: numbers in its precision, or words."""
    if network.takes_words:
        return as_words(name, tensor).to(network.device)
    return to_model(name, tensor, network, first)


def as_words(name: str, tensor: Tensor) -> Tensor:
    """Integers, for a model that begins with an Embedding."""
    if tensor.dtype not in INTEGERS:
        raise TypeError(f"{name} is {tensor.dtype}, but the model begins with an Embedding, which takes integers")
    return tensor.long()


def to_model(name: str, tensor: Tensor, network: ModelView, first: int = 0) -> Tensor:
    """The tensor in the model's precision and on its device; NaN, infinity and overflow are refused by place.

    ``first`` is the number of its first row, where it is a part.
    """
    converted = tensor.to(network.device, network.dtype)
    if all_finite(converted):  # at once; a sum that overflows is looked at below
        return converted
    for start in range(0, tensor.shape[0], 4096):  # the whole array's mask would cost a quarter of its memory
        finite = torch.isfinite(converted[start : start + 4096])
        if not bool(finite.all()):
            place = (~finite).nonzero()[0].tolist()
            place[0] += start
            named = (first + place[0], *place[1:])
            raise ValueError(
                f"{name} holds {float(tensor[tuple(place)])} at {named}, which is not a finite {network.dtype}; "
                "remove or replace such values, or scale the data, before training"
            )
    return converted


def to_labels(name: str, labels: Tensor, loss: Loss, network: ModelView) -> Tensor:
    """Class indices within range, on the model's device."""
    outputs = network.outputs
    classes = loss.classes(outputs)
    labels = labels.long()
    wrong = (labels < 0) | (labels >= classes)
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"{name} holds the label {int(labels[place])} at {place}, but a model with {outputs} outputs has the "
            f"labels 0 ... {classes - 1}"
        )
    return labels.to(network.device)


def real_targets(name: str, targets: Tensor, network: ModelView, first: int = 0) -> Tensor:
    """One row of targets for every sample, as the model has its numbers."""
    outputs = network.outputs
    if targets.ndim == 1 and outputs == 1:
        targets = targets.unsqueeze(1)
    if targets.ndim != 2 or targets.shape[1] != outputs:
        hint = "; class labels must be integers" if targets.ndim == 1 else ""
        if targets.ndim == 2 and targets.shape[1] == 1 and targets.dtype in INTEGERS:
            hint = "; class labels are a vector: y.squeeze(1)"
        raise ValueError(f"{name} has shape {shape(targets)}, but the last layer has {outputs} outputs a row{hint}")
    return to_model(name, targets, network, first)


def check_weight(
    name: str, sample_weight: ArrayLike, inputs: Sequence[int], network: ModelView, *, part: bool = False
) -> Tensor:
    """One non-negative weight for every sample, not all of them zero unless a part; ``inputs`` is the shape of X."""
    weight = as_tensor(name, sample_weight)
    if tuple(weight.shape) != tuple(inputs[:1]):
        raise ValueError(
            f"{name} has shape {shape(weight)}, but X has shape {tuple(inputs)}: one weight a sample is needed"
        )
    ready = to_model(name, weight, network)
    if bool((ready < 0).any()):
        place = int((ready < 0).nonzero()[0, 0])
        raise ValueError(f"{name} holds {float(weight[place])} at {place}; weights must be >= 0")
    if not (part or bool((ready > 0).any())):
        raise ValueError(f"{name} is zero for every sample in {network.dtype}; at least one must count")
    return ready


def as_given(name: str, array: ArrayLike) -> ArrayLike:
    """The array without a copy, if it is one; a tensor without its graph."""
    check_kind(name, array)
    return as_tensor(name, array) if isinstance(array, Tensor) else array


def address(array: Any) -> int:
    """Where the numbers of an array start."""
    return int(array.data_ptr()) if isinstance(array, Tensor) else int(array.ctypes.data)


def placed(rows: Tensor, first: int) -> Tensor:
    """The rows, starting within a cache line where row ``first`` of the whole array would, were it in memory.

    Products may depend on it in their last bits.
    """
    wanted = first * rows[:1].numel() * rows.element_size() % CACHE_LINE
    if rows.data_ptr() % CACHE_LINE == wanted or not rows.is_contiguous():
        return rows
    room = torch.empty(rows.numel() + 2 * CACHE_LINE // rows.element_size(), dtype=rows.dtype, device=rows.device)
    skip = (wanted - room.data_ptr()) % CACHE_LINE // rows.element_size()
    return room[skip : skip + rows.numel()].view(rows.shape).copy_(rows)


def advise(array: ArrayLike, rows: slice, advice: str) -> None:
    """Tell the system about the pages of some rows, where the array is a memory-mapped file and the system listens."""
    if isinstance(array, RowSource):
        array = array.mapped
    # The pages of a private map (mode "c") may hold what its file does not.
    if not isinstance(array, np.memmap) or array.mode == "c" or not hasattr(mmap, advice):
        return
    part = array[rows]
    pages: Any = array
    while isinstance(pages, np.ndarray):
        pages = pages.base
    if not isinstance(pages, mmap.mmap) or not part.flags.c_contiguous or not part.nbytes:
        return
    start = address(part) - np.frombuffer(pages, np.uint8).ctypes.data
    first = start - start % mmap.PAGESIZE
    pages.madvise(getattr(mmap, advice), first, start + part.nbytes - first)
