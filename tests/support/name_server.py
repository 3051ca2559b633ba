"""Run an async function in a separate network namespace, with a name server that keeps some look-ups waiting.

`answer_of("tests.module:function")` calls `await function(names)` in a new process and returns its JSON value. In that
process 127.0.0.1:53 is a `NameServer`, and the host's resolver asks no other server.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from cellblock.inside import kernel

# The resolver tries once, for a minute, so a look-up that hangs occupies a thread longer than any test takes.
FILES = {"resolv.conf": "nameserver 127.0.0.1\noptions timeout:60 attempts:1\n", "nsswitch.conf": "hosts: files dns\n"}
A, AAAA = 1, 28
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
SECONDS = 600


def answer_of(function: str) -> Any:
    program = shutil.which("unshare")
    if program is None:
        raise RuntimeError("unshare (util-linux) is needed for a name server on port 53")
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [program, *as_root, "--mount", "--net", sys.executable, "-m", "tests.support.name_server", function]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class NameServer(asyncio.DatagramProtocol):
    """A name server that returns 127.0.0.1 for every name, with two exceptions.

    `*.hang.test` gets no response, and `*.nowhere.test` does not exist.
    """

    transport: asyncio.DatagramTransport

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        """Name and type of each query."""
        self._kept: list[tuple[bytes, Any]] = []
        self._hangs = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: Any) -> None:
        name, kind = question(data)
        self.asked.append((name, kind))
        if self._hangs and name.endswith("hang.test"):
            self._kept.append((data, address))
        else:
            self.transport.sendto(answer(data, name, kind), address)

    def look_ups(self, suffix: str) -> int:
        """Return the number of look-ups of names with this suffix. Each look-up sends one query for an IPv4 address."""
        return sum(name.endswith(suffix) and kind == A for name, kind in self.asked)

    def let_go(self) -> None:
        """Answer all waiting queries, and all later queries at once."""
        self._hangs = False
        for data, address in self._kept:
            self.transport.sendto(answer(data, *question(data)), address)


def question(data: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while size := data[at]:
        labels.append(data[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return ".".join(labels), int.from_bytes(data[at + 1 : at + 3], "big")


def answer(data: bytes, name: str, kind: int) -> bytes:
    """Return the response to a query (RFC 1035 §4.1), with its question only."""
    asked = data[12 : 12 + len(name) + 6]
    records = kind == A and not name.endswith("nowhere.test")
    flags = 0x8183 if name.endswith("nowhere.test") else 0x8180
    record = struct.pack("!HHHIH4s", 0xC00C, A, 1, 0, 4, bytes((127, 0, 0, 1))) if records else b""
    return data[:2] + struct.pack("!HHHHH", flags, 1, int(records), 0, 0) + asked + record


def enter() -> None:
    """Bring loopback up, and make the host's resolver ask 127.0.0.1."""
    with socket.socket() as one:
        flags = struct.unpack("16sH", fcntl.ioctl(one, SIOCGIFFLAGS, struct.pack("16sH", b"lo", 0))[:18])[1]
        fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sH", b"lo", flags | IFF_UP))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            source, place = Path(folder) / name, Path("/etc") / name
            source.write_text(text)
            source.chmod(0o644)
            if place.exists():
                kernel.mount(str(source), str(place.resolve()), None, kernel.MS_BIND)


async def call(function: str) -> Any:
    module, _, name = function.partition(":")
    loop = asyncio.get_running_loop()
    transport, names = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 53))
    try:
        return await getattr(importlib.import_module(module), name)(names)
    finally:
        transport.close()


if __name__ == "__main__":
    enter()
    sys.stdout.write(json.dumps(asyncio.run(call(sys.argv[1]))))
