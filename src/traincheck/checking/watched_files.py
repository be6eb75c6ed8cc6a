"""Finds new, changed and deleted files in a run folder."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class _Stamp(NamedTuple):
    """Identifies a version of a file. TrainCheck replaces whole files, so the inode number is part of it."""

    modified: int
    size: int
    number: int


class Changes(NamedTuple):
    """New and changed files with their ages in seconds, by name, and the names of deleted files."""

    changed: dict[str, float]
    gone: frozenset[str]


class WatchedFiles:
    """The files of `folder` whose names match `names`. A look lists the folder once, with the status of each."""

    def __init__(self, folder: Path, names: re.Pattern[str], clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._names = names
        self._clock = clock
        self._stamps: dict[str, _Stamp] = {}

    def look(self) -> Changes:
        """The changes since the last look. Raises OSError for a folder that cannot be listed."""
        current: dict[str, _Stamp] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if self._names.fullmatch(entry.name):
                    stamp = _stamp(entry) or self._stamps.get(entry.name)
                    if stamp is not None:
                        current[entry.name] = stamp
        changed = {name: self._age(stamp) for name, stamp in current.items() if self._stamps.get(name) != stamp}
        gone = frozenset(self._stamps.keys() - current.keys())
        self._stamps = current
        return Changes(changed, gone)

    def _age(self, stamp: _Stamp) -> float:
        return max(0.0, self._clock() - stamp.modified / 1e9)  # another host's clock may be ahead


def _stamp(entry: os.DirEntry[str]) -> _Stamp | None:
    try:
        status = entry.stat()
    except OSError:  # just replaced, on a shared file system
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return _Stamp(status.st_mtime_ns, status.st_size, status.st_ino)
