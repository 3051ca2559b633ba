"""The counts of a server with several worker processes, in memory and in a file that the workers share."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from skillery.app.builders import Counts
from skillery.context.tallies import Peers, SharedNumbers, SharedSlots, SharedTally, Tally

COLUMNS = ("bodies", "answers", "waiting", "waiting_bytes", "connections")
BUCKETS = 65_536
"""Two addresses that share a bucket are counted together. With a thousand addresses, one of 65 is in such a pair."""
INT = 4


class SharedCounts:
    """The counts of all workers. Created before the workers are forked; each worker gets its view with `of`."""

    def __init__(self, workers: int, slots_path: Path) -> None:
        """There may be twice as many workers for a time, while new ones replace them."""
        self.workers = workers
        parts = 2 * workers
        self._numbers = SharedNumbers(len(COLUMNS), parts)
        self._addresses = memoryview(mmap.mmap(-1, parts * BUCKETS * INT)).cast("i")
        self._slots_path = slots_path
        self._bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(parts)]

    def of(self, part: int, runs_at_once: int, peers: Peers) -> Counts:
        """Return the counts as the worker with the number `part` sees them. Call this in the worker."""
        tallies = {name: SharedTally(self._numbers, column, part) for column, name in enumerate(COLUMNS)}
        slots = SharedSlots(
            self._slots_path,
            most=runs_at_once,
            part=part,
            waiting=self._numbers.column(COLUMNS.index("waiting")),
            bells=self._bells,
        )
        return Counts(
            tallies["bodies"],
            tallies["answers"],
            tallies["waiting"],
            tallies["waiting_bytes"],
            slots,
            SharedConnections(tallies["connections"], self._addresses, part),
            peers,
        )

    def is_ahead(self, part: int) -> bool:
        """Return whether the worker has more than its share of the connections."""
        parts = self._numbers.column(COLUMNS.index("connections"))
        return parts[part] > sum(parts) / self.workers

    def clear(self, part: int) -> None:
        """Delete the counts of a dead worker, so that others can use its slots."""
        self._numbers.clear(part)
        start = part * BUCKETS
        self._addresses[start : start + BUCKETS] = memoryview(bytes(BUCKETS * INT)).cast("i")
        for bell in self._bells:
            os.eventfd_write(bell, 1)


class SharedConnections:
    """The open connections of all workers, in total and per address."""

    def __init__(self, total: Tally, addresses: memoryview, part: int) -> None:
        self._total = total
        self._addresses = addresses
        self._part = part * BUCKETS

    @property
    def total(self) -> int:
        return self._total.total

    def add(self, address: str) -> None:
        self._total.add(1)
        self._addresses[self._part + _bucket(address)] += 1

    def remove(self, address: str) -> None:
        self._total.add(-1)
        self._addresses[self._part + _bucket(address)] -= 1

    def of(self, address: str) -> int:
        return sum(self._addresses[_bucket(address) :: BUCKETS])


def _bucket(address: str) -> int:
    # Forked processes have the same random seed for hashes of texts, and clients cannot know it.
    return hash(address) % BUCKETS
