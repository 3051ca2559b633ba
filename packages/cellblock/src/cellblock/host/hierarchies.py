"""Hierarchies of control groups, v1 and v2: the folders of the host in which a server can create groups.

Whether the host supports groups is tested by creating a group and writing its limits, not by versions or mount options.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cellblock.host.processes import start_time
from cellblock.values import Limits

PERIOD_US = 100_000
CONTROLLERS = ("memory", "pids", "cpu")
Figure = Literal["oom_kill", "nr_throttled", "memory", "processes"]
"""Figures that the kernel counts for a group. The first two are names in a file with several figures."""
ALONE = frozenset({"memory", "processes"})
"""Figures that have a file of their own: the memory in use, and the number of processes with their threads."""
QUOTA = {1: "cpu.cfs_quota_us", 2: "cpu.max"}
"""The file of a group that limits its CPU time, by version."""
PEAKS = {
    ("memory", 1): "memory.max_usage_in_bytes",
    ("memory", 2): "memory.peak",
    ("pids", 1): "pids.peak",
    ("pids", 2): "pids.peak",
}
"""The file with the highest use of a controller, by version. Older kernels do not have all of them."""
FILES: dict[tuple[str, int], tuple[tuple[Figure, str], ...]] = {
    ("memory", 1): (("oom_kill", "memory.oom_control"), ("memory", "memory.usage_in_bytes")),
    ("memory", 2): (("oom_kill", "memory.events"), ("memory", "memory.current")),
    ("cpu", 1): (("nr_throttled", "cpu.stat"),),
    ("cpu", 2): (("nr_throttled", "cpu.stat"),),
    ("pids", 1): (("processes", "pids.current"),),
    ("pids", 2): (("processes", "pids.current"),),
}


@dataclass(frozen=True, slots=True)
class Hierarchy:
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
    """Write a setting. Raise OSError if that fails. If the name ends in `?`, a missing file is no error."""
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


def figures_of(hierarchy: Hierarchy) -> list[tuple[Figure, str]]:
    """Return the figures that a group of the hierarchy has, and their files."""
    return [
        (figure, name) for controller in hierarchy.controllers for figure, name in FILES[controller, hierarchy.version]
    ]


def number_in(content: bytes, figure: Figure) -> int:
    """Return the figure in the content of its file, or 0 if the file does not have it."""
    if figure in ALONE:
        return int(content or b"0")
    for line in content.splitlines():
        key, _, value = line.partition(b" ")
        if key == figure.encode():
            return int(value)
    return 0


def read_open(descriptor: int) -> bytes:
    """Return the present content of an open file of a group; empty if the group was removed."""
    try:
        return os.pread(descriptor, 4096, 0)
    except OSError:
        return b""


def read_file(path: str) -> bytes:
    """Return the content of a file of a group; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def own_name() -> str:
    """Return a new name that identifies this server and no other."""
    return f"cellblock-{pid_namespace()}-{os.getpid()}-{start_time(os.getpid())}-{secrets.token_hex(4)}"


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
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            fields = left.split()
            mounts.append((1 if kind == "cgroup" else 2, Path(fields[4]), fields[3], set(options.split(","))))
    return mounts


def own_folder(point: Path, root: str, own: str) -> Path:
    relative = own[len(root.rstrip("/")) :] if own.startswith(root) else ""
    return point / relative.lstrip("/")


def candidates() -> list[Hierarchy]:
    """Return the folders in which groups could be created, as the mounts say. Whether it works is not tested."""
    paths, folders = own_paths(), []
    for version, point, root, options in mounted():
        if version == 1:
            names = tuple(name for name in CONTROLLERS if name in options)
            own = paths.get(names[0]) if names else None
        else:
            names = CONTROLLERS
            own = paths.get("")
        if own is not None:
            folders.append(Hierarchy(own_folder(point, root, own), names, version))
    return folders


def delegate(hierarchy: Hierarchy) -> Hierarchy:
    """Enable the controllers for child groups, and return the hierarchy. Raise OSError if that is impossible.

    v2 allows this only for a group without processes, and for the root group. If this process is the only one, it moves
    to a new child group.
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
    leaf = folder / "cellblock-server"
    leaf.mkdir(exist_ok=True)
    write(leaf, "cgroup.procs", str(os.getpid()))


def usable(hierarchy: Hierarchy) -> Hierarchy | None:
    """Return the hierarchy with the controllers that accept limits, or None if no controller does.

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
