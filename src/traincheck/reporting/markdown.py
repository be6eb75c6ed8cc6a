"""Write a Markdown summary for a GitHub job or a pull request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from traincheck.reporting import phrases
from traincheck.reporting.base import Document
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import ERROR

ROWS, AT_LENGTH, REASONS = 50, 10, 10
"""Maximum findings in the table, findings in full, and reasons for unobserved rules."""

LONGEST = 2_000
"""Characters of one text: GitHub rejects a summary above one megabyte."""


class MarkdownSink(Document):
    """Writes a headline, a table of findings, the first findings in full, and the counts."""

    name = "markdown"
    file = "traincheck.md"

    def text(self, report: Report) -> str:
        return markdown_of(report)


def markdown_of(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown. All text of the report is escaped."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"## TrainCheck: {escaped(phrases.headline(report))}"
    yield ""
    if report.run.get("script"):
        yield f"Program: {_code(str(report.run['script']))}"
        yield ""
    if report.findings:
        yield "| # | severity | steps | ranks | finding | where |"
        yield "| ---: | --- | --- | --- | --- | --- |"
        for number, finding in enumerate(report.findings[:ROWS], 1):
            yield _row(number, finding)
        yield ""
        if len(report.findings) > ROWS:
            yield f"and {len(report.findings) - ROWS:,} more findings in the JSON report"
            yield ""
    for number, finding in enumerate(report.findings[:AT_LENGTH], 1):
        yield f"### {number}. {escaped(phrases.titled(finding))}"
        yield ""
        yield from (f"* {escaped(line)}" for line in phrases.in_lines(finding))
        yield ""
    facts = [("invariants", phrases.judged(report.counts)), ("seen", phrases.seen(report.counts))]
    facts += [("recorded", recorded_text)] if (recorded_text := phrases.recorded(report)) else []
    facts += [("cost", phrases.cost(report.cost))] if report.cost is not None else []
    reasons = Counter(report.not_observed).most_common()
    facts += [("not observed", reason) for reason, _ in reasons[:REASONS]]
    yield from (f"* **{name}**: {escaped(recorded_text)}" for name, recorded_text in facts)
    if len(reasons) > REASONS:
        yield f"* and {len(reasons) - REASONS:,} more reasons in the JSON report"


def _row(number: int, finding: Finding) -> str:
    severity = f"**{escaped(finding.severity)}**" if finding.severity == ERROR else escaped(finding.severity)
    where = _code(f"{finding.site.file}:{finding.site.line}") if finding.site else ""
    cells = (str(number), severity, phrases.steps(finding), phrases.ranks_of(finding), escaped(finding.title), where)
    return f"| {' | '.join(cells)} |"


_MEANS_SOMETHING = re.compile(r"[\\`*_{}\[\]#|~!$@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


def escaped(text: str) -> str:
    """Return `text` on one line, escaped: it contains no link, element, emphasis or cell end.

    A backslash before a punctuation mark makes it one in CommonMark; what is meant for HTML is written as an entity,
    for a viewer that knows no backslashes.
    """
    text = phrases.plain(text)
    if len(text) > LONGEST:
        text = text[:LONGEST] + " ..."
    return "".join(_HTML.get(character, character) for character in _MEANS_SOMETHING.sub(r"\\\g<0>", text))


def _code(text: str) -> str:
    return f"<code>{escaped(text)}</code>"
