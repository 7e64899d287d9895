"""Files and folders that are whole or absent, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ipdlam.errors import CheckpointError, FileError

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing is held
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
PAUSE = 0.5  # seconds between two looks at what another process holds
TEMPORARY = ".unfinished-"
REPLACED = ".replaced-"
NOTHING_LOST = ". Nothing in memory is lost"
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or what a user may have of it


def sha256(path: Path) -> str:
    """The checksum of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_plain(path: Path, flags: int) -> int:
    """A descriptor of a plain file; a link to write through is refused, and so is a pipe, which might never answer."""
    writing = flags & (os.O_WRONLY | os.O_RDWR)
    try:
        descriptor = os.open(path, flags | (NO_LINKS if writing else 0) | AT_ONCE, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(error.errno, f"{path.name} is a link; remove it", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} is not a plain file; remove it", str(path))
    return descriptor


def read_plain(path: Path, most: int = -1) -> bytes:
    """The content of a file, or its first bytes; what is not a plain file is an ``OSError``."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def clear(path: Path) -> None:
    """Remove what stands where something is to be written: a folder, a file, or a link but not what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path, size: int, kind: type[FileError] = FileError) -> Iterator[None]:
    """Turn what the system says while ``path`` is written into one message with a remedy."""
    try:
        yield
    except FileError:
        raise
    except Exception as error:  # safetensors reports a full disk with an exception of its own
        parent = path.parent
        if not parent.is_dir():
            reason = f"the folder {parent} does not exist (any more); make it and save again"
        elif not os.access(parent, os.W_OK):
            reason = f"the folder {parent} cannot be written to; change its permissions or save elsewhere"
        elif getattr(error, "errno", None) in FULL or shutil.disk_usage(parent).free < size:
            reason = f"the disk is full: {readable(size)} are needed; make room or save elsewhere"
        else:
            reason = f"{type(error).__name__}: {error}"
        comfort = NOTHING_LOST if kind is CheckpointError else ""
        raise kind(f"{path} was not written: {reason}{comfort}") from error


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written into a folder, which need not exist yet, and what to do; None if it can."""
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not os.path.isdir(place):
        return f"{place} is not a folder; move it away"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"the folder {place} cannot be written to; change its permissions"
    return None


def write_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file so that ``path`` is always the old content or the new one, never a part.

    ``durable`` waits until it is on the disk; without, it survives the end of the process, and may be lost, or empty,
    where the power fails.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    with explained(path, len(content)):
        try:
            clear(temporary)
            with open(open_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync(path.parent)


def write_folder(path: Path, size: int, fill: Callable[[Path], None]) -> None:
    """Make the folder ``path`` by ``fill``, which writes about ``size`` bytes into the folder it is given.

    The folder appears under its name when all of it is on the disk; one of that name is replaced then. What earlier
    attempts at it left unfinished is removed.
    """
    with explained(path, size, CheckpointError):
        temporary = begin_folder(path, size)
        try:
            fill(temporary)
            sync_files(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        publish_folder(path)


def begin_folder(path: Path, size: int) -> Path:
    """A new folder that :func:`publish_folder` gives its name ``path``, on a disk with so much room."""
    temporary, replaced = (path.with_name(prefix + path.name) for prefix in (TEMPORARY, REPLACED))
    recover(path)
    for left in (temporary, replaced):
        clear(left)
    temporary.mkdir()
    free = shutil.disk_usage(temporary).free
    if free < size:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"{path} was not written: it needs {readable(size)} and the disk has {readable(free)} left; "
            f"make room or save elsewhere{NOTHING_LOST}"
        )
    return temporary


def sync_files(folder: Path) -> None:
    """Wait until a folder and the files in it are on the disk."""
    for file in folder.iterdir():
        sync(file)
    sync(folder)


def publish_folder(path: Path) -> None:
    """Give a folder that is whole its name; one of that name is replaced."""
    temporary, replaced = (path.with_name(prefix + path.name) for prefix in (TEMPORARY, REPLACED))
    if path.exists():
        path.rename(replaced)
    temporary.rename(path)
    sync(path.parent)
    clear(replaced)


def recover(path: Path) -> None:
    """Put back a folder whose replacement was interrupted between its two renames."""
    path = path.absolute()  # "." has no name
    if not path.name:
        return
    replaced = path.with_name(REPLACED + path.name)
    if replaced.exists() and not path.exists():
        replaced.rename(path)


def readable(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def exclusive(path: Path, waiting: Callable[[], Any] | None = None) -> IO[str]:
    """Hold a file for this process as long as what is returned stays open. A process that dies holds nothing.

    While another process holds it, call ``waiting`` again and again, which may raise; without it, raise
    ``BlockingIOError``.
    """
    lock = os.fdopen(open_plain(path, os.O_RDWR | os.O_CREAT), "r+")
    try:
        while fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting is None:
                    raise
            waiting()
            time.sleep(PAUSE)
    except BaseException:
        lock.close()
        raise
    return lock


def release(lock: IO[str]) -> None:
    """Let go of what :func:`exclusive` holds, also where a process that was forked since has the file open."""
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_UN)
    lock.close()
