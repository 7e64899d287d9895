"""A folder in which one run keeps its state: held by one process, recognised after a kill, and never misread.

::

    storage.json    what lives here: format, network, number of samples, chunk size, sha256 of the data, the process
                    and how far it is; sealed with a checksum of itself, and replaced as a whole
    state.bin       z and a in both generations, chunk by chunk; all of its space is taken before the run begins
    .lock           held by the process as long as it lives

The state is of use to the process that made it alone: a run is saved by checkpoints. What a killed process leaves is
therefore never read. The next run of the same network on the same data takes over the space; anything else that is
found is refused, and nothing of it is touched.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ipdlam.checkpoint.files import LOCK, TEMPORARY, exclusive, read_plain, readable, release, write_file
from ipdlam.checkpoint.format import checksum, seal
from ipdlam.checks import differences
from ipdlam.errors import FileError, StorageError

FORMAT = {"format": "ipdlam storage", "version": 1}
MANIFEST = "storage.json"
STATE = "state.bin"
OURS = {MANIFEST, STATE, LOCK, f"{TEMPORARY}{MANIFEST}"}
RANK_FOLDER = re.compile(r"rank-\d+-of-\d+")  # of several processes that had the same storage
MANIFEST_BYTES = 1 << 20  # more than any manifest has; a longer file is none, and not worth reading
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_folder(name: str, value: str | os.PathLike[str]) -> Path:
    """``value`` as a path, if it can be one."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{name} must be a folder, as a str or a path, got {value!r}")
    if not os.fspath(value) or "\0" in os.fspath(value):
        raise ValueError(f"{name} must be the name of a folder, got {value!r}; give a new or an empty one")
    return Path(value)


def rank_folder(rank: int, size: int) -> str:
    """What the folder of one of several processes is called, in that of all of them.

    Another number of processes has others, and does not meet what the last ones may have left.
    """
    return f"rank-{rank}-of-{size}"


class StateFolder:
    """The folder ``path`` held for this process, with ``size`` bytes that can be read and written.

    ``content`` says what the bytes are for, in plain JSON types. The files are removed by :meth:`close`, when this
    object is no longer used, or at the end of the process, but for a process that is killed.
    """

    def __init__(self, path: Path, content: dict[str, Any], size: int) -> None:
        if not hasattr(os, "preadv"):
            raise StorageError("storage needs os.preadv and os.pwritev, which Python does not have on this system")
        path = path.absolute()  # the process may change its folder
        self.path, self.content, self.size = path, content, size
        with failing(path, "made"):
            path.mkdir(parents=True, exist_ok=True)
            refuse_strangers(path)
        lock = claim(path)
        try:
            check_leftover(path, content)
            check_space(path, size)
        except BaseException:  # nothing has been changed
            lock.close()
            raise
        self._file = -1
        try:
            self.note("being prepared")
            with failing(path, "allocated"):
                self._file = os.open(path / STATE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                os.ftruncate(self._file, size)
                take_space(self._file, size)
        except BaseException:
            remove(path, self._file, lock, os.getpid())
            raise
        self._finalizer = weakref.finalize(self, remove, path, self._file, lock, os.getpid())

    def note(self, progress: str) -> None:
        """Write how far the run is: what a killed process leaves then says so."""
        manifest = {**FORMAT, "content": self.content, "process": os.getpid(), "progress": progress}
        try:
            write_file(self.path / MANIFEST, seal(manifest).encode(), durable=False)
        except FileError as error:
            raise StorageError(f"storage {self.path} cannot be used: {error}") from error

    def read(self, offset: int, into: memoryview) -> None:
        """Fill ``into`` with the bytes from ``offset`` on; a file that ends before is an error."""
        with failing(self.path, "read"):
            while into:
                self._check_open()
                got = os.preadv(self._file, [into], offset)
                if got == 0:
                    raise OSError(errno.EIO, f"{STATE} ends at byte {offset}, it has been cut short")
                into, offset = into[got:], offset + got

    def write(self, offset: int, content: memoryview) -> None:
        """Write all bytes from ``offset`` on."""
        with failing(self.path, "written"):
            while content:
                self._check_open()
                put = os.pwritev(self._file, [content], offset)
                content, offset = content[put:], offset + put

    def _check_open(self) -> None:
        """The system may have given the number of a closed file to another one."""
        if not self._finalizer.alive:
            raise StorageError(f"storage {self.path} has been closed, and the run in it is over")

    def close(self) -> None:
        """Remove the files and let go of the folder, which stays, with an empty lock file."""
        self._finalizer()


@contextlib.contextmanager
def failing(path: Path, done: str) -> Iterator[None]:
    """Turn what the system says into a message with the folder and a remedy."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in DISK_FULL:
            todo = "make room on the disk, or give another folder"
        elif error.errno == errno.EFBIG:
            todo = "the system allows no file of this size there (ulimit -f); give a folder on another disk"
        elif error.errno == errno.EIO:
            todo = "look after the disk, or give a folder on another one"
        else:
            todo = "give another folder"
        raise StorageError(f"storage {path} could not be {done}: {reason}; {todo}") from error


def refuse_strangers(path: Path) -> None:
    """Refuse a folder in which there is anything that is not of a run's state."""
    others = sorted(
        entry.name for entry in path.iterdir() if entry.name not in OURS and not RANK_FOLDER.fullmatch(entry.name)
    )
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise StorageError(f"storage {path} holds other files ({others[0]}{more}); give a new or an empty folder")
    if (path / STATE).exists() and not (path / MANIFEST).exists():
        raise StorageError(
            f"storage {path} holds a {STATE} without a {MANIFEST}, so it is not known what it is; remove it, or give "
            "another folder"
        )


def claim(path: Path) -> IO[str]:
    """Hold the folder, or say which process does."""
    try:
        return exclusive(path / LOCK)
    except BlockingIOError as error:
        try:
            process = read_manifest(path)["process"]
        except (StorageError, OSError):
            process = None
        who = "another process" if process is None else f"process {process}"
        if process == os.getpid():
            who = "another trainer of this process"
        raise StorageError(
            f"storage {path} is in use by {who}; give another folder, or wait until it is done (a trainer lets go of "
            "it with close())"
        ) from error
    except OSError as error:
        raise StorageError(f"storage {path} cannot be written to: {error.strerror or error}") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """What the folder says that it holds; a manifest that was damaged, or changed by somebody, is refused."""
    file = path / MANIFEST
    remedy = f"if nothing else is in {path} that you need, remove it, or give another folder"
    try:
        text = read_plain(file, MANIFEST_BYTES + 1)
        if len(text) > MANIFEST_BYTES:
            raise ValueError("it is too long")
        manifest = json.loads(text)
        stated = manifest.pop("sha256")
        if checksum(manifest) != stated:
            raise ValueError("its sha256 is not the one it states")
        found: dict[str, Any] = {key: manifest[key] for key in (*FORMAT, "content", "process", "progress")}
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"{file} cannot be read ({reason}), so it is not known what is there; {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"{file} is damaged ({error}), so it is not known what is there; {remedy}") from error
    if {key: found[key] for key in FORMAT} != FORMAT:
        raise StorageError(
            f"{file} is {found['format']!r}, version {found['version']!r}; this version of ipdlam knows "
            f"{FORMAT['format']!r}, version {FORMAT['version']}; {remedy}"
        )
    return found


def check_leftover(path: Path, content: dict[str, Any]) -> None:
    """Refuse what a killed run on something else left; that of the same kind of run is written over."""
    try:
        found = read_manifest(path)
    except FileNotFoundError:
        return
    others = differences(found["content"], content, "")
    if others:
        raise StorageError(
            f"storage {path} holds what process {found['process']} left ({found['progress']}), a run on something "
            f"else: {'; '.join(others)}. Nothing can go on from it: remove the folder, or give another one"
        )


def check_space(path: Path, size: int) -> None:
    """Refuse a disk that cannot hold the state."""
    try:
        taken = (path / STATE).lstat().st_blocks * 512  # of a run before, to be written over
    except FileNotFoundError:
        taken = 0
    free = shutil.disk_usage(path).free
    if free + taken < size:
        raise StorageError(
            f"storage {path} needs {readable(size)} and the disk has {readable(free + taken)} left; make room, or give "
            "a folder on another disk"
        )


def take_space(file: int, size: int) -> None:
    """Take all space of a file, so that a full disk is met now; where the system cannot, it was looked at before."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise


def remove(path: Path, file: int, lock: IO[str], process: int) -> None:
    """Close and remove the files of a state; the manifest goes last, so that what is left is always known."""
    if os.getpid() != process:  # a fork: they are its parent's
        return
    if file >= 0:
        os.close(file)
    for name in (STATE, f"{TEMPORARY}{MANIFEST}", MANIFEST):
        with contextlib.suppress(OSError):
            (path / name).unlink(missing_ok=True)
    release(lock)
