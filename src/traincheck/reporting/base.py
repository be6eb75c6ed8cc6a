"""What a sink is: the place where a report goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from traincheck.vocab.finding import Finding, Report


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
