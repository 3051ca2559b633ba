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
    """Keeps at most `limit` bytes of a log: one half for the first bytes, one half for the last bytes.

    Offsets count all added bytes, also dropped ones.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self._dropped = 0

    @classmethod
    def of(cls, head: bytes, tail: bytes, dropped: int) -> KeptLog:
        """Return a log from the values that `parts` returned. Add no pieces to such a log: they would be dropped."""
        kept = cls(0)
        kept._head, kept._tail = bytearray(head), deque([bytearray(tail)])
        kept._tail_size, kept._dropped = len(tail), dropped
        return kept

    @property
    def gap_start(self) -> int | None:
        """The offset of the first dropped byte, or None if no byte was dropped."""
        return len(self._head) if self._dropped else None

    @property
    def end(self) -> int:
        """The number of added and skipped bytes."""
        return self.tail_start + self._tail_size

    @property
    def tail_start(self) -> int:
        """The offset of the first byte of the tail. The bytes between the head and this offset were dropped."""
        return len(self._head) + self._dropped

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

    def skip(self, count: int) -> None:
        """Count `count` missing bytes as dropped. Drop the present tail too: a new tail starts after the missing
        bytes.
        """
        if count > 0:
            self._dropped += self._tail_size + count
            self._tail.clear()
            self._tail_size = 0

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

    def read(self, after: int, size: int) -> tuple[int, bytes]:
        """Return the first kept offset that is at least `after`, and at most `size` bytes from this offset.

        If `after` is beyond the end of the log, return `end` and no bytes. If bytes were dropped, a piece that starts
        in the head ends at the end of the head.
        """
        if after < len(self._head):
            piece = bytes(self._head[after : after + size])
            if self._dropped or len(piece) == size:
                return after, piece
            return after, piece + self._tail_from(len(self._head), size - len(piece))
        start = min(max(after, self.tail_start), self.end)
        return start, self._tail_from(start, size)

    def _tail_from(self, start: int, size: int) -> bytes:
        """Return at most `size` bytes from the offset `start`, which is in the tail."""
        # Readers are usually near the end, so the blocks are searched from there.
        wanted, blocks, behind = self.end - start, [], 0
        for block in reversed(self._tail):
            if behind >= wanted:
                break
            blocks.append(block)
            behind += len(block)
        piece, skipped = bytearray(), behind - wanted
        for block in reversed(blocks):
            piece += block[skipped : skipped + size - len(piece)] if skipped else block[: size - len(piece)]
            skipped = 0
            if len(piece) >= size:
                break
        return bytes(piece)

    def parts(self) -> tuple[bytes, bytes, int]:
        """Return the head, the tail, and the number of bytes that were dropped between head and tail."""
        return bytes(self._head), b"".join(self._tail), self._dropped
