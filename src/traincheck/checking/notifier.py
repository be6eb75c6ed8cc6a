"""Reports each new finding once while violations come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from traincheck.vocab.finding import Finding, Violation
from traincheck.vocab.invariant import ERROR


class Notifier:
    """Calls `on_finding` once for each new finding.

    A finding is new if none of its invariants was in an earlier finding. An error is also new if they were in notices
    only.
    """

    def __init__(self, on_finding: Callable[[Finding], None]) -> None:
        self._on_finding = on_finding
        self._severities: dict[str, str] = {}  # the highest reported one, by the id of the invariant

    def feed(self, violations: Sequence[Violation], all_so_far: Sequence[Violation]) -> bool:
        """Report the findings that `violations` add; whether there may be any."""
        if all(violation.invariant.id in self._severities for violation in violations):
            return False
        # Most runs break no rule, so the catalogue of diagnoses is imported when the first rule breaks.
        from traincheck.checking.findings import group

        self.notify(group(all_so_far))
        return True

    def notify(self, findings: Iterable[Finding]) -> None:
        """Report those of `findings` that are new."""
        for finding in findings:
            reported = [self._severities[name] for name in finding.invariants if name in self._severities]
            if not reported or (finding.severity == ERROR and ERROR not in reported):
                self._on_finding(finding)
            for name in finding.invariants:
                if self._severities.get(name) != ERROR:
                    self._severities[name] = finding.severity
