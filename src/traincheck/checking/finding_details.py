"""Collects the details of findings from the run folder: code, the steps around them, ranks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from traincheck import redaction
from traincheck.checking.code_excerpts import excerpt
from traincheck.checking.parameter_history import Surroundings
from traincheck.checking.rank_agreement import agreement, held, of_ranks
from traincheck.errors import TrainCheckError
from traincheck.trace.folder import RunFolder, bytes_of
from traincheck.trace.format import BOOK_FILE
from traincheck.trace.run_notes import Manifest
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.finding_details import FindingDetails
from traincheck.vocab.invariant import Invariant

BEFORE, AFTER = 5, 14
"""Steps shown before the first violation and after it."""

MAX_SHOWN = 10
"""Findings that are shown with their steps. Later findings are mostly consequences, and each costs a read of files."""

MAX_RANKS = 64
"""Ranks whose recordings are read for a finding about several."""

MAX_BYTES = 1 << 30
"""Bytes of recordings that are read for all findings together; they take some seconds at the end of a run."""

ABOVE = 4
"""Folders above the run folder that may be the one in which the program was started."""


def finding_details(folder: Path, report: Report, rules: Sequence[Invariant] = ()) -> tuple[FindingDetails, ...]:
    """Return the details of each finding in the report of a run folder, in the order of the report.

    `rules` are the deployed rules. Unreadable files raise no error: a note in the details names them.
    """
    try:
        run = RunFolder.open(folder)
        manifest = run.manifest
    except TrainCheckError as error:
        return tuple(FindingDetails(note=str(error)) for _ in report.findings)
    by_id = {rule.id: rule for rule in rules}
    recordings = _Recordings(run, by_id)
    roots = roots_of(folder)
    return tuple(
        _details_of(finding, recordings if index < MAX_SHOWN else None, manifest, folder, report, roots)
        for index, finding in enumerate(report.findings)
    )


def roots_of(folder: Path) -> list[Path]:
    """Return folders in which the program may have been started: the current folder, and those above the run folder."""
    try:
        return [Path(), *folder.absolute().parents[:ABOVE]]
    except OSError:  # the current folder was deleted
        return [Path()]


def _details_of(
    finding: Finding,
    recordings: _Recordings | None,
    manifest: Manifest,
    folder: Path,
    report: Report,
    roots: Sequence[Path],
) -> FindingDetails:
    code = excerpt(finding.site, report.run, manifest.script_digest, roots) if finding.site else None
    mute = mute_command(finding, manifest.books, folder)
    if recordings is None:
        return FindingDetails(code, mute=mute)
    try:
        return recordings.add_steps(finding, FindingDetails(code, mute=mute))
    except TrainCheckError as error:
        reason = str(error)
    except Exception as error:  # of any kind: a report without pictures is better than none
        reason = f"{type(error).__name__}: {error}"
    return FindingDetails(code, mute=mute, note=redaction.text(reason))


def mute_command(finding: Finding, books: Sequence[str], folder: Path) -> str:
    """Return the command that mutes the rules of a finding, or an empty text if it names no rules.

    The command mutes them in the only book of the run, or in the merged book of the run folder.
    """
    if not finding.invariants:
        return ""
    book = books[0] if len(books) == 1 else str(folder / BOOK_FILE)
    words = ["traincheck", "mute", book, *finding.invariants, "--reason", "why it is right here"]
    return redaction.text(shlex.join(words))


class _Recordings:
    """The recordings of a run, read around findings until `MAX_BYTES` are used up."""

    def __init__(self, run: RunFolder, rules: Mapping[str, Invariant]) -> None:
        self._run = run
        self._rules = rules
        self._left = MAX_BYTES

    def add_steps(self, finding: Finding, details: FindingDetails) -> FindingDetails:
        """Return `details` with pictures of the steps around the finding. Raises RunFolderError."""
        mark = max(finding.step, 0)
        files = self._files(finding)
        self._left -= sum(map(bytes_of, files.values()))
        if self._left < 0:
            return replace(details, note="the recordings are too large to be read for this page")
        own = Surroundings(mark, finding.variables)
        rule = self._rules.get(finding.invariants[0]) if finding.invariants else None
        holds = {}
        for rank, file in files.items():
            windows = _around(file, mark)
            if rank == finding.rank:
                windows = _seen_by(own, windows)
            if finding.compared:
                holds[rank] = held(windows, finding, rule)
            for _ in windows:
                pass  # `own` sees the remaining windows, too
        pictures = (of_ranks(holds, mark), own.history())
        histories = tuple(history for history in pictures if history is not None)
        curves = own.curves()
        note = "" if histories or curves else "the recording holds nothing about parameters in the steps around it"
        return replace(details, histories=histories, curves=curves, agreement=agreement(holds, mark), note=note)

    def _files(self, finding: Finding) -> dict[int, Path]:
        """Return the recordings to read, by rank. A finding about several ranks adds some ranks that do not differ."""
        if finding.compared:
            job = next((job for job in self._run.jobs() if set(finding.ranks) <= set(job.files)), None)
            if job is not None:
                ranks = [*finding.ranks, *(rank for rank in sorted(job.files) if rank not in finding.ranks)]
                return {rank: job.files[rank] for rank in sorted(ranks[:MAX_RANKS])}
        files = self._run.event_files_of(finding.rank)
        # If a rank has several processes, the training process has the largest file.
        return {finding.rank: max(files, key=bytes_of)} if files else {}


def _around(file: Path, mark: int) -> Iterator[Window]:
    from traincheck.trace.reader import read_steps  # slow to import, and not needed without findings

    return read_steps(file, max(mark - BEFORE, 1), mark + AFTER)


def _seen_by(surroundings: Surroundings, windows: Iterator[Window]) -> Iterator[Window]:
    for window in windows:
        surroundings.add(window)
        yield window
