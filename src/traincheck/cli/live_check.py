"""Checks the folder of a run again and again until the run has ended, for `traincheck-onlinecheck`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from traincheck.cli import report_output
from traincheck.cli.console import exit_code, remark
from traincheck.config import Config
from traincheck.errors import RunFolderEmpty, RunFolderNotFound
from traincheck.invariants.book import Book


def follow(
    run: Path, config: Config, pause: float, output: Path | None = None, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Check `run` every `pause` seconds until it has ended, and show each new finding; the exit code.

    With a pause of 0 it is checked once, as it is now. Otherwise a missing or empty folder is waited for.
    Known limitations: each check reads the whole recording again.
    """
    from rich.console import Console

    from traincheck.checking.notifier import Notifier
    from traincheck.checking.offline import check_folder
    from traincheck.reporting.terminal import TerminalSink
    from traincheck.runtime.launching.program_identity import CheckedProgram
    from traincheck.runtime.launching.rule_selection import rules_of
    from traincheck.trace.folder import RunFolder

    rules = rules_of(config)
    book: Book | None = None
    notifier = Notifier(TerminalSink(Console(stderr=True, highlight=False)).show)
    remark(f"watching {run}")
    while True:
        last = pause == 0 or has_ended(run)  # before the check, so that nothing written during it is missed
        try:
            if book is None:
                manifest = RunFolder.open(run).manifest
                book = rules.book(CheckedProgram.of_run(manifest, config))
            checked = check_folder(run, book)
        except (RunFolderEmpty, RunFolderNotFound):
            if last:
                raise
        else:
            notifier.notify(checked.report.findings)
            if last:
                break
        sleep(pause)
    files = [output / report_output.JSON_NAME, output / report_output.HTML_NAME] if output else []
    report_output.write_reports(run, checked.report, checked.verdicts, files[:1], files[1:])
    report_output.show_summary(checked.report, files)
    return exit_code(checked.report, config.fail_on)


def has_ended(run: Path) -> bool:
    """Whether the run has ended, by the note of the command that started it or by those of all its processes."""
    from traincheck.trace.folder import RunFolder

    try:
        folder = RunFolder.open(run)
    except (RunFolderEmpty, RunFolderNotFound):
        return False
    notes = folder.notes()
    return bool(folder.manifest.ended) or (bool(notes) and all(note.ended for note in notes))
