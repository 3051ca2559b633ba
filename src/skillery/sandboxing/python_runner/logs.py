"""The log of a run: a pipe that the server always reads, so that the code never waits for the server."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Callable

from skillery.backends import FollowsLog, Log, RunHost
from skillery.formats.kept_log import KeptLog

PIECE = 256 * 1024
PIPE_BYTES = 1 << 20


Sink = Callable[[bytes], None]


class LogPipe:
    """The server's end of the pipe for the code's output.

    Either this object keeps the log, or a host that follows the log (`FollowsLog`). They never both keep it, because a
    log can have megabytes.
    """

    def __init__(self, limit: int = 0, host: RunHost | None = None) -> None:
        """`limit` is in bytes, as in `keep`."""
        self._loop = asyncio.get_running_loop()
        self.keep(limit, host)
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
            self._sink(piece)
            return
        self._loop.remove_reader(self._read_end)
        self._ended.set_result(None)

    def keep(self, limit: int, host: RunHost | None = None) -> None:
        """Discard the log so far. From now on, keep up to `limit` bytes, or pass each piece to a host that follows
        the log.
        """
        self._kept = KeptLog(limit)
        self._sink: Sink = host.printed if isinstance(host, FollowsLog) else self._kept.add

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
        """Return the log when all writers have ended, or after `patience` seconds. It is empty if a host follows the
        log.
        """
        self.close_write_end()
        await asyncio.wait({self._ended}, timeout=patience)
        return Log(*self._kept.parts())

    def close(self) -> None:
        self.close_write_end()
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        self._ended.cancel()


def widen(pipe: int) -> None:
    """Enlarge the pipe, so that much output causes fewer wake-ups. Do nothing if the kernel refuses."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return
