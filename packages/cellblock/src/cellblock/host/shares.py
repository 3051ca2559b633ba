"""Uids and processors of the host for runs at the same time: each run has its own uid, and takes processors in turn."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from cellblock.values import Busy, Probe

# -- Host uids for the runs of a server that is root. No two of its runs have the same uid at the same time ------------


UIDS = range(2_100_000_000, 2_100_020_000)
"""The usual host uids of runs, if the owner of the sandbox is root.

They are above the uids that hosts give to others: users and services, subordinate uids of users (useradd: 100,000 to
600,100,000), containers (systemd: 524,288 to 1,879,048,191) and directory services (SSSD, FreeIPA: 200,000 to
2,000,200,000). systemd and old programs use uids from 2,147,352,576 on for other purposes.
"""
HOLDERS = {"/etc/subuid": (1, 2), "/etc/subgid": (1, 2), "/etc/passwd": (2, None), "/etc/group": (2, None)}
"""Files that give ids to users and groups, with the field of the first id and the field of the number of ids."""
_STEP = 7919
_taken: set[int] = set()
"""The uids in use by all sandboxes of this process, whose ranges may overlap."""
_lock = threading.Lock()  # each sandbox may have its own thread


class Uids:
    """The uids of one sandbox. The uid that was returned first is given out first."""

    def __init__(
        self, first: int = UIDS.start, count: int = len(UIDS), remedy: str = "give the sandbox more uids"
    ) -> None:
        """`remedy` is the end of the message if all uids are in use: it names the setting with their number."""
        self._in_use = f"all {count} host uids of the sandbox (from {first} on) are in use by runs: {remedy}"
        self.first = first
        self._range = range(first, first + count)
        self._free = deque(self._range)
        # Two processes do not know each other's uids. Those of workers with consecutive pids are far apart.
        self._free.rotate(-os.getpid() * _STEP)

    def probe(self) -> Probe:
        """Return whether no user of the host has these uids, if the owner is root.

        The uid of a run owns its user namespace, so a process of the host with this uid may signal and trace the run.
        """
        if os.geteuid() != 0:
            return Probe("host uids", True, "runs have the uid of the server", required=False)
        words = f"runs have uids from {self.first} to {self._range[-1]}"
        holder = next(holders(self._range), None)
        if holder is None:
            return Probe("host uids", True, words)
        return Probe("host uids", False, f"{words}, and {holder}", "choose uids that no user has (`uids`, `first_uid`)")

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


def holders(uids: range) -> Iterator[str]:
    """Yield a text about each user or group of the host that has some of these ids."""
    for path, (first, count) in HOLDERS.items():
        text = Path(path).read_text(errors="replace") if Path(path).exists() else ""
        for fields in (line.split(":") for line in text.splitlines()):
            numbers = [fields[first], fields[count] if count else "1"] if len(fields) > 2 else []
            if not numbers or not all(map(str.isdecimal, numbers)):
                continue
            start, stop = int(numbers[0]), int(numbers[0]) + int(numbers[1])
            if start < uids.stop and uids.start < stop:
                yield f"{path} gives {start} to {stop - 1} to {fields[0]}"


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
