"""The plan of a zygote, and the mounts and limits of a run."""

from __future__ import annotations

import os
import platform
import stat
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any

from cellblock.filter import rules
from cellblock.filter.rules import Filters, Sockets
from cellblock.inside.link import ID_MAP_BYTES, id_map
from cellblock.inside.root import NODE, PROGRAMS
from cellblock.values import Guest, Limits, Mount

MEBIBYTE = 1 << 20
HERE = Path(__file__).parents[1]
"""The folder of the package: the working directory of the programs in `inside`, which import `inside` from it."""
RUNTIME = HERE / "runtime"
INSIDE = HERE / "inside"
ADDRESS_SPACE_BACKUP = 64 << 30
INTERPRETER_BYTES = 256 * MEBIBYTE
DESCRIPTORS, FEW_DESCRIPTORS = 1024, 256
"""Most descriptors of one process. The lower limit applies if no cgroup counts the memory of the kernel.

A process with n descriptors can create n²/4 epoll watches. The kernel limits watches per user. If the server is not
root, server and runs are the same user.
"""

MOST_PROCESSES = 256
"""Most processes of an untrusted zygote and its runs if no cgroup counts them. The kernel enforces it; a watchdog would
be too late.
"""
CERTIFICATES = (
    *("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"),
    *("/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"),
)
"""The usual paths of the file with trusted certificates."""
NPM = ("bin", "lib", "node_modules", "package.json")
ENVIRONMENT = {
    "PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/workspace",
    "LANG": "C.UTF-8",
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
    "XDG_CACHE_HOME": "/tmp/.cache",  # noqa: S108 - a path of the sandbox
    "npm_config_offline": "true",  # without a registry, npm tries for a minute
    "PIP_NO_INDEX": "true",  # and the pip of a virtual environment for 13 seconds
    **{
        f"GIT_{role}_{name}": value
        for role in ("AUTHOR", "COMMITTER")
        for name, value in (("NAME", "user"), ("EMAIL", "user@sandbox.invalid"))
    },
}
"""The environment variables of every run."""
FORKING = ("mount", "unshare", "setns", "clone", "sched_setaffinity")
"""System calls that an untrusted zygote needs to fork a run, and that the run itself must not make."""


def is_beneath(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def prefixes(pythons: tuple[Path, ...] = ()) -> list[str]:
    """Return the folders of the interpreter and of `pythons` that are not below /usr."""
    folders = {os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    folders |= {str(python.resolve().parents[1]) for python in pythons}
    return sorted(prefix for prefix in folders if not is_beneath(prefix, "/usr"))


def hidden(private: tuple[str, ...], pythons: tuple[Path, ...] = ()) -> list[str]:
    """Return the folders to hide: installed packages, with this one, and the `private` folders of the server."""
    roots = {"/usr", "/usr/local", *(os.path.realpath(prefix) for prefix in (sys.base_prefix, sys.base_exec_prefix))}
    roots.update(prefixes(pythons))
    patterns = [f"{root}/lib*/python*/{kind}-packages" for root in sorted(roots) for kind in ("site", "dist")]
    # Path.glob needs a folder to begin with, and these patterns are absolute.
    folders = {path for pattern in patterns for path in glob(pattern) if Path(path).is_dir()}  # noqa: PTH207
    if sys.prefix != sys.base_prefix:
        folders.add(os.path.realpath(sys.prefix))
    folders |= {os.path.realpath(folder) for folder in (*private, str(HERE.parent)) if Path(folder).is_dir()}
    mounted = ["/usr", *prefixes(pythons)]
    return sorted(path for path in folders if path not in mounted and any(is_beneath(path, root) for root in mounted))


def certificates() -> str | None:
    """Return the real path of the host's file with trusted certificates; None if there is no such file."""
    paths = (os.environ.get("SSL_CERT_FILE", ""), *CERTIFICATES)
    return next((os.path.realpath(path) for path in paths if path and Path(path).is_file()), None)


def can_set_network() -> bool:
    """Return whether settings of a net namespace can be written, as pid 1 of a run with servers does.

    Most containers mount /proc/sys read-only.
    """
    try:
        return not os.statvfs("/proc/sys/net/ipv4/tcp_rmem").f_flag & os.ST_RDONLY
    except OSError:
        return False


def is_open_to_all(path: str) -> bool:
    """Return whether every user may read the path. The uid of a run owns no files.

    Of a folder, only its own mode is checked.
    """
    mode = Path(path).stat().st_mode
    needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
    return mode & needed == needed


def node_sources(program: Path) -> dict[str, Any]:
    """Return the real paths of a program of Node.js, and of the code of its npm by name, without its configuration.

    Raise ValueError if runs cannot use the program.
    """
    real = program.resolve()
    if not real.is_file() or real.stat().st_mode & 0o005 != 0o005:
        raise ValueError(f"node {str(program)!r} is not a program that every user may execute")
    npm = real.parents[1] / "lib/node_modules/npm"
    parts = [npm / name for name in NPM if (npm / "bin/npm-cli.js").is_file() and (npm / name).exists()]
    return {"program": str(real), "npm": {part.name: os.path.realpath(part) for part in parts}}


def shape(limits: Limits) -> Limits:
    """Return the limits that a cell has from its set-up. The other limits are applied from outside, or with the job."""
    return Limits(
        memory_mb=limits.memory_mb,
        processes=limits.processes,
        cpus=limits.cpus,
        disk_mb=limits.disk_mb,
        disk_files=limits.disk_files,
        tmp_mb=limits.tmp_mb,
    )


def cpu_seconds(limits: Limits) -> int:
    """Return the limit on the CPU time of one process in seconds: a backup in case the timeout does not work."""
    return int(limits.timeout_ms / 1000 * max(1.0, limits.cpus)) + 2


@lru_cache(maxsize=64)
def tree_limits(limits: Limits, *, cgroups: bool, base: int = 0) -> dict[str, int]:
    """Return the limits as rlimits and mount options.

    Without cgroups, the address space of each process is limited to the memory limit of the whole run, plus room for
    the interpreter. With cgroups, the address space is only a backup. `base` is the address space in bytes that a
    process inherits from its zygote.
    """
    memory = limits.memory_mb * MEBIBYTE
    return {
        "processes": limits.processes,
        "descriptors": DESCRIPTORS if cgroups else FEW_DESCRIPTORS,
        "file_bytes": max(limits.disk_mb, limits.tmp_mb) * MEBIBYTE,
        "address_bytes": ADDRESS_SPACE_BACKUP if cgroups else memory + INTERPRETER_BYTES + base,
        "address_ceiling": ADDRESS_SPACE_BACKUP,
        "disk_bytes": limits.disk_mb * MEBIBYTE,
        "disk_files": limits.disk_files,
        "tmp_bytes": limits.tmp_mb * MEBIBYTE,
        "shm_bytes": min(64, limits.memory_mb) * MEBIBYTE,
    }


def make_plan(
    *,
    root: bool,
    filters: Filters,
    cgroups: bool,
    without_landlock: bool = False,
    private: tuple[str, ...] = (),
    points: tuple[str, ...] = (),
    guest: Guest | None = None,
    node: Path | None = None,
    pythons: tuple[Path, ...] = (),
    names_in_etc: tuple[str, ...] = (),
    programs: Path | None = None,
) -> dict[str, Any]:
    """Return the plan, which is equal for all runs. `cgroups` says whether cgroups limit the memory of runs.

    `points` are the folders for mounts, in addition to those that all sandboxes have. `names_in_etc` are copied from
    the host, and so are the files in `programs`, which runs start by name.
    """
    return {
        "root": root,
        "keeps_groups": not root,
        "without_landlock": without_landlock,
        "points": points,
        "prefixes": prefixes(pythons),
        "hidden": hidden(private, pythons),
        "private": [os.path.realpath(folder) for folder in private],
        "cgroups": cgroups,
        "etc": names_in_etc,
        "certificates": certificates(),
        "programs": str(programs.resolve()) if programs else None,
        "runtime": str(RUNTIME.resolve()),
        "guest": (str(guest.folder.resolve()), guest.module) if guest is not None else None,
        "node": node_sources(node) if node is not None else None,
        "variables": {"PATH": f"{PROGRAMS}:{NODE}/bin:/usr/local/bin:/usr/bin:/bin"} if node is not None else {},
        "filters": [program.hex() for program in filters.runs],
        "base_filter": filters.base.hex(),
        "environment": None,
    }


@dataclass(frozen=True, slots=True)
class Preload:
    """The modules that a zygote imports before it forks runs, the folder of their packages, and the limits of that."""

    lock: str
    folder: str
    modules: tuple[str, ...]
    memory_mb: int = 1024
    """Memory limit of the zygote, without its runs."""
    seconds: float = 60.0
    """Time limit of the import."""

    @property
    def words(self) -> str:
        return ", ".join(self.modules)


def preload_plan(plan: dict[str, Any], preload: Preload, uid: int | None, *, counts_processes: bool) -> dict[str, Any]:
    """Return the plan of an untrusted zygote. `uid` is its host uid, or None for that of the server.

    The zygote has a separate filter, so its runs load the whole filter.
    """
    source, is_open, _ = look(preload.folder)
    machine, cgroups = platform.machine(), plan["cgroups"]
    own = {
        "lock": preload.lock,
        "folder": source,
        "closed": uid is not None and not is_open,
        "preload": list(preload.modules),
        "uid": uid,
        "address_bytes": 0 if cgroups else (preload.memory_mb + 1024) * MEBIBYTE,
        "processes": 0 if counts_processes else MOST_PROCESSES,
        "filter": rules.program(machine, cgroups=cgroups, also=FORKING).hex(),
    }
    usual = rules.program(machine, cgroups=cgroups).hex()
    # No other runs are forked from this zygote. The kernel refuses an empty filter.
    return plan | {"environment": own, "filters": [usual, *[""] * (len(Sockets) - 1)]}


def mount_entries(mounts: Sequence[Mount], *, root: bool) -> list[dict[str, Any]]:
    """Return what the workshop mounts for one run: point, name, source, whether the source is a folder, and whether
    only root may read it.
    """
    return [
        entry(mount.point, mount.name, *(seen if mount.digest else look)(str(mount.source), mount.digest), root=root)
        for mount in mounts
    ]


def entry(point: str, name: str, source: str, is_open: bool, is_folder: bool, *, root: bool) -> dict[str, Any]:
    return {"point": point, "name": name, "source": source, "closed": root and not is_open, "is_folder": is_folder}


def look(path: str, digest: str = "") -> tuple[str, bool, bool]:
    """Return the real path, whether every user may read it, and whether it is a folder.

    `digest` is that of a folder that never changes. Another folder at the same path has another.
    """
    source = os.path.realpath(path)
    return source, is_open_to_all(source), Path(source).is_dir()


seen = lru_cache(maxsize=4096)(look)
"""A cached `look`, for folders that never change."""


# -- An order to fork a run: `struct order` of native/cell.c -----------------------------------------------------------


VERSION = 1
AHEAD, SHARES_MEMORY, IS_BOUND = 1, 2, 4
HEAD = struct.Struct(f"=2I{ID_MAP_BYTES}s3q")
"""Version, flags, the text of the id maps, gid, uid, slot. The number of the order goes to NUMBER_AT."""
NUMBER_AT = 8
PARAMETERS = struct.Struct("=2I9Q")
"""The port of the proxy inside the run or 0, the kind of sockets, and the limits in the order of LIMITS."""
LIMITS = (
    "processes",
    "descriptors",
    "file_bytes",
    "address_bytes",
    "address_ceiling",
    "disk_bytes",
    "disk_files",
    "tmp_bytes",
    "shm_bytes",
)
AFFINITY_BYTES = 128


def parameters(limits: dict[str, int], affinity: Sequence[int], port: int | None, sockets: Sockets) -> bytes:
    """Return the part of an order that is equal for all runs with the same parameters."""
    processors = sum(1 << number for number in affinity).to_bytes(AFFINITY_BYTES, "little")
    return PARAMETERS.pack(port or 0, sockets, *(limits[name] for name in LIMITS)) + processors


def order(uid: int, slot: int, parameters: bytes, *, ahead: bool, shares_memory: bool) -> bytes:
    """Return an order without its number. The slot is -1 for a new net namespace."""
    is_bound = any(parameters[-AFFINITY_BYTES:])
    flags = AHEAD * ahead | SHARES_MEMORY * shares_memory | IS_BOUND * is_bound
    return HEAD.pack(VERSION, flags, id_map(uid), uid, uid, slot) + parameters


# -- The interpreter that runs the programs of `inside` ----------------------------------------------------------------


def base_python() -> str:
    """Return the interpreter outside all virtual environments, without symbolic links."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
