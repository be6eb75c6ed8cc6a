"""`traincheck report`: show the reports of runs again, each by itself and side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from traincheck import config as configs
from traincheck.cli import flags, report_formats, report_output
from traincheck.cli.console import exit_code, remark
from traincheck.config import Config
from traincheck.errors import BadOption

EPILOG = """\b
Examples:
  traincheck report traincheck-runs/train-20260102-030405
  traincheck report RUN --json - | jq .verdict
  traincheck report RUN -o report.html
  traincheck report RUN --report markdown=- --report sarif=traincheck.sarif
  traincheck report runs/monday runs/tuesday runs/wednesday -o week.html

The page is one file that loads nothing: open it in a browser, or send it. Several runs stand side by side on it.

Exit codes: 0 no findings at or above --fail-on, 3 findings, 2 no training step or wrong usage, 1 TrainCheck failed.
"""


def command(
    runs: flags.RunFolders,
    page: flags.PageFile = None,
    json_file: flags.JsonFile = None,
    more_reports: flags.Reports = None,
    fail_on: flags.FailOn = None,
) -> None:
    """Show the reports of runs again, on the terminal and as a page.

    A report is the one that `traincheck run` left in the run folder.
    """
    said = {"fail_on": fail_on, "reports": tuple(more_reports or ())}
    raise typer.Exit(report(runs, configs.load(said, os.environ, Path.cwd()), json_file, page))


def report(runs: Sequence[Path], config: Config, json_file: Path | None = None, page: Path | None = None) -> int:
    """Show them on the terminal and write them where asked; the exit code is that of the findings of all runs.

    Raises RunFolderNotFound and ReportNotFound, before anything is written.
    """
    from traincheck.checking.recorded_verdicts import verdicts_of
    from traincheck.errors import RunFolderNotFound
    from traincheck.reporting.json_report import read_json

    if json_file is not None and len(runs) > 1:
        raise BadOption("--json", str(json_file), "one RUN, for a file holds the report of one")
    for run in runs:
        if not run.is_dir():
            raise RunFolderNotFound(run)
    asked = report_formats.asked_for(config, len(runs))
    opened = [report_formats.Sinks(asked, {"folder": str(run), "fail_on": config.fail_on}) for run in runs]
    told = [read_json(run / report_output.JSON_NAME) for run in runs]
    verdicts = [verdicts_of(run) if asked or page is not None else () for run in runs]
    if json_file is not None:
        report_output.write_json_file(told[0], json_file)
    if page is not None:
        several = zip(runs, told, verdicts, report_output.names_of(runs), strict=True)
        report_output.write_page([report_output.part_of_page(*one) for one in several], page)
    files = report_output.given(json_file, page)
    for place, (run, each, judged, more) in enumerate(zip(runs, told, verdicts, opened, strict=True), 1):
        if len(runs) > 1:
            remark(f"report of {run}")
        more.close(each, judged)
        report_output.show_summary(each, [*(files if place == len(runs) else []), *more.files])
    return max(exit_code(each, config.fail_on) for each in told)
