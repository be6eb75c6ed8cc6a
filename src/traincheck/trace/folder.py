"""Read and write a run folder: everything that the processes of one run have recorded."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from traincheck import redaction
from traincheck.addresses import Address, as_path
from traincheck.errors import OutputError, RunFolderEmpty, RunFolderInUse, RunFolderNotFound, TraceOutOfReach
from traincheck.trace.control_file import change_control, read_control, stopped
from traincheck.trace.format import DIGESTS, EVENTS, INITIAL_STATE, MANIFEST, MARKS, OPERATIONS, WHOLE_VALUES
from traincheck.trace.run_notes import Manifest, ProcessNote, StopRequest, from_json, recorded_of, to_json
from traincheck.trace.segments import segments
from traincheck.vocab.events import Window

SIZE_HINT = "(--keep-recording says how large one may grow)"

RECORD_ALL = "(`traincheck run --record all` or `traincheck collect` keeps each of them)"

_Owner = tuple[int, int]
"""The rank of a process, and its number."""

_EVENTS = re.compile(r"events-(-?[0-9]{1,18})-([0-9]{1,18})\.arrows")
_OPERATIONS = re.compile(OPERATIONS + r"-(-?[0-9]{1,18})-([0-9]{1,18})\.msgpack")
_MARKS = re.compile(MARKS + r"-(-?[0-9]{1,18})-([0-9]{1,18})\.msgpack")
_WHOLE_VALUES = re.compile(WHOLE_VALUES + r"-(-?[0-9]{1,18})-([0-9]{1,18})\.msgpack")
_INITIAL = re.compile(INITIAL_STATE + r"-(-?[0-9]{1,18})-([0-9]{1,18})\.pt")
_NOTE = re.compile(r"process-(-?[0-9]{1,18})-([0-9]{1,18})\.json")


@dataclass(frozen=True, slots=True)
class Job:
    """Processes that train together: `size` ranks, and the event files of those that have written any, by rank.

    `exchange` means that the ranks compare themselves during training, as some of them write to another folder.
    """

    name: str
    size: int
    files: dict[int, Path]
    exchange: bool = False


class RunFolder:
    """A folder with run.json and, for each observed process, its events and a note.

    Properties and methods read the folder at each call, so you can watch a run in progress. Reading raises
    TraceUnreadable for a damaged file, TraceTooNew for a newer format and TraceOutOfReach if the system refuses.
    Writing raises OutputError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | os.PathLike[str], manifest: Manifest) -> RunFolder:
        """Create a run folder at `path`, and its parent folders.

        Raises RunFolderInUse if the folder is not empty, OutputError if it cannot be written.
        """
        folder = cls(Path(path))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            if any(folder.path.iterdir()):
                raise RunFolderInUse(path)
            with (folder.path / MANIFEST).open("xb") as file:  # exclusively: two runs may start at one moment
                argv = redaction.arguments(manifest.argv)
                named = msgspec.structs.replace(manifest, argv=argv, id=manifest.id or secrets.token_hex(8))
                file.write(to_json(named))
        except FileExistsError as error:
            if folder.path.is_dir():
                raise RunFolderInUse(path) from error
            raise OutputError(path, "it is a file, not a folder") from error
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from error
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open the run folder at `path`.

        Raises RunFolderNotFound, or RunFolderEmpty if it holds neither run.json nor events.
        """
        folder = cls(as_path(path))
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
        """The contents of run.json; an empty manifest if there is none."""
        file = self.path / MANIFEST
        return from_json(file, Manifest) if file.exists() else Manifest(traincheck="")

    def update(self, **changes: Any) -> Manifest:
        """Change fields of run.json atomically, and return the new manifest.

        Known limitations: of two concurrent updates, one may be lost; only one process should update.
        """
        manifest = msgspec.structs.replace(self.manifest, **changes)
        self._replace(MANIFEST, to_json(manifest))
        return manifest

    def write_note(self, note: ProcessNote) -> None:
        """Replace the note of a process atomically."""
        self._replace(f"process-{note.rank}-{note.process}.json", to_json(note))

    def request_stop(self, title: str, step: int) -> None:
        """Ask the processes of the run to end their training before the next update."""
        request = StopRequest(title=title, step=step)
        change_control(self.path, lambda control: stopped(control, request))

    def stop_request(self) -> StopRequest | None:
        """Return the stop request, or None."""
        return read_control(self.path).stop

    def withdraw_note(self, rank: int, process: int) -> None:
        """Remove a note that was written before the process knew its rank."""
        with contextlib.suppress(OSError):
            (self.path / f"process-{rank}-{process}.json").unlink()

    def notes(self) -> tuple[ProcessNote, ...]:
        """Return the notes of all processes, by rank, then by process."""
        return tuple(self._notes().values())

    def trained_as(self, rank: int, process: int) -> tuple[ProcessNote, ...]:
        """Return the notes of other processes that train or trained as this rank of their job.

        Processes without a job, such as launchers, are not included.
        """
        events = self._files(_EVENTS)
        others = self._notes(lambda owner: owner[0] == rank and owner[1] != process)
        begun = (note for owner, note in others.items() if note.steps or (not note.ended and owner in events))
        return tuple(note for note in begun if note.world_size > 1)

    def event_files(self) -> tuple[Path, ...]:
        """Return the event file of each process, by rank, then by process."""
        return tuple(self._files(_EVENTS).values())

    def first_operation_files(self) -> tuple[Path, ...]:
        """The file of sketched operations of each rank, in their order; of several processes of a rank, the first."""
        return tuple(self._first_files(_OPERATIONS).values())

    def initial_states(self) -> dict[int, Path]:
        """The file with the initial state of each rank; of several processes of a rank, the first."""
        return self._first_files(_INITIAL)

    def whole_value_files(self) -> tuple[Path, ...]:
        """The file of whole values of each process, by rank, then by process."""
        return tuple(self._files(_WHOLE_VALUES).values())

    def _first_files(self, pattern: re.Pattern[str]) -> dict[int, Path]:
        files: dict[int, Path] = {}
        for (rank, _), file in self._files(pattern).items():
            files.setdefault(rank, file)
        return files

    def mark_files(self) -> dict[int, tuple[Path, ...]]:
        """The files of marks of each rank, in their order; of several processes of a rank, by process."""
        files: dict[int, tuple[Path, ...]] = {}
        for (rank, _), file in self._files(_MARKS).items():
            files[rank] = (*files.get(rank, ()), file)
        return files

    def event_files_of(self, rank: int) -> tuple[Path, ...]:
        """Return the event file of each process of this rank, by process."""
        return tuple(file for owner, file in self._files(_EVENTS).items() if owner[0] == rank)

    def removed(self) -> tuple[str, ...]:
        """Return sentences on the training steps that were removed from recordings that grew too large."""
        long = [file for file in self.event_files() if len(segments(file)) > 1]  # the first segment is never removed
        if not long:
            return ()
        from traincheck.trace.reader import removed_steps  # here and below: it takes a while, and few need it

        ranges = sorted({steps for file in long for steps in removed_steps(file)})
        return tuple(
            f"steps {first:,} to {last:,} are no longer in the recording {SIZE_HINT}" for first, last in ranges
        )

    def left_out(self) -> tuple[str, ...]:
        """Return a sentence if only some of the steps were recorded."""
        recorded = recorded_of(self.notes())
        return (
            () if recorded is None else (f"the recording holds {recorded[0]:,} of {recorded[1]:,} steps {RECORD_ALL}",)
        )

    def windows(self) -> Iterator[tuple[ProcessNote | None, Iterator[Window]]]:
        """Yield, for each process with events, its note (or None) and its windows, by rank, then by process.

        Windows are read lazily (see `read_windows`).
        """
        from traincheck.trace.reader import read_windows

        notes = self._notes()
        for owner, file in self._files(_EVENTS).items():
            yield notes.get(owner), read_windows(file)

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs of several ranks whose processes have written events, sorted by name.

        Several processes can have the same rank: a data loader worker has the rank of its parent. The process with most
        windows is taken as the one that trains; if equal, the one with the larger file. A process without a note
        belongs to the unnamed job.
        """
        notes = self._notes()
        sizes: dict[str, int] = {}
        files_by_job: dict[str, dict[int, list[Path]]] = {}
        exchanging: set[str] = set()
        for owner, file in self._files(_EVENTS).items():
            note = notes.get(owner)
            if note is not None and note.world_size < 2:
                continue  # a launcher, which has the rank of nobody
            name = "" if note is None else note.job
            if note is not None and note.exchange:
                exchanging.add(name)
            sizes[name] = max(sizes.get(name, 0), 0 if note is None else note.world_size)
            files_by_job.setdefault(name, {}).setdefault(owner[0], []).append(file)
        jobs = []
        for name, by_rank in sorted(files_by_job.items()):
            files = {rank: max(files, key=_extent) if len(files) > 1 else files[0] for rank, files in by_rank.items()}
            jobs.append(Job(name, max(sizes[name], len(files)), files, name in exchanging))
        return tuple(job for job in jobs if job.size > 1)

    @property
    def size(self) -> int:
        """The size of all files in the folder, in bytes."""
        total = 0
        for entry in self._entries():
            try:
                total += entry.stat().st_size
            except FileNotFoundError:
                continue  # replaced just now by a process that is still running
        return total

    def _entries(self) -> list[Path]:
        try:
            return list(self.path.iterdir())
        except OSError as error:
            raise TraceOutOfReach(self.path, error.strerror or str(error)) from error

    def _notes(self, accept: Callable[[_Owner], bool] = lambda owner: True) -> dict[_Owner, ProcessNote]:
        """Return the notes of accepted processes, except notes that are just being removed (see `withdraw_note`)."""
        notes = {}
        for owner, file in self._files(_NOTE).items():
            if accept(owner):
                try:
                    notes[owner] = from_json(file, ProcessNote)
                except TraceOutOfReach:
                    if file.exists():
                        raise
        return notes

    def _files(self, pattern: re.Pattern[str]) -> dict[_Owner, Path]:
        """Return the files that match, by (rank, process), sorted."""
        files = {}
        try:
            for name, file in self._listed():
                match = pattern.fullmatch(name)
                if match:
                    files[int(match[1]), int(match[2])] = file
        except OSError as error:
            raise TraceOutOfReach(self.path, error.strerror or str(error)) from error
        return dict(sorted(files.items()))

    def _listed(self) -> Iterator[tuple[str, Path]]:
        """Yield the regular files in the folder: pipes and devices could block (an address has none)."""
        if isinstance(self.path, Address):
            yield from ((entry.name, entry) for entry in self.path.iterdir())
            return
        with os.scandir(self.path) as entries:
            yield from ((entry.name, Path(entry.path)) for entry in entries if entry.is_file())

    def _replace(self, name: str, data: bytes) -> None:
        file = self.path / name
        unfinished = self.path / f"{name}.{os.getpid()}.part"
        try:
            unfinished.write_bytes(data)
            unfinished.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise OutputError(file, error.strerror or str(error)) from error


def digest_file(events: Path) -> Path:
    """Return the path of the digests that a process publishes to the other ranks, for its event file."""
    return events.with_name(DIGESTS + events.name[len(EVENTS) :])


def _extent(file: Path) -> tuple[int, int]:
    """Return the number of windows in an event file, and its size in bytes."""
    from traincheck.trace.reader import count_windows

    return count_windows(file), bytes_of(file)


def bytes_of(recording: Path) -> int:
    """Return the size of a recording in bytes. Raises FileNotFoundError."""
    return sum(segment.stat().st_size for segment in segments(recording))
