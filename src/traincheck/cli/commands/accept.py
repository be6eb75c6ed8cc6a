"""`traincheck accept`: add a good run to the library of the project."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from traincheck import config as configs
from traincheck.cli import flags
from traincheck.cli.console import Progress, amount, out, remark, say
from traincheck.config import Config
from traincheck.errors import BadOption, NoBook
from traincheck.options import OPTIONS

if TYPE_CHECKING:
    from traincheck.inference.accept_run import Acceptance
    from traincheck.inference.tally import Key
    from traincheck.invariants.book import Book
    from traincheck.vocab.finding import Finding

EPILOG = """\b
Examples:
  traincheck accept traincheck-runs/train-20260101-120000
  traincheck accept runs/a runs/b --reason "reproduces the published accuracy"
  traincheck accept runs/new-schedule --reason "the schedule was changed on purpose"
  traincheck accept runs/new-schedule --only rate-takes-new-course --reason "longer warmup"

The library is the folder .traincheck of the project: a book, the counts of the accepted runs, and when and why you
accepted them. It is small; commit it with the code. `traincheck run` and `check` use it together with the packs, but
skip rules of packs that an accepted run breaks. `traincheck status` summarises it. A run that `traincheck collect`
recorded teaches more than a checked run. `traincheck status RUN` shows what would change.

Exit codes: 0 accepted, 2 not accepted or wrong usage, 1 TrainCheck failed.
"""


def command(
    runs: flags.RunFolders,
    reason: flags.ReasonAccepted = None,
    only: flags.Only = None,
    library: flags.Library = None,
) -> None:
    """Accept good runs and learn from them.

    TrainCheck then checks later runs against their behaviour. A run that failed or has findings needs a reason.
    """
    config = configs.load({}, os.environ, Path.cwd())
    raise typer.Exit(accept(runs, library, config, reason or "", tuple(only or ())))


def accept(
    runs: Sequence[Path],
    library: Path | None,
    config: Config,
    reason: str = "",
    only: Sequence[str] = (),
    *,
    preview: bool = False,
) -> int:
    """Accept the runs, and report the changes. A `preview` reports what would change, and writes nothing."""
    from traincheck.inference.accept_run import accept as add_to_library
    from traincheck.invariants.library import library_path
    from traincheck.invariants.packs import book_of_packs, read_packs
    from traincheck.runtime.launching.rule_selection import packs_of

    home = library if library is not None else library_path(Path.cwd())
    if home.exists() and not home.is_dir():
        raise BadOption(OPTIONS["library"].flag, str(home), "a folder; this is a file")
    without: dict[Path, frozenset[Key]] = {}
    changed: set[Path] = set()
    for run in runs:
        checked = _check(run, config)
        doubts = "; ".join((*_ended_badly(run), *checked.untrained, *(() if only else checked.errors)))
        if doubts and not (reason or preview):
            raise BadOption(
                "accept", str(run), f"a good run, but: {doubts}. To accept it nevertheless, give the --reason"
            )
        if doubts:
            remark(f"accepting {run} although: {doubts}")
        if checked.findings and (reason or only or preview):
            changed.add(run)
        if only:
            without[run] = _subjects_of_others(run, checked, only)
    packs = book_of_packs([read_packs(address) for address in packs_of(config)])
    with Progress() as progress:
        why = reason or (f"only {', '.join(only)}" if only else "")
        acceptance = add_to_library(
            runs,
            home,
            why,
            progress,
            packs.active,
            changed=changed,
            only=only,
            without=without,
            write=not preview,
        )
    _report(acceptance, home, preview=preview)
    return 0


class _Checked(NamedTuple):
    """What a check of a run says: the book, the findings, the errors among them in words, and that the run trained
    nothing."""

    book: Book | None
    findings: tuple[Finding, ...] = ()
    errors: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()


def _check(run: Path, config: Config) -> _Checked:
    from traincheck.checking.offline import check_folder
    from traincheck.runtime.launching.program_identity import CheckedProgram
    from traincheck.runtime.launching.rule_selection import rules_of
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.invariant import ERROR

    manifest = RunFolder.open(run).manifest
    try:
        book = rules_of(config).book(CheckedProgram.of_run(manifest, config), or_nothing=True)
        report = check_folder(run, book).report
    except NoBook:
        return _Checked(None)
    errors = (f"step {finding.step}: {finding.title}" for finding in report.findings if finding.severity == ERROR)
    return _Checked(book, tuple(report.findings), tuple(errors), (report.untrained,) if report.untrained else ())


def _ended_badly(run: Path) -> Iterator[str]:
    """Whether the program of the run failed."""
    from traincheck.trace.folder import RunFolder

    manifest = RunFolder.open(run).manifest
    if manifest.exit_code:
        yield f"the program ended with exit code {manifest.exit_code}"
    elif not manifest.ended and manifest.script:
        yield "it has not ended, or was killed"


def _subjects_of_others(run: Path, checked: _Checked, only: Sequence[str]) -> frozenset[Key]:
    """The subjects of the rules in findings with other diagnoses. Raises BadOption for one that no finding has."""
    identities = {finding.identity for finding in checked.findings}
    for diagnosis in only:
        if diagnosis not in identities:
            known = f"one of {', '.join(sorted(identities))}" if identities else "no diagnosis, as it has no finding"
            raise BadOption(OPTIONS["only"].flag, diagnosis, f"a diagnosis of a finding in {run}: {known}")
    ids = {rule for finding in checked.findings if finding.identity not in only for rule in finding.invariants}
    rules = checked.book.invariants if checked.book is not None else ()
    return frozenset((rule.relation, rule.subject) for rule in rules if rule.id in ids)


MAX_LINES = 8
"""Lines shown of what a set has gained, or no longer always has."""


def _report(acceptance: Acceptance, home: Path, *, preview: bool) -> None:
    from traincheck.invariants.diff import changed_sets

    for line in acceptance.remarks:
        remark(line)
    for run in acceptance.runs:
        part = f", only {', '.join(run.only)}" if run.only else ""
        out(f"{'would accept' if preview else 'accepted'} {run.script}: {amount(run.steps, 'step')}{part}")
    difference = acceptance.difference
    sets = {changed.before: changed for changed in changed_sets(difference)}
    added, removed = len(difference.only_in_b) - len(sets), len(difference.only_in_a) - len(sets)
    rules = amount(len(acceptance.book.invariants), "rule")
    out(f"{home}: {rules}; {added} added, {removed} removed, {len(difference.changed) + len(sets)} changed")
    for rule in difference.only_in_a:
        if rule not in sets:
            say(f"  removed: {rule.severity}: {rule.sentence}")
    for rule, changed in sets.items():
        say(f"  changed: {rule.severity}: {rule.sentence}")
        for sign, lines in (("+", changed.new), ("-", changed.no_longer_required)):
            for line in lines[:MAX_LINES]:
                say(f"    {sign} {line}")
            if len(lines) > MAX_LINES:
                say(f"    {sign} and {len(lines) - MAX_LINES} more")
    for rule in acceptance.muted:
        say(f"  not checked any more, because {rule.mute}: {rule.severity}: {rule.sentence}")
    for rule in acceptance.unmuted:
        remark(f"the muted {rule.id} ({rule.sentence}) is not in the new book; its reason was: {rule.mute}")
    for run in acceptance.let_go:
        remark(f"removed the accepted run of {run.script} of {run.date}; the library keeps the newest ones")
