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
    said = [
        f"{counts.passed + counts.violated:,} checked ({counts.passed:,} passed, {counts.violated:,} violated)",
        f"{counts.not_triggered:,} never triggered",
        f"{counts.not_observed:,} could not be observed",
    ]
    if counts.muted:
        said.append(f"{counts.muted:,} muted")
    return ", ".join(said)


def seen(counts: Counts) -> str:
    """How much of the run was looked at."""
    said = (
        f"{number(counts.steps, 'step')} in {number(counts.windows, 'window')} of {number(counts.processes, 'process')}"
    )
    if counts.windows_dropped:
        said += f"; {number(counts.windows_dropped, 'window')} dropped, and not checked"
    return said


MOST_SOURCES = 3
"""Sources that are named among those that watching took the time for."""


def cost(told: Cost) -> str:
    """How many steps were watched, and which share of the run that took, on the program's threads and beside them."""
    said = f"watched {told.watched:,} of {number(told.steps, 'step')}"
    most = sorted(told.sources.items(), key=lambda entry: -entry[1])[:MOST_SOURCES]
    by_source = ", ".join(f"{source} {percent(told.share(seconds))}" for source, seconds in most)
    beside = percent(told.share(sum(told.background.values())))
    took = f"it took {percent(told.whole)} of the run{f' ({by_source})' if by_source else ''}"
    return f"{said}; {took}, and {beside} beside it"


def cost_share(told: Cost) -> str:
    """What watching took of the run, in a few words."""
    return f"watching took {percent(told.whole)} of the run"


def moment(told: object) -> str:
    """A time in ISO 8601 to the minute, as people write it; any other text as it is."""
    text = str(told or "")
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
    found = rank_numbers(finding.ranks or (finding.rank,))
    return f"{found} of {finding.compared:,}" if finding.differing.is_minority else found


def about_ranks(finding: Finding) -> str:
    """The same in words: `rank 1`, `between ranks 0, 1`, `rank 1 of 4 deviates`."""
    return apart(finding.differing) if finding.compared else named_ranks(finding.ranks or (finding.rank,))


def apart(told: DifferingRanks) -> str:
    """Which ranks differ; where most do, it is told between which."""
    if told.is_minority:
        return f"{named_ranks(told.ranks)} of {told.compared:,} deviate{'s' * (len(told.ranks) == 1)}"
    return f"between {named_ranks(told.ranks)}"


def parting(told: Divergence) -> str:
    """Where the ranks of a job first were not as they should be."""
    return f"since step {told.step:,}, {told.what}{':' * told.differing.is_minority} {apart(told.differing)}"


def recording(told: RankState) -> str:
    """How the recording of a rank came to its end."""
    return f"{told.end} at step {told.recorded:,}" if told.end == STOPPED else told.end


def beside_others(told: RankState) -> str:
    """What was found of a rank and the others side by side."""
    if told.apart is not None:
        return f"{told.what} since step {told.apart:,}"
    if told.compared is None:
        return "not compared"
    return "agrees" if told.compared >= told.recorded else f"agrees to step {told.compared:,}"


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


def support(told: Support) -> str:
    """What an invariant rests on."""
    return (
        f"{number(told.occasions, 'occasion')} in {number(told.steps, 'step')}, "
        f"{number(told.runs, 'run')}, {number(told.scripts, 'script')}"
    )


def confidence(told: float) -> str:
    """Three digits, cut and not rounded: what is not certain never reads 1.000."""
    return f"{math.floor(told * 1000) / 1000:.3f}"


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
    told: Any = report.run.get("full", ())
    spans = [f"{first}-{last}" if first != last else str(first) for first, last in told]
    return f"steps {', '.join(spans)} were recorded in full" if spans else ""


def recorded(report: Report) -> str:
    """`the recording holds 74 of 10,000 steps`, empty where it holds all that were watched."""
    told: Any = report.run.get("recorded", ())
    if not told:
        return ""
    held, watched = told
    return f"the recording holds {held:,} of {number(watched, 'step')} (--record all keeps each of them)"


def in_lines(finding: Finding) -> list[str]:
    """All that there is to say about a finding beside its title, a line each."""
    where = steps(finding)
    told = [f"step{'s' * ('-' in where)} {where}, {about_ranks(finding)}"]
    told += [finding.cause] if finding.cause else []
    told += [f"where: {finding.site}"] if finding.site else []
    told += [f"variables: {listed(finding.variables, MOST_VARIABLES)}"] if finding.variables else []
    told += [f"expected: {finding.expected}", f"observed: {finding.observed}"]
    told += [f"look at: {place}. {advice}" for place, advice in enumerate(finding.advice, 1)]
    return [plain(line) for line in told]


MOST_VARIABLES = 8
"""Variables of a finding that are named in a line; the JSON report has all of them."""
