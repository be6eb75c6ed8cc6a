"""Serve metrics for Prometheus on a port of this host."""

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

REQUEST_TIMEOUT = 10.0
"""Seconds that a client may take to send its request."""


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach a server at `host`. Raises OSError for an unknown name."""
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in addresses)


class Prometheus:
    """Serves the metrics at `address` on background threads until it is closed.

    If there is a `token`, clients must send `Authorization: Bearer TOKEN`. Port 0 selects a free port. Raises
    MissingExtra if prometheus-client is not installed, and OSError if the port is not available.
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
        """Serve this status from now on."""
        self._status = status

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def collect(self) -> Iterator[Any]:
        """Return the metrics for the registry of prometheus-client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        status = self._status
        if status is None:
            return
        run = InfoMetricFamily("traincheck_run", "The observed run.")
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
        # HTTPServer's own method looks up the name of this host, and may block.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the client has closed the connection."""


def _guarded(handler: Any, token: str) -> Any:
    """Return the handler, restricted to clients with the token."""

    def do_get(self: BaseHTTPRequestHandler) -> None:
        credentials = self.headers.get("Authorization", "")
        if token and not hmac.compare_digest(credentials.encode(), f"Bearer {token}".encode()):
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        handler.do_GET(self)

    return type("Handler", (handler,), {"do_GET": do_get, "timeout": REQUEST_TIMEOUT})
