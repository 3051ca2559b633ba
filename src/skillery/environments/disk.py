"""Folders on the disk: their creation, their removal, the size of files, and complete folders after a power failure."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
from pathlib import Path

BLOCK = 4096


def rename_into_place(staging: Path, target: Path, trash: Path) -> None:
    """Flush a folder to the disk, then rename it. After a power failure, a folder with its name is complete.

    An existing folder at `target` is moved to the trash.
    """
    sync(staging)
    target.parent.mkdir(parents=True, exist_ok=True)
    old = move_away(target, trash)
    staging.rename(target)
    remove(old)


def move_away(folder: Path, trash: Path) -> Path | None:
    """Move a folder to the trash, so that no reader sees a part of it. Return its new path; None if it does not
    exist.
    """
    moved = trash / secrets.token_hex(16)
    trash.mkdir(parents=True, exist_ok=True)
    try:
        return folder.rename(moved)
    except FileNotFoundError:
        return None


def remove(taken: Path | None) -> None:
    """Remove a folder that was moved to the trash. Blocking; large folders take long."""
    if taken is not None:
        shutil.rmtree(taken, ignore_errors=True)


def sync(folder: Path) -> None:
    """Flush the file system of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")
    except AttributeError:  # system without syncfs
        os.sync()
    finally:
        os.close(descriptor)


def on_disk(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def make_folder(path: Path) -> int:
    """Create a folder and its parents, readable for all users whatever the umask. Return how many were created."""
    if path.is_dir():
        return 0
    missing = [path]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o755)
    return len(missing)
