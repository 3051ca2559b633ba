"""Run a command as an ordinary user: no privileges, no groups, no writable cgroups.

    python tests/support/ordinary_user.py COMMAND...

The interpreter and this checkout may be in folders that only root can enter. In a separate mount namespace, the command
finds them at their usual paths.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from cellblock.inside import kernel

USER = 65533
PROCESSES = 8192
"""Limit for all processes of the command, so that a failing test cannot overload the machine."""


def closed_ancestor(path: Path) -> Path | None:
    """Return the topmost parent of `path` that other users cannot enter, or None."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def open_up(paths: list[Path]) -> None:
    """Cover each closed folder with an open folder that contains only the needed paths, at their usual places."""
    closed = {path: closed_ancestor(path) for path in paths}
    stage = Path(tempfile.mkdtemp(prefix="stage-"))
    kernel.mount("stage", str(stage), "tmpfs", 0, "mode=0755")
    for number, path in enumerate(paths):
        if closed[path] is not None:
            (stage / str(number)).mkdir()
            kernel.mount(str(path), str(stage / str(number)), None, kernel.MS_BIND | kernel.MS_REC)
    for folder in {folder for folder in closed.values() if folder is not None}:
        kernel.mount("cover", str(folder), "tmpfs", 0, "mode=0755")
    for number, path in enumerate(paths):
        if closed[path] is not None:
            path.mkdir(parents=True, exist_ok=True)
            kernel.mount(str(stage / str(number)), str(path), None, kernel.MS_BIND | kernel.MS_REC)
    kernel.detach(str(stage))
    stage.rmdir()


def become_ordinary(home: str) -> NoReturn:
    os.chown(home, USER, USER)
    resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment = kept | {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    os.execve(sys.argv[1], sys.argv[1:], environment)


def main() -> None:
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    open_up([Path(sys.base_prefix).resolve(), Path(__file__).resolve().parents[2], Path(sys.prefix).resolve()])
    with tempfile.TemporaryDirectory(prefix="ordinary-") as home:
        child = os.fork()
        if child == 0:
            become_ordinary(home)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
