"""Notes: what is written down about a run and about each of its processes, beside the events."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from traincheck.errors import TraceOutOfReach, TraceTooNew, TraceUnreadable
from traincheck.trace.schema import FORMAT
from traincheck.version import __version__


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What run.json says of a run. No environment: it may hold secrets.

    `id` is another word for each run folder. `script` is how a person would name the program (`train.py`, `-m
    package.train`, or the command of a launcher), `script_digest` the SHA-256 of its text, empty where there is none.
    `torch` is empty until a process says which version it has. `started` and `ended` are in ISO 8601, `ended` empty
    while the run goes on or when it was killed; `exit_code` is None then. `stopped_by_us` tells a training that was
    stopped on request from one that failed.
    """

    format: int = FORMAT
    id: str = ""
    traincheck: str = __version__
    mode: Literal["collect", "run"] = "collect"
    argv: tuple[str, ...] = ()
    script: str = ""
    script_digest: str = ""
    python: str = ""
    torch: str = ""
    started: str = ""
    ended: str = ""
    exit_code: int | None = None
    stopped_by_us: bool = False
    books: tuple[str, ...] = ()


class ProcessNote(msgspec.Struct, frozen=True, kw_only=True):
    """What one observed process says of itself.

    `windows` counts the windows that it closed, `dropped` those of them that were not written; `steps` is the last
    training step. `not_observed` says what could not be observed and why, `notes` what else a reader should know.
    `cost` is what observing took, in seconds by part, `sent` what went to rank 0. `ended` is False for a process
    that was killed. `job` tells the processes that train together from those of another job, or of another attempt of
    an elastic one; it is empty where no launcher gave it a name. `exchange` says that its ranks tell each other what
    they hold, as not all of them have this run folder.
    """

    format: int = FORMAT
    rank: int = 0
    process: int = 0
    world_size: int = 1
    job: str = ""
    exchange: bool = False
    torch: str = ""
    python: str = ""
    windows: int = 0
    dropped: int = 0
    steps: int = 0
    not_observed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cost: dict[str, float] = {}
    sent: dict[str, int] = {}
    ended: bool = False


class StopAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What stop.json says: that the training is to end before its next update, for this finding of this step."""

    format: int = FORMAT
    title: str
    step: int


class _Header(msgspec.Struct):
    """What is read first: a newer format may mean the rest differently."""

    format: int


Note = TypeVar("Note", Manifest, ProcessNote, StopAsked)


def to_json(note: Manifest | ProcessNote | StopAsked) -> bytes:
    """The note as JSON to be read by people.

    Known limitations: bytes of a name that are not valid in its encoding (in `argv`, say) are told as question marks.
    """
    found: dict[str, Any] = msgspec.to_builtins(note)
    return (json.dumps(found, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "replace")


def from_json(path: str | os.PathLike[str], kind: type[Note]) -> Note:
    """The note in the file `path`; fields that this version does not know are passed over.

    Raises TraceOutOfReach, TraceTooNew for a newer format, or TraceUnreadable when it is no such note.
    """
    try:
        data = Path(path).read_bytes()
        version = msgspec.json.decode(data, type=_Header).format
        if version > FORMAT:
            raise TraceTooNew(path, version, FORMAT)
        return msgspec.json.decode(data, type=kind)
    except OSError as error:
        raise TraceOutOfReach(path, error.strerror or str(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceUnreadable(path, str(error)) from error
