"""The files of a run that has ended, read by a process in which no code of the run has ever run."""

# ruff: noqa: PTH101, PTH208 - importing pathlib costs time
from __future__ import annotations

import os
import stat

from . import _gathering

TYPE_CHECKING = False  # importing `typing` for this costs time
if TYPE_CHECKING:
    from typing import Any

    from cellblock.runtime import _run
else:
    from . import _run


def collect(order: dict[str, Any]) -> None:
    """Pass the files of the run to the host. Its workspace is visible."""
    if order["workspace"] is not None:
        from . import _snapshots

        _snapshots.save(order["folder"], order["workspace"])
    if order["gathers"]:
        gather(order)


def gather(order: dict[str, Any]) -> None:
    """Store the files that the code of the run did not store before it was stopped."""
    open_up(order["folder"] if order["outputs"] else order["folder"] + "/" + _gathering.OUT)
    _gathering.BEFORE.update(order["kept"])
    _run.note(_gathering.leave(order["folder"], order["outputs"], with_out=True, name="/workspace"))


def open_up(folder: str, depth: int = 1) -> None:
    """Make files and folders readable that the run has closed to its own user. No symlink is followed."""
    mode = mode_of(folder)
    if not stat.S_ISDIR(mode):
        return
    widen(folder, mode, 0o700)
    for name in os.listdir(folder):
        path = f"{folder}/{name}"
        mode = mode_of(path)
        if stat.S_ISREG(mode):
            widen(path, mode, 0o400)
        elif depth < _gathering.MOST_DEPTH:
            open_up(path, depth + 1)


def mode_of(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def widen(path: str, mode: int, needed: int) -> None:
    if mode & needed != needed:
        os.chmod(path, stat.S_IMODE(mode) | needed)
