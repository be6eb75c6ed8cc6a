"""Send metrics to an OpenTelemetry collector over HTTP, at intervals."""

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
"""Seconds between two exports."""

ATTEMPT = 5
"""Seconds that an export may take, including the last one, which delays the end of the run."""

PATH = "/v1/metrics"
"""The collector's path for metrics, added to an endpoint without a path."""


class Otlp:
    """Sends the metrics to `endpoint`. Reports the first error through `notify`.

    Headers come from OTEL_EXPORTER_OTLP_HEADERS, as everywhere in OpenTelemetry. Raises MissingExtra if its packages
    are not installed, and ValueError with the expected form for an invalid endpoint.
    """

    def __init__(self, endpoint: str, notify: Callable[[str], None], every: float = EVERY) -> None:
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
        self._export_log = _ExportLog(f"{parts.scheme}://{parts.hostname}", notify)
        log = logging.getLogger("opentelemetry")
        # Never removed: threads of the exporter outlive its end, and would write to stderr.
        log.handlers = [self._export_log]
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
        """Use this status for the next export."""
        self._status = status

    def close(self) -> None:
        """Export the last status, and end."""
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
"""The reported part of an error message; the rest may contain the address, and with it a secret."""


class _ExportLog(logging.Handler):
    """Reports the first warning of the exporter about a collector that does not answer."""

    def __init__(self, where: str, notify: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._where = where
        self._notify = notify
        self._reported = False

    def emit(self, record: logging.LogRecord) -> None:
        """Report the first record."""
        if not self._reported:
            self._reported = True
            match = _REASON.search(record.getMessage())
            reason = next((part for part in match.groups() if part), "") if match else "no answer"
            self._notify(f"metrics could not be sent to {self._where} ({reason}); TrainCheck retries")
