"""`traincheck verify`: run some steps of a program, compute each of them in a second way, and compare."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traincheck import config as configs
from traincheck import plugins
from traincheck.cli import flags, program_run, report_output
from traincheck.cli.console import FINDINGS, UNJUDGED, out, remark
from traincheck.config import Budget, Config
from traincheck.errors import BadOption
from traincheck.options import AROUND_FINDINGS, OFF, OPTIONS
from traincheck.runtime.launching.command_target import Target

if TYPE_CHECKING:
    from traincheck.cli.program_run import Recording
    from traincheck.invariants.book import Book
    from traincheck.vocab.finding import Report

STEPS = 20
"""Steps of a run by default: enough for an optimizer's state and a few evaluations, and a minute for most programs."""

EPILOG = """\b
Examples:
  traincheck verify train.py --lr 1e-3
  traincheck verify --steps 5 -m package.train
  traincheck verify --json train.py | jq .verification
  traincheck verify -- torchrun --nproc-per-node 2 train.py

Each process of the program ends before the update after step N. Finally blocks run; code behind the loop does not.
With --json the program's own output goes to stderr. docs/verification.md explains the table.

\b
Exit codes: 0 nothing wrong found, 3 errors, 2 nothing could be verified or
wrong usage, 1 TrainCheck failed; else that of your program when it fails.
"""


@flags.shared_options("runs")
def command(
    target: flags.Words = None,
    steps: flags.StepsToVerify = None,
    as_json: flags.AsJson = False,
    run_folder: flags.RunFolder = None,
    **options: Any,
) -> None:
    """Verify some steps of a program, before a long run.

    TrainCheck computes updates, gradients and outputs in a second way, and compares. It needs no good run.
    """
    if steps is not None and steps < 1:
        raise BadOption(OPTIONS["steps"].flag, steps, OPTIONS["steps"].expected)
    config = configs.load(options, os.environ, Path.cwd())
    raise typer.Exit(verify(Target.parse(target or ()), config, steps or STEPS, run_folder, as_json=as_json))


def verify(
    target: Target, config: Config, steps: int = STEPS, run_folder: Path | None = None, *, as_json: bool = False
) -> int:
    """Run `steps` steps of the program with every experiment in each, and report; the exit code."""
    plugins.check("traincheck.relations")
    target.check(os.environ)
    config = replace(
        config,
        books=(),
        verify_every=1,
        budget=Budget(),
        on_violation="warn",
        callback="",
        record=AROUND_FINDINGS,
        record_after_finding=0,
        snapshot=False,
        compare_ranks=OFF,
        fail_on="error",
    )
    book = _book()
    recording = program_run.record(
        target, config, run_folder, book, os.environ, last_step=steps, output_to_stderr=as_json
    )
    return _conclude(recording, book, steps, as_json=as_json)


def _book() -> Book:
    """The rules that need no good run: those about verified steps, and those about training."""
    from traincheck.invariants.book import Book
    from traincheck.invariants.builtin_rules import of_training
    from traincheck.relations.consistent.builtin_rules import of_verification

    return Book((*of_verification(), *of_training()))


def _conclude(recording: Recording, book: Book, steps: int, *, as_json: bool) -> int:
    """Gather the results and report them; the exit code."""
    from traincheck.checking.code_excerpts import with_files
    from traincheck.checking.results import result_of_live_run
    from traincheck.reporting.json_report import json_of
    from traincheck.reporting.verification_table import conclusion

    status = recording.status
    checked = result_of_live_run(recording.path, book)
    report = with_files(checked.report, Path(), recording.folder.manifest.started)
    files = [recording.path / report_output.JSON_NAME, recording.path / report_output.HTML_NAME]
    failure = "the program was interrupted" if status.interrupted else "the program failed" if status.code else ""
    result = conclusion(report, steps, failure)
    try:
        report_output.write_reports(recording.path, report, checked.verdicts, files[:1], files[1:])
    finally:  # the result is printed even where the files cannot be written
        program_run.report_end(status)
        if checked.outcomes:
            _show(report, files)
        else:
            program_run.report_nothing_observed(recording.folder)
        remark(result.text)
        if as_json:
            out(json_of(report).rstrip())
    if status.code:
        return status.code
    return FINDINGS if report.verdict == "errors" else 0 if result.is_verified else UNJUDGED


def _show(report: Report, files: Sequence[Path]) -> None:
    """Print the table on stderr. The program's processes have printed the findings."""
    from rich.console import Console

    from traincheck.reporting.terminal import TerminalSink

    TerminalSink(Console(stderr=True, highlight=False), files).close_verification(report)
