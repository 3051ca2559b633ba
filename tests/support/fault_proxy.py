"""A proxy between a plugin and the service that the plugin uses, which injects faults into single requests."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

PIECE = 64 * 1024
DRIP_SECONDS = 0.1


class Fault(NamedTuple):
    """A fault of the requests whose method and address (`GET /bucket/key?query`) match `pattern`."""

    pattern: str
    times: int = 1
    status: int = 0
    """The proxy answers with this status, and does not ask the service."""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of the answer with `status`."""
    refuse: bool = False
    """The proxy closes the connection without an answer."""
    cut_after: int = -1
    """The proxy closes the connection after these bytes of the answer."""
    shorten: bool = False
    """The proxy sends half of the answer, with a length that fits to it."""
    wrong_answer: bool = False
    """The proxy changes a byte of the answer."""
    wrong_request: bool = False
    """The proxy changes a byte of the request's body."""
    seconds: float = 0
    """The proxy waits before it sends the answer."""
    drips: bool = False
    """Whether the proxy sends the answer with `status` byte by byte, with pauses."""


def error_body(code: str, more: str = "") -> bytes:
    """Return the answer of a service with an error code."""
    text = f"<Code>{code}</Code><Message>of the test</Message>{more}"
    return f'<?xml version="1.0" encoding="UTF-8"?><Error>{text}</Error>'.encode()


class FaultProxy:
    """A proxy on loopback. `faults` may change at any time; `seen` lists the requests."""

    def __init__(self, target: str, context: ssl.SSLContext | None = None) -> None:
        self.target = urlsplit(target)
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self.headers: list[dict[str, str]] = []
        """The headers of the requests in `seen`."""
        self.on_request: Callable[[str], None] = lambda _line: None
        """Called for each request, before it is passed on."""
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, line: str, headers: dict[str, str]) -> Fault | None:
        """Return the fault for this request, and count it."""
        with self._lock:
            self.seen.append(line)
            self.headers.append(headers)
            for place, fault in enumerate(self.faults):
                if fault.times and re.search(fault.pattern, line):
                    self.faults[place] = fault._replace(times=fault.times - 1)
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        line = f"{self.command} {self.path}"
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.owner.on_request(line)
        fault = self.owner.take(line, {name.lower(): value for name, value in self.headers.items()}) or Fault("")
        time.sleep(fault.seconds)
        if fault.refuse:
            self.close_connection = True
        elif fault.status:
            usual = [("content-type", "application/xml"), ("etag", '"a"'), _MODIFIED]
            self._send(fault.status, [*usual, *fault.headers], fault.body, drips=fault.drips)
        else:
            self._pass_on(flipped(body) if fault.wrong_request else body, fault)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _pass_on(self, body: bytes, fault: Fault) -> None:
        target = self.owner.target
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=300)
        try:
            # The signature covers the header Host.
            connection.request(self.command, self.path, body or None, dict(self.headers.items()))
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OWN]
            if self.command == "HEAD":
                kept.append(("content-length", answer.headers.get("content-length", "0")))
                self._send(answer.status, kept, None)
                return
            content = answer.read()
            content = content[: len(content) // 2] if fault.shorten else content
            content = flipped(content) if fault.wrong_answer else content
            self._send(answer.status, kept, content, fault.cut_after)
        except OSError:
            self.close_connection = True
        finally:
            connection.close()

    def _send(
        self,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes | None,
        cut_after: int = -1,
        drips: bool = False,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if body is not None:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if drips:
            self._drip(body or b"")
        elif body is not None:
            self.wfile.write(body if cut_after < 0 else body[:cut_after])
            self.wfile.flush()
        if cut_after >= 0:
            self.close_connection = True

    def _drip(self, body: bytes) -> None:
        with suppress(OSError):  # the client has closed the connection
            for place in range(len(body)):
                self.wfile.write(body[place : place + 1])
                time.sleep(DRIP_SECONDS)
        self.close_connection = True


_MODIFIED = ("last-modified", "Mon, 23 Nov 2026 12:00:00 GMT")
_OWN = {"content-length", "transfer-encoding", "connection", "keep-alive"}


def flipped(content: bytes) -> bytes:
    """Return the content with one changed byte in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if content else content
