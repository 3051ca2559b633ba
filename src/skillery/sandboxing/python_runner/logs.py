"""The log of a run: its pipe is always drained, the head and the tail are kept, the rest is counted."""

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
    """At most `limit` bytes in memory, however much comes."""

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
    """The reading end of what the code prints."""

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
        """So many bytes, from here on."""
        self._kept = KeptLog(limit)

    def note(self, line: str) -> None:
        """A line of the host's own, after all that the code has printed until now."""
        if not self._ended.done():
            self._drain()
        self._kept.add(line.encode("utf-8", "replace") + b"\n")

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    async def finish(self, patience: float) -> Log:
        """All of it, once everybody who could write is gone; after `patience` seconds what there is."""
        self.close_write_end()
        await asyncio.wait({self._ended}, timeout=patience)
        return self._kept.finish()

    def close(self) -> None:
        self.close_write_end()
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        self._ended.cancel()


def widen(pipe: int) -> None:
    """A bigger pipe means fewer wake-ups under a flood; an ordinary user may have used up the allowance."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return
