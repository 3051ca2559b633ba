"""Numbers that limits of the whole server compare with: bytes, connections, waiting requests.

A server of one process keeps each number in one variable. The worker processes of a server keep it in shared memory:
each worker changes only its own part, and the number is the sum of all parts. So no lock is needed, and the part of a
worker that was killed can be set to 0.
"""

from __future__ import annotations

import mmap
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

WORD = 8
"""Bytes of one part. Processors read and write 8 aligned bytes at once, so no reader sees half of a number."""


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
