"""Describe a run (run.json) and each of its processes (a note) in JSON files of the run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from traincheck import redaction
from traincheck.addresses import contents
from traincheck.errors import TraceOutOfReach, TraceTooNew, TraceUnreadable
from traincheck.trace.format import FORMAT
from traincheck.version import __version__
from traincheck.vocab.run_configuration import RunConfiguration
from traincheck.vocab.verification import VerifiedComputation

LARGEST_JOB = 1 << 18
"""Maximum number of ranks: several times that of the largest machines. An untrusted note may claim any number."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Number = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=1 << 62)]
Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_JOB)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of run.json. It holds no environment variables, which may contain secrets.

    `id` is unique for each run folder. `script` is the user's name for the program (`train.py`, `-m package.train`, or
    a launcher's command). `script_digest` is the SHA-256 of its text, or empty. `files` are the SHA-256 of the
    program's own files by path, and `commit` is the Git commit around them. `program` is its identity (see
    vocab/program.py), empty in recordings of older versions. `torch` is empty until a process reports its version.
    `started` and `ended` are in ISO 8601. While the run continues, or if it was killed, `ended` is empty and
    `exit_code` None. `stopped_by_us` distinguishes a training that was stopped on request from one that failed.
    `deleted` means that the run folder was deleted during the run, so that its events are lost.
    """

    format: int = FORMAT
    id: str = ""
    traincheck: str = __version__
    mode: Literal["collect", "run"] = "collect"
    argv: tuple[str, ...] = ()
    script: str = ""
    script_digest: str = ""
    files: dict[str, str] = {}
    commit: str = ""
    program: str = ""
    python: str = ""
    torch: str = ""
    started: str = ""
    ended: str = ""
    exit_code: Number | None = None
    stopped_by_us: bool = False
    deleted: bool = False
    books: tuple[str, ...] = ()


class ProcessNote(msgspec.Struct, frozen=True, kw_only=True):
    """What one observed process reports about itself.

    * Windows: `windows` counts recorded windows, `dropped` those that could not be written.
    * Steps: `steps` is the last training step. `updates` counts updates and steps that the program named itself (None:
      not counted). `forwards` counts calls of models, `backwards` backward passes. `watched` counts observed steps,
      `left_out` those that were not recorded because nothing was found around them (see
      runtime/recording/retention.py). `full` lists steps (first and last of each range) that were recorded in full
      although less was requested.
    * Limits: `not_observed` lists what could not be observed, and why. `notes` lists other remarks for the reader.
    * Cost: `cost` is the time that observing took on the program's threads, in seconds by source. `background` is the
      time on other threads, by stage. `seconds` is the duration of the process. `hashed` counts fingerprinted bytes,
      `hashing` is their share of the cost. `sent` counts what was sent to rank 0.
    * Job: `job` distinguishes the processes that train together from other jobs, or from other attempts of an elastic
      job. It is empty if no launcher named it. `exchange` means that the ranks send each other their digests, because
      some of them do not have this run folder.
    * `configuration` is what the process computed with; None before its first training step.
    * Verification: `verified` counts the results of experiments on live steps, by experiment and subject.
    * `forks` counts forked child processes, such as workers of data loaders.
    * `ended` is False for a process that is running or was killed.
    """

    format: int = FORMAT
    rank: Number = 0
    process: Number = 0
    world_size: Size = 1
    job: str = ""
    exchange: bool = False
    torch: str = ""
    python: str = ""
    configuration: RunConfiguration | None = None
    windows: Count = 0
    dropped: Count = 0
    steps: Count = 0
    updates: Count | None = None
    forwards: Count = 0
    backwards: Count = 0
    watched: Count = 0
    left_out: Count = 0
    seconds: Seconds = 0.0
    not_observed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cost: dict[str, Seconds] = {}
    background: dict[str, Seconds] = {}
    hashed: Count = 0
    hashing: Seconds = 0.0
    sent: dict[str, Count] = {}
    full: tuple[tuple[Count, Count], ...] = ()
    verified: tuple[VerifiedComputation, ...] = ()
    forks: Count = 0
    ended: bool = False


def untrained_in(notes: Sequence[ProcessNote]) -> str:
    """Return a sentence on what was observed instead of training steps; empty if there were steps or it is unknown."""
    if not notes or any(note.updates is None or note.updates or not note.ended for note in notes):
        return ""
    backwards, forwards = sum(note.backwards for note in notes), sum(note.forwards for note in notes)
    calls = f"{forwards:,} call{'s' * (forwards != 1)} of a model"
    if not backwards:
        seen = f"{calls if forwards else 'no call of a model'} and no backward was seen"
        forks = sum(note.forks for note in notes)
        children = f" ({forks:,} forked child process{'es' * (forks != 1)}, not observed)" if forks else ""
        return f"no training step was recognised: {seen}{children}"
    seen = f"{backwards:,} backward{'s' * (backwards != 1)} and {calls} were seen, but no update of a parameter"
    return f"no training step was recognised: {seen} (call traincheck.step() at the end of each step of the loop)"


def recorded_of(notes: Iterable[ProcessNote]) -> tuple[int, int] | None:
    """Return how many training steps the longest recording holds, and how many were observed; None if all were
    recorded."""
    longest = max(notes, key=lambda note: note.watched, default=None)
    if longest is None or not longest.left_out:
        return None
    return max(0, longest.watched - longest.left_out), longest.watched


class StopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The reason to end the training before its next update: a finding of `step`, or a user's request (0).

    If several ranks must stop in the same step, `at` is the step whose update is skipped.
    """

    title: str
    step: Count = 0
    at: Count | None = None


class _Header(msgspec.Struct):
    """Decoded first: a newer format may give other fields another meaning."""

    format: int


Note = TypeVar("Note", bound=msgspec.Struct)


def to_json(note: msgspec.Struct) -> bytes:
    """Return the note as readable JSON, without secrets.

    Known limitations: invalid bytes in a name (in `argv`, for example) become question marks.
    """
    redacted: Any = redaction.everything(msgspec.to_builtins(note))
    return (json.dumps(redacted, ensure_ascii=False, indent=2) + "\n").encode("utf-8", "replace")


def from_json(path: str | os.PathLike[str], kind: type[Note]) -> Note:
    """Read the note in the file `path`; unknown fields are ignored.

    Raises TraceOutOfReach, TraceTooNew for a newer format, or TraceUnreadable for another or damaged file.
    """
    try:
        data = contents(path)
        version = msgspec.json.decode(data, type=_Header).format
        if version > FORMAT:
            raise TraceTooNew(path, version, FORMAT)
        return msgspec.json.decode(data, type=kind)
    except OSError as error:
        raise TraceOutOfReach(path, error.strerror or str(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceUnreadable(path, str(error)) from error
