"""`traincheck accept`: take a run as known good into the library of the project."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traincheck import config as configs
from traincheck.cli import flags
from traincheck.cli.console import Progress, amount, out, remark, say
from traincheck.config import Config
from traincheck.errors import BadOption, NoBook
from traincheck.options import OPTIONS

if TYPE_CHECKING:
    from traincheck.inference.accept_run import Acceptance

EPILOG = """\b
Examples:
  traincheck accept traincheck-runs/train-20260101-120000
  traincheck accept runs/a runs/b --reason "reproduces the published accuracy"
  traincheck accept runs/new-schedule --anyway --reason "the schedule was changed on purpose"

The library is the folder .traincheck of the project: a book, what was counted of the accepted runs, and which were
accepted when and why. It is small; commit it with the code. `traincheck run` and `check` use it together with the
packs, `traincheck status` tells what is in it. What `traincheck collect` records of a run shows more than a check does.

Exit codes: 0 accepted, 2 not accepted or wrong usage, 1 TrainCheck failed.
"""


def command(
    runs: flags.RunFolders,
    reason: flags.ReasonAccepted = None,
    anyway: flags.Anyway = False,
    library: flags.Library = None,
) -> None:
    """Take runs as known good, and learn from them.

    What they show is expected of later runs.
    """
    config = configs.load({}, os.environ, Path.cwd())
    raise typer.Exit(accept(runs, library, config, reason or "", anyway))


def accept(runs: Sequence[Path], library: Path | None, config: Config, reason: str = "", anyway: bool = False) -> int:
    """Accept the runs, and say what that changed."""
    from traincheck.inference.accept_run import accept as take
    from traincheck.invariants.library import place_of

    home = library if library is not None else place_of(Path.cwd())
    if home.exists() and not home.is_dir():
        raise BadOption(OPTIONS["library"].flag, str(home), "a folder, and this is a file")
    for run in runs:
        told = "; ".join(_against(run, config))
        if told and not anyway:
            raise BadOption(
                "accept", str(run), f"a run that is good, and of this one is known: {told}. If it is, say --anyway"
            )
        if told:
            remark(f"{run} is accepted although: {told}")
    with Progress() as progress:
        done = take(runs, home, reason, progress)
    _tell(done, home)
    return 0


def _against(run: Path, config: Config) -> Iterator[str]:
    """What speaks against taking the run as good."""
    from traincheck.checking.offline import check_folder
    from traincheck.runtime.launching.program_identity import CheckedProgram
    from traincheck.runtime.launching.rule_selection import rules_of
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.invariant import ERROR

    manifest = RunFolder.open(run).manifest
    if manifest.exit_code:
        yield f"the program ended with exit code {manifest.exit_code}"
    elif not manifest.ended and manifest.script:
        yield "it goes on, or was killed"
    try:
        book = rules_of(config).book(CheckedProgram.of_run(manifest, config), or_nothing=True)
        report = check_folder(run, book).report
    except NoBook:
        return
    if report.untrained:
        yield report.untrained
    yield from (f"step {one.step}: {one.title}" for one in report.findings if one.severity == ERROR)


def _tell(done: Acceptance, home: Path) -> None:
    for line in done.remarks:
        remark(line)
    for run in done.runs:
        out(f"accepted {run.script}: {amount(run.steps, 'step')}")
    found = done.difference
    came, went, changed = len(found.only_in_b), len(found.only_in_a), len(found.changed)
    out(f"{home}: {amount(len(done.book.invariants), 'rule')}; {came} came, {went} went, {changed} changed")
    for rule in found.only_in_a:
        say(f"  went: {rule.severity}: {rule.sentence}")
    for rule in done.unmuted:
        remark(f"the muted {rule.id} ({rule.sentence}) is not in the new book; its reason was: {rule.mute}")
    for run in done.let_go:
        remark(f"the run of {run.script} of {run.date} was let go of: newer ones of it are enough")
