"""Writes a comparison of two runs as Markdown, for a pull request or the summary of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from traincheck.comparison.configuration import ConfigurationDifference
from traincheck.comparison.element_differences import ElementDifferences
from traincheck.comparison.report import headline, lines
from traincheck.comparison.run_comparison import Comparison
from traincheck.comparison.spread import Loss
from traincheck.reporting import phrases
from traincheck.reporting.markdown import escaped

MAX_ROWS = 50
"""Differences of the configuration in the table."""


def markdown_of(
    comparison: Comparison,
    a: str,
    b: str,
    configuration: Sequence[ConfigurationDifference] = (),
    losses: Sequence[Loss] = (),
    elements: ElementDifferences | None = None,
) -> str:
    """Return the comparison as GitHub-flavoured Markdown, see `lines`. All text of the runs is escaped."""
    details = [phrases.plain(line) for line in list(lines(comparison, a, b, (), losses, elements))[1:]]
    return "\n".join(_lines(headline(comparison), details, a, b, configuration)) + "\n"


def _lines(
    title: str, details: Sequence[str], a: str, b: str, configuration: Sequence[ConfigurationDifference]
) -> Iterator[str]:
    yield f"## TrainCheck: {escaped(title)}"
    yield ""
    if configuration:
        yield f"| also different | {escaped(a)} | {escaped(b)} |"
        yield "| --- | --- | --- |"
        for each in configuration[:MAX_ROWS]:
            values = (escaped(value) if value is not None else "" for value in (each.name, each.a, each.b))
            yield f"| {' | '.join(values)} |"
        yield ""
        if len(configuration) > MAX_ROWS:
            yield f"and {len(configuration) - MAX_ROWS:,} more differences in the JSON report"
            yield ""
    if details:
        fence = "`" * max(3, 1 + max((len(run) for line in details for run in re.findall("`+", line)), default=0))
        yield from (f"{fence}text", *details, fence)
