"""The teller: tells each new finding once, while violations come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from traincheck.vocab.finding import Finding, Violation
from traincheck.vocab.invariant import ERROR


class Teller:
    """Tells each new finding once, while violations come in.

    A finding is new when none of its invariants was told; an error also when they were told as notices only.
    """

    def __init__(self, on_finding: Callable[[Finding], None]) -> None:
        self._on_finding = on_finding
        self._told: dict[str, str] = {}

    def feed(self, violations: Sequence[Violation], all_so_far: Sequence[Violation]) -> bool:
        """Tell the findings that `violations` bring; whether there are any."""
        if all(violation.invariant.id in self._told for violation in violations):
            return False
        # Most runs break no rule: what knows of causes is not imported before one does.
        from traincheck.checking.findings import group

        self.tell(group(all_so_far))
        return True

    def tell(self, findings: Iterable[Finding]) -> None:
        """Tell those of `findings` that are new."""
        for finding in findings:
            told = [self._told[name] for name in finding.invariants if name in self._told]
            if not told or (finding.severity == ERROR and ERROR not in told):
                self._on_finding(finding)
            for name in finding.invariants:
                if self._told.get(name) != ERROR:
                    self._told[name] = finding.severity
