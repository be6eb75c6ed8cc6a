"""Send requests to the processes of a running training, and read their answers.

Note [Control by files]
`control.json` holds the requested state, and a serial that grows with each change. A process compares it with what it
has done, so it may start late or miss changes. One-time requests (full recording, a snapshot) have a number that grows.
Each process writes to `controlled-RANK-PROCESS.json` which serial it has reached. A change holds a lock on the file,
and replaces it as a whole.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from traincheck.errors import OutputError
from traincheck.files import replace_whole
from traincheck.trace.format import FORMAT
from traincheck.trace.run_notes import StopRequest, from_json, to_json
from traincheck.vocab.finding import Finding

CONTROL, LOCK, ANSWERS = "control.json", ".control.lock", "controlled-*.json"

PATIENCE = 10.0
"""Seconds that a change waits for the lock, which is held only while a small file is written."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request that takes effect once: `number` counts the requests, `steps` is the number of steps it covers."""

    number: int = 0
    steps: int = 0


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of control.json; None keeps the setting with which the run was started.

    `sample` and `budget` (a share of the time, 0 for none) select the steps to observe. `muted` holds a reason for each
    rule (by id) that is not checked. `off` lists the disabled sources. `findings` are errors about several ranks
    together, reported by the process that compares ranks.
    """

    format: int = FORMAT
    serial: int = 0
    sample: Annotated[int, msgspec.Meta(ge=1)] | None = None
    budget: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    muted: dict[str, str] = {}
    off: tuple[str, ...] = ()
    look: Request = Request()
    snapshot: Request = Request()
    stop: StopRequest | None = None
    findings: tuple[Finding, ...] = msgspec.field(default=(), name="found")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of controlled-RANK-PROCESS.json: the process has carried out the requests up to `serial`, from
    `step` on.

    `waiting` says which request is pending, `declined` which requests were refused, and why. `training` is False for a
    process that has not trained yet: requests take effect with its first step. `full` lists steps that were recorded in
    full (first and last of each range), `snapshots` the files that were written.
    """

    format: int = FORMAT
    rank: int = 0
    process: int = 0
    host: str = ""
    serial: int = 0
    step: int = 0
    training: bool = False
    ended: bool = False
    waiting: str = ""
    declined: tuple[str, ...] = ()
    full: tuple[tuple[int, int], ...] = ()
    snapshots: tuple[str, ...] = ()


def read_control(folder: Path) -> Control:
    """Return the requests to the run in `folder`. Raises TraceUnreadable, TraceTooNew and TraceOutOfReach."""
    file = folder / CONTROL
    return from_json(file, Control) if file.exists() else Control()


def change_control(folder: Path, change: Callable[[Control], Control]) -> Control:
    """Replace the control state by `change(state)` and return the new state.

    Concurrent changes wait for each other. The serial grows only if the state differs. Raises OutputError, and the
    errors of `read_control` and `change`.
    """
    with _locked(folder / LOCK):
        before = read_control(folder)
        after = change(before)
        if after != before:
            after = msgspec.structs.replace(after, serial=before.serial + 1)
            replace_whole(folder / CONTROL, to_json(after))
        return after


def stopped(control: Control, request: StopRequest) -> Control:
    """Return the state with a stop request; an earlier request stays."""
    return control if control.stop is not None else msgspec.structs.replace(control, stop=request)


MAX_FINDINGS = 50
"""Number of findings to pass on; more would add nothing."""


def add_finding(control: Control, finding: Finding) -> Control:
    """Return the state with another finding about several ranks."""
    return msgspec.structs.replace(control, findings=(*control.findings, finding)[:MAX_FINDINGS])


class ControlFile:
    """Reads control.json again only after it was replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int, int] | None = None

    def news(self) -> Control | None:
        """Return the control state if it has changed, else None. Raises the errors of `read_control` once per
        replacement."""
        try:
            status = (self._folder / CONTROL).stat()
        except OSError:
            return None  # not there yet, or a folder that is out of reach for a while
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen == self._seen:
            return None
        self._seen = seen
        return read_control(self._folder)


def write_answer(folder: Path, answer: Answer) -> None:
    """Replace the answer of a process. Raises OutputError."""
    replace_whole(_answer_file(folder, answer.rank, answer.process), to_json(answer))


def withdraw_answer(folder: Path, rank: int, process: int) -> None:
    """Remove an answer that was written before the process knew its rank."""
    with contextlib.suppress(OSError):
        _answer_file(folder, rank, process).unlink()


def read_answers(folder: Path) -> list[Answer]:
    """Return the answers of all processes, by rank, then by process. Raises the errors of `read_control`."""
    answers = (from_json(file, Answer) for file in folder.glob(ANSWERS))
    return sorted(answers, key=lambda answer: (answer.rank, answer.process))


def _answer_file(folder: Path, rank: int, process: int) -> Path:
    return folder / f"controlled-{rank}-{process}.json"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file. Known limitations: without `flock`, one of two concurrent changes may be lost."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise OutputError(path, f"another process has held it for {PATIENCE:.0f} s") from error
                time.sleep(0.02)
        yield
    finally:
        os.close(lock)
