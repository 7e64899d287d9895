"""Arrays in IDX format, the format of MNIST, plain or gzipped: whatever is damaged is refused by file and byte."""

from __future__ import annotations

import gzip
import math
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import PathLike
from pathlib import Path
from typing import NamedTuple, Union

import numpy as np
import torch
from torch import Tensor

from ipdlam.errors import DataError
from ipdlam.network.samples import RowSource

# Byte 2 of the header: the type of the elements, which stand in big-endian order.
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
BinaryStream = Union[BufferedReader, gzip.GzipFile]
GZIP = b"\x1f\x8b"
DENSEST = 1032  # bytes that one byte of a gzip stream can stand for at most
CHUNK = 1 << 20
HIGHEST_LABEL = 65535  # a network has an output a class: a label beyond this is a damaged file
NAME = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx(\d+-\w+)?(\.gz)?")
NAMES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"


class Parts(NamedTuple):
    """Inputs and class indices for training, and for the test where there is one."""

    X: Tensor
    y: Tensor
    X_test: Tensor | None
    y_test: Tensor | None


@contextmanager
def opened(path: Path) -> Iterator[BinaryStream]:
    """The content of a file, decompressed if it begins as gzip does; what cannot be read is a :class:`DataError`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is {'a folder' if path.is_dir() else 'a device or pipe'}, not a file")
        with path.open("rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            if magic != GZIP:
                yield raw
                return
            try:
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield stream
            except EOFError:
                raise DataError(
                    f"{path} is cut short: its gzip stream goes on after byte {raw.tell()}, where the file ends. "
                    "Copy or download it again"
                ) from None
            except (zlib.error, gzip.BadGzipFile) as error:
                # The stream is read ahead, so the place is an upper bound.
                raise DataError(
                    f"{path} is a damaged gzip file, at or before byte {raw.tell()}: {error}. Copy or download it again"
                ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def read_idx(path: Path) -> np.ndarray:
    """The array of an IDX file, plain or gzipped, in the byte order of this machine."""
    with opened(path) as stream:
        kind, shape = read_header(path, stream)
        start, size = 4 + 4 * len(shape), math.prod(shape) * kind.itemsize
        compressed = isinstance(stream, gzip.GzipFile)
        # Nothing is allocated for a promise that a file of this length cannot keep.
        most = path.stat().st_size * (DENSEST if compressed else 1)
        if start + size > most:
            end = f"at or before byte {most}" if compressed else f"at byte {most}"
            raise wrong(path, most, f"ends {end}, but its header promises {start + size}")
        try:
            content = np.empty(size, np.uint8)
        except MemoryError:
            raise DataError(f"{path} holds {size} bytes, more than there is memory for") from None
        got = fill(stream, content)
        if got < size:
            raise wrong(path, start + got, f"ends at byte {start + got}, but its header promises {start + size}")
        if stream.read(1):  # for gzip, this also makes it compare its checksum
            raise wrong(path, start + size, f"goes on after byte {start + size}, where its header says that it ends")
    try:
        return content.view(kind).astype(kind.newbyteorder("="), copy=False).reshape(shape)
    except ValueError:  # numpy has a greatest number of dimensions, and a greatest size even of an empty array
        raise wrong(path, 3, f"has {len(shape)} dimensions {shape}, which numpy cannot hold") from None


def read_header(path: Path, stream: BinaryStream) -> tuple[np.dtype, tuple[int, ...]]:
    """The type of the elements, and the shape."""
    head = stream.read(4)
    for place, byte in enumerate(head[:2]):
        if byte != 0:
            raise wrong(path, place, f"must be 0, is 0x{byte:02x}; an IDX file starts with two zeros")
    if len(head) < 4:
        raise wrong(path, len(head), f"ends at byte {len(head)}, within the 4 bytes that every IDX file starts with")
    if head[2] not in TYPES:
        known = ", ".join(f"0x{code:02x}" for code in TYPES)
        raise wrong(path, 2, f"0x{head[2]:02x} is not a known type of elements ({known})")
    if head[3] == 0:
        raise wrong(path, 3, "the number of dimensions is 0, it must be at least 1")
    sizes = stream.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        end = 4 + len(sizes)
        raise wrong(path, end, f"ends at byte {end}, within the sizes of its {head[3]} dimensions")
    return np.dtype(TYPES[head[2]]), tuple(np.frombuffer(sizes, ">u4").tolist())


def fill(stream: BinaryStream, content: np.ndarray) -> int:
    """Read bytes into an array until one of them ends, and count them."""
    got = 0
    while got < len(content):
        piece = stream.read(min(CHUNK, len(content) - got))
        if not piece:
            break
        content[got : got + len(piece)] = np.frombuffer(piece, np.uint8)
        got += len(piece)
    return got


def wrong(path: Path, byte: int, what: str) -> DataError:
    """The error of a file that is not what its header says, or has no such header."""
    return DataError(f"{path} is not a sound IDX file, byte {byte}: {what}. Copy or download it again")


def pixels(path: Path, images: np.ndarray) -> Tensor:
    """Images as rows of float32: unsigned bytes become [0, 1], other types stay what they are."""
    if images.ndim < 2:
        raise DataError(f"{path}, byte 3: images need at least 2 dimensions, the file has {images.ndim}")
    for axis, size in enumerate(images.shape):
        if size == 0:
            raise DataError(
                f"{path}, byte {4 + 4 * axis}: dimension {axis} of the images has size 0, the file is empty"
            )
    rows = scaled(images)
    if images.dtype.kind == "f" and not bool(torch.isfinite(rows).all()):
        place = int((~torch.isfinite(rows)).flatten().nonzero()[0])
        byte = 4 + 4 * images.ndim + place * images.dtype.itemsize
        raise DataError(f"{path}, byte {byte}: pixel {images.flat[place]} is not a finite float32 number; replace it")
    return rows


def scaled(images: np.ndarray) -> Tensor:
    """Images as rows of float32, unsigned bytes from 0 to 1."""
    native = images.astype(images.dtype.newbyteorder("="), copy=False)
    # torch.tensor copies: the memory is then torch's own, and aligned as its kernels like it.
    rows = torch.tensor(native.reshape(len(images), -1), dtype=torch.float32)
    return rows.div_(255) if images.dtype == np.uint8 else rows


class MappedImages(RowSource):
    """The images of a memory-mapped IDX file as the rows that :func:`pixels` makes, when they are asked for."""

    def __init__(self, images: np.ndarray) -> None:
        self.mapped = images

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.mapped), math.prod(self.mapped.shape[1:])

    def __getitem__(self, rows: slice) -> Tensor:
        return scaled(self.mapped[rows])


def map_idx(path: str | PathLike[str]) -> MappedImages | np.ndarray:
    """An IDX file as ``X`` or ``y`` of ``fit``, without reading it into memory: it is mapped, and must stay as it is.

    Images become rows of float32, as :func:`ipdlam.datasets.load` makes them, some at a time when they are asked for;
    a file of one dimension, such as labels, is the array itself. A gzipped file has to be decompressed first.
    """
    file = Path(path)
    with opened(file) as stream:
        if isinstance(stream, gzip.GzipFile):
            raise DataError(f"{file} is gzipped, and cannot be mapped; decompress it with: gunzip -k {file.name}")
        kind, shape = read_header(file, stream)
        start, size = 4 + 4 * len(shape), math.prod(shape) * kind.itemsize
        length = file.stat().st_size
        if length != start + size:
            raise wrong(file, min(length, start + size), f"has {length} bytes, but its header promises {start + size}")
        if not size:
            raise DataError(f"{file} holds no elements, its dimensions are {shape}")
        try:
            array = np.memmap(stream, kind, "r", start, shape)
        except ValueError as error:  # numpy has a greatest number of dimensions
            raise wrong(file, 3, f"has {len(shape)} dimensions {shape}, which numpy cannot map") from error
    return array if array.ndim == 1 else MappedImages(array)


def class_indices(path: Path, labels: np.ndarray) -> Tensor:
    """Labels as class indices."""
    if labels.ndim != 1:
        raise DataError(f"{path}, byte 3: labels must have 1 dimension, the file has {labels.ndim}")
    if labels.dtype.kind not in "iu":
        raise DataError(f"{path}, byte 2: labels must be whole numbers, the file holds {labels.dtype}")
    outside = np.flatnonzero((labels < 0) | (labels.astype(np.int64) > HIGHEST_LABEL))
    if outside.size:
        byte = 8 + int(outside[0]) * labels.dtype.itemsize
        raise DataError(f"{path}, byte {byte}: label {labels[outside[0]]} is not in 0 ... {HIGHEST_LABEL}")
    return torch.tensor(labels.astype(np.int64))


def find_files(folder: Path) -> dict[tuple[str, str], Path]:
    """The IDX files of a folder by ("train" | "test", "images" | "labels"); a plain file before a gzipped one."""
    found: dict[tuple[str, str], Path] = {}
    try:
        paths = sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_file())
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror or error}") from None
    # MNIST calls its test "t10k"; where there are both, the files of one name belong together.
    test = "t10k" if any(path.name.startswith("t10k") for path in paths) else "test"
    for part, prefix in (("train", "train"), ("test", test)):
        for path in paths:
            for kind in ("images", "labels"):
                if path.name.startswith(f"{prefix}-{kind}"):
                    found.setdefault((part, kind), path)
    return found


def read_folder(folder: Path) -> Parts:
    """The images and labels of a folder of IDX files with the names of MNIST; the test may be absent."""
    files = find_files(folder)
    needed = [("train", "images"), ("train", "labels")]
    if any(part == "test" for part, _ in files):
        needed += [("test", "images"), ("test", "labels")]
    missing = " and ".join(f"{part} {kind}" for part, kind in needed if (part, kind) not in files)
    if missing:
        raise DataError(
            f"{folder} has no file of {missing}. Looked for {NAMES}, also as .idx3-ubyte, with test- for t10k-, and "
            "with .gz"
        )
    X, y = read_part(files["train", "images"], files["train", "labels"])
    if len(needed) == 2:
        return Parts(X, y, None, None)
    X_test, y_test = read_part(files["test", "images"], files["test", "labels"])
    if X.shape[1] != X_test.shape[1]:
        raise DataError(
            f"{files['train', 'images']} has {X.shape[1]} pixels an image and {files['test', 'images']} has "
            f"{X_test.shape[1]} (from byte 8 of each); they must be the same"
        )
    return Parts(X, y, X_test, y_test)


def read_part(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Images and their labels, as many of the one as of the other."""
    y = class_indices(labels, read_idx(labels))
    array = read_idx(images)
    if len(array) != len(y):
        raise DataError(
            f"{images} holds {len(array)} images, but {labels} holds {len(y)} labels (byte 4 of each); they must be as "
            "many. Copy or download both again"
        )
    return pixels(images, array), y
