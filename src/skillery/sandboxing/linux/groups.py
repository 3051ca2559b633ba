"""Control groups, v1 and v2: memory, processes and CPU of a whole run. What is there is found by making a group and
writing to it, never by version, uid or mount options."""

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
    """A folder in which groups can be made, and what they can hold."""

    folder: Path
    controllers: tuple[str, ...]
    version: int


def settings_of(controller: str, version: int, limits: Limits) -> dict[str, str]:
    """File name to content: what one controller is told of the limits. A name that ends in `?` may be missing."""
    memory = str(limits.memory_mb << 20)
    quota = str(max(1000, int(limits.cpus * PERIOD_US)))
    processes = str(limits.processes + 1)  # pid 1 is ours
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
    """Raises OSError, unless the name ends in `?` and there is no such file."""
    try:
        # not write_text: it would create a file that the kernel did not offer
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
    """The number behind `name` in a file of `name value` lines; 0 where there is none."""
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


class ControlGroups:
    """All groups of this server, in folders of its own name."""

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
        """Empty groups, without limits yet. Raises OSError; nothing is left then."""
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
        """To be done before any code; nothing where they are set already. Raises OSError."""
        if limits == self._limits:
            return
        self._limits = None
        for hierarchy, folder in self._folders:
            if hierarchy.version == 1 and "memory" in hierarchy.controllers:
                # With swap it may never be less than without: on the way from one pair to another, it is neither.
                write(folder, "memory.memsw.limit_in_bytes?", "-1")
            for controller in hierarchy.controllers:
                for name, content in settings_of(controller, hierarchy.version, limits).items():
                    write(folder, name, content)
        self._limits = limits

    @contextlib.contextmanager
    def doors(self) -> Iterator[list[int]]:
        """Descriptors of files; a process of one thread that writes `0` to each is in the group."""
        opened: list[int] = []
        try:
            for hierarchy, folder in self._folders:
                # v1: moving one thread, ourselves, spares the kernel a wait of ten milliseconds for all processors
                name = "tasks" if hierarchy.version == 1 else "cgroup.procs"
                opened.append(os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC))
            yield opened
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def members(self) -> list[int]:
        """The processes in it, now."""
        found: set[int] = set()
        for _, folder in self._folders:
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (folder / "cgroup.procs").read_text().split()}
        return sorted(found)

    def free(self) -> None:
        """Let it have all of the processors, so that it can end."""
        self._limits = None
        for hierarchy, folder in self._folders:
            if "cpu" in hierarchy.controllers:
                name, content = ("cpu.cfs_quota_us", "-1") if hierarchy.version == 1 else ("cpu.max", "max")
                with contextlib.suppress(OSError):  # it has just gone
                    write(folder, name, content)

    @property
    def counts_processes(self) -> bool:
        return any("pids" in hierarchy.controllers for hierarchy, _ in self._folders)

    def oom_kills(self) -> int:
        """How many processes the kernel killed because the run had used up its memory."""
        files = {1: "memory.oom_control", 2: "memory.events"}
        return sum(
            counted(folder / files[h.version], "oom_kill") for h, folder in self._folders if "memory" in h.controllers
        )

    def remove_now(self) -> bool:
        """True when nothing is left of it."""
        for _, folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for _, folder in self._folders)

    async def remove(self) -> None:
        """The last process may take a moment to leave; a group that stays is swept at the next start."""
        if self.remove_now():
            return
        deadline = time.monotonic() + PATIENCE
        while not await asyncio.to_thread(self.remove_now):
            if time.monotonic() > deadline:
                return
            if time.monotonic() > deadline - PATIENCE / 2:  # somebody came in by a door that was kept open
                self.kill()
            await asyncio.sleep(0.005)

    def kill(self) -> None:
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# -- finding them ------------------------------------------------------------------------------------------------


def start_time(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; with its pid that names it for good."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def own_name() -> str:
    """A new name that says who made it; each use of the groups has its own."""
    return f"skillery-{pid_namespace()}-{os.getpid()}-{start_time(os.getpid())}-{secrets.token_hex(4)}"


def pid_namespace() -> int:
    """A pid means nothing without it: two containers may see the same cgroups and not each other's processes."""
    return Path("/proc/self/ns/pid").stat().st_ino


def own_paths() -> dict[str, str]:
    """Controller (`""` for v2) to the path of the group that this process is in."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    return {name: path for _, names, path in lines for name in names.split(",")}


def mounted() -> list[tuple[int, Path, str, set[str]]]:
    """(version, mount point, root of the mount, options of the hierarchy) of every cgroup mount."""
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
    """Where groups might be made, as the mounts say."""
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
    """v2 gives controllers only to groups below one that has no processes of its own: step down into a leaf where we
    are alone. Raises OSError where that cannot be."""
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
        return  # the root group needs no such step, and other people's processes are not ours to move
    leaf = folder / "skillery-server"
    leaf.mkdir(exist_ok=True)
    write(leaf, "cgroup.procs", str(os.getpid()))


def usable(hierarchy: Hierarchy) -> Hierarchy | None:
    """The hierarchy with the controllers that really take a limit, tried on a group that is removed again."""
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
    """Remove the groups of servers that are dead, and what still runs in them."""
    for base in folder.glob(f"skillery-{pid_namespace()}-*-*-*"):
        _, _, pid, started, _ = base.name.split("-")
        if start_time(int(pid)) == started:
            continue
        for group in (*base.glob("run-*"), base):
            with contextlib.suppress(OSError):
                for member in (group / "cgroup.procs").read_text().split():
                    os.kill(int(member), signal.SIGKILL)
                group.rmdir()


def find() -> ControlGroups | None:
    """The groups this server can make, None where there are none."""
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
