"""The rendering worker: a process that highlights code and renders Markdown of skills.

Texts of other people can make patterns slow, and a slow pattern holds the interpreter lock. The server ends a worker
that takes too long, and shows plain text instead. A worker answers requests one after another over its standard input,
which is a socket. A message is a length (4 bytes, big-endian) and then MessagePack. The first message of a worker has
the length 0 and means that the worker is ready. A worker ends when the server closes the socket.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
from typing import BinaryIO

import msgspec

from skillery.web.highlighting import highlighted_lines
from skillery.web.markdown import Place, rendered

with contextlib.suppress(ImportError):  # on Windows
    import resource

LENGTH = struct.Struct(">I")
MEMORY_BYTES = 1024 * 1024 * 1024
SECONDS = 1.0
"""The limit of processor time for one text. The kernel then ends the process."""


class ToHighlight(msgspec.Struct, frozen=True, tag="highlight"):
    """A request for the lines of a file as HTML."""

    text: str
    path: str


class ToRender(msgspec.Struct, frozen=True, tag="render"):
    """A request for a Markdown text as HTML."""

    text: str
    place: Place
    shift: int


Request = ToHighlight | ToRender


class Reply(msgspec.Struct, frozen=True):
    """The lines, or the whole text as one line. None past a bound."""

    lines: list[str] | None


def main() -> None:
    """Answer requests until the server closes the socket."""
    with contextlib.suppress(NameError, ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    server = socket.socket(fileno=0)
    requests = server.makefile("rb")
    server.sendall(LENGTH.pack(0))
    while (request := _next(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        answer = msgspec.msgpack.encode(Reply(_lines(request)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        server.sendall(LENGTH.pack(len(answer)) + answer)


def _next(requests: BinaryIO) -> Request | None:
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = requests.read(length)
    return msgspec.msgpack.decode(body, type=Request) if len(body) == length else None


def _lines(request: Request) -> list[str] | None:
    try:
        if isinstance(request, ToHighlight):
            return highlighted_lines(request.text, request.path)
        made = rendered(request.text, request.place, request.shift)
        return None if made is None else [made]
    except (RecursionError, MemoryError):
        return None
