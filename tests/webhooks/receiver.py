"""A receiver of webhooks on loopback, as the documentation describes one: real HTTP, with verified signatures."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "webhooks.md"
WAIT_SECONDS = 300.0


def documented_check() -> Callable[[dict[str, str], bytes, str], bool]:
    """Return the function `verified` that the documentation shows."""
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    check: Callable[[dict[str, str], bytes, str], bool] = names["verified"]
    return check


verified = documented_check()


class Message(NamedTuple):
    """One received request."""

    headers: dict[str, str]
    body: bytes
    status: int
    path: str

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def type(self) -> str:
        return str(self.json["type"])

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.json["data"]
        return data

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """A target that records requests. `answer` decides on the status of each request; each response has these headers
    and this body.
    """

    def __init__(self, port: int = 0, answer: Callable[[Message], int] = lambda _: 200) -> None:
        self.answer = answer
        self.headers: dict[str, str] = {}
        self.body = b""
        self.requests: list[Message] = []
        self.secret = ""
        self.tls: ssl.SSLContext | None = None
        self.busy = 0
        self.most_busy = 0
        self._changed = threading.Condition()
        # Holds the port until `close`, also while nothing listens there, so that no other program gets it.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", port))
        self.port = self._held.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}/hook"

    @property
    def accepted(self) -> list[Message]:
        with self._changed:
            return [one for one in self.requests if one.status == 200]

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = _Server(("127.0.0.1", self.port), _handler(self))
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections until `start`."""
        self._server.shutdown()
        self._server.server_close()

    def close(self) -> None:
        self.stop()
        self._held.close()

    def take(self, headers: dict[str, str], body: bytes, path: str) -> int:
        with self._changed:
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        status = 0
        try:
            status = self.answer(Message(headers, body, 0, path))
            return status
        finally:
            with self._changed:
                self.busy -= 1
                self.requests.append(Message(headers, body, status, path))
                self._changed.notify_all()

    def wait_for(self, condition: Callable[[Receiver], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait until the condition holds. It is checked after each request."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), seconds):
                seen = [(one.type, one.status) for one in self.requests]
                raise AssertionError(f"the awaited requests did not arrive; {len(seen)} arrived, last {seen[-10:]}")

    def wait_for_accepted(self, count: int, seconds: float = WAIT_SECONDS) -> list[Message]:
        self.wait_for(lambda one: sum(message.status == 200 for message in one.requests) >= count, seconds)
        return self.accepted


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients of some tests end the connection in the middle."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            body = self.rfile.read(length)
            if len(body) < length:  # the server was killed in the middle of the request
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.take(headers, body, self.path)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the server does not read a long body to its end
                self.wfile.write(receiver.body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
