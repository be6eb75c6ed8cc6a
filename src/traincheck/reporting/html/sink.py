"""Write the HTML report of one or several runs as one self-contained file."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jinja2

from traincheck.files import PathLike, write_whole
from traincheck.reporting.base import Document, Judged
from traincheck.reporting.html import charts
from traincheck.reporting.html.document import assets_of, environment, policy
from traincheck.reporting.html.run_section import PageRun, part
from traincheck.reporting.html.side_by_side import shared
from traincheck.version import __version__
from traincheck.vocab.finding import REPORT_VERSION, Report
from traincheck.vocab.finding_details import FindingDetails

TEMPLATES = (
    "pieces.html.j2",
    "links.html.j2",
    "finding.html.j2",
    "run.html.j2",
    "side_by_side.html.j2",
    "report.html.j2",
)
"""The templates; the last is the page, which includes the others."""

_TOP = "page"
"""The id of the page, the target of links from the parts of several runs."""


class HtmlSink(Document):
    """Writes the HTML report after the run; `judged` then returns the invariants and their verdicts.

    Set `details` before `close` to show code and pictures with the findings.
    """

    name = "html"
    file = "traincheck.html"
    details: Sequence[FindingDetails] = ()

    def text(self, report: Report) -> str:
        return html_of(report, self._judged(), self.details)


def render_html(
    report: Report, invariants: Sequence[Judged], path: PathLike, details: Sequence[FindingDetails] = ()
) -> None:
    """Write the report with the deployed invariants to `path`, whole or not at all. Raises OutputError."""
    render_page([PageRun(report, invariants, details)], path)


def render_page(runs: Sequence[PageRun], path: PathLike) -> None:
    """Write the page of one or several runs to `path`, whole or not at all. Raises OutputError."""
    write_whole(path, page_of(runs).encode("utf-8", "backslashreplace"))


def html_of(report: Report, invariants: Sequence[Judged], details: Sequence[FindingDetails] = ()) -> str:
    """Return the report of one run as one HTML document, see `page_of`."""
    return page_of([PageRun(report, invariants, details)])


def page_of(runs: Sequence[PageRun]) -> str:
    """Return the reports as one HTML document that loads nothing. Several runs start with a comparison.

    All text of the reports is escaped. The content policy of the document also admits only TrainCheck's style and
    script.
    """
    asset = assets_of(__package__)
    style, script = asset("report.css"), asset("report.js")
    several = len(runs) > 1
    parts = [part(run, f"run{number}-" if several else "") for number, run in enumerate(runs, 1)]
    return template().render(
        parts=parts,
        several=several,
        shared=shared([run.report for run in runs]) if several else (),
        top=_TOP,
        version=__version__,
        report_version=REPORT_VERSION,
        policy=policy(style, script),
        style=style,
        script=script,
    )


@functools.cache
def template() -> jinja2.Template:
    """Return the page with its included templates, compiled at first use: compiling takes longer than rendering a short
    report."""
    jinja = environment(assets_of(__package__), charts=charts)
    for name in TEMPLATES:
        page = jinja.get_template(name)
    return page
