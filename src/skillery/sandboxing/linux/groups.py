"""Control groups, v1 and v2: limits of memory, processes and CPU for all processes of a run together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from skillery.backends import Limits
from skillery.sandboxing.linux.hierarchies import (
    Hierarchy,
    candidates,
    counted,
    number_in,
    own_name,
    pid_namespace,
    settings_of,
    usable,
    write,
)
from skillery.sandboxing.linux.processes import start_time

PATIENCE = 5.0
_PEAKS = {
    "memory": {1: "memory.max_usage_in_bytes", 2: "memory.peak"},
    "pids": {1: "pids.peak", 2: "pids.peak"},
}
"""The file with the highest value of a controller, by version. Older kernels do not have every one."""


class ControlGroups:
    """All groups of this server, in folders with a name that identifies the server."""

    def __init__(self, hierarchies: list[Hierarchy]) -> None:
        name = own_name()
        self._bases = [(hierarchy, hierarchy.folder / name) for hierarchy in hierarchies]
        self._numbers = itertools.count(1)
        self.controllers = frozenset(name for hierarchy in hierarchies for name in hierarchy.controllers)

    def open(self) -> None:
        for hierarchy, base in self._bases:
            base.mkdir()
            if hierarchy.version == 2:
                write(base, "cgroup.subtree_control", " ".join(f"+{name}" for name in hierarchy.controllers))

    def make(self) -> ControlGroup:
        """Create and return a group without limits. Raise OSError if that fails; then no part of the group is left."""
        number = next(self._numbers)
        group = ControlGroup([(hierarchy, base / f"run-{number}") for hierarchy, base in self._bases])
        try:
            group.set_up()
        except BaseException:
            group.remove_now()
            raise
        return group

    def close(self) -> None:
        for _, base in self._bases:
            with contextlib.suppress(OSError):
                base.rmdir()


class ControlGroup:
    def __init__(self, folders: list[tuple[Hierarchy, Path]]) -> None:
        self._folders = folders
        self._limits: Limits | None = None

    def set_up(self) -> None:
        for _, folder in self._folders:
            folder.mkdir()

    def limit(self, limits: Limits) -> None:
        """Set the limits of the group, before any code runs. Do nothing if the group has these limits. Raise
        OSError.
        """
        if limits == self._limits:
            return
        self._limits = None
        for hierarchy, folder in self._folders:
            if hierarchy.version == 1 and "memory" in hierarchy.controllers:
                # The limit with swap may never be below the one without, and a change of both passes through mixed
                # values.
                write(folder, "memory.memsw.limit_in_bytes?", "-1")
            for controller in hierarchy.controllers:
                for name, content in settings_of(controller, hierarchy.version, limits).items():
                    write(folder, name, content)
        self._limits = limits

    @contextlib.contextmanager
    def group_files(self) -> Iterator[list[int]]:
        """Context manager: descriptors of files of the group. A process with one thread joins by writing `0` to each
        of them.
        """
        opened: list[int] = []
        try:
            for hierarchy, folder in self._folders:
                # v1: moving one thread, the writer itself, avoids that the kernel waits ten milliseconds for all
                # processors.
                name = "tasks" if hierarchy.version == 1 else "cgroup.procs"
                opened.append(os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC))
            yield opened
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def members(self) -> list[int]:
        """Return the pids of all processes in the group."""
        found: set[int] = set()
        for _, folder in self._folders:
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (folder / "cgroup.procs").read_text().split()}
        return sorted(found)

    def free(self) -> None:
        """Remove the limit on CPU time, so that the processes can end."""
        self._limits = None
        for hierarchy, folder in self._folders:
            if "cpu" in hierarchy.controllers:
                name, content = ("cpu.cfs_quota_us", "-1") if hierarchy.version == 1 else ("cpu.max", "max")
                with contextlib.suppress(OSError):  # the group was just removed
                    write(folder, name, content)

    @property
    def counts_processes(self) -> bool:
        return any("pids" in hierarchy.controllers for hierarchy, _ in self._folders)

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed because the run had no memory left."""
        files = {1: "memory.oom_control", 2: "memory.events"}
        return sum(
            counted(folder / files[h.version], "oom_kill") for h, folder in self._folders if "memory" in h.controllers
        )

    def peak(self, controller: str) -> int | None:
        """Return the most memory in bytes (`memory`) or the most processes (`pids`) that the group had at one time.

        Return None if the kernel does not count them.
        """
        for hierarchy, folder in self._folders:
            if controller in hierarchy.controllers:
                return number_in(folder / _PEAKS[controller][hierarchy.version])
        return None

    def remove_now(self) -> bool:
        """Remove the group. Return whether all its folders are gone."""
        for _, folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for _, folder in self._folders)

    async def remove(self) -> None:
        """Remove the group when its processes have ended. Kill the processes that are left after half of PATIENCE.

        If the group cannot be removed within PATIENCE seconds, a later server removes it at its start.
        """
        if self.remove_now():
            return
        deadline = time.monotonic() + PATIENCE
        while not await asyncio.to_thread(self.remove_now):
            if time.monotonic() > deadline:
                return
            if time.monotonic() > deadline - PATIENCE / 2:  # a process joined through a descriptor that was kept open
                self.kill()
            await asyncio.sleep(0.005)

    def kill(self) -> None:
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def sweep(folder: Path) -> None:
    """Remove the groups of dead servers in a folder, and kill the processes in these groups."""
    for base in folder.glob(f"skillery-{pid_namespace()}-*-*-*"):
        _, _, pid, started, _ = base.name.split("-")
        if start_time(int(pid)) == started:
            continue
        with contextlib.suppress(OSError):  # another server that starts at this moment removed them first
            for group in (*base.glob("run-*"), base):
                remove_dead(group)


def remove_dead(group: Path) -> None:
    """Kill the processes of a dead server's group, and remove the group unless a process is still ending."""
    with contextlib.suppress(OSError):
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(member), signal.SIGKILL)
        group.rmdir()


def find() -> ControlGroups | None:
    """Return the `ControlGroups` of this server; None if the host allows none.

    The groups of dead servers are removed before.
    """
    found: list[Hierarchy] = []
    for candidate in candidates():
        hierarchy = usable(candidate)
        taken = {name for other in found for name in other.controllers}
        if hierarchy is not None and not taken & set(hierarchy.controllers):
            sweep(hierarchy.folder)
            found.append(hierarchy)
    if not found:
        return None
    groups = ControlGroups(found)
    groups.open()
    return groups
