"""Local receivers of alerts and metrics that fail, hang and recover on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Counts what was posted to it. `answer` is the status of its answers; while `hangs` is set, it gives none."""

    def __init__(self) -> None:
        self.answer = 200
        self.hangs = threading.Event()
        self.released = threading.Event()
        self.attempts: list[dict[str, Any]] = []
        self.taken: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    def take(self, body: bytes, headers: dict[str, str], decode: Callable[[bytes], Any]) -> int:
        message = decode(body)
        self.attempts.append(message)
        if self.hangs.is_set():
            self.released.wait(60)
            return 0
        if self.answer == 200:
            self.taken.append(message)
            self.bodies.append(body)
            self.headers.append(headers)
        return self.answer

    def texts(self) -> list[str]:
        return [message["text"] for message in self.taken]


@contextmanager
def receiving(path: str = "/secret/path", decode: Callable[[bytes], Any] = json.loads) -> Iterator[Receiver]:
    """A receiver that listens on this host until the block is left."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.take(body, dict(self.headers), decode) if self.path == path else 404
            if status:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *words: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}{path}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
