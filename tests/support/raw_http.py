"""HTTP/1.1 byte by byte, for requests that no client library sends."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from email.parser import BytesHeaderParser
from http.client import HTTPException, IncompleteRead
from typing import NamedTuple

import httpx

SECONDS = 300
"""Seconds that a test waits for a response that must arrive. Generous."""


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """One TCP connection to the server at `url`."""

    def __init__(self, url: str, source: str = "") -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.host = f"{host}:{port}"
        bound = (source, 0) if source else None
        self.socket = socket.create_connection((host, int(port)), SECONDS, bound)
        self._file = self.socket.makefile("rb")

    def send(self, *parts: bytes | str) -> None:
        self.socket.sendall(b"".join(part.encode() if isinstance(part, str) else part for part in parts))

    def head(self, line: str, **headers: str) -> bytes:
        """Return a request head with a Host header. The keyword `x_y` sets the header `x-y`."""
        lines = [f"{line} HTTP/1.1", f"host: {self.host}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def reply(self) -> Reply:
        """Return the next response. Raise IncompleteRead if the connection ends first."""
        status = int(self._line().split()[1])
        lines = list(iter(self._line, b"\r\n"))
        headers = {name.lower(): value for name, value in BytesHeaderParser().parsebytes(b"".join(lines)).items()}
        size = int(headers["content-length"])
        body = self._file.read(size)
        if len(body) < size:
            raise IncompleteRead(body, size - len(body))
        return Reply(status, headers, body)

    def _line(self) -> bytes:
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise IncompleteRead(line)
        return line

    def get(self, path: str = "/healthz") -> Reply:
        self.send(self.head(f"GET {path}"))
        return self.reply()

    def is_closed(self, seconds: float = SECONDS) -> bool:
        """Return whether the server closes the connection within `seconds`. Received bytes are dropped."""
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self.socket.settimeout(left)
                if not self.socket.recv(65_536):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(SECONDS)
        return False

    def drip(self, pause: float, *parts: bytes) -> bool:
        """Send the parts in turn, with a `pause` in seconds after each. Return whether the server closes in time."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for part in parts:
                try:
                    self.socket.sendall(part)
                except OSError:
                    return True
                if self.is_closed(pause):
                    return True
        return False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
            self.socket.close()


@contextlib.contextmanager
def connected(url: str, source: str = "") -> Iterator[RawConnection]:
    connection = RawConnection(url, source)
    try:
        yield connection
    finally:
        connection.close()


def steadily(act: Callable[[Callable[[float], None]], None]) -> None:
    """Call `act(wait)`. Repeat it, at most nine times, if it fails after a pause that was clearly longer than it asked
    for: the machine was too busy for a steady client.
    """
    for attempt in range(10):
        began, late = time.monotonic(), 0.0

        def wait(seconds: float) -> None:
            nonlocal began, late
            time.sleep(seconds)
            ended = time.monotonic()
            began, late = ended, max(late, ended - began - seconds)

        try:
            act(wait)
            return
        except (AssertionError, OSError, HTTPException, httpx.TransportError):
            if max(late, time.monotonic() - began) < 0.2 or attempt == 9:
                raise
