"""The prober: it requests /healthz every 10 ms on its own connection, and reports how long the answers took.

`python -m bench.prober URL` prints `ready` after the first answer, sends requests until its stdin ends, and prints the
result as JSON. The module uses only the standard library, so that it starts quickly and does not disturb other
processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time

EVERY_SECONDS = 0.01
GIVE_UP_SECONDS = 60.0
FIRST = -10
"""Priority of the prober, so that it does not wait for the attacker on a machine with few processors. Only root can
set it.
"""
LAST = 10
"""Priority of attackers, because a real attacker runs on another machine."""


def set_priority(priority: int) -> None:
    """Set the priority if this process may."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, priority)


class Line:
    """Persistent connection to /healthz, reopened when the server closes it."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self._request = f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        self._connection: socket.socket | None = None

    def ask(self) -> float:
        """Return the seconds until the answer, at most GIVE_UP_SECONDS."""
        started = time.monotonic()
        while time.monotonic() - started < GIVE_UP_SECONDS:
            try:
                self._ask_once()
            except OSError:
                self._connection = None
                time.sleep(EVERY_SECONDS)
            else:
                break
        return time.monotonic() - started

    def _ask_once(self) -> None:
        if self._connection is None:
            self._connection = socket.create_connection(self._address, GIVE_UP_SECONDS)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.sendall(self._request)
        answer = b""
        while not answer.endswith(b"}"):
            piece = self._connection.recv(4096)
            if not piece:
                raise ConnectionError
            answer += piece


def wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def probe(url: str) -> None:
    set_priority(FIRST)
    line, ended, waits = Line(url), threading.Event(), [0.0]
    line.ask()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threading.Thread(target=wait_for_end, args=(ended,), daemon=True).start()
    while not ended.is_set():
        waits.append(line.ask())
        time.sleep(max(0.0, EVERY_SECONDS - waits[-1]))
    waits.sort()
    sys.stdout.write(json.dumps([waits[-1] * 1000, waits[len(waits) * 99 // 100] * 1000, len(waits) - 1]))


if __name__ == "__main__":
    probe(sys.argv[1])
