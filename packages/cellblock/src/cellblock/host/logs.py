"""The log of a run: a pipe that the server always reads, so that the code never waits for the server.

The event loop watches the pipe only after UNWATCHED_SECONDS: most runs are shorter, and their log is read at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable

from cellblock.values import Log

with contextlib.suppress(ImportError):  # on Windows, where only KeptLog is used
    import fcntl

PIECE = 64 * 1024
"""Bytes that are read at once. A larger buffer is mapped and unmapped for each read."""
PIPE_BYTES = 1 << 20
UNWATCHED_SECONDS = 0.02
BLOCK = 4096
"""Pieces of a kept log that are smaller than this are joined, because each separate piece needs extra memory."""


Sink = Callable[[bytes], None]
"""Takes each piece of a log when it is read."""


class LogPipe:
    """The server's end of the pipe for the code's output.

    Either this object keeps the log, or it passes the log to a sink. It never does both, because a log can have
    megabytes.
    """

    def __init__(self, limit: int = 0, sink: Sink | None = None) -> None:
        """`limit` is in bytes, as in `keep`."""
        self._loop = asyncio.get_running_loop()
        self.keep(limit, sink)
        self._ended = self._loop.create_future()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        if sys.platform == "linux":
            widen(self._read_end)
        self._is_watched = False
        self._waiting = self._loop.call_later(UNWATCHED_SECONDS, self._watch)

    def _watch(self) -> None:
        self._waiting.cancel()
        if not (self._is_watched or self._ended.done()):
            self._is_watched = True
            self._loop.add_reader(self._read_end, self._drain)

    def _unwatch(self) -> None:
        self._waiting.cancel()
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self._read_end)

    def _drain(self) -> bool:
        """Read a piece. Return False if the pipe has none now, or has ended."""
        try:
            piece = os.read(self._read_end, PIECE)
        except BlockingIOError:
            return False
        if piece:
            self._sink(piece)
            return True
        self._unwatch()
        self._ended.set_result(None)
        return False

    def keep(self, limit: int, sink: Sink | None = None) -> None:
        """Discard the log so far. From now on, keep up to `limit` bytes, or pass each piece to the sink."""
        self._kept = KeptLog(limit)
        self._sink: Sink = sink or self._kept.add

    def note(self, line: str) -> None:
        """Add a line of the server, after one more piece of the output that the pipe holds."""
        if not self._ended.done():
            self._drain()
        self._sink(line.encode("utf-8", "replace") + b"\n")

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    async def finish(self, patience: float) -> Log:
        """Return the log when all writers have ended, or after `patience` seconds. It is empty if a sink gets the
        log.
        """
        self.close_write_end()
        for _ in range(PIPE_BYTES // PIECE):  # a process may still write, so the loop has an end
            if self._ended.done() or not self._drain():
                break
        if not self._ended.done():
            self._watch()
            await asyncio.wait({self._ended}, timeout=patience)
        return Log(*self._kept.parts())

    def close(self) -> None:
        self.close_write_end()
        self._unwatch()
        os.close(self._read_end)
        self._ended.cancel()


def widen(pipe: int) -> None:
    """Enlarge the pipe, so that much output causes fewer wake-ups. Do nothing if the kernel refuses."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return


class KeptLog:
    """Keeps at most `limit` bytes of a log: one half for the first bytes, one half for the last bytes."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0 and not self._dropped:
            self._head += piece[:room]
            piece = piece[room:]
        if piece:
            if self._tail and len(self._tail[-1]) < BLOCK:
                self._tail[-1] += piece
            else:
                self._tail.append(bytearray(piece))
            self._tail_size += len(piece)
            self._trim()

    def _trim(self) -> None:
        while self._tail_size > self._half:
            surplus = self._tail_size - self._half
            first = self._tail[0]
            cut = min(surplus, len(first))
            if cut < len(first):
                del first[:cut]
            else:
                self._tail.popleft()
            self._tail_size -= cut
            self._dropped += cut

    def parts(self) -> tuple[bytes, bytes, int]:
        """Return the head, the tail, and the number of bytes that were dropped between head and tail."""
        return bytes(self._head), b"".join(self._tail), self._dropped
