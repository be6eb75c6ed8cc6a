"""Report files and the summary on the terminal, for the commands that check."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.cli.console import remark

if TYPE_CHECKING:
    from traincheck.reporting.html.run_section import PageRun
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.finding import Report
    from traincheck.vocab.invariant import Invariant

JSON_NAME, HTML_NAME = "report.json", "report.html"
"""The reports of a run in its own folder."""
STDOUT = Path("-")
"""Stands for standard output in a list of files."""

ENOUGH = 3
"""Accepted runs of a program from which on its rules are errors."""


def suggest_accept(run: RunFolder, start: Path) -> None:
    """Say how to accept a run without findings, as long as the library has fewer than three runs of its program."""
    from traincheck.invariants.library import find, read_record

    library = find(start)
    accepted = 0 if library is None else sum(r.script == run.manifest.script for r in read_record(library).runs)
    if accepted < ENOUGH:
        remark(f"to check later runs against this one, accept it: traincheck accept {run.path}")


def import_report_modules() -> None:
    """Import the modules of the reports while the program starts, so that nobody waits for them at its end.

    Raises nothing: a missing package raises where it is used.
    """
    with suppress(Exception):
        import traincheck.checking.finding_details
        import traincheck.checking.results
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
    """Write the report of a run folder into each of the files. Raises OutputError."""
    from traincheck.reporting.json_report import write_json

    for path in json_files:
        write_json(report, path)
    if html_files:
        part = part_of_page(folder, report, verdicts)
        for path in html_files:
            write_page([part], path)


def part_of_page(folder: Path, report: Report, verdicts: Sequence[tuple[Invariant, str]], name: str = "") -> PageRun:
    """The part of the page about one run, with the details of its findings that the folder holds."""
    from traincheck.checking.finding_details import finding_details
    from traincheck.reporting.html.run_section import PageRun

    return PageRun(report, verdicts, finding_details(folder, report, [rule for rule, _ in verdicts]), name)


def write_page(parts: Sequence[PageRun], path: Path) -> None:
    """Write the page of one or several runs. Raises OutputError."""
    from traincheck.reporting.html.sink import render_page

    render_page(parts, path)


def names_of(runs: Sequence[Path]) -> list[str]:
    """A name for each run folder: its last part, or as many parts of its path as make it unique."""
    paths = [run.absolute() for run in runs]
    longest = max(len(path.parts) for path in paths)
    for length in range(1, longest + 1):
        names = [str(Path(*path.parts[-length:])) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return [str(path) for path in paths]


def show_summary(report: Report, files: Sequence[Path], is_result: bool = True) -> None:
    """Print the report for people: verdict, findings, counts, and the files.

    The summary goes to stdout as the command's result, to stderr where stdout belongs to a program or to JSON.
    """
    from rich.console import Console

    from traincheck.reporting.terminal import TerminalSink

    console = Console(stderr=not is_result or STDOUT in files, highlight=False)
    TerminalSink(console, [path for path in files if path != STDOUT]).close(report)
