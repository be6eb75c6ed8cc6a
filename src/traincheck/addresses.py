"""Reads remote files and folders by their address (`s3://bucket/runs/monday`), through fsspec."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, cast

from traincheck.errors import BadOption, MissingExtra, TraceOutOfReach
from traincheck.files import LARGEST, read_bounded

INSTALL = "pip install 'traincheck[remote]'"

_BETWEEN = "://"


@dataclass(frozen=True, order=True)
class Address:
    """A remote file or folder with the part of the interface of `pathlib.Path` that reading needs.

    Every error is raised as TraceOutOfReach. `size` is known for a file that `iterdir` has listed.
    """

    url: str
    size: int | None = field(default=None, compare=False)

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Address:
        return Address(self.url.rpartition("/")[0])

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    def with_suffix(self, suffix: str) -> Address:
        return self.parent / f"{self.stem}{suffix}"

    def is_dir(self) -> bool:
        with self._connected() as (system, path):
            return bool(system.isdir(path))

    def is_file(self) -> bool:
        with self._connected() as (system, path):
            return bool(system.isfile(path))

    def exists(self) -> bool:
        with self._connected() as (system, path):
            return bool(system.exists(path))

    def iterdir(self) -> Iterator[Address]:
        """The current contents of the folder, with sizes."""
        with self._connected() as (system, path):
            system.invalidate_cache(path)
            entries = system.ls(path, detail=True)
        names = ((entry["name"].rstrip("/").rpartition("/")[2], entry.get("size")) for entry in entries)
        yield from (Address(f"{self.url}/{name}", size) for name, size in names if name and name != self.name)

    def stat(self) -> SimpleNamespace:
        """The size alone, as `st_size`."""
        if self.size is not None:
            return SimpleNamespace(st_size=self.size)
        with self._connected() as (system, path):
            return SimpleNamespace(st_size=system.size(path))

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[IO[bytes]]:
        """Open the file for the block. Every error in the block counts as an error of the file."""
        with self._connected() as (system, path), system.open(path, mode) as file:
            yield file

    def fetch(self, to: Path) -> None:
        """Copy the file to a local path."""
        with self._connected() as (system, path):
            system.get_file(path, str(to))

    def read_bytes(self) -> bytes:
        with self._connected() as (system, path):
            return bytes(system.cat_file(path))

    @contextmanager
    def _connected(self) -> Iterator[tuple[Any, str]]:
        """The file system and the path in it."""
        from fsspec.core import url_to_fs

        with _as_out_of_reach(self.url):
            yield url_to_fs(self.url)


@contextmanager
def _as_out_of_reach(url: str) -> Iterator[None]:
    """Raise every error in the block as TraceOutOfReach."""
    try:
        yield
    except Exception as error:  # drivers of fsspec raise the errors of many libraries
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        raise TraceOutOfReach(url, f"{kind}{error}") from error


def as_path(of: Any) -> Path:
    """`of` as a path, or as an `Address`, which has the interface of a path for reading."""
    if isinstance(of, Address):
        return cast(Path, of)
    if isinstance(of, str) and _BETWEEN in of:
        return cast(Path, Address(of.rstrip("/")))
    return Path(of)


@contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """A local file for the block: `path` itself, or a copy of the remote file. Raises TraceOutOfReach."""
    file = as_path(path)
    if not isinstance(file, Address):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="traincheck-") as folder:
        copy = Path(folder) / "copy"
        file.fetch(copy)
        yield copy


def contents(path: str | os.PathLike[str]) -> bytes:
    """Read a file of a run folder, of bounded size (see `read_bounded`). Raises OSError and TraceOutOfReach."""
    file: Any = as_path(path)
    if not isinstance(file, Address):
        return read_bounded(file)
    if file.stat().st_size > LARGEST:
        raise TraceOutOfReach(path, f"it has more than {LARGEST:,} bytes")
    return file.read_bytes()


def readable_path(text: str, option: str = "infer") -> Path:
    """The path or address that the user gave for `option`.

    Raises MissingExtra, and BadOption for an unknown protocol.
    """
    if _BETWEEN not in text:
        return Path(text)
    protocol = text.partition(_BETWEEN)[0]
    try:
        from fsspec.registry import get_filesystem_class, known_implementations
    except ImportError:
        raise MissingExtra(f"'{text}'", "fsspec", INSTALL) from None
    try:
        get_filesystem_class(protocol)
    except ValueError:
        expected = "a path, or an address by a protocol that fsspec knows (s3, gs, abfs, sftp ...)"
        raise BadOption(option, text, expected) from None
    except ImportError as error:
        package = known_implementations.get(protocol, {}).get("class", "").partition(".")[0]
        missing = package if package not in ("", "fsspec") else error.name or protocol
        command = INSTALL if protocol in ("s3", "s3a") else f"pip install {missing}"
        raise MissingExtra(f"'{text}'", missing, command) from None
    return as_path(text)
