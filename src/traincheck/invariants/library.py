"""The library of a project: the common behaviour of its own good runs, in a folder that is committed with its code.

It holds a book (`book.jsonl`), the counts of the accepted runs (`accepted.tally`), from which each further run learns
the book again, and a record of who accepted which run when and why (`accepted.json`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from traincheck.errors import LibraryUnreadable
from traincheck.files import folders_upwards, project_of, read_bounded, write_whole

FOLDER = ".traincheck"
BOOK, TALLIES, RECORD = "book.jsonl", "accepted.tally", "accepted.json"

FORMAT = 1
KIND = "traincheck library"


Count = Annotated[int, msgspec.Meta(ge=0)]


class AcceptedRun(msgspec.Struct, frozen=True, kw_only=True, order=True, forbid_unknown_fields=True):
    """A run that was accepted as known good (`run` is the digest of its recording), with the reason.

    `changed`: it had findings, so what was new in it is meant. If `only` names diagnoses, it was accepted without what
    its findings with other diagnoses are about.
    """

    script: str
    date: str
    run: str
    digest: str = ""
    steps: Count = 0
    ranks: Count = 1
    torch: str = ""
    python: str = ""
    reason: str = ""
    changed: bool = False
    only: tuple[str, ...] = ()


class LastChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the last acceptance changed the book: rules that were added, removed and changed."""

    runs: tuple[str, ...] = ()
    came: Count = 0
    went: Count = 0
    changed: Count = 0


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of accepted.json: the accepted runs, sorted, and the change by the last of them."""

    format: int = FORMAT
    kind: str = KIND
    runs: tuple[AcceptedRun, ...] = ()
    last: LastChange = LastChange()


def find(start: Path) -> Path | None:
    """The library of the project that the folder `start` belongs to, None if it has none."""
    for folder in folders_upwards(start):
        if (folder / FOLDER / RECORD).is_file():
            return folder / FOLDER
    return None


def library_path(start: Path) -> Path:
    """The path of that project's library, existing or not: next to the files that mark the project, or in `start`
    itself."""
    existing = find(start)
    if existing is not None:
        return existing
    return (project_of(start) or start) / FOLDER


def read_record(library: Path) -> Record:
    """The record of the accepted runs; an empty one if there is no library yet. Raises LibraryUnreadable."""
    path = library / RECORD
    try:
        data = read_bounded(path)
    except FileNotFoundError:
        return Record()
    except OSError as error:
        raise LibraryUnreadable(path, error.strerror or str(error)) from None
    try:
        record = msgspec.json.decode(data, type=Record)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LibraryUnreadable(path, str(error)) from None
    if record.kind != KIND or record.format > FORMAT:
        raise LibraryUnreadable(path, f'it does not say "kind": "{KIND}" and "format": {FORMAT} or less')
    return record


def write_record(record: Record, library: Path) -> None:
    """Write the record, with the runs in order. Raises OutputError."""
    in_order = msgspec.structs.replace(record, runs=tuple(sorted(record.runs)))
    write_whole(library / RECORD, msgspec.json.format(msgspec.json.encode(in_order), indent=2) + b"\n")
