"""The server under attack, as seen by an attacker: its address, a token, and requests over plain sockets.

Closing a connection early is a valid response: no function here raises for a reset connection.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

MIB = 1 << 20
PIECE = 256 * 1024
ASK_SECONDS = 45.0
START = 64 * 1024
ERROR_CODE = re.compile(rb'"error":\{"code":(-[0-9]{5})')
Result = TypeVar("Result")


class Victim(NamedTuple):
    host: str
    port: int
    token: str
    small: bool = False
    """Whether attacks use their short form, with less time and less data."""
    blob: str = ""
    """Id of a blob of 1 MiB."""
    large_blob: str = ""
    """Id of a blob that is larger than any socket buffer."""

    @classmethod
    def at(cls, url: str, token: str) -> Victim:
        host, port = url.removeprefix("http://").split(":")
        return cls(host, int(port), token)

    def connect(self, *, receive_buffer: int = 0) -> socket.socket:
        made = socket.socket()
        if receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(ASK_SECONDS)
        made.connect((self.host, self.port))
        return made

    def head(self, verb: str, path: str, *fields: str, login: bool = True) -> bytes:
        own = [f"Host: {self.host}:{self.port}", "Content-Type: application/json"]
        login_field = [f"Authorization: Bearer {self.token}"] if login and self.token else []
        return "\r\n".join([f"{verb} {path} HTTP/1.1", *own, *login_field, *fields, "", ""]).encode()


class Answer(NamedTuple):
    status: int
    """HTTP status, or 0 if the connection ended without a response."""
    size: int
    """Bytes received."""
    start: bytes = b""
    """The first bytes received, at most START."""
    codes: Mapping[str, int] = {}
    """Number of occurrences of each JSON-RPC error code."""

    def text(self) -> str:
        return f"{self.kinds()}, {mib(self.size)} MiB"

    def kinds(self) -> str:
        """Return the HTTP status and the error codes as text."""
        errors = ", ".join(f"{count} × {code}" for code, count in self.codes.items())
        return f"{self.status or 'closed'}" + (f" ({errors})" if errors else "")


def mib(size: float) -> str:
    return f"{size / MIB:.1f}" if size < 10 * MIB else f"{size / MIB:.0f}"


def batch(calls: int, method: str, **params: Any) -> bytes:
    made = [{"jsonrpc": "2.0", "id": number, "method": method, "params": params} for number in range(calls)]
    return json.dumps(made).encode()


def post(victim: Victim, path: str, body: bytes, *fields: str) -> Answer:
    """Send the body and read the whole answer."""
    head = victim.head("POST", path, f"Content-Length: {len(body)}", "Connection: close", *fields)
    with contextlib.suppress(OSError), victim.connect() as connection:
        with contextlib.suppress(OSError):  # a response may arrive before the whole body is sent
            connection.sendall(head + body)
        return read_answer(connection)
    return Answer(0, 0)


def read_answer(connection: socket.socket, seconds: float = ASK_SECONDS) -> Answer:
    """Read until the server closes the connection."""
    start, size, until, codes = b"", 0, time.monotonic() + seconds, Counter[str]()
    with contextlib.suppress(OSError):
        while time.monotonic() < until and (piece := connection.recv(PIECE)):
            start, size = start + piece[: START - len(start)], size + len(piece)
            # a code split between two pieces is not counted
            codes.update(code.decode() for code in ERROR_CODE.findall(piece))
    status = int(start[9:12]) if start.startswith(b"HTTP/1.1 ") and start[9:12].isdigit() else 0
    return Answer(status, size, start, codes)


class Flood(NamedTuple):
    """Outcome of connections that send the same piece endlessly."""

    sent: int
    closed: int
    connections: int

    def text(self) -> str:
        return f"{mib(self.sent)} MiB taken, {self.closed} of {self.connections} connections closed"


def flood(victim: Victim, opening: bytes, piece: bytes, *, connections: int, most: int, seconds: float) -> Flood:
    """Send `opening`, then `piece` repeatedly, until `most` bytes over all connections or `seconds`."""
    until = time.monotonic() + seconds

    def one() -> tuple[int, bool]:
        sent = 0
        try:
            with victim.connect() as connection:
                connection.settimeout(1)
                connection.sendall(opening)
                while sent < most // connections and time.monotonic() < until:
                    with contextlib.suppress(TimeoutError):
                        sent += connection.send(piece)
                return sent, is_closed(connection)
        except OSError:
            return sent, True

    ended = in_threads(connections, one)
    return Flood(sum(sent for sent, _ in ended), sum(closed for _, closed in ended), connections)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server ends the connection within a second, with or without a response."""
    try:
        while connection.recv(PIECE):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def in_threads(count: int, work: Callable[[], Result]) -> list[Result]:
    results: list[Result] = []
    threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
