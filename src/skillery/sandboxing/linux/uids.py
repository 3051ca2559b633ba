"""Host uids for the runs of a server that is root. No two of its runs have the same uid at the same time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from skillery.errors import Busy


class Uids:
    """A pool of uids. The uid that was returned first is given out first."""

    def __init__(self, first: int, count: int) -> None:
        self._free = deque(range(first, first + count))
        self._free.rotate(-os.getpid())  # two servers on one machine are unlikely to meet

    def take(self) -> int:
        """Return a free uid. Raise Busy if all are in use."""
        if not self._free:
            raise Busy("every host uid that the sandbox may use is taken by a run", retry_after_ms=1000)
        return self._free.popleft()

    def give_back(self, uid: int) -> None:
        self._free.append(uid)

    @contextmanager
    def one(self) -> Iterator[int]:
        uid = self.take()
        try:
            yield uid
        finally:
            self.give_back(uid)
