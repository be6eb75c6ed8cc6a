"""`traincheck check`: check recorded runs against books, without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from traincheck import config as configs
from traincheck.cli import flags, report_formats, report_output
from traincheck.cli.console import Progress, exit_code, remark
from traincheck.config import Config
from traincheck.errors import BadOption, NoRuleDeployed

EPILOG = """\b
Examples:
  traincheck check runs/suspicious --book good.jsonl
  traincheck check runs/* -b good.jsonl --fail-on notice
  traincheck check runs/renamed -b good.jsonl --as train.py
  traincheck check runs/suspicious -b good.jsonl --json report.json --html report.html
  traincheck check runs/suspicious -b good.jsonl --report sarif=traincheck.sarif --report junit=results.xml

Exit codes: 0 no findings at or above --fail-on, 3 findings, 2 no training step or wrong usage, 1 TrainCheck failed.
"""


def command(
    runs: flags.RunFolders,
    books: flags.Books = None,
    packs: flags.Packs = None,
    as_program: flags.AsProgram = None,
    json_file: flags.JsonFile = None,
    html_file: flags.HtmlFile = None,
    more_reports: flags.Reports = None,
    fail_on: flags.FailOn = None,
) -> None:
    """Check recorded runs; PyTorch is not needed.

    They are checked against books of invariants; where none is named, against the packs that come with TrainCheck and
    what accepted runs showed.
    """
    said = {
        "books": tuple(map(str, books or ())),
        "packs": tuple(packs or ()),
        "as_program": as_program,
        "fail_on": fail_on,
        "reports": tuple(more_reports or ()),
    }
    raise typer.Exit(check(runs, configs.load(said, os.environ, Path.cwd()), json_file, html_file))


def check(runs: Sequence[Path], config: Config, json_file: Path | None = None, html_file: Path | None = None) -> int:
    """Check each of the run folders and report on it; the exit code for all of them."""
    from traincheck.runtime.launching.program_identity import CheckedProgram
    from traincheck.runtime.launching.rule_selection import rules_of
    from traincheck.trace.folder import RunFolder

    for name, path in (("--json", json_file), ("--html", html_file)):
        if path is not None and len(runs) > 1:
            raise BadOption(name, str(path), "one RUN, for a file holds the report of one")
    asked = report_formats.asked_for(config, len(runs))
    opened = [
        report_formats.Sinks(asked, {"script": "", "folder": str(run), "fail_on": config.fail_on}) for run in runs
    ]
    rules = rules_of(config)

    from traincheck.checking.offline import check_folder

    code = 0
    for run, more in zip(runs, opened, strict=True):
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
        report_output.write_reports(
            run, checked.report, checked.verdicts, report_output.given(json_file), report_output.given(html_file)
        )
        more.close(checked.report, checked.verdicts)
        report_output.show_summary(checked.report, [*report_output.given(json_file, html_file), *more.files])
        code = max(code, exit_code(checked.report, config.fail_on))
    return code
