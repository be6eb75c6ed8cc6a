"""Work of the benchmark's processes: record and tally an example, record and judge a case."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.baselines.comparison import compare
from benchmarks.detection.books import EXAMPLES, TWIN
from benchmarks.detection.cases import BUGGY, CLEAN, Case
from benchmarks.detection.judging import judge
from benchmarks.detection.recordings import Program, Recording, programs_of, record
from benchmarks.tally_verdicts import outcomes_on
from traincheck.checking.offline import check_folder_against
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.learn import tally_folder
from traincheck.inference.tally import Tally
from traincheck.invariants.book import Book, read_book


@dataclass(frozen=True)
class RecordingOptions:
    """The folder and the options of recordings (see `record`), and whether twins are recorded."""

    runs: Path
    reuse: bool
    cold: bool
    twins: bool


@dataclass
class Learned:
    """An example that was recorded: its tally and the seconds it took."""

    name: str
    tally: Tally
    seconds: float


@dataclass
class Run:
    """The result of a case: the row of the table, the tally of its clean run, the book of its twins, if any."""

    row: dict[str, Any]
    clean: Tally
    twin: Book | None


def recorded_example(program: Program, recording_options: RecordingOptions) -> Learned:
    """An example, recorded and tallied."""
    recording = record(
        program,
        recording_options.runs / EXAMPLES / program.name,
        reuse=recording_options.reuse,
        cold=recording_options.cold,
    )
    return Learned(program.name, tally_folder(recording.folder), recording.seconds)


def run_case(case: Case, recording_options: RecordingOptions, book_file: Path, baselines: bool) -> Run:
    """A case: its programs recorded, the book of its twins learned, both books judged."""
    programs = programs_of(case, recording_options.runs)
    recordings = recordings_of(case, programs, recording_options)
    books = {EXAMPLES: read_book(book_file)}
    if recording_options.twins:
        books[TWIN] = twin_book(recordings)
    clean = tally_folder(recordings[CLEAN].folder)
    began = time.perf_counter()
    verdicts = {}
    checks = check_folder_against(recordings[BUGGY].folder, list(books.values()))
    for (name, book), checked in zip(books.items(), checks, strict=True):
        already_failing = {rule.id for rule in outcomes_on(book, clean).failed}
        verdicts[name] = asdict(judge(case, checked.report, book, already_failing))
    row = {
        "id": case.id,
        "part": case.part,
        "where": case.where,
        "title": case.title,
        "source": case.source,
        "ranks": case.ranks,
        "first_bad_step": case.first_bad_step,
        "untaught": case.untaught.strip(),
        "seconds": {which: round(recording.seconds, 1) for which, recording in recordings.items()},
        "check_seconds": round(time.perf_counter() - began, 1),
        "baselines": asdict(compare(programs[BUGGY], programs[CLEAN], programs["twin1"])) if baselines else {},
        "books": verdicts,
    }
    return Run(row, clean, books.get(TWIN))


def recordings_of(
    case: Case, programs: Mapping[str, Program], recording_options: RecordingOptions
) -> dict[str, Recording]:
    """The recordings of a case's programs, without those of its twins unless `recording_options.twins` is set."""
    home = recording_options.runs / case.folder.name
    return {
        which: record(program, home / which, reuse=recording_options.reuse, cold=recording_options.cold)
        for which, program in programs.items()
        if recording_options.twins or not which.startswith(TWIN)
    }


def twin_book(recordings: Mapping[str, Recording]) -> Book:
    """The book of those recordings of a case that are of its twins."""
    book, _ = select_rules(
        [tally_folder(recording.folder) for which, recording in recordings.items() if which.startswith(TWIN)]
    )
    return book
