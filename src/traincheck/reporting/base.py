"""Defines sinks, the receivers of reports.

Note [Sinks by name]
`--report FORMAT[=TARGET]` names a class of the group `traincheck.sinks` (plugins.py, entry points). Besides the methods
of `Sink`, it has a `name` and a `file`: the file to write if the user gives no target, empty for a sink that writes
none. TrainCheck creates it as `Class(target, judged)`. `target` is the text of the user, `-` for standard output.
`judged` returns the checked invariants with their verdicts after the run. The class raises ValueError with the expected
form for a target that it cannot use. `Document` implements all of this for one text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeAlias

from traincheck.files import PathLike, may_write, write_whole
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import Invariant

STDOUT = "-"
"""The target that means standard output."""

Judged: TypeAlias = tuple[Invariant, str]
"""An invariant with its verdict: passed, violated, never triggered or could not be observed."""

Judging: TypeAlias = Callable[[], Sequence[Judged]]


class Sink(Protocol):
    """Receives one run: `open`, then `show` for each new finding, then `close` with the whole report.

    The report of `close` holds every finding that was shown, updated since (last step, times, variables), so a sink for
    one document ignores `show`. `close` may come without `show`, and `open` without `close` if the process is killed.
    One thread at a time calls the methods. A sink raises OutputError for a target that it cannot write.
    """

    def open(self, run: Mapping[str, object]) -> None:
        """Begin a run; `run` holds facts about it for people (script, versions, number of invariants)."""

    def show(self, finding: Finding) -> None:
        """Show a new finding."""

    def close(self, report: Report) -> None:
        """End the run with its report."""


class Document:
    """A sink that writes one text after the run. Subclasses return it from `text`."""

    name: ClassVar[str]
    file: ClassVar[str]

    def __init__(self, target: PathLike, judged: Judging = tuple) -> None:
        self._target = os.fspath(target)
        self._judged = judged
        self._run: Mapping[str, object] = {}

    def open(self, run: Mapping[str, object]) -> None:
        """Check that the target can be written. Raises OutputError."""
        self._run = run
        if self._target != STDOUT:
            may_write(self._target)

    def show(self, finding: Finding) -> None:
        """Do nothing: the report of `close` holds every finding."""

    def close(self, report: Report) -> None:
        """Write the text, whole or not at all. Raises OutputError."""
        write_document(self._target, self.text(report))

    def text(self, report: Report) -> str:
        """The report in this format, ending with a line break."""
        raise NotImplementedError


def write_document(target: PathLike, text: str) -> None:
    """Write a text to a file, whole or not at all, or to standard output for `-`. Raises OutputError."""
    data = text.encode("utf-8", "backslashreplace")
    if os.fspath(target) == STDOUT:
        sys.stdout.write(data.decode())
        sys.stdout.flush()
    else:
        write_whole(target, data)
