"""Prepares one run for the templates of the HTML report."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from traincheck.reporting import phrases
from traincheck.reporting.base import Judged
from traincheck.reporting.html.charts import Bar, cost_bars
from traincheck.reporting.html.timeline import Timeline, timeline
from traincheck.reporting.rank_rows import RankRow, job_names, rank_rows
from traincheck.reporting.verification_table import VerificationRow, verification_rows
from traincheck.vocab.finding import NOT_OBSERVED, NOT_TRIGGERED, PASSED, VIOLATED, Counts, Finding, Report
from traincheck.vocab.finding_details import FindingDetails
from traincheck.vocab.invariant import Invariant

ORDER = (VIOLATED, PASSED, NOT_TRIGGERED, NOT_OBSERVED)

OMITTED_FACTS = ("full", "recorded", "files")
"""Facts of a run that the page shows in words elsewhere, or that are for programs."""


@dataclass(frozen=True, slots=True)
class PageRun:
    """One run of the page: its report, the deployed invariants with their verdicts, and the details of each finding.

    Invariants and details are optional. `name` distinguishes the run from the others on the page.
    """

    report: Report
    invariants: Sequence[Judged] = ()
    details: Sequence[FindingDetails] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a verdict in the bar under the headline, in percent."""

    verdict: str
    count: int
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Part:
    """The data of a run for the templates. `prefix` begins the ids of its elements, and is empty for a single run."""

    prefix: str
    name: str
    report: Report
    headline: str
    program: str
    unjudged: bool
    timeline: Timeline
    findings: tuple[tuple[int, Finding, FindingDetails], ...]
    shares: tuple[Share, ...]
    rows: tuple[Judged, ...]
    by_id: Mapping[str, Invariant]
    tally: tuple[tuple[str, int], ...]
    ranks: tuple[RankRow, ...]
    jobs: Mapping[str, str]
    bars: tuple[Bar, ...]
    verification: tuple[VerificationRow, ...]
    not_observed: tuple[tuple[str, int], ...]
    run: tuple[tuple[str, list[str]], ...]


def part(run: PageRun, prefix: str = "") -> Part:
    """Return the run in the form that the templates use."""
    report = run.report
    rows = sorted(run.invariants, key=lambda row: (_order(row[1]), row[0].relation, row[0].subject, row[0].id))
    tally = Counter(verdict for _, verdict in rows)
    shown = zip_longest(report.findings, run.details[: len(report.findings)], fillvalue=FindingDetails())
    facts = ((name, value) for name, value in report.run.items() if name not in OMITTED_FACTS)
    return Part(
        prefix=prefix,
        name=run.name,
        report=report,
        headline=phrases.headline(report),
        program=str(report.run.get("script") or ""),
        unjudged=report.unjudged,
        timeline=timeline(report.findings, report.counts.steps),
        findings=tuple((number, *pair) for number, pair in enumerate(shown, 1)),  # type: ignore[misc]
        shares=tuple(_shares(report.counts)),
        rows=tuple(rows),
        by_id={invariant.id: invariant for invariant, _ in rows},
        tally=tuple((verdict, tally[verdict]) for verdict in sorted(tally, key=_order)),
        ranks=rank_rows(report.ranks),
        jobs=job_names(report.ranks),
        bars=cost_bars(report.cost),
        verification=verification_rows(report.verification),
        not_observed=tuple(Counter(report.not_observed).most_common()),
        run=tuple((name.replace("_", " "), in_lines(name, value)) for name, value in facts),
    )


def _order(verdict: str) -> int:
    """Return the position of a verdict: the most urgent first, unknown verdicts last."""
    return ORDER.index(verdict) if verdict in ORDER else len(ORDER)


def _shares(counts: Counts) -> list[Share]:
    by_verdict = zip(ORDER, (counts.violated, counts.passed, counts.not_triggered, counts.not_observed), strict=True)
    total = max(counts.violated + counts.passed + counts.not_triggered + counts.not_observed, 1)
    shares, left = [], 0.0
    for verdict, count in by_verdict:
        width = 100 * count / total
        shares.append(Share(verdict, count, round(left, 3), round(width, 3)))
        left += width
    return shares


def in_lines(name: str, value: object) -> list[str]:
    """Return a fact about the run as lines: a command as you would type it, a mapping as one line per entry."""
    if isinstance(value, Mapping):
        return [f"{key}: {', '.join(in_lines(str(key), item))}" for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        if name in ("argv", "command"):
            return [shlex.join(map(str, value))]
        return [line for item in value for line in in_lines("", item)]
    return ["" if value is None else str(value)]
