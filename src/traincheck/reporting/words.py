"""The words that every sink uses for the same thing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from traincheck.vocab.finding import Counts, Finding, Report
from traincheck.vocab.invariant import ERROR, NOTICE, Support


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


def steps(finding: Finding) -> str:
    """The step of a finding, or the first and the last: `3` or `3-120`."""
    return str(finding.step) if finding.last_step <= finding.step else f"{finding.step}-{finding.last_step}"


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


def plain(text: str) -> str:
    """`text` on one line, without characters that would steer a terminal: those are written out instead."""
    if text.isprintable():
        return text
    return "".join(map(_harmless, text))


def _harmless(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else repr(character)[1:-1]


def shortened(path: str, most: int) -> str:
    """`path` with its first folders left out where it is longer than `most` characters; the file's name stays whole."""
    if len(path) <= most:
        return path
    parts = path.replace("\\", "/").split("/")
    while len(parts) > 1 and len("/".join(parts)) + 4 > most:
        parts = parts[1:]
    return "/".join(["...", *parts])
