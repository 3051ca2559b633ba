"""The processors to which a run is bound if no cgroup limits its CPU time."""

from __future__ import annotations

import itertools
import math
import os


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
