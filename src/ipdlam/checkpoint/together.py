"""Checkpoints that all processes of a run write and read together: each of them the samples that it holds.

Rows are named by their number in the whole list of samples, so that one process, or any number of them, takes them up:
it is a checkpoint like any other. All processes see the same folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipdlam.checkpoint.files import begin_folder, explained, publish_folder, sync, sync_files
from ipdlam.checkpoint.format import (
    Checkpoint,
    OwnRows,
    RowStore,
    read_checkpoint,
    refuse_others,
    state_bytes,
    write_checkpoint,
    write_manifest,
    write_parts,
)
from ipdlam.distributed.group import Group
from ipdlam.errors import CheckpointError


def write_together(group: Group, path: Path, tensors: Mapping[str, RowStore], content: dict[str, Any]) -> None:
    """Write a checkpoint, or raise on all ranks and leave none; what all of them have is written by the first."""
    if group.size == 1:
        write_checkpoint(path, tensors, content)
        return
    own = {name: tensor for name, tensor in tensors.items() if group.is_first or isinstance(tensor, OwnRows)}
    size = int(group.total(state_bytes(own))[0]) + 1_000_000

    begun: list[Path] = []  # what the first rank has to remove, wherever it hears that another one is lost

    def begin() -> Path:
        with explained(path, size, CheckpointError):
            refuse_others(path)
            begun.append(begin_folder(path, size))
        return begun[0]

    def finish(temporary: Path, files: list[dict[str, Any]]) -> None:
        with explained(path, size, CheckpointError):
            write_manifest(temporary, content, files)
            sync_files(temporary)
            publish_folder(path)

    try:
        temporary = group.first_does(begin)
        with group.telling(), explained(path, size, CheckpointError):
            files = write_parts(temporary, own, f"{group.rank:05}-")
            for file in files:  # the others' may not be whole yet
                sync(temporary / file["name"])
        written = [file for files in group.everyones(files) for file in files]
        group.first_does(lambda: finish(temporary, written))
    except BaseException:
        for folder in begun:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def read_together(group: Group, path: Path) -> Checkpoint:
    """:func:`read_checkpoint`, so that all ranks take the same; the first one checks the files."""
    return group.first_does(lambda: read_checkpoint(path))
