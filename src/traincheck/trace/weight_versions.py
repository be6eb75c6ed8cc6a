"""Lets processes of a run compare the weights of a model: each one writes digests of its versions to the run folder.

A trainer writes a digest after each update, once another process has announced that it holds a copy. The file of a
process holds its last versions alone and is replaced at once, so a reader never sees a part of it.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import NamedTuple

PREFIX = "weights-"

MAX_VERSIONS = 256
"""Versions that a process keeps. A copy that is older has weights that nobody knows."""


class Version(NamedTuple):
    """Weights of a model: the signature says which parameters it has, and the digest what their values are."""

    signature: str
    digest: str


class WeightVersions:
    """The versions of the models that this process trains, and those of other processes of the run.

    Methods raise OSError if the folder is out of reach.
    """

    def __init__(self, folder: Path, process: int) -> None:
        self._folder = folder
        self._own = folder / f"{PREFIX}{process}.txt"
        self._versions: deque[Version] = deque(maxlen=MAX_VERSIONS)
        self._others: list[Path] = []

    def announce(self) -> None:
        """Ask other processes to publish their versions."""
        self._own.touch()

    def look_for_others(self, *, search: bool) -> bool:
        """Whether files of other processes are known. With `search`, look for them if none is."""
        if search and not self._others:
            self._others = sorted(path for path in self._folder.glob(f"{PREFIX}*.txt") if path != self._own)
        return bool(self._others)

    def publish(self, signature: str, digest: str) -> None:
        """Write the newest version of a model of this process."""
        version = Version(signature, digest)
        if self._versions and self._versions[-1] == version:
            return
        self._versions.append(version)
        temporary = self._own.with_suffix(".new")
        temporary.write_text(
            "".join(f"{signature} {digest}\n" for signature, digest in self._versions), encoding="ascii"
        )
        temporary.replace(self._own)

    def state(self) -> tuple[int, ...]:
        """A value that is another one after each version that another process publishes."""
        return tuple(_changed_at(path) for path in self._others)

    def of_others(self) -> list[Version]:
        """The versions that other processes published, those of a process from old to new."""
        lines = [line for path in self._others for line in path.read_text(encoding="ascii").splitlines()]
        return [Version(*line.split(" ", 1)) for line in lines if " " in line]


def _changed_at(path: Path) -> int:
    status = path.stat()
    return status.st_mtime_ns ^ status.st_ino
