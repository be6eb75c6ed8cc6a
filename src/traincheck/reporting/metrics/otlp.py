"""Metrics for OpenTelemetry: sent to a collector now and then, over HTTP."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from traincheck.errors import MissingExtra
from traincheck.reporting.metrics.table import INSTALL, METRICS, Metric
from traincheck.version import __version__
from traincheck.vocab.finding import Finding
from traincheck.vocab.run_status import RunStatus

EVERY = 10.0
"""Seconds between two sendings."""

ATTEMPT = 5
"""Seconds that a sending may take; also the last one, which the end of the run waits for."""

PATH = "/v1/metrics"
"""Where a collector takes metrics; added to an endpoint without a path."""


class Otlp:
    """Sends the metrics to `endpoint`. What goes wrong is told through `tell`, once for each time of trouble.

    Headers that a collector asks for are taken from OTEL_EXPORTER_OTLP_HEADERS, as everywhere in OpenTelemetry. Raises
    MissingExtra where its packages are not installed, ValueError, which says what was expected, for no endpoint.
    """

    def __init__(self, endpoint: str, tell: Callable[[str], None], every: float = EVERY) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("an address that begins with http:// or https:// and names a host")
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise MissingExtra("--metrics URL", "opentelemetry-exporter-otlp-proto-http", INSTALL) from None
        self._status: RunStatus | None = None
        self._complaints = _Complaints(f"{parts.scheme}://{parts.hostname}", tell)
        log = logging.getLogger("opentelemetry")
        log.handlers = [
            self._complaints
        ]  # for good: threads of the exporter outlive its end, and would write on stderr
        log.propagate = False
        exporter = OTLPMetricExporter(
            endpoint.rstrip("/") + PATH if parts.path in ("", "/") else endpoint, timeout=ATTEMPT
        )
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=every * 1000)
        resource = Resource.create({"service.name": "traincheck", "service.version": __version__})
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("traincheck", __version__)
        for metric in METRICS:
            create = meter.create_observable_counter if metric.counts else meter.create_observable_gauge
            create(metric.name.replace("_", ".", 1), [self._observed(metric)], metric.unit, metric.meaning)

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Send these numbers the next time."""
        self._status = status

    def close(self) -> None:
        """Send the last numbers, and end."""
        self._provider.shutdown(timeout_millis=ATTEMPT * 1000)

    def _observed(self, metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def observe(options: Any) -> Iterable[Any]:
            from opentelemetry.metrics import Observation

            status = self._status
            if status is None:
                return []
            of_run = {"traincheck.script": status.script, "traincheck.folder": status.folder}
            return [Observation(number, {**of_run, **labels}) for labels, number in metric.samples(status)]

        return observe


_REASON = re.compile(r"\[Errno -?\d+\] ([\w ]+)|(code: \d+)")
"""What of a message is told: the rest may repeat the address, which may hold a secret."""


class _Complaints(logging.Handler):
    """What the exporter logs about a collector that does not answer: one line, and not one for each attempt."""

    def __init__(self, where: str, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._where = where
        self._tell = tell
        self._reported = False

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the first one."""
        if not self._reported:
            self._reported = True
            match = _REASON.search(record.getMessage())
            reason = next((part for part in match.groups() if part), "") if match else "no answer"
            self._tell(f"metrics could not be sent to {self._where} ({reason}); it is tried again")
