"""Numbers that limits of the whole server compare with: bytes, connections, waiting requests.

A server of one process keeps each number in one variable. The worker processes of a server keep it in shared memory:
each worker changes only its own part, and the number is the sum of all parts. So no lock is needed, and the part of a
worker that was killed can be set to 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

with contextlib.suppress(ImportError):  # on Windows, where only commands for remote servers import this module
    import fcntl

WORD = 8
"""Bytes of one part. Processors read and write 8 aligned bytes at once, so no reader sees half of a number."""


class Histogram:
    """The numbers of durations by length, and their sum, in one process. Only the event loop changes them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the upper bounds of the buckets in seconds, in ascending order."""
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def note(self, seconds: float) -> None:
        self.sum += seconds
        self._counts[bisect_left(self._bounds, seconds)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bound and the cumulative count of each bucket, for Prometheus."""
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))


class Tally(Protocol):
    """A number that is changed by adding to it."""

    @property
    def own(self) -> int:
        """What this process has added."""
        ...

    @property
    def total(self) -> int:
        """What all processes of the server have added."""
        ...

    def add(self, amount: int) -> None: ...


class OwnTally:
    """The tally of a server with one process."""

    def __init__(self) -> None:
        self.own = 0

    @property
    def total(self) -> int:
        return self.own

    def add(self, amount: int) -> None:
        self.own += amount


class SharedNumbers:
    """A table in memory that forked processes share, filled with 0: a column for each number, a part for each process.

    Only the process with the number `part` may change its parts.
    """

    def __init__(self, columns: int, parts: int) -> None:
        self.parts = parts
        self._words = memoryview(mmap.mmap(-1, max(1, columns * parts) * WORD)).cast("q")
        self._columns = columns

    def column(self, column: int) -> memoryview:
        """Return the parts of one number, in the order of the processes."""
        return self._words[column * self.parts : (column + 1) * self.parts]

    def clear(self, part: int) -> None:
        """Set all numbers of a process to 0, because the process has ended."""
        for column in range(self._columns):
            self._words[column * self.parts + part] = 0


class SharedTally:
    """One number of `SharedNumbers`, as the process with the number `part` sees it."""

    def __init__(self, numbers: SharedNumbers, column: int, part: int) -> None:
        self._parts = numbers.column(column)
        self._part = part

    @property
    def own(self) -> int:
        return self._parts[self._part]

    @property
    def total(self) -> int:
        return sum(self._parts)

    def add(self, amount: int) -> None:
        self._parts[self._part] += amount


# -- The other worker processes of a server, for answers about the whole server ----------------------------------------


class Peers(Protocol):
    """All worker processes of a server, this one included."""

    def offer(self, question: str, answer: Callable[[], Awaitable[Any]]) -> None:
        """Answer `question` of any worker with the result of `answer`, a value that JSON can contain."""
        ...

    async def ask(self, question: str) -> Sequence[Any]:
        """Return one answer for each worker. The answer of a worker that does not answer in time is None."""
        ...


# -- Slots that the worker processes of a server share. Unlike `queue`, this module needs Linux ------------------------


_FLOCK = "hhqqi0q"
"""`struct flock` of Linux on 64-bit processors: type, whence, start, length, pid."""


class SharedSlots:
    """The slots of a server with several worker processes, as one worker sees them.

    The slots are bytes of a file: a worker holds a slot while it holds the lock of the byte. The kernel releases the
    locks of a process that dies.
    """

    def __init__(self, path: Path, *, most: int, part: int, waiting: Sequence[int], bells: Sequence[int]) -> None:
        """Open the file of the slots at `path`, which all workers share.

        most: number of all slots.
        part: number of this worker.
        waiting: the number of waiting requests of each worker, in memory that the workers share.
        bells: an eventfd for each worker. A worker that gives a slot back rings the bells of workers with waiting
            requests.
        """
        self.most = most
        self._part = part
        self._waiting = waiting
        self._bells = bells
        # Opened here: the processes must not share the description of the file, because it owns the locks.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held: set[int] = set()

    def take(self) -> bool:
        for slot in range(self.most):
            if slot not in self._held and self._lock(slot, fcntl.F_WRLCK):
                self._held.add(slot)
                return True
        return False

    def give_back(self) -> None:
        self._lock(self._held.pop(), fcntl.F_UNLCK)
        for part in self._others_waiting():
            os.eventfd_write(self._bells[part], 1)

    def is_wanted_elsewhere(self) -> bool:
        return any(True for _ in self._others_waiting())

    def watch(self, offer: Callable[[], None]) -> None:
        bell = self._bells[self._part]

        def ring() -> None:
            try:
                os.eventfd_read(bell)
            except BlockingIOError:
                return
            offer()

        asyncio.get_running_loop().add_reader(bell, ring)

    def _others_waiting(self) -> Iterator[int]:
        return (part for part, count in enumerate(self._waiting) if count and part != self._part)

    def _lock(self, slot: int, kind: int) -> bool:
        order = struct.pack(_FLOCK, kind, os.SEEK_SET, slot, 1, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, order)
        except BlockingIOError:
            return False
        return True
