"""Which processors a run is bound to, where no cgroup counts the time that it takes."""

from __future__ import annotations

import itertools
import math
import os


class Processors:
    def __init__(self, *, counted: bool) -> None:
        """`counted`: whether cgroups hold the processor time of runs."""
        self._counted = counted
        self._turn = itertools.cycle(sorted(os.sched_getaffinity(0)))

    def some(self, cpus: float) -> list[int]:
        """As many as a run may use, in turn; none where it need not be bound."""
        if self._counted:
            return []
        count = math.ceil(cpus)
        return [] if count >= len(os.sched_getaffinity(0)) else sorted(itertools.islice(self._turn, count))
