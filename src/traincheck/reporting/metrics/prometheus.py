"""Metrics for Prometheus: a page that it reads, on a port of this host."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socketserver import TCPServer
from typing import Any

from traincheck.errors import MissingExtra
from traincheck.reporting.metrics.table import INSTALL, METRICS
from traincheck.vocab.finding import Finding
from traincheck.vocab.run_status import RunStatus

PATIENCE = 10.0
"""Seconds that one who connects may take to ask."""


def is_loopback(host: str) -> bool:
    """Whether only this host can reach what is served at `host`. Raises OSError for a name that nobody knows."""
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in addresses)


class Prometheus:
    """Serves the metrics at `address` until it is closed, in threads of its own.

    Where there is a `token`, who asks has to show it as `Authorization: Bearer TOKEN`. Port 0 takes one that is free.
    Raises MissingExtra where prometheus-client is not installed, OSError where the port cannot be had.
    """

    def __init__(self, host: str, port: int, token: str = "") -> None:
        try:
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import MetricsHandler
        except ImportError:
            raise MissingExtra("--metrics PORT", "prometheus-client", INSTALL) from None
        self._status: RunStatus | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        handler = _guarded(MetricsHandler.factory(registry), token)
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        kind = type("Server", (_Server,), {"address_family": family})
        self._server: _Server = kind(address[:2], handler)
        named_host = f"[{host}]" if ":" in host else host
        self.address = f"http://{named_host}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="traincheck-metrics", daemon=True)
        self._thread.start()

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Serve these numbers from now on."""
        self._status = status

    def close(self) -> None:
        """Serve nothing more."""
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> Iterator[Any]:
        """The metrics, as the registry of prometheus-client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        status = self._status
        if status is None:
            return
        run = InfoMetricFamily("traincheck_run", "The run that is looked at.")
        run.add_metric([], {"folder": status.folder, "script": status.script, "mode": status.mode})
        yield run
        for metric in METRICS:
            kind = CounterMetricFamily if metric.counts else GaugeMetricFamily
            family = kind(metric.name, metric.meaning, labels=metric.labels)
            for labels, number in metric.samples(status):
                family.add_metric([labels[name] for name in metric.labels], number)
            yield family


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for the name of this host, and may wait for it.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who asked has hung up."""


def _guarded(handler: Any, token: str) -> Any:
    """The handler, for those only who show the token."""

    def do_get(self: BaseHTTPRequestHandler) -> None:
        shown = self.headers.get("Authorization", "")
        if token and not hmac.compare_digest(shown.encode(), f"Bearer {token}".encode()):
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        handler.do_GET(self)

    return type("Handler", (handler,), {"do_GET": do_get, "timeout": PATIENCE})
