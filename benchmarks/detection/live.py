"""Runs both programs of a case under `traincheck run` and compares the live findings with offline ones.

The book is that of a typical team: the examples' book together with that of earlier runs of this program. The rules for
recordings judge the report. It is compared with two offline checks. The check of the run's own recording must agree
with it. The benchmark's full recording holds values of only some calls and steps, so the live report must contain the
findings of its check, and may contain more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.detection.books import TWIN
from benchmarks.detection.cases import BUGGY, CLEAN, VARIANTS, Case
from benchmarks.detection.judging import judge, missing_groups, things_of, violated
from benchmarks.detection.recordings import TIMEOUT, Program, ProgramFailed, programs_of
from benchmarks.detection.runs import RecordingOptions, recordings_of, twin_book
from traincheck.checking.offline import check_folder
from traincheck.cli.console import FINDINGS
from traincheck.cli.report_output import JSON_NAME
from traincheck.invariants.book import Book, read_books, write_book
from traincheck.reporting.json_report import read_json
from traincheck.trace.folder import RunFolder
from traincheck.vocab.finding import Report


@dataclass(frozen=True)
class Watched:
    """A program that was run under `traincheck run`.

    `seconds` is what all of it took. `lines` are what was written to stderr, each with the time it came; `last_event`
    is the time at which a rank last wrote to its recording.
    """

    folder: Path
    report: Report
    seconds: float
    lines: tuple[tuple[float, str], ...]
    last_event: float

    @property
    def before_the_end(self) -> float | None:
        """Seconds from the report of the leading finding to the last event of a rank; negative if it came too late."""
        if not self.report.findings:
            return None
        leading = self.report.findings[0]
        says = re.compile(rf"TrainCheck {leading.severity.upper()} at step {leading.step}\b")
        first = next((when for when, line in self.lines if says.match(line)), None)
        return None if first is None else round(self.last_event - first, 2)


def run_live(case: Case, recording_options: RecordingOptions, book_file: Path) -> dict[str, Any]:
    """A case run live: the row of the table. Raises ProgramFailed."""
    home = recording_options.runs / case.folder.name
    programs = programs_of(case, recording_options.runs)
    recordings = recordings_of(case, programs, recording_options)
    book_files = [book_file, home / f"{TWIN}.jsonl"]
    write_book(twin_book(recordings), book_files[1])
    book = read_books(book_files)
    seen = {which: watch(programs[which], book_files, home / f"live-{which}") for which in VARIANTS}
    return row_of(case, seen, {which: recordings[which].folder for which in VARIANTS}, book)


def row_of(case: Case, seen: Mapping[str, Watched], recorded_in: Mapping[str, Path], book: Book) -> dict[str, Any]:
    """The row of a case whose programs were `seen`; `recorded_in` are the folders of their full recordings."""
    buggy, clean = seen[BUGGY].report, seen[CLEAN].report
    leading = buggy.findings[0] if buggy.findings else None
    recorded, recorded_clean = (check_folder(recorded_in[which], book).report for which in (BUGGY, CLEAN))
    return {
        "id": case.id,
        "part": case.part,
        "title": case.title,
        "source": case.source,
        "ranks": case.ranks,
        "first_bad_step": case.first_bad_step,
        "live": asdict(judge(case, buggy, book, violated(clean))),
        "offline": asdict(judge(case, recorded, book, violated(recorded_clean))),
        "unlike_its_recording": differing_findings(buggy, check_folder(seen[BUGGY].folder, book).report),
        "not_reported_live": sorted(finding_texts(recorded) - finding_texts(buggy)),
        "ranks_named": list(leading.ranks) if leading else [],
        "ranks_lacking": sorted(set(case.at_fault or range(case.ranks)) - set(leading.ranks)) if leading else [],
        "things_lacking": [
            list(group) for group in missing_groups(case.concerns, things_of(leading) if leading else "")
        ],
        "clean": [finding.title for finding in clean.findings],
        "not_observed": sorted({*buggy.not_observed, *clean.not_observed}),
        "before_the_end": seen[BUGGY].before_the_end,
        "seconds": {which: round(watched.seconds, 1) for which, watched in seen.items()},
    }


def watch(program: Program, books: Sequence[Path], folder: Path) -> Watched:
    """Run a program under `traincheck run` with these books. Raises ProgramFailed."""
    shutil.rmtree(folder, ignore_errors=True)
    options = [word for book in books for word in ("--book", str(book.resolve()))]
    options += ["--record", "all"]  # the recording is checked, too
    command = [sys.executable, "-m", "traincheck", "run", "-o", str(folder.resolve()), *options, *program.target]
    lines: list[tuple[float, str]] = []
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as own:
        running = subprocess.Popen(
            command,
            cwd=program.home,
            stdout=own,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **dict(program.env)},
        )
        end = threading.Timer(TIMEOUT, running.kill)
        end.start()
        try:
            assert running.stderr is not None
            lines.extend((time.time(), line.rstrip("\n")) for line in running.stderr)
            code = running.wait()
        finally:
            end.cancel()
        own.seek(0)
        if code not in (0, FINDINGS):
            raise ProgramFailed(program.name, own.read() + "\n".join(line for _, line in lines))
    return Watched(
        folder,
        read_json(folder / JSON_NAME),
        time.perf_counter() - began,
        tuple(lines),
        last_event(RunFolder.open(folder)),
    )


def last_event(run: RunFolder) -> float:
    """When a rank last wrote to its recording. (The launcher has one, too, which ends later.)"""
    return max((file.stat().st_mtime for job in run.jobs() for file in job.files.values()), default=0.0)


def differing_findings(first: Report, other: Report) -> list[str]:
    """Return the findings, as text, that only one of two reports on a run contains."""
    return sorted(finding_texts(first) ^ finding_texts(other))


def finding_texts(report: Report) -> set[str]:
    return {
        f"{finding.severity} at step {finding.step} on rank {finding.rank}: {finding.title}: {finding.observed}: "
        f"{', '.join(finding.variables)}"
        for finding in report.findings
    }
