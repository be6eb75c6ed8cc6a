"""Prints the output of commands: results on stdout, everything about the work on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from traincheck import redaction
from traincheck.terminal_text import json_text, lines

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from traincheck.vocab.finding import Report

UNJUDGED, FINDINGS, INTERRUPTED = 2, 3, 130
"""Exit codes for a run without a training step, for findings at or above --fail-on, and after Ctrl-C."""

QUIET_SECONDS = 5.0
"""Seconds between two plain lines about the same work."""


def say(text: str = "") -> None:
    """Print a line about the work on stderr, without secrets and control characters."""
    sys.stderr.write(f"{lines(redaction.text(text))}\n")
    sys.stderr.flush()


def remark(text: str) -> None:
    """Print a line on stderr that begins with `traincheck:`, between the program's own output."""
    say(f"traincheck: {text}")


def out(text: str) -> None:
    """Print a line of the result on stdout, without control characters."""
    sys.stdout.write(f"{lines(text)}\n")


def out_json(value: object) -> None:
    """Print the result as JSON on stdout."""
    out(json_text(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def columns(rows: Iterable[Sequence[str]], indent: str = "  ") -> list[str]:
    """The rows as lines with aligned columns."""
    table = [list(row) for row in rows]
    widths = [max((len(row[index]) for row in table if len(row) > index), default=0) for index in range(_most(table))]
    return [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))).rstrip()
        for row in table
    ]


def _most(table: Sequence[Sequence[str]]) -> int:
    return max((len(row) for row in table), default=0)


def amount(number: float, unit: str) -> str:
    """`1,234 steps`, `1 step`."""
    return f"{number:,.0f} {unit}" if round(number) == 1 else f"{number:,.0f} {unit}s"


def size(number: float) -> str:
    """`12.3 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def exit_code(report: Report, fail_on: str) -> int:
    """3 when the report holds findings at or above `fail_on` (error, notice or never) or the run differs from another
    one, 2 when no training step was recognised, else 0. (With `never` it is always 0.)"""
    failing = {"error": ("errors",), "notice": ("errors", "notices"), "never": ()}[fail_on]
    if report.verdict in failing or (report.differs and fail_on != "never"):
        return FINDINGS
    return UNJUDGED if report.untrained and fail_on != "never" else 0


class Progress:
    """Called as `progress(task, done, total)`: shows a bar on a terminal, and plain lines elsewhere."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bars

            self._bars = Bars(console=Console(stderr=True), transient=True)
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, task: str, done: int, total: int) -> None:
        if self._bars is not None:
            if task not in self._tasks:
                self._tasks[task] = self._bars.add_task(task, total=total or None)
            self._bars.update(self._tasks[task], completed=done, total=total or None)
            return
        before, when = self._last
        now = time.monotonic()
        if task != before or (done == total and total) or now - when >= QUIET_SECONDS:
            self._last = (task, now)
            remark(f"{task} {done}/{total}" if total else task)
