"""Uids and processors of the host for runs at the same time: each run has its own uid, and takes processors in turn."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque

from cellblock.values import Busy

# -- Host uids for the runs of a server that is root. No two of its runs have the same uid at the same time ------------


UIDS = range(100_000, 120_000)
"""The usual host uids of runs, if the owner of the sandbox is root."""


class Uids:
    """A pool of uids. The uid that was returned first is given out first."""

    def __init__(self, first: int, count: int, remedy: str = "give the sandbox more uids") -> None:
        """`remedy` is the end of the message if all uids are in use: it names the setting with their number."""
        self._in_use = f"all {count} host uids of the sandbox (from {first} on) are in use by runs: {remedy}"
        self._free = deque(range(first, first + count))
        self._free.rotate(-os.getpid())  # two servers on one machine are unlikely to meet

    def take(self) -> int:
        """Return a free uid. Raise Busy if all are in use."""
        if not self._free:
            raise Busy(self._in_use)
        return self._free.popleft()

    def give_back(self, uid: int) -> None:
        self._free.append(uid)


# -- The processors to which a run is bound if no cgroup limits its CPU time -------------------------------------------


class Processors:
    def __init__(self, *, counted: bool) -> None:
        """`counted` means that cgroups limit the CPU time of runs."""
        self._counted = counted
        self._turn = itertools.cycle(sorted(os.sched_getaffinity(0)))

    def some(self, cpus: float) -> list[int]:
        """Return processors for a run: the next ones in turn. [] means that the run may use all processors."""
        if self._counted:
            return []
        count = math.ceil(cpus)
        return [] if count >= len(os.sched_getaffinity(0)) else sorted(itertools.islice(self._turn, count))
