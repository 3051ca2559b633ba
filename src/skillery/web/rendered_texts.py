"""Code and Markdown of skills as HTML: worker processes with a time limit. Finished texts are kept."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import msgspec
from markupsafe import Markup

from skillery.context.threads import Workers
from skillery.web.display import visible
from skillery.web.kept import RENDERER, KeptParts, Key
from skillery.web.markdown import Place, is_bounded
from skillery.web.rendering_process import LENGTH, Reply, Request, ToHighlight, ToRender

log = logging.getLogger(__name__)
SECONDS = 5.0
"""The limit of elapsed time for one text. The limit of processor time is in the worker."""
START_SECONDS = 30.0
WORKERS = 2
MOST_HIGHLIGHTED = 200_000
"""Bytes of a file that is highlighted. The HTML of a file is about five times as large as the file."""
_MOST_ANSWER = 64 * 1024 * 1024
_START = "import sys; sys.path[:] = sys.argv[1:]; from skillery.web.rendering_process import main; main()"


class RenderedText(NamedTuple):
    """A text as HTML."""

    lines: tuple[Markup, ...]
    """The lines of a file. Markdown is one line."""
    is_plain: bool
    """Whether the text is shown as it is, because it is past a bound."""


class RenderedTexts:
    def __init__(self) -> None:
        self.kept = KeptParts()
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._threads = Workers("pages", WORKERS)

    async def code(self, digest: str, path: str, text: str) -> RenderedText:
        """Return the lines of a file. `digest` is that of the bundle."""
        request = ToHighlight(text, path) if len(text) <= MOST_HIGHLIGHTED else None
        return await self._kept(("code", digest, path, RENDERER), request, text)

    async def markdown(self, digest: str, place: Place, text: str, shift: int = 2) -> RenderedText:
        """Return a Markdown text. `digest` is that of the bundle."""
        request = ToRender(text, place, shift) if is_bounded(text) else None
        return await self._kept(("markdown", digest, *place, str(shift), RENDERER), request, text)

    async def _kept(self, key: Key, request: Request | None, text: str) -> RenderedText:
        found: RenderedText | None = self.kept.get(key)
        if found is not None:
            return found
        made, is_final = await self._threads.run(self._made, request, text)
        if is_final:
            self.kept.keep(key, made, _size(made))
        return made

    def _made(self, request: Request | None, text: str) -> tuple[RenderedText, bool]:
        """Return the text as HTML, and whether the result may be kept."""
        if request is None:
            return _plain(text), True
        try:
            lines = self._ask(request)
        except TimeoutError:
            return _plain(text), True
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("a text was not rendered: %s", error)
            return _plain(text), False
        if lines is None:
            return _plain(text), True
        # The worker has escaped the text.
        return RenderedText(tuple(map(Markup, lines)), False), True

    def _ask(self, request: Request) -> list[str] | None:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None or worker.has_ended:
            worker = _Worker()
        try:
            lines = worker.ask(request)
        except BaseException as error:
            if worker.end() == -signal.SIGPROF:
                raise TimeoutError from error
            raise
        with self._lock:
            self._idle.append(worker)
        return lines


class _Worker:
    """A worker process. Blocking."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        arguments = [sys.executable, "-I", "-c", _START, *filter(None, sys.path)]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    arguments, env={}, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, process_group=0, cwd="/"
                )
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        try:
            self._read(time.monotonic() + START_SECONDS)
        except BaseException:
            self.end()
            raise

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, request: Request) -> list[str] | None:
        """Return the lines of the answer. Raise TimeoutError after the time limit, OSError if the process ends."""
        deadline = time.monotonic() + SECONDS
        encoded = msgspec.msgpack.encode(request)
        self._socket.settimeout(SECONDS)
        self._socket.sendall(LENGTH.pack(len(encoded)) + encoded)
        return msgspec.msgpack.decode(self._read(deadline), type=Reply).lines

    def _read(self, deadline: float) -> bytes:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size, deadline))
        if length > _MOST_ANSWER:
            raise OSError("the answer of a rendering process is too large")
        return self._exactly(length, deadline)

    def _exactly(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self._socket.recv(min(1 << 20, count - len(parts)))
            if not chunk:
                raise OSError("a rendering process has ended")
            parts += chunk
        return bytes(parts)

    def end(self) -> int:
        """End the process if it still runs. Return its exit code. After signal N, the exit code is -N."""
        self._socket.close()
        self._process.kill()
        return self._process.wait()


def _plain(text: str) -> RenderedText:
    lines = visible(text.replace("\r\n", "\n"), is_code=True).removesuffix("\n").split("\n")
    return RenderedText(tuple(map(Markup, lines)), True)


def _size(made: RenderedText) -> int:
    return 200 + sum(len(line) + 60 for line in made.lines)
