"""Checkpoints: tensors in safetensors files and the rest in JSON. Nothing is pickled, and loading runs no code.

A checkpoint is a folder::

    manifest.json               format, content (settings, counters, history), size and sha256 of every other file
    state-00000.safetensors     tensors; long ones in parts, named by their first row: ``z1@0``, ``z1@11184``, ...
    state-00001-00000.safetensors   the rows of samples that rank 1 held, where several processes saved

It appears under its name when it is whole and on the disk. Tensors are written and read a part at a time, so that
saving needs little memory beside the state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ipdlam.checkpoint.files import REPLACED, TEMPORARY, clear, explained, read_plain, recover, sha256, write_folder
from ipdlam.distributed.group import Span
from ipdlam.errors import CheckpointError

FORMAT = {"format": "ipdlam checkpoint", "version": 1}
MANIFEST = "manifest.json"
PART_BYTES = 64_000_000
FILE_NAME = re.compile(r"state-(\d{5}-)?\d{5}\.safetensors")
PART_NAME = re.compile(r"(.+)@(\d+)")
SERIES_NAME = re.compile(r"iteration-(\d{8})")


class Damaged(CheckpointError):
    """What a manifest of ours lists is not there, or has another checksum: nothing is lost with such a checkpoint."""


class RowStore(Protocol):
    """What is saved and filled some rows at a time: a tensor, or rows that live on a disk."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def numel(self) -> int: ...

    def element_size(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...

    def __setitem__(self, rows: slice, values: Tensor, /) -> None: ...


class OwnRows:
    """The rows of a tensor that this process holds, numbered as in the whole, of which others hold the rest."""

    def __init__(self, held: RowStore, span: Span) -> None:
        self.held, self.span = held, span
        self.dtype = held.dtype
        self.shape = torch.Size((span.total, *held.shape[1:]))

    def numel(self) -> int:
        return self.held.numel()

    def element_size(self) -> int:
        return self.held.element_size()

    def shares(self, start: int, stop: int) -> bool:
        """Whether any of some rows are here."""
        own = self.span.rows
        return bool(max(start, own.start) < min(stop, own.stop))

    def __getitem__(self, rows: slice, /) -> Tensor:
        return self.held[rows.start - self.span.first : rows.stop - self.span.first]

    def __setitem__(self, rows: slice, values: Tensor, /) -> None:
        own = self.span.rows
        start, stop = max(rows.start, own.start), min(rows.stop, own.stop)
        if start < stop:
            self.held[start - own.start : stop - own.start] = values[start - rows.start : stop - rows.start]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have been found whole."""

    path: Path
    content: dict[str, Any]
    files: tuple[Path, ...]

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Whatever goes wrong while its content is read is the checkpoint's fault."""
        try:
            yield
        except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, AttributeError) as error:
            raise CheckpointError(f"{self.path} cannot be used: {type(error).__name__}: {error}") from error

    @torch.no_grad()
    def copy_into(self, tensors: Mapping[str, RowStore], *, only: bool = False) -> None:
        """Fill the tensors with what was saved under their names, every row; ``only`` leaves the others out."""
        filled: dict[str, list[tuple[int, int]]] = {name: [] for name in tensors}
        for file in self.files:
            try:
                with safe_open(file, framework="pt") as parts:
                    for part in parts.keys():  # noqa: SIM118 (not a mapping)
                        if only and part.rpartition("@")[0] not in tensors:
                            continue
                        elsewhere = rows_elsewhere(tensors, part, parts.get_slice(part).get_shape())
                        name, start, stop = elsewhere or fill_part(tensors, part, parts.get_tensor(part))
                        filled[name].append((start, stop))
            except (SafetensorError, ValueError) as error:
                raise CheckpointError(f"{file} is damaged: {error}") from error
        for name, rows in filled.items():
            edges = [0, *(edge for pair in sorted(rows) for edge in pair), tensors[name].shape[0]]
            if edges[::2] != edges[1::2]:  # each part starts where the one before it ends
                raise CheckpointError(f"{self.path} does not hold all of {name}, or parts of it twice")


def rows_elsewhere(tensors: Mapping[str, RowStore], part: str, shape: list[int]) -> tuple[str, int, int] | None:
    """What :func:`fill_part` returns, for rows that other processes hold: they need not be read."""
    found = PART_NAME.fullmatch(part)
    target = None if found is None else tensors.get(found[1])
    if found is None or not shape or not isinstance(target, OwnRows):
        return None
    name, start, stop = found[1], int(found[2]), int(found[2]) + shape[0]
    return None if target.shares(start, stop) or stop > target.shape[0] else (name, start, stop)


def fill_part(tensors: Mapping[str, RowStore], part: str, saved: Tensor) -> tuple[str, int, int]:
    """Copy some rows to where they belong; their tensor's name, the first row and the one after the last."""
    found = PART_NAME.fullmatch(part)
    if found is None or found[1] not in tensors or saved.ndim == 0:
        raise ValueError(f"it holds {part!r}, which this run does not have")
    name, start, stop = found[1], int(found[2]), int(found[2]) + saved.shape[0]
    target = tensors[name]
    expected = (max(0, min(stop, target.shape[0]) - start), *target.shape[1:])
    if tuple(saved.shape) != expected or target.dtype != saved.dtype:
        raise ValueError(
            f"{part} has shape {tuple(saved.shape)} and type {saved.dtype}, but the run has {expected} and "
            f"{target.dtype} there"
        )
    target[start:stop] = saved
    return name, start, stop


def state_bytes(tensors: Mapping[str, RowStore]) -> int:
    """How large a checkpoint of the tensors will be, to within its headers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def cut(tensors: Mapping[str, RowStore]) -> Iterator[tuple[str, Tensor]]:
    """The tensors in parts of at most ``PART_BYTES``, whole rows each."""
    for name, tensor in tensors.items():
        held = tensor.span.rows if isinstance(tensor, OwnRows) else slice(0, max(1, tensor.shape[0]))
        count = held.stop - held.start
        rows = max(1, PART_BYTES * max(1, count) // max(1, state_bytes({name: tensor})))
        for start in range(held.start, held.stop, rows):
            yield f"{name}@{start}", tensor[start : start + rows]


def group(parts: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Contiguous copies on the CPU, together about ``PART_BYTES`` to a file."""
    held: dict[str, Tensor] = {}
    for name, part in parts:
        held[name] = part.detach().cpu().contiguous()
        if state_bytes(held) >= PART_BYTES:
            yield held
            held = {}
    if held:
        yield held


def write_checkpoint(path: Path, tensors: Mapping[str, RowStore], content: dict[str, Any]) -> None:
    """Write a checkpoint; ``path`` is a new folder or an older checkpoint, which is replaced when this one is whole."""
    refuse_others(path)

    def fill(folder: Path) -> None:
        write_manifest(folder, content, write_parts(folder, tensors))

    write_folder(path, state_bytes(tensors) + 1_000_000, fill)


def write_parts(folder: Path, tensors: Mapping[str, RowStore], mark: str = "") -> list[dict[str, Any]]:
    """Write tensors into files ``state-<mark>00000.safetensors``, ...; what the manifest says of each."""
    files = []
    for number, parts in enumerate(group(cut(tensors))):
        file = folder / f"state-{mark}{number:05}.safetensors"
        save_file(parts, file)
        files.append({"name": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)})
    return files


def write_manifest(folder: Path, content: dict[str, Any], files: list[dict[str, Any]]) -> None:
    """What makes the files of a folder a checkpoint."""
    (folder / MANIFEST).write_text(seal({**FORMAT, "content": content, "files": files}), encoding="utf-8")


def refuse_others(path: Path) -> None:
    """Refuse to replace what is no checkpoint."""
    if path.exists() and not is_ours(path):
        raise CheckpointError(f"{path} exists and is not a checkpoint; choose another name")


def is_ours(path: Path) -> bool:
    """Whether a folder has the manifest of a checkpoint, of whatever version, whole or not."""
    try:
        return bool(json.loads(read_plain(path / MANIFEST))["format"] == FORMAT["format"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def seal(manifest: dict[str, Any]) -> str:
    """The manifest as JSON, with a checksum of itself."""
    return json.dumps({**manifest, "sha256": checksum(manifest)}, indent=1)


def checksum(manifest: dict[str, Any]) -> str:
    """The same for equal manifests, however they are laid out."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at ``path`` or, in a folder of several, the newest whole one; damaged ones are warned about."""
    recover(path)
    if (path / MANIFEST).exists() or not path.is_dir():
        return read_whole(path)
    problems = []
    for candidate in series(path):
        try:
            return read_whole(candidate)
        except CheckpointError as error:
            problems.append(str(error))
            warnings.warn(f"{error}; looking for an older one", UserWarning, stacklevel=3)
    raise CheckpointError(f"{path} holds no whole checkpoint" + "".join(f"; {problem}" for problem in problems))


def in_series(folder: Path, iteration: int) -> Path:
    """Where the checkpoint of an iteration goes in the folder of a run's checkpoints."""
    return folder / f"iteration-{iteration:08}"


def series(folder: Path) -> list[Path]:
    """The checkpoints of one run, the newest first; none where there is no folder."""
    return sorted((path for path in folder.glob("iteration-*") if SERIES_NAME.fullmatch(path.name)), reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Remove all checkpoints of a run but the newest ones, and what was left of others; folders of others stay."""
    with explained(folder / MANIFEST, 0, CheckpointError):
        for path in [path for path in series(folder) if is_ours(path)][keep:]:
            discard(path)
        for prefix in (TEMPORARY, REPLACED):
            for path in folder.glob(f"{prefix}iteration-*"):
                if is_left_over(path):
                    clear(path)


def is_left_over(path: Path) -> bool:
    """Whether a folder holds nothing but files of a checkpoint, or nothing at all."""
    return path.is_dir() and all(
        entry.is_file() and (entry.name == MANIFEST or FILE_NAME.fullmatch(entry.name)) for entry in path.iterdir()
    )


def refuse_unread(paths: Iterable[Path]) -> None:
    """Refuse to go on beside checkpoints that are not known to be damaged: they would be replaced, and may be sound."""
    for path in paths:
        reason = "it can be read"
        try:
            read_whole(path)
        except Damaged:
            continue
        except CheckpointError as error:
            reason = str(error)
        raise CheckpointError(
            f"{path} is newer than the checkpoint to go on from, and is not known to be damaged: {reason}. Mend that, "
            "or move the folder away"
        )


def discard(path: Path) -> None:
    """Remove a checkpoint, under a name of no checkpoint, so that no half of one is ever seen."""
    leaving = path.with_name(REPLACED + path.name)
    clear(leaving)
    path.rename(leaving)
    clear(leaving)


def read_whole(path: Path) -> Checkpoint:
    """Check every file against the manifest before anything is used."""
    file = path / MANIFEST
    try:
        manifest = json.loads(read_plain(file))
        seal_of_content = manifest.pop("sha256")
        wanted = {**FORMAT, "content": manifest["content"], "files": manifest["files"]}
        listed = {entry["name"]: (entry["bytes"], entry["sha256"]) for entry in manifest["files"]}
        if not isinstance(manifest["content"], dict) or not all(isinstance(name, str) for name in listed):
            raise TypeError("its content is not a table")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is not a checkpoint: it has no {MANIFEST}") from error
    except RecursionError as error:
        raise CheckpointError(f"{file} is damaged: nested too deeply") from error
    except OSError as error:
        raise unreadable(file, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {type(error).__name__}: {error}") from error
    if {key: manifest.get(key) for key in FORMAT} != FORMAT:
        raise CheckpointError(
            f"{file} is {manifest.get('format')!r}, version {manifest.get('version')!r}; this version of ipdlam reads "
            f"{FORMAT['format']!r}, version {FORMAT['version']}"
        )
    if checksum(wanted) != seal_of_content:
        raise Damaged(f"{file} is damaged: its sha256 is not the one it states")
    for name, (size, digest) in listed.items():
        if not FILE_NAME.fullmatch(name):
            raise CheckpointError(f"{file} names the file {name!r}, which no checkpoint has")
        try:
            check_file(path / name, size, digest)
        except OSError as error:
            raise unreadable(path / name, error) from error
    return Checkpoint(path, manifest["content"], tuple(path / name for name in listed))


def check_file(file: Path, size: int, digest: str) -> None:
    """Refuse a file that is not as it was written."""
    if not file.is_file():
        raise Damaged(f"{file.parent} is damaged: {file.name} is missing")
    if file.stat().st_size != size or sha256(file) != digest:
        raise Damaged(
            f"{file.parent} is damaged: {file.name} has {file.stat().st_size} bytes (written: {size}) or another "
            "sha256 than when it was written"
        )


def unreadable(file: Path, error: OSError) -> CheckpointError:
    """The error of a file that may be sound, but that the system does not give."""
    return CheckpointError(f"{file} cannot be read: {error.strerror or error}; see to its permissions and its disk")


def refuse_differences(checkpoint: Checkpoint, found: list[str]) -> None:
    """Raise if there are any."""
    if found:
        raise CheckpointError(f"{checkpoint.path} does not fit: {'; '.join(found)}")
