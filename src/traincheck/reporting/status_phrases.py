"""Phrase the status of a run as text."""

from __future__ import annotations

from traincheck.reporting import phrases
from traincheck.vocab.ranks import named_ranks
from traincheck.vocab.run_status import (
    DELETED,
    ENDED,
    KILLED,
    RESTING,
    SILENT,
    STARTING,
    WAITING,
    RankStatus,
    RunStatus,
)


def lasting(seconds: float) -> str:
    """`45 s`, `3 min`, `2 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def speed(value: float | None) -> str:
    """`12.5 steps/s`; of slow ones `3.2 s/step`."""
    if value is None:
        return ""
    return f"{value:.1f} steps/s" if value >= 1 or value <= 0 else f"{1 / value:.1f} s/step"


def share(value: float | None) -> str:
    """`0.8 %`."""
    return "" if value is None else f"{100 * value:.1f} %"


def findings_text(status: RunStatus) -> str:
    """Return `2 errors, 1 notice`, `nothing found`, or that the run is only recorded."""
    if status.mode == "collect":
        return "recorded, not checked"
    counts = [
        phrases.number(count, noun) for count, noun in ((status.errors, "error"), (status.notices, "notice")) if count
    ]
    return ", ".join(counts) or "nothing found"


def line(status: RunStatus) -> str:
    """Return the status of the run as one line."""
    if status.state == WAITING:
        return f"{phrases.plain(status.folder)} is not there yet, or empty"
    if not status.ranks:
        return f"no training was seen{'' if status.over else ' yet'}"
    parts = [f"step {status.steps:,}", speed(status.steps_per_second)]
    if len(status.ranks) > 1:
        parts.append(f"{len(status.ranks):,} ranks")
    parts.append(findings_text(status))
    if status.rules:
        parts.append(f"{status.checked:,} of {phrases.number(status.rules, 'rule')} checked")
    if status.cost is not None:
        parts.append(f"observing takes {share(status.cost)}")
    if status.dropped:
        parts.append(f"{phrases.number(status.dropped, 'window')} dropped")
    return ", ".join(part for part in parts if part)


def silence(ranks: tuple[RankStatus, ...]) -> str:
    """Return which ranks are silent, and since when."""
    who = named_ranks(rank.rank for rank in ranks)
    have = "has" if len(ranks) == 1 else "have"
    least = min(rank.silent for rank in ranks)
    return f"{who} {have} sent no heartbeat for {lasting(least)}: killed, or the host is gone or hangs"


def ending(status: RunStatus) -> str:
    """Return how the run ended."""
    if status.state == DELETED:
        return "the run folder was deleted; the result covers the time before"
    if status.state == KILLED and all(rank.state == ENDED for rank in status.ranks):
        return "all processes have ended, and the command that started them did not say so: it was killed"
    if status.state == KILLED:
        least = min((rank.silent for rank in status.ranks if rank.state != ENDED), default=0.0)
        return f"no heartbeat for {lasting(least)}: the run counts as killed"
    if status.stopped:
        return "the run was stopped by TrainCheck (--on-violation stop)"
    killed = [rank.rank for rank in status.ranks if rank.state == KILLED]
    without = f"; {named_ranks(killed)} ended without a word" if killed else ""
    code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
    return f"the run ended{code}{without}"


def standing(rank: RankStatus) -> str:
    """Return the state of a rank, and since when."""
    if rank.state == SILENT:
        return f"silent for {lasting(rank.silent)}"
    if rank.state == RESTING:
        return f"no window for {lasting(rank.resting)}"
    return "no step yet" if rank.state == STARTING else rank.state
