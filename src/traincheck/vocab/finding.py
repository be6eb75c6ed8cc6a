"""Findings: violations grouped under one cause, and the report that tells them."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.vocab.invariant import ERROR, Invariant

REPORT_VERSION = 1
"""Version of the JSON report. 1: verdict, findings, counts, not_observed, run, cost (2026)."""

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
    relation has words for it.
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


@dataclass(frozen=True, slots=True)
class Finding:
    """Violations under one cause, told as one thing. `step` is the first, `last_step` the last in which it was seen."""

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
class Report:
    """All that a check has to say. The leading finding comes first."""

    findings: tuple[Finding, ...]
    counts: Counts
    not_observed: tuple[str, ...] = ()
    run: dict[str, object] = field(default_factory=dict)
    version: int = REPORT_VERSION

    @property
    def verdict(self) -> str:
        """`clean`, `notices` (only findings that do not fail a run) or `errors`."""
        if any(finding.severity == ERROR for finding in self.findings):
            return "errors"
        return "notices" if self.findings else "clean"
