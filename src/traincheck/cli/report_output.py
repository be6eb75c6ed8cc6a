"""Reports: what the commands that check do with what was found, the same for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.cli.console import out, remark

if TYPE_CHECKING:
    from traincheck.reporting.html.run_section import Told
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.finding import Report
    from traincheck.vocab.invariant import Invariant

JSON_NAME, HTML_NAME = "report.json", "report.html"
"""The reports of a run in its own folder."""
STDOUT = Path("-")
"""In place of a JSON file."""


ENOUGH = 3
"""Accepted runs of a program from which on its rules are errors."""


def offer(run: RunFolder, start: Path) -> None:
    """Say how a run in which nothing was found becomes one that others are compared with, unless there are enough."""
    from traincheck.invariants.library import find, read_record

    library = find(start)
    known = 0 if library is None else sum(one.script == run.manifest.script for one in read_record(library).runs)
    if known < ENOUGH:
        remark(f"if this run is as it should be, have later ones checked against it: traincheck accept {run.path}")


def make_ready() -> None:
    """Import what reports need while the program starts, and not when it has ended and somebody waits for them.

    Raises nothing: what is missing says so when it is used.
    """
    with suppress(Exception):
        import traincheck.checking.finding_details
        import traincheck.checking.live_results
        import traincheck.reporting.json_report
        import traincheck.reporting.terminal  # noqa: F401
        from traincheck.reporting.html.sink import template

        template()


def write_reports(
    folder: Path,
    report: Report,
    verdicts: Sequence[tuple[Invariant, str]],
    json_files: Sequence[Path],
    html_files: Sequence[Path],
) -> None:
    """Write the report of a run folder into each of the files; JSON for `-` goes to stdout. Raises OutputError."""
    for path in json_files:
        write_json_file(report, path)
    if html_files:
        part = part_of_page(folder, report, verdicts)
        for path in html_files:
            write_page([part], path)


def write_json_file(report: Report, path: Path) -> None:
    """Write the report as JSON; for `-` it goes to stdout. Raises OutputError."""
    from traincheck.reporting.json_report import json_of, write_json

    if path == STDOUT:
        out(json_of(report).rstrip())
    else:
        write_json(report, path)


def part_of_page(folder: Path, report: Report, verdicts: Sequence[tuple[Invariant, str]], name: str = "") -> Told:
    """A run as the page tells it, with what its findings are shown with, as far as the folder holds it."""
    from traincheck.checking.finding_details import exhibits
    from traincheck.reporting.html.run_section import Told

    return Told(report, verdicts, exhibits(folder, report, [rule for rule, _ in verdicts]), name)


def write_page(parts: Sequence[Told], path: Path) -> None:
    """Write the page of one or several runs. Raises OutputError."""
    from traincheck.reporting.html.sink import render_page

    render_page(parts, path)


def names_of(runs: Sequence[Path]) -> list[str]:
    """A name for each run folder: its last part, or as much of its path as tells it from the others."""
    paths = [run.absolute() for run in runs]
    most = max(len(path.parts) for path in paths)
    for length in range(1, most + 1):
        names = [str(Path(*path.parts[-length:])) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return [str(path) for path in paths]


def show_summary(report: Report, files: Sequence[Path], is_result: bool = True) -> None:
    """The report for people: verdict, findings, counts, where the files are.

    On stdout where it is the command's result; on stderr where stdout belongs to a program or to JSON.
    """
    from rich.console import Console

    from traincheck.reporting.terminal import TerminalSink

    console = Console(stderr=not is_result or STDOUT in files, highlight=False)
    TerminalSink(console, [path for path in files if path != STDOUT]).close(report)


def given(*paths: Path | None) -> list[Path]:
    """The paths that were given."""
    return [path for path in paths if path is not None]
