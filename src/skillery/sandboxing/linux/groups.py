"""Control groups, v1 and v2: limits of memory, processes and CPU for all processes of a run together.

Whether the host supports them is tested by creating a group and writing its limits, not by versions or mount options.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from skillery.backends import Limits

PERIOD_US = 100_000
CONTROLLERS = ("memory", "pids", "cpu")
PATIENCE = 5.0


class Hierarchy(msgspec.Struct, frozen=True):
    """A folder in which groups can be created, and the controllers of the folder."""

    folder: Path
    controllers: tuple[str, ...]
    version: int


def settings_of(controller: str, version: int, limits: Limits) -> dict[str, str]:
    """Return the settings of one controller by file name. A file whose name ends in `?` may be missing."""
    memory = str(limits.memory_mb << 20)
    quota = str(max(1000, int(limits.cpus * PERIOD_US)))
    processes = str(limits.processes + 1)  # one more for pid 1
    if version == 1:
        return {
            "memory": {
                "memory.swappiness?": "0",
                "memory.limit_in_bytes": memory,
                "memory.memsw.limit_in_bytes?": memory,
            },
            "pids": {"pids.max": processes},
            "cpu": {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota},
        }[controller]
    return {
        "memory": {"memory.max": memory, "memory.swap.max?": "0", "memory.oom.group?": "1"},
        "pids": {"pids.max": processes},
        "cpu": {"cpu.max": f"{quota} {PERIOD_US}"},
    }[controller]


def write(folder: Path, name: str, content: str) -> None:
    """Write a setting. Raise OSError, unless the name ends in `?` and the file does not exist."""
    try:
        # Not write_text, which would create a file that the kernel does not offer.
        descriptor = os.open(folder / name.rstrip("?"), os.O_WRONLY)
    except FileNotFoundError:
        if name.endswith("?"):
            return
        raise
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


def counted(path: Path, name: str) -> int:
    """Return the number after `name` in a file of `name value` lines; 0 if it is missing."""
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


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
    def doors(self) -> Iterator[list[int]]:
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

    def remove_now(self) -> bool:
        """Remove the group. Return whether all its folders are gone."""
        for _, folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for _, folder in self._folders)

    async def remove(self) -> None:
        """Remove the group, and wait for its last processes. If the group cannot be removed, the next start of a
        server removes it.
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


# -- finding them ------------------------------------------------------------------------------------------------


def start_time(pid: int) -> str | None:
    """Return the start of a process in clock ticks since boot; None if it has ended. Pid and start identify a
    process.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def own_name() -> str:
    """Return a new name that identifies this server and no other."""
    return f"skillery-{pid_namespace()}-{os.getpid()}-{start_time(os.getpid())}-{secrets.token_hex(4)}"


def pid_namespace() -> int:
    """Return the id of the pid namespace.

    Pids are unique only within it: two containers may see the same cgroups, but not each other's processes.
    """
    return Path("/proc/self/ns/pid").stat().st_ino


def own_paths() -> dict[str, str]:
    """Return the cgroup path of this process for each controller. v2 has the key ""."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return {name: path for _, names, path in lines for name in names.split(",")}


def mounted() -> list[tuple[int, Path, str, set[str]]]:
    """Return (version, mount point, root of the mount, options of the hierarchy) of every cgroup mount."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            fields = left.split()
            found.append((1 if kind == "cgroup" else 2, Path(fields[4]), fields[3], set(options.split(","))))
    return found


def own_folder(point: Path, root: str, own: str) -> Path:
    relative = own[len(root.rstrip("/")) :] if own.startswith(root) else ""
    return point / relative.lstrip("/")


def candidates() -> list[Hierarchy]:
    """Return the folders in which groups could be created, as the mounts say. Whether it works is not tested."""
    paths, found = own_paths(), []
    for version, point, root, options in mounted():
        if version == 1:
            names = tuple(name for name in CONTROLLERS if name in options)
            own = paths.get(names[0]) if names else None
        else:
            names = CONTROLLERS
            own = paths.get("")
        if own is not None:
            found.append(Hierarchy(own_folder(point, root, own), names, version))
    return found


def delegate(hierarchy: Hierarchy) -> Hierarchy:
    """Enable the controllers for child groups, and return the hierarchy. Raise OSError if that is impossible.

    v2 allows this only for a group without processes. If this process is the only one, it moves to a new child group.
    """
    offered = (hierarchy.folder / "cgroup.controllers").read_text().split()
    names = tuple(name for name in CONTROLLERS if name in offered)
    enabled = (hierarchy.folder / "cgroup.subtree_control").read_text().split()
    missing = [name for name in names if name not in enabled]
    if missing:
        step_down(hierarchy.folder)
        write(hierarchy.folder, "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))
    return Hierarchy(hierarchy.folder, names, 2)


def step_down(folder: Path) -> None:
    processes = (folder / "cgroup.procs").read_text().split()
    if not (folder / "cgroup.type").exists() or set(processes) != {str(os.getpid())}:
        return  # unnecessary for the root group; foreign processes must not be moved
    leaf = folder / "skillery-server"
    leaf.mkdir(exist_ok=True)
    write(leaf, "cgroup.procs", str(os.getpid()))


def usable(hierarchy: Hierarchy) -> Hierarchy | None:
    """Return the hierarchy with the controllers that accept limits; None if no controller does.

    The function tests each controller with a temporary group.
    """
    try:
        offered = delegate(hierarchy) if hierarchy.version == 2 else hierarchy
    except OSError:
        return None
    working = tuple(name for name in offered.controllers if takes_limits(offered, name))
    return Hierarchy(offered.folder, working, offered.version) if working else None


def takes_limits(hierarchy: Hierarchy, controller: str) -> bool:
    folder = hierarchy.folder / own_name()
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        for name, content in settings_of(controller, hierarchy.version, Limits()).items():
            write(folder, name, content)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return True


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
    """Return the groups that this server can create; None if the host allows none."""
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
