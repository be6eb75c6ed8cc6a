"""Which alerts a run gives: each finding that is grave enough, ranks that fall silent, and the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from traincheck.reporting.alerts.alert import Alert, of_end, of_finding, of_silence
from traincheck.reporting.alerts.alert_queue import Courier
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import ERROR
from traincheck.vocab.run_status import RunStatus


class Alerts:
    """Hands alerts to couriers: of findings of severity `least` and above, and one of each silence and of the end."""

    def __init__(self, couriers: Sequence[Courier], least: Literal["error", "notice"]) -> None:
        self._couriers = couriers
        self._least = least
        self._silent: set[tuple[int, int]] = set()
        self._silences = 0
        self._ended = False

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Alert of what is new."""
        for finding in findings:
            if finding.severity == ERROR or self._least != ERROR:
                self._send(of_finding(finding, status))
        silent = {(rank.rank, rank.process) for rank in status.silent}
        if silent - self._silent:
            self._silences += 1
            self._send(of_silence(status, self._silences))
        self._silent = silent
        if status.over and not self._ended:
            self._ended = True
            self._send(of_end(status))

    def close(self) -> None:
        """Wait a few seconds for what is under way."""
        for courier in self._couriers:
            courier.close()

    def _send(self, alert: Alert) -> None:
        for courier in self._couriers:
            courier.put(alert)
