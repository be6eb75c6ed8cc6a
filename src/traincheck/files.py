"""Files that are written whole or not at all, and the project that a folder belongs to."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from traincheck.errors import OutputError

PathLike: TypeAlias = str | os.PathLike[str]

PROJECT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""What stands in the folder of a project, where its library belongs."""

LARGEST = 1 << 29
"""Bytes of a file that is read as one. Ours have some megabytes; one of a stranger may claim any size."""


def read_bounded(path: PathLike, largest: int = LARGEST) -> bytes:
    """All of a file of a run folder.

    Raises OSError where it cannot be read, where it is no regular file (a pipe would be waited for, a device has no
    end) and where it has more than `largest` bytes.
    """
    # Not blocking: a pipe that nobody writes into would keep us at its door.
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if found.st_size > largest:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and such a file at most {largest:,}")
        return file.read(largest)


def may_write(path: PathLike) -> None:
    """Raise OutputError for a file that plainly cannot be written: it is a folder, lies where no folder can be made, or
    its permissions say so. It is made by nobody yet, so a full disk shows only when it is written."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise OutputError(path, "it is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(path, os.strerror(errno.EACCES))
    above = target.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise OutputError(path, f"'{above}' is no folder")
    if not (target.exists() or os.access(above, os.W_OK | os.X_OK)):
        raise OutputError(path, os.strerror(errno.EACCES))


def write_whole(path: PathLike, data: bytes) -> None:
    """Writes `data` beside `path` and moves it into place; makes the folder. A device or a pipe is written to directly.

    A link is followed, for the user has named it. Raises OutputError, and leaves what was at `path` before as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        try:
            target.write_bytes(data)
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from None
    else:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from None
        _put(target, data, path)


def replace_whole(path: PathLike, data: bytes) -> None:
    """As `write_whole`, but takes the place of a link that is there: in the run folder of a stranger it may lead
    anywhere. And it does not make a run folder anew that was deleted."""
    _put(Path(path), data, path)


def _put(target: Path, data: bytes, path: PathLike) -> None:
    beside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        beside.unlink(missing_ok=True)  # a link, perhaps
        beside.write_bytes(data)
        beside.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise OutputError(path, error.strerror or str(error)) from None
    except BaseException:  # Ctrl-C leaves nothing behind
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def project_of(start: Path) -> Path | None:
    """The folder of the project that the folder `start` belongs to, None where nothing marks one."""
    marked = (folder for folder in folders_upwards(start) if any((folder / mark).exists() for mark in PROJECT_MARKS))
    return next(marked, None)


def folders_upwards(start: Path) -> Iterator[Path]:
    """`start` and the folders above it, up to the end of the project that it lies in."""
    here = start.resolve()
    for folder in (here, *here.parents):
        yield folder
        if (folder / ".git").exists():
            return
