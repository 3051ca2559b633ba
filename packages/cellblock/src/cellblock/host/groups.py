"""Control groups, v1 and v2: limits of memory, processes and CPU for all processes of a run together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cellblock.host.hierarchies import (
    CONTROLLERS,
    PEAKS,
    QUOTA,
    Figure,
    Hierarchy,
    candidates,
    figures_of,
    number_in,
    own_name,
    pid_namespace,
    read_file,
    read_open,
    settings_of,
    usable,
    write,
)
from cellblock.host.processes import start_time
from cellblock.values import Limits

PATIENCE = 5.0
LEFT_SHARE = 32
USUAL_PROCESSES = 2
"""Processes of a run whose code starts none: pid 1 and the code. The peak of processes cannot be reset, so a group with
a higher peak serves no other run.
"""


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
    """The cgroups of one run, one folder for each hierarchy."""

    def __init__(self, folders: list[tuple[Hierarchy, Path]]) -> None:
        self._folders = folders
        self._limits: Limits | None = None
        self._entrances: list[int] = []
        self._figures: dict[Figure, list[int]] = {}
        self._quotas: list[int] = []
        self._peak_files: dict[str, int] = {}
        """Descriptors of open files of the group, for groups that serve several runs."""
        self._memory_of_earlier: int | None = None
        """The highest use of memory by earlier runs of the group, if the kernel cannot start this figure again."""
        self.runs = 0
        """The number of runs that the group has served."""

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
        for controller in CONTROLLERS:
            self._write(controller, limits)
        self._limits = limits

    def _write(self, controller: str, limits: Limits) -> None:
        for hierarchy, folder in self._folders:
            if controller in hierarchy.controllers:
                for name, content in settings_of(controller, hierarchy.version, limits).items():
                    write(folder, name, content)

    @contextlib.contextmanager
    def group_files(self) -> Iterator[list[int]]:
        """Context manager: descriptors of files of the group. A process with one thread joins by writing `0` to each
        of them.
        """
        if self._entrances:
            yield self._entrances
            return
        opened: list[int] = []
        try:
            self._open_entrances(opened)
            yield opened
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _open_entrances(self, opened: list[int]) -> None:
        for hierarchy, folder in self._folders:
            # v1: moving one thread, the writer itself, avoids that the kernel waits 10 ms for all processors.
            name = "tasks" if hierarchy.version == 1 else "cgroup.procs"
            opened.append(os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC))

    def keep_open(self) -> None:
        """Open the files that each run needs, until the group is removed. Raise OSError; then none stays open."""
        try:
            self._open_entrances(self._entrances)
            for hierarchy, folder in self._folders:
                for figure, name in figures_of(hierarchy):
                    file = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
                    self._figures.setdefault(figure, []).append(file)
                if "cpu" in hierarchy.controllers:
                    self._quotas.append(os.open(folder / QUOTA[hierarchy.version], os.O_RDWR | os.O_CLOEXEC))
            for controller, folder, name in self._places_of_peaks():
                with contextlib.suppress(FileNotFoundError):  # older kernels
                    self._peak_files[controller] = _open_resettable(folder / name)
        except OSError:
            self._close_files()
            raise

    def _close_files(self) -> None:
        figures = itertools.chain.from_iterable(self._figures.values())
        for descriptor in (*self._entrances, *figures, *self._quotas, *self._peak_files.values()):
            os.close(descriptor)
        self._entrances, self._figures, self._quotas, self._peak_files = [], {}, [], {}

    def members(self) -> list[int]:
        """Return the pids of all processes in the group."""
        return sorted({int(pid) for _, folder in self._folders for pid in read_file(f"{folder}/cgroup.procs").split()})

    def free(self) -> None:
        """Remove the limit on CPU time, so that the processes can end."""
        self._limits = None
        for hierarchy, folder in self._folders:
            if "cpu" in hierarchy.controllers:
                with contextlib.suppress(OSError):  # the group was just removed
                    write(folder, QUOTA[hierarchy.version], "-1" if hierarchy.version == 1 else "max")

    @property
    def counts_processes(self) -> bool:
        return any("pids" in hierarchy.controllers for hierarchy, _ in self._folders)

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed because the run had no memory left."""
        return self._figure("oom_kill")

    def _figure(self, wanted: Figure) -> int:
        """Return a figure that the kernel counts for the group, or 0 if the group has no such figure."""
        if self._figures:
            return sum([number_in(read_open(file), wanted) for file in self._figures.get(wanted, ())])
        return sum(
            number_in(read_file(f"{folder}/{name}"), wanted)
            for hierarchy, folder in self._folders
            for figure, name in figures_of(hierarchy)
            if figure == wanted
        )

    def is_as_new(self) -> bool:
        """Return whether the next run would find this group like a new one, except for a little memory.

        No process is left in the group, the run had no more processes than usual, the kernel has killed and throttled
        none, and the limits are still set. At most a 32nd of the memory limit is in use: pages of files that the run
        was the first to read, and the kernel's own records of the group.
        """
        limits = self._limits
        return (
            limits is not None
            and not self._has_processes()
            and self.oom_kills() == 0
            and self._figure("nr_throttled") == 0
            and self._figure("memory") <= (limits.memory_mb << 20) // LEFT_SHARE
            and self._peaks("pids").get("pids", 0) <= USUAL_PROCESSES
        )

    def _has_processes(self) -> bool:
        # All processes of a run are in all of its folders, so one count is enough. Lists would be files to open.
        return self._figure("processes") > 0 if self.counts_processes else bool(self.members())

    def refresh(self) -> None:
        """Give the group its whole CPU time of the present period again, which the last run may have used in part, and
        start the highest use of memory again.

        Only for a group with open files. Raise OSError.
        """
        for quota in self._quotas:
            os.pwrite(quota, os.pread(quota, 64, 0), 0)
        try:
            if "memory" in self._peak_files:
                os.pwrite(self._peak_files["memory"], b"0", 0)
        except OSError:  # older kernels
            self._memory_of_earlier = self._peaks("memory")["memory"]

    def peaks(self) -> dict[str, int]:
        """Return the most memory in bytes (`memory`) and the most processes (`pids`) that the run had at one time.

        A figure is missing if the kernel does not count it, or if it may be that of an earlier run of the group.
        """
        peaks = self._peaks("memory", "pids")
        if peaks.get("memory") == self._memory_of_earlier:
            peaks.pop("memory", None)
        return peaks

    def _peaks(self, *controllers: str) -> dict[str, int]:
        if self._peak_files:
            contents = {name: read_open(file) for name, file in self._peak_files.items() if name in controllers}
        else:
            places = self._places_of_peaks()
            contents = {name: read_file(f"{folder}/{file}") for name, folder, file in places if name in controllers}
        return {controller: int(content) for controller, content in contents.items() if content}

    def _places_of_peaks(self) -> Iterator[tuple[str, Path, str]]:
        for hierarchy, folder in self._folders:
            for controller in hierarchy.controllers:
                if (controller, hierarchy.version) in PEAKS:
                    yield controller, folder, PEAKS[controller, hierarchy.version]

    def remove_now(self) -> bool:
        """Remove the group. Return whether all its folders are gone."""
        self._close_files()
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


def _open_resettable(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:  # the peak of processes, and the peak of memory in older kernels
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def sweep(folder: Path) -> None:
    """Remove the groups of dead servers in a folder, and kill the processes in these groups."""
    for base in folder.glob(f"cellblock-{pid_namespace()}-*-*-*"):
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


@dataclass(frozen=True)
class HostLimits:
    """The means of this host to limit runs, determined at start."""

    groups: ControlGroups | None
    landlock: bool

    @property
    def memory_held(self) -> bool:
        """Whether a cgroup limits the memory of runs."""
        return self.groups is not None and "memory" in self.groups.controllers

    @property
    def degraded(self) -> tuple[str, ...]:
        """The limits that this host enforces only by weaker means."""
        weaker = {"memory_tree": not self.memory_held, "landlock": not self.landlock}
        return tuple(name for name, is_weaker in weaker.items() if is_weaker)


def find() -> ControlGroups | None:
    """Return the `ControlGroups` of this server, or None if the host allows none.

    The groups of dead servers are removed before.
    """
    hierarchies: list[Hierarchy] = []
    for candidate in candidates():
        hierarchy = usable(candidate)
        taken = {name for other in hierarchies for name in other.controllers}
        if hierarchy is not None and not taken & set(hierarchy.controllers):
            sweep(hierarchy.folder)
            hierarchies.append(hierarchy)
    if not hierarchies:
        return None
    groups = ControlGroups(hierarchies)
    groups.open()
    return groups
