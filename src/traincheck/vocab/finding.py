"""Findings: violations grouped under one cause, and the report that tells them."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.vocab.invariant import ERROR, Invariant
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks

REPORT_VERSION = 1
"""Version of the JSON report. 1: verdict, findings, counts, not_observed, run, cost (2026); since then added to it,
which needs no new version: ranks, partings, the ranks of a finding, its diagnosis, and cost as it is now."""

UNEXPLAINED = "differs-from-good-runs"
"""The diagnosis of a rule that no other diagnosis explains."""

PASSED, VIOLATED, NOT_TRIGGERED, NOT_OBSERVED = "passed", "violated", "never triggered", "could not be observed"


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's code."""

    file: str
    line: int
    function: str

    @classmethod
    def parse(cls, text: str) -> Site | None:
        """The site written as `file:line:function`, None for an empty text."""
        if not text:
            return None
        file, line, function = text.rsplit(":", 2)
        return cls(file, int(line), function)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Violation:
    """One invariant that did not hold on one or more occasions of one window.

    `evidence` tells, a sentence each, how the parameters around the call stood; `note` what was seen, where the
    relation has words for it; `apart` which ranks differ, where several were compared.
    """

    invariant: Invariant
    step: int
    rank: int
    process: int
    window: int
    stage: str
    seq: int
    site: Site | None
    receiver: str
    variables: tuple[str, ...]
    occasions: int = 1
    evidence: tuple[str, ...] = ()
    note: str = ""
    differing: DifferingRanks = NONE_DIFFER


@dataclass(frozen=True, slots=True)
class Finding:
    """Violations under one cause, told as one thing. `step` is the first, `last_step` the last in which it was seen.

    `ranks` are those that it is about: where `compared` ranks were set against each other, those that differ, see
    `Apart`; where each was judged by itself (`compared` is 0), those on which it is so.
    """

    severity: str
    step: int
    rank: int
    title: str
    cause: str
    site: Site | None
    variables: tuple[str, ...]
    expected: str
    observed: str
    advice: tuple[str, ...]
    invariants: tuple[str, ...]
    last_step: int
    times: int
    ranks: tuple[int, ...] = ()
    compared: int = 0
    diagnosis: str = ""
    """The slug of the diagnosis; empty in reports of older versions."""

    @property
    def identity(self) -> str:
        """The same for one kind of trouble in all runs: the diagnosis, or the title if no diagnosis explains it."""
        return self.title if self.diagnosis in ("", UNEXPLAINED) else self.diagnosis

    @property
    def differing(self) -> DifferingRanks:
        """The ranks that differ, where several were compared."""
        return DifferingRanks(self.ranks, self.compared) if self.compared else NONE_DIFFER


ENDED, KILLED, GOING, STOPPED, MISSING = "ended", "killed", "not ended", "stopped recording", "left no recording"
ELSEWHERE = "in another run folder"
"""How the recording of a rank came to its end; `not ended` where the run goes on, or was killed as a whole. Of a rank
that records into another run folder only that is known."""


@dataclass(frozen=True, slots=True)
class RankState:
    """How a rank of a job fared. `steps` and `windows` are those that it trained, as far as they are known.

    `recorded` is the last step in its recording, `compared` the last one in which it was set against the other ranks
    (None where it was not), `apart` the first one in which several ranks were not as they should be, this one among
    them (of a majority, those that deviate), and `what` was so, as a clause: `gradients differ`.
    """

    rank: int
    job: str
    end: str
    steps: int
    windows: int
    recorded: int
    compared: int | None = None
    apart: int | None = None
    what: str = ""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step in which the ranks of a job were not as they should be, `what` was so (see `RankState`), and which
    of them differ, as `Apart` has it."""

    job: str
    step: int
    what: str
    ranks: tuple[int, ...]
    compared: int

    @property
    def differing(self) -> DifferingRanks:
        """The ranks that differ."""
        return DifferingRanks(self.ranks, self.compared)


@dataclass(frozen=True, slots=True)
class Counts:
    """How the deployed invariants fared, and how much was seen."""

    invariants: int = 0
    passed: int = 0
    violated: int = 0
    not_triggered: int = 0
    not_observed: int = 0
    muted: int = 0
    errors: int = 0
    notices: int = 0
    steps: int = 0
    windows: int = 0
    windows_dropped: int = 0
    processes: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What watching took, of all processes that trained: seconds on the threads of the program by source, seconds of
    the thread beside by stage, and how long they ran. The steps are those of the process that made the most."""

    steps: int
    watched: int
    seconds: float
    sources: dict[str, float]
    background: dict[str, float]

    def share(self, seconds: float) -> float:
        """How much of the run so many seconds are."""
        return seconds / self.seconds if self.seconds else 0.0

    @property
    def whole(self) -> float:
        """How much of the run watching took on the threads of the program."""
        return self.share(sum(self.sources.values()))


@dataclass(frozen=True, slots=True)
class Report:
    """All that a check has to say. The leading finding comes first. Only jobs of several ranks have `ranks`."""

    findings: tuple[Finding, ...]
    counts: Counts
    not_observed: tuple[str, ...] = ()
    run: dict[str, object] = field(default_factory=dict)
    version: int = REPORT_VERSION
    ranks: tuple[RankState, ...] = ()
    partings: tuple[Divergence, ...] = ()
    cost: Cost | None = None

    @property
    def untrained(self) -> str:
        """Why the run is none of training, as a sentence; empty where training steps were recognised."""
        return str(self.run.get("untrained") or "")

    @property
    def unjudged(self) -> bool:
        """Whether the run is neither good nor bad: no rule could be judged, or there was no training step."""
        return not self.findings and bool(self.untrained or not self.counts.passed)

    @property
    def verdict(self) -> str:
        """`clean`, `notices` (only findings that do not fail a run) or `errors`."""
        if any(finding.severity == ERROR for finding in self.findings):
            return "errors"
        return "notices" if self.findings else "clean"
