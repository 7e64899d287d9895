"""The data sets with a name: what they are, where they may lie on this machine, and where to download them."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ipdlam.checkpoint.files import sync
from ipdlam.datasets.idx import CHUNK, find_files, opened
from ipdlam.errors import DataError

VARIABLE = "IPDLAM_DATA"
TEST_LABELS = "t10k-labels-idx1-ubyte"


@dataclass(frozen=True)
class File:
    """One file of a data set; size and sha256 are those of its decompressed content."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """A data set that the library knows by name."""

    description: str
    megabytes: int  # to download
    files: tuple[File, ...]
    mirrors: tuple[str, ...]  # each ends in a slash, and the name of a file with .gz follows
    classes: tuple[str, ...]
    folders: tuple[str, ...] = ()  # where distributions of Linux put it


CATALOGUE = {
    "mnist": Source(
        "handwritten digits, 60000 + 10000 images of 28 x 28 pixels",
        11,
        (
            File(
                "train-images-idx3-ubyte",
                47040016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            File("train-labels-idx1-ubyte", 60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            File("t10k-images-idx3-ubyte", 7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
            File("t10k-labels-idx1-ubyte", 10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        tuple("0123456789"),
    ),
    "fashion-mnist": Source(
        "photographs of garments, 60000 + 10000 images of 28 x 28 pixels",
        30,
        (
            File(
                "train-images-idx3-ubyte",
                47040016,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            File("train-labels-idx1-ubyte", 60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
            File("t10k-images-idx3-ubyte", 7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            File("t10k-labels-idx1-ubyte", 10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        ),
        (
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        (
            "T-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        ("/usr/share/dataset-fashion-mnist",),
    ),
}


def cache(name: str) -> Path:
    """The user's own folder for a downloaded data set."""
    import pooch  # type: ignore[import-untyped]  # only those who look for a data set need it

    return Path(pooch.os_cache("ipdlam")) / name


def given_places(data_dir: str | os.PathLike[str] | None) -> dict[str, Path]:
    """The folders that the user has named, by how, in the order in which they are searched."""
    named = {"data_dir (--data-dir)": data_dir, VARIABLE: os.environ.get(VARIABLE)}
    return {how: Path(os.path.expanduser(place)) for how, place in named.items() if place}


def locations(name: str, data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders where a data set may be, in the order in which they are searched."""
    own = [folder for place in given_places(data_dir).values() for folder in (place / name, place)]
    return [*own, cache(name), *map(Path, CATALOGUE[name].folders)]


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The first folder that holds all files of a data set, or None."""
    return next((folder for folder in locations(name, data_dir) if holds(folder, name)), None)


def holds(folder: Path, name: str) -> bool:
    """Whether a folder has the four files, and they are not those of another data set of the catalogue."""
    try:
        files = find_files(folder) if folder.is_dir() else {}
        # All data sets use the same names: the test labels, which are small, tell which one it is.
        return len(files) == 4 and not any(
            damage(files["test", "labels"], file) is None
            for other, source in CATALOGUE.items()
            for file in source.files
            if other != name and file.name == TEST_LABELS
        )
    except (OSError, DataError):  # a folder that may not be entered
        return False


def misled(name: str, data_dir: str | os.PathLike[str] | None = None) -> str | None:
    """Why a search goes wrong: it comes to a folder that the user has named and that is not there.

    What was found elsewhere, or downloaded, which is never to such a folder, might not be what the user means.
    """
    for how, place in given_places(data_dir).items():
        if not os.path.isdir(place):
            what = "is a file" if os.path.exists(place) else "does not exist"
            return (
                f"{how} is {place}, which {what}; set it to a folder that holds {name}/{CATALOGUE[name].files[0].name}"
                ".gz and the other files, or do without it: the cache is searched, and what is not there downloaded"
            )
        if holds(place / name, name) or holds(place, name):
            break
    return None


def locate(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, offline: bool = False, progress: bool = False
) -> Path:
    """The folder of a data set, downloaded if it is nowhere on this machine and ``offline`` does not forbid it."""
    wrong = misled(name, data_dir)
    if wrong is not None:
        raise DataError(f"{name} cannot be searched for: {wrong}")
    found = find(name, data_dir)
    if found is not None:
        return found
    if offline:
        looked = ", ".join(map(str, locations(name, data_dir)))
        raise DataError(
            f"{name} was not found, and offline forbids to download it. Looked in {looked}. Set {VARIABLE} or "
            f"data_dir (--data-dir) to a folder that holds {name}/{CATALOGUE[name].files[0].name}.gz and the other "
            "files, or drop offline (--offline)"
        )
    return fetch(name, progress)


def warn_of_others(name: str, folder: Path) -> None:
    """Warn of files in a folder that are sound, but not those that are known as the data set: results will differ."""
    there, parts = find_files(folder), {"train": "train", "t10k": "test"}
    others = []
    for file in CATALOGUE[name].files:
        part, kind = file.name.split("-")[:2]
        path = there[parts[part], kind]
        if damage(path, file) is not None:
            others.append(path.name)
    if others:
        warnings.warn(
            f"{folder} holds other data than those known as {name}: the sha256 of {', '.join(others)} is another. They "
            f"are used as they are; for the {name} that others know, remove them, or set data_dir (--data-dir) or "
            f"{VARIABLE} to another folder",
            UserWarning,
            stacklevel=3,
        )


def status(name: str, data_dir: str | os.PathLike[str] | None = None) -> tuple[Path | None, str]:
    """Where a data set was found, or None and what to do."""
    wrong = misled(name, data_dir)
    if wrong is not None:
        return None, wrong
    found = find(name, data_dir)
    if found is not None:
        return found, ""
    return None, (
        f"downloaded when first used ({CATALOGUE[name].megabytes} MB), or set {VARIABLE} to a folder that holds {name}/"
    )


def fetch(name: str, progress: bool = False) -> Path:
    """Download a data set into the user's cache and check its content; what is there and sound is kept."""
    folder, mirrors = cache(name), list(CATALOGUE[name].mirrors)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{name} cannot be stored in {folder}: {error.strerror or error}. Set {VARIABLE} to a folder that holds it"
        ) from None
    for file in CATALOGUE[name].files:
        target = folder / f"{file.name}.gz"
        if target.exists() and damage(target, file) is None:
            continue
        used = download(name, file, target, mirrors, progress)
        mirrors.sort(key=lambda mirror: mirror != used)  # what worked is tried first
    return folder


def download(name: str, file: File, target: Path, mirrors: list[str], progress: bool) -> str:
    """Get one file from the first mirror that has it sound; return that mirror."""
    import pooch

    reasons = []
    for mirror in mirrors:
        url = f"{mirror}{file.name}.gz"
        try:
            # Under another name until it is checked: what a search finds is whole, whenever this is interrupted.
            with (
                tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as folder,
                quiet(pooch.get_logger()),
            ):
                # No known_hash: pooch's is of the compressed file, and the mirrors compressed it in their own ways.
                got = Path(pooch.retrieve(url, known_hash=None, fname=target.name, path=folder, progressbar=progress))
                reason = damage(got, file)
                if reason is None:
                    sync(got)
                    os.replace(got, target)
                    return mirror
        except (OSError, ValueError) as error:  # those of the network are OSErrors
            reason = str(error) or type(error).__name__
        reasons.append(f"{url}: {reason}")
    raise DataError(
        f"{name} could not be downloaded. " + "; ".join(reasons) + f". Try again later, or set {VARIABLE} to a folder "
        f"that holds {name}/{target.name} and the other files"
    )


def damage(path: Path, file: File) -> str | None:
    """What is wrong with the content of a file, plain or gzipped; None if it is the right one."""
    digest, size = hashlib.sha256(), 0
    try:
        with opened(path) as stream:
            while size <= file.size and (piece := stream.read(CHUNK)):
                digest.update(piece)
                size += len(piece)
    except DataError as error:
        return str(error)
    if size != file.size:
        return f"wrong content, {'more than ' * (size > file.size)}{min(size, file.size)} bytes instead of {file.size}"
    found = digest.hexdigest()
    return None if found == file.sha256 else f"wrong content, sha256 {found} instead of {file.sha256}"


@contextmanager
def quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep a logger from telling what it does; its warnings still come."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
