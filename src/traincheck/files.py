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
"""Files that mark the folder of a project, in which its library belongs."""

LARGEST = 1 << 29
"""The largest file that is read at once. TrainCheck's files have some megabytes; a foreign file may have any size."""


def read_bounded(path: PathLike, largest: int = LARGEST) -> bytes:
    """Read a file of a run folder.

    Raises OSError if it cannot be read, is not a regular file (a pipe blocks, a device has no end), or has more than
    `largest` bytes.
    """
    # Not blocking: opening a pipe without a writer would wait forever.
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if status.st_size > largest:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, and such a file at most {largest:,}")
        return file.read(largest)


def may_write(path: PathLike) -> None:
    """Raise OutputError for a file that cannot be written: a folder, or without a parent folder or permission.

    It does not create the file, so a full disk shows only when the file is written.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise OutputError(path, "it is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise OutputError(path, os.strerror(errno.EACCES))
    above = target.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise OutputError(path, f"'{above}' is not a folder")
    if not (target.exists() or os.access(above, os.W_OK | os.X_OK)):
        raise OutputError(path, os.strerror(errno.EACCES))


def write_whole(path: PathLike, data: bytes) -> None:
    """Write `data` to a temporary file and move it to `path`; make the folder. A device or a pipe is written directly.

    It follows a link, as the user named it. Raises OutputError and leaves an existing file unchanged.
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
    """Like `write_whole`, but replaces a link, which may lead anywhere in a foreign run folder.

    It does not recreate a deleted run folder.
    """
    _put(Path(path), data, path)


def _put(target: Path, data: bytes, path: PathLike) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)  # a link, perhaps
        partial.write_bytes(data)
        partial.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise OutputError(path, error.strerror or str(error)) from None
    except BaseException:  # Ctrl-C leaves nothing behind
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def project_of(start: Path) -> Path | None:
    """The project folder at or above `start`, None without a mark."""
    marked = (folder for folder in folders_upwards(start) if any((folder / mark).exists() for mark in PROJECT_MARKS))
    return next(marked, None)


def folders_upwards(start: Path) -> Iterator[Path]:
    """`start` and the folders above it, up to the repository around it."""
    here = start.resolve()
    for folder in (here, *here.parents):
        yield folder
        if (folder / ".git").exists():
            return
