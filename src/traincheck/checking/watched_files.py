"""Watched files: which files of a run folder are new, or not as they were when they were last looked at."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class _Stamp(NamedTuple):
    """What tells a version of a file from another: files are replaced, so that the number of the file counts, too."""

    modified: int
    size: int
    number: int


class Changes(NamedTuple):
    """New and changed files with their ages in seconds, by name, and the names of those that are gone."""

    changed: dict[str, float]
    gone: frozenset[str]


class WatchedFiles:
    """The files of `folder` whose names match `names`. A look takes one listing and the status of each of them."""

    def __init__(self, folder: Path, names: re.Pattern[str], clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._names = names
        self._clock = clock
        self._seen: dict[str, _Stamp] = {}

    def look(self) -> Changes:
        """What has changed since the last look. Raises OSError for a folder that cannot be listed."""
        found: dict[str, _Stamp] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if self._names.fullmatch(entry.name):
                    stamp = _stamp(entry) or self._seen.get(entry.name)
                    if stamp is not None:
                        found[entry.name] = stamp
        changed = {name: self._age(stamp) for name, stamp in found.items() if self._seen.get(name) != stamp}
        gone = frozenset(self._seen.keys() - found.keys())
        self._seen = found
        return Changes(changed, gone)

    def _age(self, stamp: _Stamp) -> float:
        return max(0.0, self._clock() - stamp.modified / 1e9)  # of another host's clock: not before now


def _stamp(entry: os.DirEntry[str]) -> _Stamp | None:
    try:
        found = entry.stat()
    except OSError:  # replaced just now, which a shared file system may show like this
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return _Stamp(found.st_mtime_ns, found.st_size, found.st_ino)
