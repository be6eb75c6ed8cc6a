"""The words that every sink uses for the same thing."""

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
    """The verdict in one line. A run in which nothing could be judged is never called clean."""
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
    """How many invariants were checked, and how they fared."""
    parts = [
        f"{counts.passed + counts.violated:,} checked ({counts.passed:,} passed, {counts.violated:,} violated)",
        f"{counts.not_triggered:,} never triggered",
        f"{counts.not_observed:,} could not be observed",
    ]
    if counts.muted:
        parts.append(f"{counts.muted:,} muted")
    return ", ".join(parts)


def seen(counts: Counts) -> str:
    """How much of the run was looked at."""
    text = (
        f"{number(counts.steps, 'step')} in {number(counts.windows, 'window')} of {number(counts.processes, 'process')}"
    )
    if counts.windows_dropped:
        text += f"; {number(counts.windows_dropped, 'window')} dropped, and not checked"
    return text


MAX_SOURCES = 3
"""Sources that are named among those that watching took the time for."""


def cost(record: Cost) -> str:
    """How many steps were watched, and which share of the run that took, on the program's threads and beside them."""
    text = f"watched {record.watched:,} of {number(record.steps, 'step')}"
    most = sorted(record.sources.items(), key=lambda entry: -entry[1])[:MAX_SOURCES]
    by_source = ", ".join(f"{source} {percent(record.share(seconds))}" for source, seconds in most)
    in_background = percent(record.share(sum(record.background.values())))
    took = f"it took {percent(record.whole)} of the run{f' ({by_source})' if by_source else ''}"
    return f"{text}; {took}, and {in_background} beside it"


def cost_share(record: Cost) -> str:
    """What watching took of the run, in a few words."""
    return f"watching took {percent(record.whole)} of the run"


def moment(value: object) -> str:
    """A time in ISO 8601 to the minute, as people write it; any other text as it is."""
    text = str(value or "")
    return text[:16].replace("T", " ") if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text) else text


def by_severity(report: Report) -> list[tuple[str, int]]:
    """How many findings there are of each severity, in the order of the findings."""
    return list(Counter(finding.severity for finding in report.findings).items())


def percent(share: float) -> str:
    """`12%`, `0.9%`, `0.04%`."""
    digits = 0 if share >= 0.1 else 1 if share >= 0.001 else 2
    return f"{100 * share:.{digits}f}%"


def steps(finding: Finding) -> str:
    """The step of a finding, or the first and the last: `3` or `3-120`."""
    return str(finding.step) if finding.last_step <= finding.step else f"{finding.step}-{finding.last_step}"


def ranks_of(finding: Finding) -> str:
    """The ranks that a finding is about, as a column of a table has them: `1`, `0, 1`, `1 of 4`."""
    numbers = rank_numbers(finding.ranks or (finding.rank,))
    return f"{numbers} of {finding.compared:,}" if finding.differing.is_minority else numbers


def about_ranks(finding: Finding) -> str:
    """The same in words: `rank 1`, `between ranks 0, 1`, `rank 1 of 4 deviates`."""
    return differing_text(finding.differing) if finding.compared else named_ranks(finding.ranks or (finding.rank,))


def differing_text(differing: DifferingRanks) -> str:
    """Which ranks differ; where most do, it is told between which."""
    if differing.is_minority:
        return f"{named_ranks(differing.ranks)} of {differing.compared:,} deviate{'s' * (len(differing.ranks) == 1)}"
    return f"between {named_ranks(differing.ranks)}"


def divergence_text(divergence: Divergence) -> str:
    """The first divergence of the ranks of a job."""
    differing = divergence.differing
    return f"since step {divergence.step:,}, {divergence.what}{':' * differing.is_minority} {differing_text(differing)}"


def recording(state: RankState) -> str:
    """How the recording of a rank came to its end."""
    return f"{state.end} at step {state.recorded:,}" if state.end == STOPPED else state.end


def beside_others(state: RankState) -> str:
    """What was found of a rank and the others side by side."""
    if state.apart is not None:
        return f"{state.what} since step {state.apart:,}"
    if state.compared is None:
        return "not compared"
    return "agrees" if state.compared >= state.recorded else f"agrees to step {state.compared:,}"


def titled(finding: Finding) -> str:
    """The title and the diagnosis: `Gradients are not cleared between steps [gradients-not-cleared]`."""
    return f"{finding.title} [{finding.diagnosis}]" if finding.diagnosis else finding.title


def read_more(finding: Finding) -> str:
    """The command that explains the diagnosis of a finding; empty where none is known."""
    return f"traincheck explain {finding.diagnosis}" if finding.diagnosis else ""


def sentence(text: str) -> str:
    """`text` with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def listed(items: Sequence[str], most: int) -> str:
    """The first `most` items and how many there are beyond them. One item beyond is told as well: it costs no more."""
    shown = len(items) if len(items) == most + 1 else most
    beyond = len(items) - shown
    return ", ".join(items[:shown]) + (f" and {beyond:,} more" if beyond > 0 else "")


def support(evidence: Support) -> str:
    """What an invariant rests on."""
    return (
        f"{number(evidence.occasions, 'occasion')} in {number(evidence.steps, 'step')}, "
        f"{number(evidence.runs, 'run')}, {number(evidence.scripts, 'script')}"
    )


def confidence(value: float) -> str:
    """Three digits, cut and not rounded: what is not certain never reads 1.000."""
    return f"{math.floor(value * 1000) / 1000:.3f}"


def shortened(path: str, most: int) -> str:
    """`path` with its first folders left out where it is longer than `most` characters; the file's name stays whole."""
    if len(path) <= most:
        return path
    parts = path.replace("\\", "/").split("/")
    while len(parts) > 1 and len("/".join(parts)) + 4 > most:
        parts = parts[1:]
    return "/".join(["...", *parts])


def in_full(report: Report) -> str:
    """`steps 11-15 were recorded in full`, empty where nothing was told beyond what was asked for."""
    full: Any = report.run.get("full", ())
    spans = [f"{first}-{last}" if first != last else str(first) for first, last in full]
    return f"steps {', '.join(spans)} were recorded in full" if spans else ""


def recorded(report: Report) -> str:
    """`the recording holds 74 of 10,000 steps`, empty where it holds all that were watched."""
    steps_kept: Any = report.run.get("recorded", ())
    if not steps_kept:
        return ""
    held, watched = steps_kept
    return f"the recording holds {held:,} of {number(watched, 'step')} (--record all keeps each of them)"


def in_lines(finding: Finding) -> list[str]:
    """All that there is to say about a finding beside its title, a line each."""
    where = steps(finding)
    lines = [f"step{'s' * ('-' in where)} {where}, {about_ranks(finding)}"]
    lines += [finding.cause] if finding.cause else []
    lines += [f"where: {finding.site}"] if finding.site else []
    lines += [f"variables: {listed(finding.variables, MAX_VARIABLES)}"] if finding.variables else []
    lines += [f"expected: {finding.expected}", f"observed: {finding.observed}"]
    lines += [f"look at: {number}. {advice}" for number, advice in enumerate(finding.advice, 1)]
    return [plain(line) for line in lines]


MAX_VARIABLES = 8
"""Variables of a finding that are named in a line; the JSON report has all of them."""
