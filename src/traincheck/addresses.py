"""Addresses: files and folders that fsspec reads (`s3://bucket/runs/monday`), where a path is expected otherwise."""

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
    """What of `pathlib.Path` reading takes, for a file or folder that has an address. It is read only.

    Whatever goes wrong is raised as TraceOutOfReach. Where the folder was listed, `size` is known.
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
        with self._reached() as (system, path):
            return bool(system.isdir(path))

    def is_file(self) -> bool:
        with self._reached() as (system, path):
            return bool(system.isfile(path))

    def exists(self) -> bool:
        with self._reached() as (system, path):
            return bool(system.exists(path))

    def iterdir(self) -> Iterator[Address]:
        """What is in the folder now, with sizes."""
        with self._reached() as (system, path):
            system.invalidate_cache(path)
            found = system.ls(path, detail=True)
        names = ((one["name"].rstrip("/").rpartition("/")[2], one.get("size")) for one in found)
        yield from (Address(f"{self.url}/{name}", size) for name, size in names if name and name != self.name)

    def stat(self) -> SimpleNamespace:
        """The size alone, as `st_size`."""
        if self.size is not None:
            return SimpleNamespace(st_size=self.size)
        with self._reached() as (system, path):
            return SimpleNamespace(st_size=system.size(path))

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[IO[bytes]]:
        """The file, to be read within the block, in which nothing else should be able to go wrong."""
        with self._reached() as (system, path), system.open(path, mode) as file:
            yield file

    def fetch(self, to: Path) -> None:
        """Copy the file to a path of this machine."""
        with self._reached() as (system, path):
            system.get_file(path, str(to))

    def read_bytes(self) -> bytes:
        with self._reached() as (system, path):
            return bytes(system.cat_file(path))

    @contextmanager
    def _reached(self) -> Iterator[tuple[Any, str]]:
        """The file system and the path in it."""
        from fsspec.core import url_to_fs

        with _told(self.url):
            yield url_to_fs(self.url)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Whatever goes wrong in the block is raised as TraceOutOfReach."""
    try:
        yield
    except Exception as error:  # the drivers are others' code, and raise what the libraries below them do
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        raise TraceOutOfReach(url, f"{kind}{error}") from error


def place(of: Any) -> Path:
    """`of` as a path, or as the `Address` that it is or tells: that stands in for a path wherever files are read."""
    if isinstance(of, Address):
        return cast(Path, of)
    if isinstance(of, str) and _BETWEEN in of:
        return cast(Path, Address(of.rstrip("/")))
    return Path(of)


@contextmanager
def at_hand(path: Path) -> Iterator[Path]:
    """Within the block, a file of this machine: `path` itself, or a copy of what is at the address. Raises
    TraceOutOfReach.
    """
    file = place(path)
    if not isinstance(file, Address):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="traincheck-") as folder:
        copy = Path(folder) / "copy"
        file.fetch(copy)
        yield copy


def contents(path: str | os.PathLike[str]) -> bytes:
    """All of a file of a run folder that has a bounded size (see `read_bounded`). Raises OSError, TraceOutOfReach."""
    file: Any = place(path)
    if not isinstance(file, Address):
        return read_bounded(file)
    if file.stat().st_size > LARGEST:
        raise TraceOutOfReach(path, f"it has more than {LARGEST:,} bytes")
    return file.read_bytes()


def readable_place(text: str, option: str = "infer") -> Path:
    """The place that a user named with `option`: a path, or an address of a protocol that can be read here.

    Raises MissingExtra, and BadOption for a protocol that nobody knows.
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
        known = "a path, or an address by a protocol that fsspec knows (s3, gs, abfs, sftp ...)"
        raise BadOption(option, text, known) from None
    except ImportError as error:
        package = known_implementations.get(protocol, {}).get("class", "").partition(".")[0]
        missing = package if package not in ("", "fsspec") else error.name or protocol
        command = INSTALL if protocol in ("s3", "s3a") else f"pip install {missing}"
        raise MissingExtra(f"'{text}'", missing, command) from None
    return place(text)
