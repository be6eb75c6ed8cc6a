"""`traincheck report`: show the report of a run again."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from traincheck import config as configs
from traincheck.cli import flags, reports
from traincheck.cli.console import exit_code

EPILOG = """\b
Examples:
  traincheck report traincheck-runs/train-20260102-030405
  traincheck report RUN --json - | jq .verdict
  traincheck report RUN --html report.html
"""


def command(
    run: flags.OneRunFolder,
    json_file: flags.JsonFile = None,
    html_file: flags.HtmlFile = None,
    fail_on: flags.FailOn = None,
) -> None:
    """Show the report of a run again.

    It is the one that `traincheck run` left in the run folder.
    """
    config = configs.load({"fail_on": fail_on}, os.environ, Path.cwd())
    raise typer.Exit(report(run, config.fail_on, json_file, html_file))


def report(run: Path, fail_on: str, json_file: Path | None = None, html_file: Path | None = None) -> int:
    """Show it on the terminal and write it where asked; the exit code is that of the run's findings.

    Raises RunFolderNotFound and ReportNotFound.
    """
    from traincheck.errors import RunFolderNotFound
    from traincheck.reporting.json_report import read_json

    if not run.is_dir():
        raise RunFolderNotFound(run)
    told = read_json(run / reports.JSON_NAME)
    reports.write_reports(told, (), reports.given(json_file), reports.given(html_file))
    reports.show_summary(told, reports.given(json_file, html_file))
    return exit_code(told, fail_on)
