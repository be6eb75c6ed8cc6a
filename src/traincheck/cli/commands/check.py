"""`traincheck check`: check recorded runs against books, without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from traincheck import config as configs
from traincheck.cli import flags, report_formats, report_output
from traincheck.cli.console import Progress, exit_code, remark
from traincheck.config import Config
from traincheck.errors import NoRuleDeployed

EPILOG = """\b
Examples:
  traincheck check runs/suspicious --book good.jsonl
  traincheck check runs/* -b good.jsonl --fail-on notice
  traincheck check runs/renamed -b good.jsonl --as train.py
  traincheck check runs/suspicious -b good.jsonl --json | jq .verdict
  traincheck check runs/suspicious -b good.jsonl --report html=report.html --report junit=results.xml

Exit codes: 0 no findings at or above --fail-on, 3 findings, 2 no training step or wrong usage, 1 TrainCheck failed.
"""


@flags.shared_options("books", "packs", "as_program", "reports", "fail_on")
def command(runs: flags.RunFolders, as_json: flags.AsJson = False, **options: Any) -> None:
    """Check recorded runs; PyTorch is not needed.

    TrainCheck checks them against your books; without --book against the packs that it ships and your accepted runs.
    """
    raise typer.Exit(check(runs, configs.load(options, os.environ, Path.cwd()), as_json))


def check(runs: Sequence[Path], config: Config, as_json: bool = False) -> int:
    """Check each of the run folders and report on it; the exit code for all of them."""
    from traincheck.runtime.launching.program_identity import CheckedProgram
    from traincheck.runtime.launching.rule_selection import rules_of
    from traincheck.trace.folder import RunFolder

    requests = report_formats.requested(config, len(runs), as_json)
    sinks = [
        report_formats.Sinks(requests, {"script": "", "folder": str(run), "fail_on": config.fail_on}) for run in runs
    ]
    rules = rules_of(config)

    from traincheck.checking.offline import check_folder

    code = 0
    for run, sinks_of_run in zip(runs, sinks, strict=True):
        if len(runs) > 1:
            remark(f"checking {run}")
        manifest = RunFolder.open(run).manifest
        try:
            book = rules.book(CheckedProgram.of_run(manifest, config))
        except NoRuleDeployed as error:
            if len(runs) == 1:
                raise
            remark(str(error))
            code = max(code, error.exit_code)
            continue
        with Progress() as progress:
            checked = check_folder(run, book, progress)
        sinks_of_run.close(checked.report, checked.verdicts, run)
        report_output.show_summary(checked.report, sinks_of_run.files)
        code = max(code, exit_code(checked.report, config.fail_on))
    return code
