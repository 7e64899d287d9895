"""The data sets with a name: what they are, where they may lie on this machine, and where to download them."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ipdlam.checkpoint.files import sync
from ipdlam.datasets import cifar, idx
from ipdlam.datasets.idx import CHUNK, Parts, opened
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
    shape: tuple[int, int, int]  # of an image: colours, height and width
    folders: tuple[str, ...] = ()  # where distributions of Linux put it
    other_names: tuple[str, ...] = ()  # of its folder
    archive: Archive | None = None  # what a mirror has instead of the files

    @property
    def suffix(self) -> str:
        """What follows the name of a file in the cache."""
        return "" if self.archive else ".gz"


@dataclass(frozen=True)
class Archive:
    """A gzipped tar archive that holds all files of a data set."""

    name: str
    md5: str


def idx_files(*sha256: str) -> tuple[File, ...]:
    """The four files of a data set in the layout of MNIST, which gives them their sizes."""
    sizes = (47040016, 60008, 7840016, 10008)
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", TEST_LABELS)
    return tuple(map(File, names, sizes, sha256))


CATALOGUE = {
    "mnist": Source(
        "handwritten digits, 60000 + 10000 images of 28 x 28 pixels",
        11,
        idx_files(
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        tuple("0123456789"),
        (1, 28, 28),
    ),
    "fashion-mnist": Source(
        "photographs of garments, 60000 + 10000 images of 28 x 28 pixels",
        30,
        idx_files(
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
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
        (1, 28, 28),
        ("/usr/share/dataset-fashion-mnist",),
    ),
    "cifar10": Source(
        "photographs of animals and vehicles, 50000 + 10000 images of 32 x 32 pixels in colour",
        170,
        (
            File("data_batch_1.bin", 30730000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            File("data_batch_2.bin", 30730000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            File("data_batch_3.bin", 30730000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            File("data_batch_4.bin", 30730000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            File("data_batch_5.bin", 30730000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            File("test_batch.bin", 30730000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
        ("https://www.cs.toronto.edu/~kriz/",),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        cifar.SHAPE,
        other_names=("cifar-10-batches-bin",),
        archive=Archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
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
    own = [folder for place in given_places(data_dir).values() for folder in within(place, name)]
    return [*own, cache(name), *map(Path, CATALOGUE[name].folders)]


def within(place: Path, name: str) -> list[Path]:
    """Where a data set may be in a folder that the user has named."""
    return [place / name, *(place / other for other in CATALOGUE[name].other_names), place]


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """The first folder that holds all files of a data set, or None."""
    return next((folder for folder in locations(name, data_dir) if holds(folder, name)), None)


def files_in(folder: Path, name: str) -> dict[str, Path]:
    """The files of a data set that a folder holds, by the names that the catalogue has for them."""
    if CATALOGUE[name].archive:
        return cifar.find_files(folder)
    parts = {"train": "train", "t10k": "test"}
    there = idx.find_files(folder)
    called = {file.name: file.name.split("-")[:2] for file in CATALOGUE[name].files}
    return {full: there[parts[part], kind] for full, (part, kind) in called.items() if (parts[part], kind) in there}


def holds(folder: Path, name: str) -> bool:
    """Whether a folder has all files, and they are not those of another data set of the catalogue."""
    try:
        if CATALOGUE[name].archive:
            return folder.is_dir() and len(files_in(folder, name)) == len(CATALOGUE[name].files)
        files = idx.find_files(folder) if folder.is_dir() else {}
        # All data sets use the same names: the test labels, which are small, tell which one it is.
        return len(files) == 4 and not any(
            damage(files["test", "labels"], file) is None
            for other, source in CATALOGUE.items()
            for file in source.files
            if other != name and file.name == TEST_LABELS
        )
    except (OSError, DataError):  # a folder that may not be entered
        return False


def read(name: str, folder: Path) -> Parts:
    """The images and labels of a data set, from its folder; other files than the known ones are warned about."""
    parts = cifar.read_folder(folder) if CATALOGUE[name].archive else idx.read_folder(folder)
    warn_of_others(name, folder)
    return parts


def misled(name: str, data_dir: str | os.PathLike[str] | None = None) -> str | None:
    """Why a search goes wrong: it comes to a folder that the user has named and that is not there.

    What was found elsewhere, or downloaded, which is never to such a folder, might not be what the user means.
    """
    for how, place in given_places(data_dir).items():
        if not os.path.isdir(place):
            what = "is a file" if os.path.exists(place) else "does not exist"
            return (
                f"{how} is {place}, which {what}; set it to a folder that holds {name}/{first_file(name)} and the "
                "other files, or do without it: the cache is searched, and what is not there downloaded"
            )
        if any(holds(folder, name) for folder in within(place, name)):
            break
    return None


def first_file(name: str) -> str:
    """The name of one file, as the cache has it."""
    return CATALOGUE[name].files[0].name + CATALOGUE[name].suffix


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
            f"data_dir (--data-dir) to a folder that holds {name}/{first_file(name)} and the other files, or drop "
            "offline (--offline)"
        )
    return fetch(name, progress)


def warn_of_others(name: str, folder: Path) -> None:
    """Warn of files in a folder that are sound, but not those that are known as the data set: results will differ."""
    there = files_in(folder, name)
    others = [there[file.name].name for file in CATALOGUE[name].files if damage(there[file.name], file) is not None]
    if others:
        warnings.warn(
            f"{folder} holds other data than those known as {name}: the sha256 of {', '.join(others)} is another. They "
            f"are used as they are; for the {name} that others know, remove them, or set data_dir (--data-dir) or "
            f"{VARIABLE} to another folder",
            UserWarning,
            stacklevel=4,
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
    folder, mirrors, files = cache(name), list(CATALOGUE[name].mirrors), CATALOGUE[name].files
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{name} cannot be stored in {folder}: {error.strerror or error}. Set {VARIABLE} to a folder that holds it"
        ) from None
    if (archive := CATALOGUE[name].archive) is not None:
        unpacked = partial(unpack, files, folder)
        download(name, archive.name, folder, mirrors, unpacked, progress, known_hash=f"md5:{archive.md5}")
        return folder
    for file in files:
        target = folder / f"{file.name}.gz"
        if target.exists() and damage(target, file) is None:
            continue
        # No known_hash: pooch's is of the compressed file, and the mirrors compressed it in their own ways.
        used = download(name, target.name, folder, mirrors, partial(keep, file, target), progress)
        mirrors.sort(key=lambda mirror: mirror != used)  # what worked is tried first
    return folder


def download(
    name: str,
    file: str,
    target: Path,
    mirrors: Sequence[str],
    take: Callable[[Path], str | None],
    progress: bool,
    known_hash: str | None = None,
) -> str:
    """Get a file from the first mirror that has it sound; return that mirror.

    ``take`` puts what was downloaded into the folder ``target``, or says what is wrong with it.
    """
    import pooch

    reasons = []
    for mirror in mirrors:
        url = f"{mirror}{file}"
        try:
            # Under another name until it is checked: what a search finds is whole, whenever this is interrupted.
            with tempfile.TemporaryDirectory(prefix=".download-", dir=target) as folder, quiet(pooch.get_logger()):
                got = pooch.retrieve(url, known_hash=known_hash, fname=file, path=folder, progressbar=progress)
                reason = take(Path(got))
                if reason is None:
                    return mirror
        except (OSError, ValueError, EOFError, tarfile.TarError) as error:  # those of the network are OSErrors
            reason = str(error) or type(error).__name__
        reasons.append(f"{url}: {reason}")
    wanted = first_file(name) if CATALOGUE[name].archive else file
    raise DataError(
        f"{name} could not be downloaded. " + "; ".join(reasons) + f". Try again later, or set {VARIABLE} to a folder "
        f"that holds {name}/{wanted} and the other files"
    )


def keep(file: File, target: Path, got: Path) -> str | None:
    """Move a downloaded file to its place; what is wrong with it, or None."""
    reason = damage(got, file)
    if reason is None:
        sync(got)
        os.replace(got, target)
    return reason


def unpack(files: tuple[File, ...], target: Path, archive: Path) -> str | None:
    """Move the files of an archive to a folder, without the folders they are in; what is wrong with them, or None."""
    wanted = {file.name: file for file in files}
    with tarfile.open(archive) as content:
        for member in content:
            name = Path(member.name).name
            if name not in wanted or not member.isfile():
                continue
            file = wanted.pop(name)
            if member.size != file.size or (stream := content.extractfile(member)) is None:
                return f"{name} has {member.size} bytes instead of {file.size}"
            path = archive.with_name(name)
            with path.open("wb") as written:
                shutil.copyfileobj(stream, written, CHUNK)
            if (reason := damage(path, file)) is not None:
                return f"{name}: {reason}"
            sync(path)
    if wanted:
        return f"it does not hold {', '.join(wanted)}"
    for file in files:
        os.replace(archive.with_name(file.name), target / file.name)
    return None


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
