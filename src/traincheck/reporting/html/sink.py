"""The HTML report of one or several runs: one file with everything in it."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib.resources import files

import jinja2
from markupsafe import Markup

from traincheck.files import PathLike, write_whole
from traincheck.reporting import words
from traincheck.reporting.base import Document, Judged
from traincheck.reporting.html import charts
from traincheck.reporting.html.part import Told, part
from traincheck.reporting.html.side_by_side import shared
from traincheck.version import __version__
from traincheck.vocab.exhibit import Exhibit
from traincheck.vocab.finding import REPORT_VERSION, Report

TEMPLATES = (
    "pieces.html.j2",
    "links.html.j2",
    "finding.html.j2",
    "run.html.j2",
    "side_by_side.html.j2",
    "report.html.j2",
)
"""The templates; the last one is the page, which is made of the others."""

_TOP = "page"
"""The id of the page itself, to which links lead from the parts of several runs."""


class HtmlSink(Document):
    """Writes the HTML report when the run is over; `judged` is asked then for the invariants and their verdicts.

    Known limitations: it has the report alone, and so shows neither code nor pictures (see `render_page`).
    """

    name = "html"
    file = "traincheck.html"

    def text(self, report: Report) -> str:
        return html_of(report, self._judged())


def render_html(report: Report, invariants: Sequence[Judged], path: PathLike, exhibits: Sequence[Exhibit] = ()) -> None:
    """Writes the report with the invariants that were deployed to `path`, whole or not at all. Raises OutputError."""
    render_page([Told(report, invariants, exhibits)], path)


def render_page(runs: Sequence[Told], path: PathLike) -> None:
    """Writes the page of one or several runs to `path`, whole or not at all. Raises OutputError."""
    write_whole(path, page_of(runs).encode("utf-8", "backslashreplace"))


def html_of(report: Report, invariants: Sequence[Judged], exhibits: Sequence[Exhibit] = ()) -> str:
    """The report of one run as one HTML document, see `page_of`."""
    return page_of([Told(report, invariants, exhibits)])


def page_of(runs: Sequence[Told]) -> str:
    """The reports as one HTML document that loads nothing; several runs stand side by side before each has its part.

    All text of the reports is escaped. Besides, the policy in the head of the document admits our own style and script
    alone, by their digests: a browser would run nothing else even if it stood there.
    """
    style, script = _asset("report.css"), _asset("report.js")
    several = len(runs) > 1
    parts = [part(told, f"run{number}-" if several else "") for number, told in enumerate(runs, 1)]
    return template().render(
        parts=parts,
        several=several,
        shared=shared([told.report for told in runs]) if several else (),
        top=_TOP,
        version=__version__,
        report_version=REPORT_VERSION,
        policy=_policy(style, script),
        style=style,
        script=script,
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    admitted = f"style-src {digest(style)}; script-src {digest(script)}; img-src data:"
    return f"default-src 'none'; {admitted}; base-uri 'none'; form-action 'none'"


@functools.cache
def template() -> jinja2.Template:
    """The page with all that it is made of, compiled when it is first asked for: that takes longer than to write a
    short report."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    environment.globals.update(words=words, charts=charts)
    for name in TEMPLATES:
        page = environment.get_template(name)
    return page


def _printable(value: object) -> object:
    """What cannot be seen, or turns the direction of writing, is written out; our own style and script stay."""
    return value if isinstance(value, Markup) else words.plain(str(value))
