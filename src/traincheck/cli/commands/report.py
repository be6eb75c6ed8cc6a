"""`traincheck report`: show the reports of runs again, each by itself and side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from traincheck import config as configs
from traincheck.cli import flags, report_formats, report_output
from traincheck.cli.console import exit_code, remark
from traincheck.config import Config

EPILOG = """\b
Examples:
  traincheck report traincheck-runs/train-20260102-030405
  traincheck report RUN --json | jq .verdict
  traincheck report RUN -o report.html
  traincheck report RUN --report markdown=- --report sarif=traincheck.sarif
  traincheck report runs/monday runs/tuesday runs/wednesday -o week.html

The page is one file that loads nothing: open it in a browser, or send it. It shows several runs side by side.

Exit codes: 0 no findings at or above --fail-on, 3 findings, 2 no training step or wrong usage, 1 TrainCheck failed.
"""


@flags.shared_options("reports", "fail_on")
def command(runs: flags.RunFolders, page: flags.PageFile = None, as_json: flags.AsJson = False, **options: Any) -> None:
    """Show the reports of runs again, on the terminal and as a page.

    The report is the one that `traincheck run` left in the run folder.
    """
    raise typer.Exit(report(runs, configs.load(options, os.environ, Path.cwd()), page, as_json))


def report(runs: Sequence[Path], config: Config, page: Path | None = None, as_json: bool = False) -> int:
    """Show the reports and write the requested files; the exit code of the findings of all runs.

    Raises RunFolderNotFound and ReportNotFound, before anything is written.
    """
    from traincheck.checking.results import verdicts_of_run
    from traincheck.errors import RunFolderNotFound
    from traincheck.reporting.json_report import read_json

    requests = report_formats.requested(config, len(runs), as_json)
    for run in runs:
        if not run.is_dir():
            raise RunFolderNotFound(run)
    sinks = [report_formats.Sinks(requests, {"folder": str(run), "fail_on": config.fail_on}) for run in runs]
    reports = [read_json(run / report_output.JSON_NAME) for run in runs]
    verdicts = [verdicts_of_run(run) if requests or page is not None else () for run in runs]
    if page is not None:
        rows = zip(runs, reports, verdicts, report_output.names_of(runs), strict=True)
        report_output.write_page([report_output.part_of_page(*row) for row in rows], page)
    for number, (run, report_of_run, judged, sinks_of_run) in enumerate(
        zip(runs, reports, verdicts, sinks, strict=True), 1
    ):
        if len(runs) > 1:
            remark(f"report of {run}")
        sinks_of_run.close(report_of_run, judged, run)
        pages = [page] if page is not None and number == len(runs) else []
        report_output.show_summary(report_of_run, [*pages, *sinks_of_run.files])
    return max(exit_code(report_of_run, config.fail_on) for report_of_run in reports)
