"""Show findings in GitHub Actions as annotations of code lines, and in the summary of the job.

Source: GitHub Docs, "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from traincheck.errors import OutputError
from traincheck.files import PathLike, may_write
from traincheck.reporting import phrases
from traincheck.reporting.base import STDOUT, Judging
from traincheck.reporting.markdown import markdown_of
from traincheck.reporting.repository_paths import in_repository
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import ERROR

SUMMARY = "GITHUB_STEP_SUMMARY"
"""The environment variable with the summary file of a step."""

MOST = 10
"""Annotations per level that GitHub shows for a step; further ones appear only in its log."""


class GitHubSink:
    """Writes a workflow command for each finding, and appends Markdown to the summary of the job, if there is one.

    GitHub reads commands on both streams. They go to stderr, for stdout may be the program's; with `-` to stdout.
    """

    name = "github"
    file = ""

    def __init__(self, target: PathLike = "", judged: Judging = tuple) -> None:
        if target not in ("", STDOUT):
            raise ValueError(f"github, or github={STDOUT} for standard output")
        self._target = target

    def open(self, run: Mapping[str, object]) -> None:
        """Check that the summary can be written. Raises OutputError."""
        if summary := os.environ.get(SUMMARY):
            may_write(summary)

    def show(self, finding: Finding) -> None:
        """Do nothing: the report of `close` holds every finding."""

    def close(self, report: Report) -> None:
        """Write the commands, and append to the summary. Raises OutputError."""
        stream = sys.stdout if self._target == STDOUT else sys.stderr
        stream.writelines(f"{line}\n" for line in commands(report))
        stream.flush()
        if summary := os.environ.get(SUMMARY):
            try:
                with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(markdown_of(report))
            except OSError as error:
                raise OutputError(summary, error.strerror or str(error)) from None


def commands(report: Report) -> Iterator[str]:
    """Return the workflow commands for a report, one per line; none for a run without findings."""
    shown = {True: 0, False: 0}
    for finding in report.findings:
        grave = finding.severity == ERROR
        shown[grave] += 1
        if shown[grave] <= MOST:
            yield _command(finding)
    if report.unjudged:
        yield f"::warning title=TrainCheck::{_data(phrases.plain(phrases.headline(report)))}"


def _command(finding: Finding) -> str:
    where = {}
    if finding.site is not None:
        where = {"file": in_repository(phrases.plain(finding.site.file)), "line": str(finding.site.line)}
    properties = {**where, "title": f"TrainCheck: {phrases.plain(phrases.titled(finding))}"}
    fields = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    level = "error" if finding.severity == ERROR else "notice"
    return f"::{level} {fields}::{_data(chr(10).join(phrases.in_lines(finding)))}"


def _data(text: str) -> str:
    """Escape a message like GitHub's own toolkit, as one line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
