"""Following: check a run that is going on from outside, by looking at its run folder now and then."""

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
    """Check `run` every `pause` seconds until it has ended, telling each finding when it is first seen; the exit code.

    With a pause of 0 it is looked at once, and what can be said of it now is said. A folder that is not there yet, or
    that holds nothing yet, is waited for. Known limitations: each look reads the whole recording again.
    """
    from rich.console import Console

    from traincheck.checking.notifier import Teller
    from traincheck.checking.offline import check_folder
    from traincheck.reporting.terminal import TerminalSink
    from traincheck.runtime.launching.program_identity import CheckedProgram
    from traincheck.runtime.launching.rule_selection import rules_of
    from traincheck.trace.folder import RunFolder

    rules = rules_of(config)
    book: Book | None = None
    teller = Teller(TerminalSink(Console(stderr=True, highlight=False)).show)
    remark(f"watching {run}")
    while True:
        last = pause == 0 or has_ended(run)  # asked first, so that what is written meanwhile is not missed
        try:
            if book is None:
                manifest = RunFolder.open(run).manifest
                book = rules.book(CheckedProgram.of_run(manifest, config))
            checked = check_folder(run, book)
        except (RunFolderEmpty, RunFolderNotFound):
            if last:
                raise
        else:
            teller.tell(checked.report.findings)
            if last:
                break
        sleep(pause)
    files = [output / report_output.JSON_NAME, output / report_output.HTML_NAME] if output else []
    report_output.write_reports(run, checked.report, checked.verdicts, files[:1], files[1:])
    report_output.show_summary(checked.report, files)
    return exit_code(checked.report, config.fail_on)


def has_ended(run: Path) -> bool:
    """Whether the run has ended: said by the command that started it, or by all of the processes that were seen."""
    from traincheck.trace.folder import RunFolder

    try:
        folder = RunFolder.open(run)
    except (RunFolderEmpty, RunFolderNotFound):
        return False
    notes = folder.notes()
    return bool(folder.manifest.ended) or (bool(notes) and all(note.ended for note in notes))
