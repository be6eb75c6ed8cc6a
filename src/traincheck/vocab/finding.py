"""Findings: violations grouped under one cause, and the report of a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from traincheck.vocab.invariant import ERROR, Invariant
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks
from traincheck.vocab.verification import VerifiedComputation

REPORT_VERSION = 1
"""Version of the JSON report. 1: verdict, findings, counts, not_observed, run, cost (2026); since then added to it,
which needs no new version: ranks and divergences, the ranks of a finding, its diagnosis, cost as it is now,
verification, and comparison."""

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
    """One invariant that failed on one or more occasions of one window.

    `evidence` describes the parameters around the call, one sentence each. `note` says what was observed, if the
    relation has words for it. `differing` names the ranks that differ, if several were compared.
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
    """Violations under one cause. `step` is the first, `last_step` the last step of them.

    `ranks` are the ranks concerned. If `compared` ranks were compared, these are the ones that differ, see
    `DifferingRanks`. If each rank was judged by itself (`compared` is 0), these are the ones with violations.
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
        """The ranks that differ, if several were compared."""
        return DifferingRanks(self.ranks, self.compared) if self.compared else NONE_DIFFER


ENDED, KILLED, GOING, STOPPED, MISSING = "ended", "killed", "not ended", "stopped recording", "left no recording"
ELSEWHERE = "in another run folder"
"""How the recording of a rank ended; `not ended` if the run goes on, or was killed as a whole. A rank that records into
another run folder is known by this state only."""


@dataclass(frozen=True, slots=True)
class RankState:
    """The state of a rank of a job. `steps` and `windows` are those of its training, as far as they are known.

    `recorded` is the last step in its recording. `compared` is the last step in which it was compared with the other
    ranks (None if it was not). `apart` is the first step in which several ranks violated a rule, this one among them
    (of a majority, those that deviate). `what` names the difference as a clause: `gradients differ`. The JSON report
    has these names.
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
    """The first step in which the ranks of a job violated a rule, with the difference (`what`, see `RankState`) and the
    ranks that differ (see `DifferingRanks`).
    """

    job: str
    step: int
    what: str
    ranks: tuple[int, ...]
    compared: int

    @property
    def differing(self) -> DifferingRanks:
        return DifferingRanks(self.ranks, self.compared)


@dataclass(frozen=True, slots=True)
class Counts:
    """The verdicts of the deployed invariants, and how much was observed."""

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
    """The cost of watching, for all processes that trained: seconds on the threads of the program by source, seconds of
    the background thread by stage, and how long the processes ran. The steps are those of the process that made the
    most.
    """

    steps: int
    watched: int
    seconds: float
    sources: dict[str, float]
    background: dict[str, float]

    def share(self, seconds: float) -> float:
        """The given seconds as a share of the run."""
        return seconds / self.seconds if self.seconds else 0.0

    @property
    def whole(self) -> float:
        """The share of the run that watching took on the threads of the program."""
        return self.share(sum(self.sources.values()))


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check. The leading finding comes first. Only jobs of several ranks have `ranks`, and only runs
    with verified steps have `verification`. `comparison` is the comparison with an earlier run (`run --against`), as
    data with its text for people."""

    findings: tuple[Finding, ...]
    counts: Counts
    not_observed: tuple[str, ...] = ()
    run: dict[str, object] = field(default_factory=dict)
    version: int = REPORT_VERSION
    ranks: tuple[RankState, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    cost: Cost | None = None
    verification: tuple[VerifiedComputation, ...] = ()
    comparison: dict[str, Any] | None = None

    @property
    def differs(self) -> bool:
        """Whether the run computes other results than the run with which it was compared."""
        return self.comparison is not None and self.comparison.get("result") == "different"

    @property
    def untrained(self) -> str:
        """Why the run contains no training, as a sentence; empty if training steps were recognised."""
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
