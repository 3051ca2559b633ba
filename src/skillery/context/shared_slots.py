"""Slots that the worker processes of a server share. Unlike `queue`, this module needs Linux."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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
