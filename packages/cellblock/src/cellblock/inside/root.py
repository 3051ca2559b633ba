"""The read-only root of runs, built outside of their namespaces.

The root is a tmpfs with the host's /usr, the interpreter, the runtime, and a copy of harmless configuration (`etc`).
The zygote lives in this root, and every run inherits it. Pid 1 of a run (native/cell.c) mounts the folders of the
run.
"""

# ruff: noqa: PTH102, PTH103, PTH106, PTH112, PTH114, PTH115, PTH120, PTH123, PTH208, PTH211, S108 - importing pathlib costs every run milliseconds; the paths are those of the sandbox
from __future__ import annotations

import os
import stat
import sys

from . import etc, kernel

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

OLD = "/.old"
EMPTY = "/run/empty"
INIT = "/run/cellblock/init"
GUEST = "/run/cellblock/guest"
NODE = "/run/cellblock/node"
"""The folder of Node.js with its npm, if the sandbox has its own."""
NPM = f'#!/bin/sh\nexec {NODE}/bin/node {NODE}/lib/node_modules/npm/bin/npm-cli.js "$@"\n'
PROGRAMS = "/run/cellblock/bin"
"""The first folder of PATH."""
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
QUIET = kernel.ATTR_NOSUID | kernel.ATTR_NODEV
FROZEN = QUIET | kernel.ATTR_RDONLY
MOUNT_POINTS = ("/proc", "/workspace", "/tmp", "/dev/shm", "/packages", EMPTY)

FROM_RUNS = ("/proc/1/environ", "/proc/sys")
"""Paths that only a run can try, because the zygote still sees the /proc of the host."""

HARMLESS = {(1, minor) for minor in (3, 5, 7, 8, 9)}
"""Major and minor numbers of null, zero, full, random and urandom."""


def enter_own_mounts(plan: dict[str, Any]) -> None:
    """Enter a private mount table. For an ordinary user, also enter a user namespace."""
    if plan["root"]:
        kernel.unshare(kernel.NEWNS)
    else:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEWUSER | kernel.NEWNS)
        write_own_maps(user, group)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)


def write_own_maps(user: int, group: int) -> None:
    """Map uid and gid 1000 in the new user namespace to `user` and `group`. The kernel requires `setgroups` to be
    denied.
    """
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {group} 1")):
        write_once(f"/proc/self/{name}", text, f"write {name}")


def write_once(path: str, text: str, step: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    except OSError as error:
        raise kernel.failed(step, error.errno or 0) from None


def bind(source: str, target: str, attributes: int = FROZEN) -> None:
    """Bind `source`, a real path of the host, at `target`, with all mounts below `source`."""
    kernel.mount(OLD + source, target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.set_mount_attributes(target, attributes, recursive=True)


def bind_folder(source: str, target: str) -> None:
    os.makedirs(target, 0o755, exist_ok=True)
    bind(source, target)


def bind_file(source: str, target: str, attributes: int = FROZEN) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
    bind(source, target, attributes)


def add_system() -> None:
    bind_folder("/usr", "/usr")
    for name in SYSTEM:
        if os.path.islink(f"{OLD}/{name}"):
            os.symlink(os.readlink(f"{OLD}/{name}"), f"/{name}")
        elif os.path.isdir(f"{OLD}/{name}"):
            bind_folder(f"/{name}", f"/{name}")


def add_devices(plan: dict[str, Any]) -> None:
    for name in DEVICES:
        if name == "zero" and not plan["cgroups"]:
            continue  # a shared mapping of /dev/zero keeps its memory after unmapping, which no watchdog sees
        bind_file(f"/dev/{name}", f"/dev/{name}", kernel.ATTR_NOSUID | kernel.ATTR_NOEXEC)
    for name, target in LINKS.items():
        os.symlink(target, f"/dev/{name}")


def add_node(program: str, npm: dict[str, str]) -> None:
    """Mount a program of Node.js of the host, and the files and folders of its npm by their names."""
    os.makedirs(f"{NODE}/bin", 0o755)
    os.makedirs(f"{NODE}/lib/node_modules/npm", 0o755)
    bind_file(program, f"{NODE}/bin/node")
    for name, source in npm.items():
        put = bind_folder if os.path.isdir(OLD + source) else bind_file
        put(source, f"{NODE}/lib/node_modules/npm/{name}")
    if npm:
        install(NPM.encode(), f"{NODE}/bin/npm", 0o555)


def hide(folder: str) -> None:
    """Hide a folder, because the code must not read or import the packages of the server."""
    if os.path.isdir(folder):
        kernel.mount(EMPTY, folder, None, kernel.MS_BIND)
        kernel.set_mount_attributes(folder, FROZEN, recursive=False)


def add_packages(environment: dict[str, Any]) -> None:
    """Mount the packages at the path where all runs of this zygote find them."""
    target, uid = f"/packages/{environment['lock']}", environment["uid"]
    os.mkdir(target, 0o755)
    if not environment["closed"]:
        bind(environment["folder"], target)
        return
    from . import idmap  # imported late, because it imports this module

    namespace = idmap.user_namespace(uid)
    idmap.bind(OLD + environment["folder"], target, FROZEN, namespace)
    os.close(namespace)


def copy_folder(source: str, target: str, mode: int = 0o644) -> None:
    """Copy a folder of this package or of the guest, so that its files are readable inside. They are few and small."""
    os.makedirs(target, 0o755)
    for entry in os.scandir(source):
        if entry.is_dir(follow_symlinks=False):
            copy_folder(entry.path, f"{target}/{entry.name}", mode)
            continue
        with open(entry.path, "rb") as original, open(f"{target}/{entry.name}", "xb") as copy:
            copy.write(original.read())
            os.fchmod(copy.fileno(), mode)
        seen = entry.stat()
        os.utime(copy.name, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # byte code contains the time of its source


def python_names() -> tuple[str, ...]:
    """Return the names of programs that start the interpreter of runs."""
    return ("python", "python3", f"python3.{sys.version_info[1]}")


def add_programs(folder: str | None) -> None:
    if folder:
        copy_folder(OLD + folder, PROGRAMS, 0o755)
    os.makedirs(PROGRAMS, 0o755, exist_ok=True)
    for name in python_names():
        os.symlink(sys.executable, f"{PROGRAMS}/{name}")


def read_init() -> bytes:
    """Return the program that pid 1 of each run becomes (native/init.c). Raise SetupError if it was not built."""
    try:
        with open(f"{os.path.dirname(__file__)}/init", "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise kernel.SetupError(f"{kernel.MISSING}: {kernel.REMEDY}") from None


def install(program: bytes, path: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    os.write(descriptor, program)
    os.close(descriptor)


def enter_new_root() -> None:
    """Make a tmpfs the root `/`. The root of the host is at OLD."""
    # /usr is only a temporary mount point: pivot_root moves the new root away from it.
    kernel.mount("root", "/usr", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=24m,nr_inodes=16k")
    os.mkdir("/usr" + OLD, 0o700)
    kernel.pivot_root("/usr", "/usr" + OLD)
    os.chdir("/")


def build(plan: dict[str, Any]) -> None:
    """Leave the root of the host for good. Afterwards `/` is the root of the sandbox. `/proc` still belongs to the
    host.
    """
    init = read_init()
    enter_new_root()
    for folder in (*MOUNT_POINTS, *plan["points"]):
        os.makedirs(folder, 0o755)
    os.symlink("packages/node_modules", "/node_modules")  # where Node.js looks for packages last
    add_system()
    add_devices(plan)
    for prefix in plan["prefixes"]:
        bind_folder(prefix, prefix)
    # Pid 1 of a run may mount a procfs only where one is visible already; the new one covers this one.
    bind("/proc", "/proc", QUIET | kernel.ATTR_NOEXEC)
    for path in etc.build("", OLD, plan["etc"], plan["certificates"]):
        bind(path, path)
    copy_folder(OLD + plan["runtime"], "/run/cellblock/runtime")
    add_programs(plan["programs"])
    if plan["guest"]:
        copy_folder(OLD + plan["guest"][0], GUEST)
    # All users may execute it and not read it, so the kernel also protects its process.
    install(init, INIT, 0o111)
    if plan["node"]:
        add_node(**plan["node"])
    for folder in plan["hidden"]:
        hide(folder)
    if plan["environment"]:
        add_packages(plan["environment"])
    kernel.detach(OLD)
    os.rmdir(OLD)
    kernel.set_mount_attributes("/", FROZEN, recursive=False)


# -- the check that runs reach nothing of the host but what this module shows ------------------------------------------


def refuse(deviation: str) -> NoReturn:
    raise kernel.SetupError(f"posture: {deviation}")


def check_root(plan: dict[str, Any]) -> None:
    """Raise SetupError if the root of runs has another path than planned, or files of a private folder.

    The zygote has more rights than its runs, so its runs see no path that the zygote does not see. Homes, folders of
    the owner, /sys, sockets and block devices are not planned.
    """
    planned = {
        *("/usr", "/etc", "/var", "/run/cellblock", "/node_modules"),
        *(*MOUNT_POINTS, *plan["points"], *plan["prefixes"]),
        *(f"/{name}" for name in SYSTEM),
        *(f"/dev/{name}" for name in (*DEVICES, *LINKS)),
    }
    for path in unplanned("", planned):
        refuse(f"{path} is visible")
    for name in os.listdir("/dev"):
        seen = os.lstat(f"/dev/{name}")
        numbers = os.major(seen.st_rdev), os.minor(seen.st_rdev)
        if not (stat.S_ISLNK(seen.st_mode) or stat.S_ISDIR(seen.st_mode) or numbers in HARMLESS):
            refuse(f"/dev/{name} is visible")
    for folder in plan["hidden"]:
        if has_files(folder):
            refuse(f"{folder} is not empty")
    for folder in plan["private"]:
        if has_files(folder) and not leads_to(folder, planned):
            refuse("a private folder of the owner is visible")


def unplanned(folder: str, planned: set[str]) -> Iterator[str]:
    """Yield the paths below `folder` that are neither planned nor lead to a planned path."""
    for name in os.listdir(folder or "/"):
        path = f"{folder}/{name}"
        if leads_to(path, planned):
            yield from unplanned(path, planned)
        elif path not in planned:
            yield path


def leads_to(folder: str, planned: set[str]) -> bool:
    return any(path.startswith(folder + "/") for path in planned)


def has_files(folder: str) -> bool:
    return os.path.isdir(folder) and bool(os.listdir(folder))


def check_run() -> None:
    """Raise SetupError if this process of a run can open a path of FROM_RUNS."""
    for path in FROM_RUNS:
        if kernel.syscall(kernel.SYS_OPENAT, kernel.AT_FDCWD, path.encode(), os.O_RDONLY, 0) >= 0:
            refuse(f"{path} can be opened")
