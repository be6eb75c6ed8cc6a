"""What a sink is: the place where a report goes.

Note [Sinks by name]
What `--report FORMAT[=PLACE]` can name is a class of the group `traincheck.sinks` (plugins.py, entry points). Beside
the methods of `Sink` it has a `name`, the `file` that is written where no place is given (empty for one that writes
none), and is made as `Class(place, judged)`: `place` is what the user wrote, `-` for standard output, and `judged` is
asked when the run is over for the invariants that were checked, each with its verdict. A place that cannot be one is
told by ValueError, which says what was expected. `Document` does all of this for what writes one text.
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
"""In place of a file: standard output."""

Judged: TypeAlias = tuple[Invariant, str]
"""An invariant with its verdict: passed, violated, never triggered or could not be observed."""

Judging: TypeAlias = Callable[[], Sequence[Judged]]


class Sink(Protocol):
    """Receives one run: `open`, then `show` for each finding when it is first made, then `close` with the whole report.

    The report of `close` holds every finding that was shown, grown since (last step, times, variables); a sink that
    writes one document ignores `show`. `close` may come without any `show`, and `open` without `close` when the process
    is killed. Methods are called from one thread at a time. A sink raises OutputError for a place it cannot write.
    """

    def open(self, run: Mapping[str, object]) -> None:
        """A run begins; `run` holds facts about it for people to read (script, versions, number of invariants)."""

    def show(self, finding: Finding) -> None:
        """A finding was made just now."""

    def close(self, report: Report) -> None:
        """The run is over, and this is all there is to say about it."""


class Document:
    """A sink that writes one text when the run is over. What derives from it says which, in `text`."""

    name: ClassVar[str]
    file: ClassVar[str]

    def __init__(self, place: PathLike, judged: Judging = tuple) -> None:
        self._place = os.fspath(place)
        self._judged = judged
        self._run: Mapping[str, object] = {}

    def open(self, run: Mapping[str, object]) -> None:
        """See to it that the place can be written. Raises OutputError."""
        self._run = run
        if self._place != STDOUT:
            may_write(self._place)

    def show(self, finding: Finding) -> None:
        """Nothing: the report of `close` holds every finding."""

    def close(self, report: Report) -> None:
        """Write the text, whole or not at all. Raises OutputError."""
        text = self.text(report).encode("utf-8", "backslashreplace")
        if self._place == STDOUT:
            sys.stdout.write(text.decode())
            sys.stdout.flush()
        else:
            write_whole(self._place, text)

    def text(self, report: Report) -> str:
        """The report as this document tells it, ending with a line break."""
        raise NotImplementedError
