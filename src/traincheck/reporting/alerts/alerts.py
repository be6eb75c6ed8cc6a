"""Select the alerts of a run: findings of sufficient severity, silent ranks, and the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from traincheck.reporting.alerts.alert import Alert, of_end, of_finding, of_silence
from traincheck.reporting.alerts.alert_queue import AlertQueue
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import ERROR
from traincheck.vocab.run_status import RunStatus


class Alerts:
    """Queues alerts for findings of at least severity `least`, for silent ranks, and for the end of the run."""

    def __init__(self, queues: Sequence[AlertQueue], least: Literal["error", "notice"]) -> None:
        self._queues = queues
        self._least = least
        self._silent: set[tuple[int, int]] = set()
        self._silences = 0
        self._ended = False

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Queue alerts for new findings, silent ranks and the end."""
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
        """Wait a few seconds for waiting alerts."""
        for queue in self._queues:
            queue.close()

    def _send(self, alert: Alert) -> None:
        for queue in self._queues:
            queue.put(alert)
