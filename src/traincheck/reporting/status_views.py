"""Show a running program: a live table on a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from traincheck.reporting import phrases, status_phrases
from traincheck.reporting.json_report import jsonable
from traincheck.reporting.terminal import TerminalSink
from traincheck.terminal_text import json_text
from traincheck.vocab.finding import Finding
from traincheck.vocab.run_status import ENDED, RESTING, SILENT, TRAINING, RankStatus, RunStatus

PLAIN_FIRST, PLAIN_EVERY = 2.0, 30.0
"""Seconds between two plain lines about an unchanged run: at first, and at most. The interval doubles."""

JSON_EVERY = 2.0
"""Seconds between two status objects, the interval at which a run updates its status."""

ROWS = 20
"""Ranks that are shown individually: those with problems, then the first ones."""

_STYLES = {TRAINING: "green", ENDED: "dim", SILENT: "bold red", RESTING: "yellow"}


class JsonLines:
    """Passes JSON lines to `put`: kind "finding" at once, kind "status" at intervals.

    It always sends the first and the last status, and each change in the state of the run or of a rank.
    """

    def __init__(self, put: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._put = put
        self._now = now
        self._next_line = 0.0
        self._notable_state: object = None

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Write new findings and, if due, the status."""
        for finding in findings:
            self._put_line("finding", {"finding": jsonable(finding)})
        notable = _notable_state(status)
        if notable != self._notable_state or self._now() >= self._next_line:
            self._notable_state, self._next_line = notable, self._now() + JSON_EVERY
            self._put_line("status", jsonable(status))

    def close(self) -> None:
        """Do nothing: every line is complete."""

    def _put_line(self, kind: str, fields: dict[str, object]) -> None:
        self._put(json_text(json.dumps({"kind": kind, **fields}, ensure_ascii=False)))


class PlainLines:
    """Prints findings in full, and a status line after a change or at intervals."""

    def __init__(self, console: Console | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(highlight=False)
        self._sink = TerminalSink(self._console)
        self._now = now
        self._next_line = 0.0
        self._pause = PLAIN_FIRST
        self._notable_state: object = None

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Write new findings and, if due, the status."""
        for finding in findings:
            self._sink.show(finding)
        notable = _notable_state(status)
        if notable != self._notable_state or (self._now() >= self._next_line and status.ranks):
            self._notable_state, self._next_line = notable, self._now() + self._pause
            self._pause = min(2 * self._pause, PLAIN_EVERY)
            for line in _lines(status):
                self._console.print(Text(line), soft_wrap=True)
        self._console.file.flush()  # to a pipe, too, while the run goes on

    def close(self) -> None:
        """Do nothing: every line is complete."""


class LiveView:
    """Shows a live table of the ranks, with the findings above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._sink = TerminalSink(self._console)
        self._live = Live(console=self._console, refresh_per_second=2, transient=True)
        self._live.start()

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Print new findings and update the table."""
        table = [_table(status)] if status.ranks else []
        self._live.update(Group(*(Text(line, "bold") for line in _lines(status)), *table))
        for finding in findings:
            self._sink.show(finding)
        if status.over:
            self._live.stop()
            for line in _lines(status):
                self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Release the terminal."""
        self._live.stop()


def _notable_state(status: RunStatus) -> object:
    """Return the state whose change is reported at once."""
    odd = tuple((rank.rank, rank.process, rank.state) for rank in status.ranks if rank.state in (SILENT, RESTING))
    return status.state, bool(status.ranks), odd, status.unread


def _lines(status: RunStatus) -> list[str]:
    lines = [
        f"{status.script or 'run'}: {status_phrases.line(status)}" if status.ranks else status_phrases.line(status)
    ]
    if status.silent:
        lines.append(status_phrases.silence(status.silent))
    lines += [f"not read: {reason}" for reason in status.unread]
    if status.over:
        lines.append(status_phrases.ending(status))
    return [phrases.plain(line) for line in lines]


def _table(status: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rank", "steps", "speed", "dropped", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    shown = sorted(status.ranks, key=lambda rank: (rank.state not in (SILENT, RESTING), rank.rank))
    for rank in shown[:ROWS]:
        table.add_row(*_row(rank))
    if len(shown) > ROWS:
        table.add_row(f"and {len(shown) - ROWS:,} more")
    return table


def _row(rank: RankStatus) -> list[Text]:
    numbers = (str(rank.rank), f"{rank.steps:,}", status_phrases.speed(rank.steps_per_second), f"{rank.dropped:,}")
    state = Text(status_phrases.standing(rank), _STYLES.get(rank.state, ""))
    return [*(Text(number) for number in (*numbers, status_phrases.share(rank.cost))), state]
