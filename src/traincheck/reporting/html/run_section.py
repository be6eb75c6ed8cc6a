"""Part: all that the page tells of one run, put into the form in which the templates show it."""

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
from traincheck.vocab.finding import NOT_OBSERVED, NOT_TRIGGERED, PASSED, VIOLATED, Counts, Finding, Report
from traincheck.vocab.finding_details import Exhibit
from traincheck.vocab.invariant import Invariant

ORDER = (VIOLATED, PASSED, NOT_TRIGGERED, NOT_OBSERVED)

TOLD_ELSEWHERE = ("full", "recorded", "files")
"""Facts of a run that the page tells in words, or that are for programs."""


@dataclass(frozen=True, slots=True)
class Told:
    """A run as the page is handed it: its report, the invariants that were deployed with their verdicts, and what each
    finding is shown with (none of these need be there). `name` tells it from the others on the page."""

    report: Report
    invariants: Sequence[Judged] = ()
    exhibits: Sequence[Exhibit] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A verdict's part of the bar under the headline, in per cent."""

    verdict: str
    count: int
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Part:
    """What the templates show of a run. `prefix` begins the ids of its elements; it is empty where there is one run."""

    prefix: str
    name: str
    report: Report
    headline: str
    program: str
    unjudged: bool
    timeline: Timeline
    findings: tuple[tuple[int, Finding, Exhibit], ...]
    shares: tuple[Share, ...]
    rows: tuple[Judged, ...]
    known: Mapping[str, Invariant]
    tally: tuple[tuple[str, int], ...]
    ranks: tuple[RankRow, ...]
    jobs: Mapping[str, str]
    bars: tuple[Bar, ...]
    not_observed: tuple[tuple[str, int], ...]
    run: tuple[tuple[str, list[str]], ...]


def part(told: Told, prefix: str = "") -> Part:
    """The run in the form in which it is shown."""
    report = told.report
    rows = sorted(told.invariants, key=lambda one: (_place(one[1]), one[0].relation, one[0].subject, one[0].id))
    tally = Counter(verdict for _, verdict in rows)
    shown = zip_longest(report.findings, told.exhibits[: len(report.findings)], fillvalue=Exhibit())
    facts = ((name, value) for name, value in report.run.items() if name not in TOLD_ELSEWHERE)
    return Part(
        prefix=prefix,
        name=told.name,
        report=report,
        headline=phrases.headline(report),
        program=str(report.run.get("script") or ""),
        unjudged=report.unjudged,
        timeline=timeline(report.findings, report.counts.steps),
        findings=tuple((place, *one) for place, one in enumerate(shown, 1)),  # type: ignore[misc]
        shares=tuple(_shares(report.counts)),
        rows=tuple(rows),
        known={invariant.id: invariant for invariant, _ in rows},
        tally=tuple((verdict, tally[verdict]) for verdict in sorted(tally, key=_place)),
        ranks=rank_rows(report.ranks),
        jobs=job_names(report.ranks),
        bars=cost_bars(report.cost),
        not_observed=tuple(Counter(report.not_observed).most_common()),
        run=tuple((name.replace("_", " "), in_lines(name, value)) for name, value in facts),
    )


def _place(verdict: str) -> int:
    """What calls for attention comes first; a verdict of another name comes last."""
    return ORDER.index(verdict) if verdict in ORDER else len(ORDER)


def _shares(counts: Counts) -> list[Share]:
    fared = zip(ORDER, (counts.violated, counts.passed, counts.not_triggered, counts.not_observed), strict=True)
    total = max(counts.violated + counts.passed + counts.not_triggered + counts.not_observed, 1)
    shares, left = [], 0.0
    for verdict, count in fared:
        width = 100 * count / total
        shares.append(Share(verdict, count, round(left, 3), round(width, 3)))
        left += width
    return shares


def in_lines(name: str, value: object) -> list[str]:
    """A fact about the run in lines: a command as one would type it, a mapping as one line for each entry."""
    if isinstance(value, Mapping):
        return [f"{key}: {', '.join(in_lines(str(key), item))}" for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        if name in ("argv", "command"):
            return [shlex.join(map(str, value))]
        return [line for item in value for line in in_lines("", item)]
    return ["" if value is None else str(value)]
