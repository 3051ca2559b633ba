"""What bwrap is told for one run: its arguments, and what the launcher has to lay out before."""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from skillery.backends import Job
from skillery.sandboxing import INSIDE, RUNTIME, hidden, is_open_to_all, prefixes, root
from skillery_bubblewrap import inside

STAGE = "/sys"
"""A folder of the host that is always there and never holds what a run is given: only in the launcher's own mounts
there is something else. bwrap needs nothing of it."""
PROLOGUE = Path(inside.__file__).parent / "prologue.py"
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP")
"""For the prologue, over the run's own namespaces: to limit files, to take `lo` down, to close the bounding set."""


class NotThere(Exception):
    """Something that the run was to be given is not there; the message names no path of the host."""


class Descriptors(msgspec.Struct, frozen=True):
    """Numbers, as the process inherits them."""

    prologue: int
    status: int
    filter: int


class Fixed(msgspec.Struct, frozen=True):
    """What is the same for all runs, found out once."""

    system: tuple[str, ...]
    prefixes: tuple[str, ...]
    packages: tuple[str, ...]


class Sources:
    """Paths of the host as bwrap is told them: their own, or where it is not the server's user, their places in the
    stage."""

    def __init__(self, *, staged: bool) -> None:
        self._staged = staged
        self.binds: list[dict[str, Any]] = []

    def path(self, source: str | Path, what: str) -> str:
        """Raises NotThere."""
        real = os.path.realpath(source)
        try:
            closed = not is_open_to_all(real)
        except OSError as error:
            raise NotThere(f"{what} cannot be mounted: {os.strerror(error.errno or 0)}") from None
        if not self._staged:
            return real
        place = f"{STAGE}/{len(self.binds)}"
        self.binds.append({"source": real, "place": place, "closed": closed})
        return place


def system(*, with_zero: bool) -> Iterator[str]:
    """The host's programs and libraries, and its harmless devices."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in root.SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--dir", "/dev")
    for name in root.DEVICES:
        if with_zero or name != "zero":  # a shared mapping of it is memory that no watchdog sees
            yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for name, target in root.LINKS.items():
        yield from ("--symlink", target, f"/dev/{name}")


def packages(private: tuple[str, ...]) -> Iterator[str]:
    """An empty folder over each that holds packages, or is the server's own."""
    for folder in hidden(private):
        yield from ("--perms", "0555", "--size", "4096", "--tmpfs", folder, "--remount-ro", folder)


def fixed(private: tuple[str, ...], *, with_zero: bool) -> Fixed:
    return Fixed(tuple(system(with_zero=with_zero)), tuple(prefixes()), tuple(packages(private)))


def given(job: Job, sources: Sources) -> Iterator[str]:
    """The skills, packages and blobs of the run. Raises NotThere."""
    yield from ("--dir", "/skills", "--dir", "/packages", "--dir", "/blobs")
    for skill in job.skills:
        yield from ("--ro-bind", sources.path(skill.folder, f"the skill '{skill.name}'"), f"/skills/{skill.name}")
    for one in job.packages:
        yield from ("--ro-bind", sources.path(one.folder, "an environment"), f"/packages/{one.lock}")
    for blob in job.blobs:
        yield from ("--ro-bind", sources.path(blob.path, f"the blob '{blob.blob_id}'"), f"/blobs/{blob.blob_id}")


def own(limits: dict[str, int]) -> Iterator[str]:
    """What the run may write to; the prologue limits the number of files."""
    folders = (("/workspace", "0755", "disk_bytes"), ("/tmp", "1777", "tmp_bytes"), ("/dev/shm", "1777", "shm_bytes"))
    for folder, mode, limit in folders:
        yield from ("--perms", mode, "--size", str(limits[limit]), "--tmpfs", folder)


def python() -> str:
    """The interpreter itself, past every virtual environment and symbolic link."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def arguments(job: Job, fixed: Fixed, sources: Sources, limits: dict[str, int], numbers: Descriptors) -> list[str]:
    """All but `first_program`. Raises NotThere."""
    found = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    found += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        found += ["--setenv", name, value]
    found += ["--cap-drop", "ALL"]
    for capability in CAPABILITIES:
        found += ["--cap-add", capability]
    found += ["--json-status-fd", str(numbers.status), "--seccomp", str(numbers.filter)]
    found += fixed.system
    for prefix in fixed.prefixes:
        found += ["--ro-bind", sources.path(prefix, "the interpreter"), prefix]
    found += fixed.packages
    found += ["--proc", "/proc"]
    for source, name in ((RUNTIME, "runtime"), (INSIDE, "cell"), (PROLOGUE, "prologue.py")):
        found += ["--ro-bind", sources.path(source, "the runtime"), f"/run/skillery/{name}"]
    found += given(job, sources)
    found += own(limits)
    return [*found, "--remount-ro", "/", "--chdir", "/workspace"]


def first_program(numbers: Descriptors) -> list[str]:
    """What bwrap starts. It takes that from its own argument list only."""
    return [python(), "-I", "-S", "-B", "/run/skillery/prologue.py", str(numbers.prologue)]
