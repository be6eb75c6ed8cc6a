"""The run folder: all that is known of one run, as files that its processes wrote."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from traincheck.errors import OutputError, RunFolderEmpty, RunFolderInUse, RunFolderNotFound, TraceOutOfReach
from traincheck.trace.notes import Manifest, ProcessNote, from_json, to_json
from traincheck.trace.reader import count_windows, read_windows
from traincheck.vocab.events import Window

MANIFEST = "run.json"

_EVENTS = re.compile(r"events-(-?\d+)-(\d+)\.arrows")
_NOTE = re.compile(r"process-(-?\d+)-(\d+)\.json")


class RunFolder:
    """A folder with run.json and, for each observed process, its events and a note.

    Nothing is kept in memory: what a property or a method tells is what the folder holds at that moment, so that a run
    in progress can be watched. Reading raises TraceUnreadable for a file that is garbled, TraceTooNew for one of a
    newer format and TraceOutOfReach where the system refuses; writing raises OutputError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | os.PathLike[str], manifest: Manifest) -> RunFolder:
        """Begin a run folder at `path`, making the folders above it.

        Raises RunFolderInUse when something is in it, OutputError when it cannot be written.
        """
        folder = cls(Path(path))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            if any(folder.path.iterdir()):
                raise RunFolderInUse(path)
            with (folder.path / MANIFEST).open("xb") as file:  # exclusively: two runs may start at one moment
                file.write(to_json(manifest))
        except FileExistsError as error:
            if folder.path.is_dir():
                raise RunFolderInUse(path) from error
            raise OutputError(path, "it is a file, not a folder") from error
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from error
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The run folder at `path`.

        Raises RunFolderNotFound, or RunFolderEmpty when it holds neither run.json nor events.
        """
        folder = cls(Path(path))
        try:
            if not folder.path.is_dir():
                raise RunFolderNotFound(path)
        except OSError as error:
            raise TraceOutOfReach(path, error.strerror or str(error)) from error
        if not folder.event_files() and not (folder.path / MANIFEST).exists():
            raise RunFolderEmpty(path, f"there is neither {MANIFEST} nor an event file in it")
        return folder

    @property
    def manifest(self) -> Manifest:
        """What run.json says; where there is none, a manifest that knows nothing."""
        file = self.path / MANIFEST
        return from_json(file, Manifest) if file.exists() else Manifest(traincheck="")

    def update(self, **changes: Any) -> Manifest:
        """Change fields of run.json, as a whole or not at all, and return what it says now.

        Known limitations: of two processes that update at one moment, one change may be lost; one should do it.
        """
        manifest = msgspec.structs.replace(self.manifest, **changes)
        self._replace(MANIFEST, to_json(manifest))
        return manifest

    def write_note(self, note: ProcessNote) -> None:
        """Write what a process says of itself in place of what it said before, as a whole or not at all."""
        self._replace(f"process-{note.rank}-{note.process}.json", to_json(note))

    def notes(self) -> tuple[ProcessNote, ...]:
        """What each process says of itself, by rank, then by process."""
        return tuple(from_json(file, ProcessNote) for file in self._files(_NOTE).values())

    def event_files(self) -> tuple[Path, ...]:
        """The event file of each process, by rank, then by process."""
        return tuple(self._files(_EVENTS).values())

    def windows(self) -> Iterator[tuple[ProcessNote | None, Iterator[Window]]]:
        """For each process with events, by rank, then by process: its note if it wrote one, and its windows.

        The windows are read as they are asked for (see `read_windows`).
        """
        notes = self._files(_NOTE)
        for owner, file in self._files(_EVENTS).items():
            yield from_json(notes[owner], ProcessNote) if owner in notes else None, read_windows(file)

    def by_rank(self) -> dict[int, Path]:
        """The event file of the process that trains on each rank, by rank; `read_windows` reads it.

        That is the process of the rank with most windows (of two with as many, the one that wrote more): a launcher
        counts as rank 0 and has hardly any, nor has a worker that failed before the job was restarted.
        """
        found: dict[int, list[Path]] = {}
        for (rank, _), file in self._files(_EVENTS).items():
            found.setdefault(rank, []).append(file)
        return {rank: max(files, key=_extent) if len(files) > 1 else files[0] for rank, files in found.items()}

    @property
    def size(self) -> int:
        """Bytes that the files in the folder take."""
        found = 0
        for entry in self._entries():
            try:
                found += entry.stat().st_size
            except FileNotFoundError:
                continue  # replaced just now by a process that is still running
        return found

    def _entries(self) -> list[Path]:
        try:
            return list(self.path.iterdir())
        except OSError as error:
            raise TraceOutOfReach(self.path, error.strerror or str(error)) from error

    def _files(self, pattern: re.Pattern[str]) -> dict[tuple[int, int], Path]:
        """The files of this kind by (rank, process), sorted."""
        matches = [(pattern.fullmatch(entry.name), entry) for entry in self._entries()]
        return dict(sorted(((int(match[1]), int(match[2])), entry) for match, entry in matches if match))

    def _replace(self, name: str, data: bytes) -> None:
        file = self.path / name
        unfinished = self.path / f"{name}.{os.getpid()}.part"
        try:
            unfinished.write_bytes(data)
            unfinished.replace(file)
        except OSError as error:
            raise OutputError(file, error.strerror or str(error)) from error


def _extent(file: Path) -> tuple[int, int]:
    """How many windows an event file holds, and its bytes."""
    return count_windows(file), file.stat().st_size
