"""The check that runs reach nothing of the host but what `root` shows: by the zygote once, and by each run.

The helper in C (folder native) checks the state of the process of a run.
"""

# ruff: noqa: PTH112, PTH208 - importing pathlib costs every zygote milliseconds
from __future__ import annotations

import os
import stat

from . import kernel, root

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

FROM_RUNS = ("/proc/1/environ", "/proc/sys")
"""Paths that only a run can try, because the zygote still sees the /proc of the host."""

HARMLESS = {os.makedev(1, minor) for minor in (3, 5, 7, 8, 9)}
"""null, zero, full, random and urandom."""


def refuse(deviation: str) -> NoReturn:
    raise kernel.SetupError(f"posture: {deviation}")


def check_root(plan: dict[str, Any]) -> None:
    """Raise SetupError if the root of runs has another path than planned, or files of a private folder.

    The zygote has more rights than its runs, so its runs see no path that the zygote does not see. Homes, folders of
    the owner, /sys, sockets and block devices are not planned.
    """
    planned = {
        *("/usr", "/etc", "/var", "/run/cellblock", "/node_modules"),
        *(*root.MOUNT_POINTS, *plan["points"], *plan["prefixes"]),
        *(f"/{name}" for name in root.SYSTEM),
        *(f"/dev/{name}" for name in (*root.DEVICES, *root.LINKS)),
    }
    for path in unplanned("", planned):
        refuse(f"{path} is visible")
    for name in os.listdir("/dev"):
        seen = os.lstat(f"/dev/{name}")
        if not (stat.S_ISLNK(seen.st_mode) or stat.S_ISDIR(seen.st_mode) or seen.st_rdev in HARMLESS):
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
