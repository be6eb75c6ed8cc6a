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
"""Steps before the first violation, and after it, that are shown: what was so before, and that it goes on."""

MOST_SHOWN = 10
"""Findings that are shown with their steps; further ones are most often echoes, and each takes a look at the files."""

MOST_RANKS = 64
"""Ranks whose recordings are read for a finding about several."""

MOST_BYTES = 1 << 30
"""Bytes of recordings that are read for all findings: some seconds at the end of a run."""

ABOVE = 4
"""Folders above the run folder that may be the one in which the program was started."""


def exhibits(folder: Path, report: Report, rules: Sequence[Invariant] = ()) -> tuple[FindingDetails, ...]:
    """What each finding of the report of a run folder is shown with, in their order.

    `rules` are those that were deployed. Nothing is raised for what cannot be read: it is told with the finding.
    """
    try:
        run = RunFolder.open(folder)
        manifest = run.manifest
    except TrainCheckError as error:
        return tuple(FindingDetails(note=str(error)) for _ in report.findings)
    by_id = {rule.id: rule for rule in rules}
    shown = _Shown(run, by_id)
    roots = _roots(folder)
    return tuple(
        _exhibit(finding, shown if index < MOST_SHOWN else None, manifest, folder, report, roots)
        for index, finding in enumerate(report.findings)
    )


def _roots(folder: Path) -> list[Path]:
    """Folders in which the program may have been started: the one that we are in, and those above the run folder."""
    try:
        return [Path(), *folder.absolute().parents[:ABOVE]]
    except OSError:  # the folder that we are in was deleted
        return [Path()]


def _exhibit(
    finding: Finding, shown: _Shown | None, manifest: Manifest, folder: Path, report: Report, roots: Sequence[Path]
) -> FindingDetails:
    code = excerpt(finding.site, report.run, manifest.script_digest, roots) if finding.site else None
    mute = mute_command(finding, manifest.books, folder)
    if shown is None:
        return FindingDetails(code, mute=mute)
    try:
        return shown.exhibit(finding, FindingDetails(code, mute=mute))
    except TrainCheckError as error:
        reason = str(error)
    except Exception as error:  # whatever it is: a report is not lost for want of its pictures
        reason = f"{type(error).__name__}: {error}"
    return FindingDetails(code, mute=mute, note=redaction.text(reason))


def mute_command(finding: Finding, books: Sequence[str], folder: Path) -> str:
    """The command that mutes the rules behind a finding, empty where none is known: in the book that was named, or
    in the one that the run folder keeps, which holds the rules of several."""
    if not finding.invariants:
        return ""
    book = books[0] if len(books) == 1 else str(folder / BOOK_FILE)
    words = ["traincheck", "mute", book, *finding.invariants, "--reason", "why it is right here"]
    return redaction.text(shlex.join(words))


class _Shown:
    """Looks findings up in the recordings of a run, as long as these are not too large."""

    def __init__(self, run: RunFolder, rules: Mapping[str, Invariant]) -> None:
        self._run = run
        self._rules = rules
        self._left = MOST_BYTES

    def exhibit(self, finding: Finding, sofar: FindingDetails) -> FindingDetails:
        """`sofar` with what the steps around the finding show. Raises RunFolderError."""
        mark = max(finding.step, 0)
        files = self._files(finding)
        self._left -= sum(map(bytes_of, files.values()))
        if self._left < 0:
            return replace(sofar, note="the recordings are too large to be read for this page")
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
                pass  # what is left of them is seen as well
        pictures = (of_ranks(holds, mark), own.history())
        histories = tuple(history for history in pictures if history is not None)
        curves = own.curves()
        note = "" if histories or curves else "the recording tells nothing of parameters in the steps around it"
        return replace(sofar, histories=histories, curves=curves, agreement=agreement(holds, mark), note=note)

    def _files(self, finding: Finding) -> dict[int, Path]:
        """The recordings to look in, by rank: of a finding about several ranks those that differ and some others."""
        if finding.compared:
            job = next((job for job in self._run.jobs() if set(finding.ranks) <= set(job.files)), None)
            if job is not None:
                ranks = [*finding.ranks, *(rank for rank in sorted(job.files) if rank not in finding.ranks)]
                return {rank: job.files[rank] for rank in sorted(ranks[:MOST_RANKS])}
        files = self._run.event_files_of(finding.rank)
        # Of several processes of one rank the one that trains has written most.
        return {finding.rank: max(files, key=bytes_of)} if files else {}


def _around(file: Path, mark: int) -> Iterator[Window]:
    from traincheck.trace.reader import read_steps  # it takes a while, and a report without findings needs none

    return read_steps(file, max(mark - BEFORE, 1), mark + AFTER)


def _seen_by(surroundings: Surroundings, windows: Iterator[Window]) -> Iterator[Window]:
    for window in windows:
        surroundings.add(window)
        yield window
