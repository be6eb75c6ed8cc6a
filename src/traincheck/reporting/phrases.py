"""Phrase the parts of a report as text, the same in every report format."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from traincheck.terminal_text import plain as plain
from traincheck.vocab.finding import STOPPED, Cost, Counts, Divergence, Finding, RankState, Report
from traincheck.vocab.invariant import ERROR, NOTICE, Support
from traincheck.vocab.ranks import DifferingRanks, named_ranks, rank_numbers


def number(count: int, noun: str) -> str:
    """`1 step`, `1,200 steps`, `2 processes`."""
    plural = noun + ("es" if noun.endswith(("s", "x")) else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def headline(report: Report) -> str:
    """Return the verdict as one line. A run in which no rule could be judged is never called clean."""
    if report.comparison is not None and report.differs:
        return f"Other results than {report.comparison['a']}. {_verdict(report)}"
    return _verdict(report)


def _verdict(report: Report) -> str:
    counts = report.counts
    severities = Counter(finding.severity for finding in report.findings)
    errors, notices = severities[ERROR], severities[NOTICE]
    seen = f"in {number(counts.steps, 'step')}" if counts.steps else "before the first step"
    if report.findings:
        first = min(finding.step for finding in report.findings)
        since = f", first at step {first}" if counts.steps else ""
        if not errors:
            return f"No errors, {number(notices, 'notice')} {seen}{since}"
        also = f" and {number(notices, 'notice')}" if notices else ""
        return f"{number(errors, 'error')}{also} {seen}{since}"
    if report.untrained:
        return f"Nothing was judged: {report.untrained}"
    if counts.passed:
        return f"Nothing wrong found {seen}: {number(counts.passed, 'invariant')} held"
    if not counts.invariants:
        return "Nothing was checked: no invariant was deployed"
    return f"Nothing was checked: no deployed invariant could be judged {seen}"


def judged(counts: Counts) -> str:
    """Return the number of checked invariants, and their verdicts."""
    parts = [
        f"{counts.passed + counts.violated:,} checked ({counts.passed:,} passed, {counts.violated:,} violated)",
        f"{counts.not_triggered:,} never triggered",
        f"{counts.not_observed:,} could not be observed",
    ]
    if counts.muted:
        parts.append(f"{counts.muted:,} muted")
    return ", ".join(parts)


def seen(counts: Counts) -> str:
    """Return how much of the run was observed."""
    text = (
        f"{number(counts.steps, 'step')} in {number(counts.windows, 'window')} of {number(counts.processes, 'process')}"
    )
    if counts.windows_dropped:
        text += f"; {number(counts.windows_dropped, 'window')} dropped, and not checked"
    return text


MAX_SOURCES = 3
"""Sources that the cost line names."""


def cost(record: Cost) -> str:
    """Return the number of observed steps and the cost: on the program's threads and in the background."""
    text = f"watched {record.watched:,} of {number(record.steps, 'step')}"
    text += " (--budget 1/1 watches all)" if record.watched < record.steps else ""
    most = sorted(record.sources.items(), key=lambda entry: -entry[1])[:MAX_SOURCES]
    by_source = ", ".join(f"{source} {percent(record.share(seconds))}" for source, seconds in most)
    in_background = percent(record.share(sum(record.background.values())))
    took = f"this took {percent(record.whole)} of the run{f' ({by_source})' if by_source else ''}"
    return f"{text}; {took}, plus {in_background} in the background"


def cost_share(record: Cost) -> str:
    """Return the cost as a short phrase."""
    return f"watching took {percent(record.whole)} of the run"


def moment(value: object) -> str:
    """Return an ISO 8601 time to the minute, in readable form; any other text unchanged."""
    text = str(value or "")
    return text[:16].replace("T", " ") if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text) else text


def by_severity(report: Report) -> list[tuple[str, int]]:
    """Return the number of findings by severity, in the order of the findings."""
    return list(Counter(finding.severity for finding in report.findings).items())


def percent(share: float) -> str:
    """`12%`, `0.9%`, `0.04%`."""
    digits = 0 if share >= 0.1 else 1 if share >= 0.001 else 2
    return f"{100 * share:.{digits}f}%"


def steps(finding: Finding) -> str:
    """Return the step of a finding, or its first and last step: `3` or `3-120`."""
    return str(finding.step) if finding.last_step <= finding.step else f"{finding.step}-{finding.last_step}"


def ranks_of(finding: Finding) -> str:
    """Return the ranks of a finding for a table column: `1`, `0, 1`, `1 of 4`."""
    numbers = rank_numbers(finding.ranks or (finding.rank,))
    return f"{numbers} of {finding.compared:,}" if finding.differing.is_minority else numbers


def about_ranks(finding: Finding) -> str:
    """Return the ranks of a finding in words: `rank 1`, `between ranks 0, 1`, `rank 1 of 4 deviates`."""
    return differing_text(finding.differing) if finding.compared else named_ranks(finding.ranks or (finding.rank,))


def differing_text(differing: DifferingRanks) -> str:
    """Return which ranks differ, or between which ranks there is a difference if most differ."""
    if differing.is_minority:
        return f"{named_ranks(differing.ranks)} of {differing.compared:,} deviate{'s' * (len(differing.ranks) == 1)}"
    return f"between {named_ranks(differing.ranks)}"


def divergence_text(divergence: Divergence) -> str:
    """Return the first divergence of the ranks of a job in words."""
    differing = divergence.differing
    return f"since step {divergence.step:,}, {divergence.what}{':' * differing.is_minority} {differing_text(differing)}"


def recording(state: RankState) -> str:
    """Return how the recording of a rank ended."""
    return f"{state.end} at step {state.recorded:,}" if state.end == STOPPED else state.end


def agreement(state: RankState) -> str:
    """Return whether a rank agrees with the other ranks, or since when it differs."""
    if state.apart is not None:
        return f"{state.what} since step {state.apart:,}"
    if state.compared is None:
        return "not compared"
    return "agrees" if state.compared >= state.recorded else f"agrees to step {state.compared:,}"


def titled(finding: Finding) -> str:
    """Return the title and the diagnosis: `Gradients are not cleared between steps [gradients-not-cleared]`."""
    return f"{finding.title} [{finding.diagnosis}]" if finding.diagnosis else finding.title


def read_more(finding: Finding) -> str:
    """Return the command that explains the diagnosis of a finding, or an empty text."""
    return f"traincheck explain {finding.diagnosis}" if finding.diagnosis else ""


def sentence(text: str) -> str:
    """Return `text` with a capital first letter."""
    return text[:1].upper() + text[1:]


MAX_PROGRAMS = 8
"""The programs of a rule or a pack that are listed by name. Some rest on hundreds."""


def listed(items: Sequence[str], most: int) -> str:
    """Return the first `most` items and the number of further ones. A single further item is listed, too."""
    shown = len(items) if len(items) == most + 1 else most
    rest = len(items) - shown
    return ", ".join(items[:shown]) + (f" and {rest:,} more" if rest > 0 else "")


def support(evidence: Support) -> str:
    """Return the support of an invariant in words."""
    return (
        f"{number(evidence.occasions, 'occasion')} in {number(evidence.steps, 'step')}, "
        f"{number(evidence.runs, 'run')}, {number(evidence.scripts, 'script')}"
    )


def confidence(value: float) -> str:
    """Return three digits, truncated, so that an uncertain rule never shows 1.000."""
    return f"{math.floor(value * 1000) / 1000:.3f}"


def shortened(path: str, most: int) -> str:
    """Return `path` without its first folders if it is longer than `most` characters. The file name stays whole."""
    if len(path) <= most:
        return path
    parts = path.replace("\\", "/").split("/")
    while len(parts) > 1 and len("/".join(parts)) + 4 > most:
        parts = parts[1:]
    return "/".join(["...", *parts])


def in_full(report: Report) -> str:
    """Return `steps 11-15 were recorded in full`, or an empty text if there are no such steps."""
    full: Any = report.run.get("full", ())
    spans = [f"{first}-{last}" if first != last else str(first) for first, last in full]
    return f"steps {', '.join(spans)} were recorded in full" if spans else ""


def recorded(report: Report) -> str:
    """Return `the recording holds 74 of 10,000 steps`, or an empty text if it holds all observed steps."""
    steps_kept: Any = report.run.get("recorded", ())
    if not steps_kept:
        return ""
    held, watched = steps_kept
    return f"the recording holds {held:,} of {number(watched, 'step')} (--record all keeps all)"


def in_lines(finding: Finding) -> list[str]:
    """Return the details of a finding as lines, without its title."""
    where = steps(finding)
    lines = [f"step{'s' * ('-' in where)} {where}, {about_ranks(finding)}"]
    lines += [finding.cause] if finding.cause else []
    lines += [f"where: {finding.site}"] if finding.site else []
    lines += [f"variables: {listed(finding.variables, MAX_VARIABLES)}"] if finding.variables else []
    lines += [f"expected: {finding.expected}", f"observed: {finding.observed}"]
    lines += [f"look at: {number}. {advice}" for number, advice in enumerate(finding.advice, 1)]
    return [plain(line) for line in lines]


MAX_VARIABLES = 8
"""Variables in the line of a finding; the JSON report has all."""
