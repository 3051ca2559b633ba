"""Uids and processors of the host for runs at the same time: each run has its own uid, and takes processors in turn."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import deque

from cellblock.values import Busy

# -- Host uids for the runs of a server that is root. No two of its runs have the same uid at the same time ------------


UIDS = range(100_000, 120_000)
"""The usual host uids of runs, if the owner of the sandbox is root."""
_STEP = 7919
_taken: set[int] = set()
"""The uids in use by all sandboxes of this process, whose ranges may overlap."""
_lock = threading.Lock()  # each sandbox may have its own thread


class Uids:
    """The uids of one sandbox. The uid that was returned first is given out first."""

    def __init__(self, first: int, count: int, remedy: str = "give the sandbox more uids") -> None:
        """`remedy` is the end of the message if all uids are in use: it names the setting with their number."""
        self._in_use = f"all {count} host uids of the sandbox (from {first} on) are in use by runs: {remedy}"
        self._free = deque(range(first, first + count))
        # Two processes do not know each other's uids. Those of workers with consecutive pids are far apart.
        self._free.rotate(-os.getpid() * _STEP)

    def take(self) -> int:
        """Return a uid that no run of this process has. Raise Busy if there is none."""
        with _lock:
            for _ in range(len(self._free)):
                uid = self._free.popleft()
                if uid not in _taken:
                    _taken.add(uid)
                    return uid
                self._free.append(uid)
        raise Busy(self._in_use)

    def give_back(self, uid: int) -> None:
        with _lock:
            _taken.discard(uid)
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
