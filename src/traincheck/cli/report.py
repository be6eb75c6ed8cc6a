"""`traincheck report`: show the report of a run again."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from traincheck import config as configs
from traincheck.cli import flags, reports, sinks
from traincheck.cli.console import exit_code
from traincheck.config import Config

EPILOG = """\b
Examples:
  traincheck report traincheck-runs/train-20260102-030405
  traincheck report RUN --json - | jq .verdict
  traincheck report RUN --html report.html
  traincheck report RUN --report markdown=- --report sarif=traincheck.sarif
"""


def command(
    run: flags.OneRunFolder,
    json_file: flags.JsonFile = None,
    html_file: flags.HtmlFile = None,
    more_reports: flags.Reports = None,
    fail_on: flags.FailOn = None,
) -> None:
    """Show the report of a run again.

    It is the one that `traincheck run` left in the run folder.
    """
    said = {"fail_on": fail_on, "reports": tuple(more_reports or ())}
    raise typer.Exit(report(run, configs.load(said, os.environ, Path.cwd()), json_file, html_file))


def report(run: Path, config: Config, json_file: Path | None = None, html_file: Path | None = None) -> int:
    """Show it on the terminal and write it where asked; the exit code is that of the run's findings.

    Raises RunFolderNotFound and ReportNotFound.
    """
    from traincheck.errors import RunFolderNotFound
    from traincheck.reporting.json_report import read_json

    if not run.is_dir():
        raise RunFolderNotFound(run)
    more = sinks.Sinks(sinks.asked_for(config), {"folder": str(run), "fail_on": config.fail_on})
    told = read_json(run / reports.JSON_NAME)
    reports.write_reports(told, (), reports.given(json_file), reports.given(html_file))
    more.close(told, ())
    reports.show_summary(told, [*reports.given(json_file, html_file), *more.files])
    return exit_code(told, config.fail_on)
