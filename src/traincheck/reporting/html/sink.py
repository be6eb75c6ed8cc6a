"""The HTML report of a run: one file with everything in it."""

from __future__ import annotations

import base64
import functools
import hashlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2
from markupsafe import Markup

from traincheck.files import PathLike, write_whole
from traincheck.reporting import words
from traincheck.reporting.base import Document, Judged
from traincheck.reporting.html.timeline import timeline
from traincheck.reporting.rank_rows import job_names, rank_rows
from traincheck.version import __version__
from traincheck.vocab.finding import NOT_OBSERVED, NOT_TRIGGERED, PASSED, VIOLATED, Counts, Report

_ORDER = (VIOLATED, PASSED, NOT_TRIGGERED, NOT_OBSERVED)


class HtmlSink(Document):
    """Writes the HTML report when the run is over; `judged` is asked then for the invariants and their verdicts."""

    name = "html"
    file = "traincheck.html"

    def text(self, report: Report) -> str:
        return html_of(report, self._judged())


def render_html(report: Report, invariants: Sequence[Judged], path: PathLike) -> None:
    """Writes the report with the invariants that were deployed to `path`, whole or not at all. Raises OutputError."""
    write_whole(path, html_of(report, invariants).encode("utf-8", "backslashreplace"))


def html_of(report: Report, invariants: Sequence[Judged]) -> str:
    """The report as one HTML document that loads nothing.

    All text of the report is escaped. Besides, the policy in the head of the document admits our own style and script
    alone, by their digests: a browser would run nothing else even if it stood there.
    """
    style, script = _asset("report.css"), _asset("report.js")
    rows = sorted(invariants, key=lambda one: (_place(one[1]), one[0].relation, one[0].subject, one[0].id))
    tally = Counter(verdict for _, verdict in rows)
    return template().render(
        report=report,
        headline=words.headline(report),
        program=str(report.run.get("script") or ""),
        words=words,
        version=__version__,
        policy=_policy(style, script),
        style=style,
        script=script,
        timeline=timeline(report.findings, report.counts.steps),
        shares=_shares(report.counts),
        rows=rows,
        known={invariant.id: invariant for invariant, _ in rows},
        tally=[(verdict, tally[verdict]) for verdict in sorted(tally, key=_place)],
        ranks=rank_rows(report.ranks),
        jobs=job_names(report.ranks),
        not_observed=Counter(report.not_observed).most_common(),
        run=[(name.replace("_", " "), told(name, value)) for name, value in report.run.items()],
    )


def _place(verdict: str) -> int:
    """What calls for attention comes first; a verdict of another name comes last."""
    return _ORDER.index(verdict) if verdict in _ORDER else len(_ORDER)


@dataclass(frozen=True, slots=True)
class Share:
    """A verdict's part of the bar under the headline, in per cent."""

    verdict: str
    count: int
    left: float
    width: float


def _shares(counts: Counts) -> list[Share]:
    fared = zip(_ORDER, (counts.violated, counts.passed, counts.not_triggered, counts.not_observed), strict=True)
    total = max(counts.violated + counts.passed + counts.not_triggered + counts.not_observed, 1)
    shares, left = [], 0.0
    for verdict, count in fared:
        width = 100 * count / total
        shares.append(Share(verdict, count, round(left, 3), round(width, 3)))
        left += width
    return shares


def told(name: str, value: object) -> list[str]:
    """A fact about the run in lines: a command as one would type it, a mapping as one line for each entry."""
    if isinstance(value, Mapping):
        return [f"{key}: {', '.join(told(str(key), item))}" for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        if name in ("argv", "command"):
            return [shlex.join(map(str, value))]
        return [line for item in value for line in told("", item)]
    return ["" if value is None else str(value)]


def _asset(name: str) -> str:
    return files(__package__).joinpath("templates").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    admitted = f"style-src {digest(style)}; script-src {digest(script)}; img-src data:"
    return f"default-src 'none'; {admitted}; base-uri 'none'; form-action 'none'"


@functools.cache
def template() -> jinja2.Template:
    """The page, compiled when it is first asked for: that takes longer than to write a short report."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
    )
    return environment.get_template("report.html.j2")


def _printable(value: object) -> object:
    """What cannot be seen, or turns the direction of writing, is written out; our own style and script stay."""
    return value if isinstance(value, Markup) else words.plain(str(value))
