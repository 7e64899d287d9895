"""The folder of a run: what was asked, on which machine, every iteration, the checkpoints, the model, the curves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from ipdlam.checkpoint.files import LOCK, exclusive, explained, open_plain, read_plain, write_file
from ipdlam.datasets import NAMES
from ipdlam.errors import FileError
from ipdlam.runs.config import ConfigError, TrainConfig, read_toml
from ipdlam.training.history import History, Record, plain


class Inside:
    """The path of something in the folder of a run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, owner: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run, and the little that is written to them directly."""

    path: Path

    config = Inside("config.toml")
    environment = Inside("environment.json")
    history = Inside("history.jsonl")
    checkpoints = Inside("checkpoints")
    model = Inside("model.safetensors")
    curves = Inside("curves.png")
    summary = Inside("summary.json")

    @classmethod
    def new(cls, config: TrainConfig) -> RunFolder:
        """Where a new run goes; a folder that holds anything is never written over."""
        folder = cls(new_path(config, config.data))
        if is_taken(folder.path):
            there = folder.config.is_file()
            hint = f", or go on with it: ipdlam train --resume {folder.path}" if there else ""
            raise ConfigError(f"output {folder.path} exists already; choose another --output{hint}")
        return folder

    def claim(self, *, new: bool) -> IO[str] | None:
        """Make the folder and hold it for this process, as long as what is returned stays open.

        A second process that trains in it, or a new run in a folder that holds anything, is refused.
        """
        make_folder(self.path)
        try:
            lock = exclusive(self.path / LOCK)
        except BlockingIOError as error:
            raise ConfigError(f"another process is training in {self.path}; choose another --output") from error
        except OSError as error:
            raise ConfigError(f"output {self.path} cannot be written to: {error.strerror or error}") from error
        if new and is_taken(self.path):
            lock.close()
            raise ConfigError(f"output {self.path} exists already; choose another --output")
        return lock

    def create(self, config: TrainConfig, *, new: bool) -> None:
        """Begin, in a folder that was claimed; what an earlier end of the run says is no longer true."""
        make_folder(self.checkpoints)
        try:
            self.write_config(config)
        except FileError:
            if new:  # an empty folder would only be in the way of the next attempt
                shutil.rmtree(self.path, ignore_errors=True)
            raise
        self.summary.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run."""
        folder = cls(path)
        if not folder.config.is_file():
            raise ConfigError(f"{path} is not the folder of a run: it has no {folder.config.name}")
        return folder

    def read_config(self) -> TrainConfig:
        """The configuration the run was made with; where its folder of data is gone, they are searched for anew."""
        given = read_toml(self.config)
        if "method" not in given and not {"batch_size", "epochs"} & set(given):
            given["method"] = "ipdlam"  # the default when runs did not say which
        config = TrainConfig().changed(given)
        gone = config.data_dir is not None and not os.path.isdir(os.path.expanduser(config.data_dir))
        return config.changed({"data_dir": None}) if gone else config

    def write_config(self, config: TrainConfig) -> None:
        """All settings but the folder itself, so that the file can be fed back, from any folder, for another run."""
        places = {name: absolute(getattr(config, name)) for name in ("data_dir", "storage")}
        places["data"] = config.data if config.data in NAMES else absolute(config.data)
        write_file(self.config, config.resolved().changed({"output": None, **places}).to_toml().encode())

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        write_file(path, (json.dumps(plain(content), indent=1) + "\n").encode())

    def write_history(self, records: Iterable[Record]) -> None:
        """Start the file anew: after a resume, lines past the checkpoint go."""
        write_file(self.history, "".join(line(record) for record in records).encode())

    def write_summary(self, history: History) -> None:
        """Why the run ended, its last and its best iteration."""
        best = history.best
        content = {
            "stop_reason": history.stop_reason,
            "iterations": len(history),
            "last": history[-1].to_dict() if history else None,
            "best": None if best is None else best.to_dict(),
        }
        self.write_json(self.summary, content)

    @property
    def was_cut_short(self) -> bool:
        """Whether the run ended in the middle of an iteration: by Ctrl-C, or because memory ran out."""
        try:
            return json.loads(read_plain(self.summary))["stop_reason"] in ("interrupted", "memory")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def append(self, record: Record) -> None:
        """Add one iteration; it is on its way to the disk before the next one starts."""
        text = line(record)
        with explained(self.history, len(text)):
            descriptor = open_plain(self.history, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with open(descriptor, "a", encoding="utf-8") as file:
                file.write(text)

    def read_history(self) -> History:
        """All iterations so far; a last line that was cut off does not count."""
        if not self.history.is_file():
            return History()
        try:
            lines = self.history.read_text(encoding="utf-8").splitlines(keepends=True)
            return History(Record.from_dict(json.loads(text)) for text in lines if text.endswith("\n"))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileError(f"{self.history} is damaged: {type(error).__name__}: {error}") from error


def line(record: Record) -> str:
    """A record as one line of JSON."""
    return json.dumps(plain(record.to_dict())) + "\n"


def absolute(place: str | None) -> str | None:
    """A path as it is found from anywhere; one that does not exist stays as it is."""
    if place is None or not os.path.exists(os.path.expanduser(place)):
        return place
    return os.path.abspath(os.path.expanduser(place))


def is_taken(path: Path) -> bool:
    """Whether something is there that a run must not write into."""
    try:
        return path.exists() and (not path.is_dir() or any(entry.name != LOCK for entry in path.iterdir()))
    except OSError as error:
        raise ConfigError(f"output {path} cannot be used: {error.strerror or error}") from error


def make_folder(path: Path) -> None:
    """Make the folder of a result, and those it is in."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"output {path} cannot be made: {error.strerror or error}; choose another --output"
        ) from error


def new_path(config: TrainConfig, name: str) -> Path:
    """Where the results of a configuration go: where it says, or a new name under ``runs``."""
    if config.output is not None:
        return Path(os.path.expanduser(config.output))
    name = Path(name).name.split(".")[0] or "data"
    stem = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = stem, 2
    while path.exists():
        path, number = stem.with_name(f"{stem.name}-{number}"), number + 1
    return path
