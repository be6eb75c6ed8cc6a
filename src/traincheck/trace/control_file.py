"""Control: what is asked of the processes of a run while they train, and what each of them answers.

Note [Control by files]
`control.json` holds the state that is wanted, and a serial that grows with each change; a process compares it with what
it has done, so it does not matter what it missed, nor when it began. What is asked for once (to look closer, a
snapshot) has a number that grows. Each process says in `controlled-RANK-PROCESS.json` up to which serial it has come.
Whoever changes the file holds a lock for it, and it is written whole.
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
from traincheck.trace.run_notes import StopAsked, from_json, to_json
from traincheck.vocab.finding import Finding

CONTROL, LOCK, ANSWERS = "control.json", ".control.lock", "controlled-*.json"

PATIENCE = 10.0
"""Seconds that a change waits for the lock: it is held for as long as it takes to write a small file."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is asked for once: `number` says how often it was, `steps` for how many steps it is meant."""

    number: int = 0
    steps: int = 0


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """What control.json says; a field that is None leaves it as the run was started.

    `sample` and `budget` (a share of the time, 0 for none) say which steps are watched, `muted` has the reason for each
    rule (by id) that is not judged, `off` the sources that are switched off. `findings` are findings of severity error
    about several ranks together, told by the process that compares them.
    """

    format: int = FORMAT
    serial: int = 0
    sample: Annotated[int, msgspec.Meta(ge=1)] | None = None
    budget: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    muted: dict[str, str] = {}
    off: tuple[str, ...] = ()
    look: Request = Request()
    snapshot: Request = Request()
    stop: StopAsked | None = None
    findings: tuple[Finding, ...] = msgspec.field(default=(), name="found")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What controlled-RANK-PROCESS.json says: that its process has done what was asked up to `serial`, from `step` on.

    `waiting` says what it still waits for, `declined` what it could not do, and why. `training` is False for a process
    in which nothing was trained so far: what is asked holds from its first step on. `full` are the steps that were
    recorded in full (the first and the last of each time), `snapshots` the files that were written.
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
    """What is asked of the run in `folder`. Raises TraceUnreadable, TraceTooNew and TraceOutOfReach."""
    file = folder / CONTROL
    return from_json(file, Control) if file.exists() else Control()


def change_control(folder: Path, change: Callable[[Control], Control]) -> Control:
    """Have `change` make the new state out of the present one, and write it; the state as it is now.

    Of two that change at one moment one waits. The serial grows only where something differs. Raises OutputError, and
    what `read_control` and `change` raise.
    """
    with _locked(folder / LOCK):
        before = read_control(folder)
        after = change(before)
        if after != before:
            after = msgspec.structs.replace(after, serial=before.serial + 1)
            replace_whole(folder / CONTROL, to_json(after))
        return after


def stopped(control: Control, because: StopAsked) -> Control:
    """With a stop asked for; the first reason stays."""
    return control if control.stop is not None else msgspec.structs.replace(control, stop=because)


MOST_FINDINGS = 50
"""Findings that are told on: what is wrong is known by then."""


def add_finding(control: Control, finding: Finding) -> Control:
    """With another finding about several ranks."""
    return msgspec.structs.replace(control, findings=(*control.findings, finding)[:MOST_FINDINGS])


class ControlFile:
    """Looks at control.json again only when it was replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int, int] | None = None

    def news(self) -> Control | None:
        """What it says, None where that is as it was. Raises what `read_control` raises, once for each replacement."""
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
    """Put the answer of a process in place of the one before. Raises OutputError."""
    replace_whole(_answer_file(folder, answer.rank, answer.process), to_json(answer))


def withdraw_answer(folder: Path, rank: int, process: int) -> None:
    """Take back an answer that was written before the process knew its rank."""
    with contextlib.suppress(OSError):
        _answer_file(folder, rank, process).unlink()


def read_answers(folder: Path) -> list[Answer]:
    """The answers of all processes, by rank, then by process. Raises what `read_control` raises."""
    answers = (from_json(file, Answer) for file in folder.glob(ANSWERS))
    return sorted(answers, key=lambda answer: (answer.rank, answer.process))


def _answer_file(folder: Path, rank: int, process: int) -> Path:
    return folder / f"controlled-{rank}-{process}.json"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Known limitations: where the system has no `flock`, two changes at one moment may lose one of them."""
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
