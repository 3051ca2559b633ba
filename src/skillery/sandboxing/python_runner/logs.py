"""The log of a run. Its pipe is always drained; head and tail are kept, the rest is counted."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections import deque

from skillery.backends import Log

PIECE = 256 * 1024
PIPE_BYTES = 1 << 20


class KeptLog:
    """Keeps at most `limit` bytes in memory."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        if piece:
            self._tail.append(piece)
            self._tail_size += len(piece)
            self._trim()

    def _trim(self) -> None:
        while self._tail_size > self._half:
            surplus = self._tail_size - self._half
            first = self._tail.popleft()
            cut = min(surplus, len(first))
            if cut < len(first):
                self._tail.appendleft(first[cut:])
            self._tail_size -= cut
            self._dropped += cut

    def finish(self) -> Log:
        return Log(head=bytes(self._head), tail=b"".join(self._tail), dropped=self._dropped)


class LogPipe:
    """The read end of the code's output."""

    def __init__(self, limit: int = 0) -> None:
        """`limit` in bytes; see `keep`."""
        self._kept = KeptLog(limit)
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        if sys.platform == "linux":
            widen(self._read_end)
        self._loop.add_reader(self._read_end, self._drain)

    def _drain(self) -> None:
        try:
            piece = os.read(self._read_end, PIECE)
        except BlockingIOError:
            return
        if piece:
            self._kept.add(piece)
            return
        self._loop.remove_reader(self._read_end)
        self._ended.set_result(None)

    def keep(self, limit: int) -> None:
        """Discard the log so far, and keep up to `limit` bytes from now on."""
        self._kept = KeptLog(limit)

    def note(self, line: str) -> None:
        """Add a line of the host after all output until now."""
        if not self._ended.done():
            self._drain()
        self._kept.add(line.encode("utf-8", "replace") + b"\n")

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    async def finish(self, patience: float) -> Log:
        """Return the log when all writers have ended, or after `patience` seconds."""
        self.close_write_end()
        await asyncio.wait({self._ended}, timeout=patience)
        return self._kept.finish()

    def close(self) -> None:
        self.close_write_end()
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        self._ended.cancel()


def widen(pipe: int) -> None:
    """Enlarge the pipe, which means fewer wake-ups in a flood.

    This may fail if an ordinary user has used up the allowance.
    """
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return
