"""The arguments of bwrap for one run, and the mounts that the launcher prepares."""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from cellblock.parts import ENVIRONMENT, INSIDE, RUNTIME, certificates, etc, hidden, is_open_to_all, prefixes, root
from skillery.backends import Job
from skillery.jobs import GUEST, PROGRAMS
from skillery_bubblewrap import inside

STAGE = "/sys"
"""A folder that exists on every host and never contains files of a run.

The launcher mounts the sources of the run there, in its own mount namespace. bwrap needs no file of the original
folder.
"""
OWN = Path(inside.__file__).parent
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP")
"""Capabilities of the prologue in the namespaces of the run: to limit the number of files, to take `lo` down, and to
close the bounding set.
"""


class NotThere(Exception):
    """Raised if a file for the run is missing. The message contains no path of the host."""


class Descriptors(msgspec.Struct, frozen=True):
    """Numbers of three descriptors that bwrap inherits: the input of the prologue, the pipe for the status of bwrap,
    and the system call filter.
    """

    prologue: int
    status: int
    filter: int


class Fixed(msgspec.Struct, frozen=True):
    """The arguments that are equal for all runs. They are computed once."""

    system: tuple[str, ...]
    prefixes: tuple[str, ...]
    packages: tuple[str, ...]
    folder: Path
    """A folder with the folders `/etc`, `/var` and `root.PROGRAMS` of runs."""
    bound: tuple[str, ...]
    """Folders of the host that cover folders in it."""


class Sources:
    """The source paths for bwrap. If bwrap does not run as the server's user, they are paths below STAGE."""

    def __init__(self, *, staged: bool) -> None:
        self._staged = staged
        self.binds: list[dict[str, Any]] = []

    def path(self, source: str | Path, subject: str) -> str:
        """Return the path for bwrap. Raise NotThere if the source does not exist."""
        real = os.path.realpath(source)
        try:
            closed = not is_open_to_all(real)
        except OSError as error:
            raise NotThere(f"{subject} cannot be mounted: {os.strerror(error.errno or 0)}") from None
        if not self._staged:
            return real
        place = f"{STAGE}/{len(self.binds)}"
        self.binds.append({"source": real, "place": place, "closed": closed})
        return place


def system(*, with_zero: bool) -> Iterator[str]:
    """Yield the arguments for the host's programs and libraries, and for harmless devices."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in root.SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--dir", "/dev")
    for name in root.DEVICES:
        if with_zero or name != "zero":  # the watchdog does not see a shared mapping of it
            yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for name, target in root.LINKS.items():
        yield from ("--symlink", target, f"/dev/{name}")


def packages(private: tuple[str, ...]) -> Iterator[str]:
    """Yield the arguments that hide folders with packages, and private folders of the server, behind empty folders."""
    for folder in hidden(private):
        yield from ("--perms", "0555", "--size", "4096", "--tmpfs", folder, "--remount-ro", folder)


def fixed(private: tuple[str, ...], home: Path, *, with_zero: bool) -> Fixed:
    """Return the arguments. `home` is the folder of the server, which keeps the folders that runs see."""
    kept = home / "bubblewrap"
    kept.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=kept) as temporary:
        made = Path(temporary, "root")
        made.mkdir()
        bound = etc.build(str(made), "", (), certificates())
        add_programs(made / root.PROGRAMS.lstrip("/"))
        # Servers and runs share a folder with the same content, so no server removes it.
        folder = kept / settle(made)[:16]
        with contextlib.suppress(OSError):  # another server has made it
            made.rename(folder)
    return Fixed(tuple(system(with_zero=with_zero)), tuple(prefixes()), tuple(packages(private)), folder, tuple(bound))


def add_programs(folder: Path) -> None:
    shutil.copytree(PROGRAMS, folder, copy_function=shutil.copyfile)
    for program in folder.iterdir():
        program.chmod(0o755)
    for name in root.python_names():
        (folder / name).symlink_to(python())


def settle(folder: Path) -> str:
    """Make all files readable, because the umask of the server may be strict. Return a digest of the content."""
    digest = hashlib.sha256()
    for path in sorted((folder, *folder.rglob("*"))):
        content = str(path.readlink()).encode() if path.is_symlink() else b""
        if not path.is_symlink():
            is_program = path.stat().st_mode & 0o100
            path.chmod(0o755 if path.is_dir() or is_program else 0o644)
            content = path.read_bytes() if path.is_file() else b""
        digest.update(repr((str(path.relative_to(folder)), content)).encode())
    return digest.hexdigest()


def mounts(job: Job, sources: Sources) -> Iterator[str]:
    """Yield the arguments for the skills, packages and blobs of the run. Raise NotThere if a file is missing."""
    yield from ("--dir", "/skills", "--dir", "/packages", "--dir", "/blobs")
    yield from ("--symlink", "packages/node_modules", "/node_modules")
    for skill in job.skills:
        yield from ("--ro-bind", sources.path(skill.folder, f"the skill '{skill.name}'"), f"/skills/{skill.name}")
    for package in job.packages:
        yield from ("--ro-bind", sources.path(package.folder, "an environment"), f"/packages/{package.name}")
    for blob in job.blobs:
        yield from ("--ro-bind", sources.path(blob.path, f"the blob '{blob.blob_id}'"), f"/blobs/{blob.blob_id}")


def own(limits: dict[str, int]) -> Iterator[str]:
    """Yield the arguments for the writable folders. The prologue limits how many files they may have."""
    folders = (("/workspace", "0755", "disk_bytes"), ("/tmp", "1777", "tmp_bytes"), ("/dev/shm", "1777", "shm_bytes"))
    for folder, mode, limit in folders:
        yield from ("--perms", mode, "--size", str(limits[limit]), "--tmpfs", folder)


def python() -> str:
    """Return the interpreter outside of all virtual environments, without symbolic links in its path."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def arguments(job: Job, fixed: Fixed, sources: Sources, limits: dict[str, int], numbers: Descriptors) -> list[str]:
    """Return all arguments except `first_program`. Raise NotThere if a file of the run is missing."""
    options = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    options += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--clearenv"]
    # The prologue removes the last one. Each arena of the C library reserves address space, which RLIMIT_AS limits.
    for name, value in (*ENVIRONMENT.items(), ("MALLOC_ARENA_MAX", "2")):
        options += ["--setenv", name, value]
    options += ["--cap-drop", "ALL"]
    for capability in CAPABILITIES:
        options += ["--cap-add", capability]
    options += ["--json-status-fd", str(numbers.status), "--seccomp", str(numbers.filter)]
    options += fixed.system
    for prefix in fixed.prefixes:
        options += ["--ro-bind", sources.path(prefix, "the interpreter"), prefix]
    options += fixed.packages
    own_folders = {path: f"{fixed.folder}{path}" for path in ("/etc", "/var", root.PROGRAMS)}
    for target, folder in {**own_folders, **dict(zip(fixed.bound, fixed.bound, strict=True))}.items():
        options += ["--ro-bind", sources.path(folder, "the configuration"), target]
    options += ["--proc", "/proc"]
    programs = ((RUNTIME, "runtime"), (INSIDE, "inside"), (OWN, "bubblewrap"), (GUEST.folder, "guest"))
    for source, name in programs:
        options += ["--ro-bind", sources.path(source, "the runtime"), f"/run/cellblock/{name}"]
    options += mounts(job, sources)
    options += own(limits)
    return [*options, "--remount-ro", "/", "--chdir", "/workspace"]


def first_program(numbers: Descriptors) -> list[str]:
    """Return the command that bwrap starts. bwrap accepts it only as command line arguments."""
    return [python(), "-I", "-S", "-B", "/run/cellblock/bubblewrap/prologue.py", str(numbers.prologue)]
