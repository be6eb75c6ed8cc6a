"""Send alerts as HTTP POST requests in the Slack format. The address of a webhook is a secret."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from email.message import Message
from http.client import HTTPException
from typing import IO
from urllib.parse import urlsplit

from traincheck.reporting.alerts.alert import Alert
from traincheck.reporting.alerts.alert_queue import Undelivered
from traincheck.version import __version__

RETRIED = {408, 425, 429}
"""Client errors (4xx) that may succeed when retried."""


class Webhook:
    """Posts alerts to `url`. Raises ValueError for an invalid address; the message does not contain the address."""

    def __init__(self, url: str) -> None:
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("an address without spaces and other special characters")
        try:
            parts, port = urlsplit(url), urlsplit(url).port
        except ValueError:
            raise ValueError("an address whose host and port can be read") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("an address that begins with https:// or http:// and names a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("an address without a user name; put secrets into its path")
        self._url = url
        where = parts.hostname if port is None else f"{parts.hostname}:{port}"
        self.finishes = False
        self.name = f"the webhook at {parts.scheme}://{where}/..."
        self._opener = urllib.request.build_opener(_NoRedirect)

    def deliver(self, alert: Alert, seconds: float) -> None:
        """Post the alert. Any 2xx answer means success."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"traincheck/{__version__}",
            "Idempotency-Key": alert.id,
        }
        request = urllib.request.Request(self._url, alert.encoded(), headers, method="POST")
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                status, after = answer.status, 0.0
        except urllib.error.HTTPError as error:
            status, after = error.code, _seconds(error.headers)
            error.close()
        except (OSError, HTTPException) as error:
            raise Undelivered(_reason(error)) from None  # without the cause, which may contain the address
        if not 200 <= status < 300:
            raise Undelivered(
                f"it answered with HTTP status {status}",
                final=300 <= status < 500 and status not in RETRIED,
                after=after,
            )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would turn the POST into a GET, or send the alert to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        """Return None, so that the redirect itself is the answer."""
        return None


def _seconds(headers: Message) -> float:
    delay = headers.get("Retry-After", "") if headers is not None else ""
    return float(delay) if delay.isdecimal() else 0.0


def _reason(error: Exception) -> str:
    """Return the reason in the operating system's words; other texts may contain the address."""
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return "no answer in time"
    if isinstance(inner, ssl.SSLError):
        return f"no secure connection ({inner.reason or type(inner).__name__})"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return type(inner).__name__
