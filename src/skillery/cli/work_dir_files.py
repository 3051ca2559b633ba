"""The local folder of `--work-dir`: its files, and access to them that follows no link.

All access starts at one descriptor of the folder, so a link that appears later leads nowhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from skillery.cli.import_uploads import printable
from skillery.client.blobs import is_plain
from skillery.errors import StartupError
from skillery.importing.entries import junk

MIB = 1024 * 1024
MOST_FILES, MOST_MIB, MOST_PATH_BYTES = 16_384, 256, 1024
"""Limits of the folder, which are those of workspaces."""
MOST_FILE_MIB = 64
"""Files over this size are left out."""
HIDDEN = "begins with a dot: such files may contain secrets and caches"


class State(NamedTuple):
    """The content and the mode of a file."""

    sha256: str
    executable: bool


NO_FILE = State("", executable=False)
"""State of a path with a folder, a link or a special file."""


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Context manager: yield a descriptor of the folder, which no other command uses as --work-dir at the same time."""
    try:
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StartupError(f"--work-dir: cannot read '{folder}': {error.strerror}") from None
    try:
        fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield root
    except BlockingIOError:
        raise StartupError(f"another command uses the --work-dir '{folder}': try again when it has ended") from None
    finally:
        os.close(root)


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".skillery-", dir=folder)
    except OSError as error:
        raise StartupError(f"--work-dir: cannot write to '{folder}': {error.strerror}") from None
    with temporary as name:
        yield Path(name)


@contextmanager
def parent_of(root: int, folders: Sequence[str], *, create: bool) -> Iterator[int]:
    """Context manager: yield a descriptor of a folder below `root`, without following a link. `create` makes missing
    folders.
    """
    descriptor = os.dup(root)
    try:
        for name in folders:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(parent: int, name: str) -> io.BufferedReader:
    """Open a file without following a link, and without waiting for the writer of a pipe."""
    return open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent), "rb")  # noqa: PTH123


def state_of(parent: int, name: str) -> State | None:
    """Return the state of a path, or None if nothing is there."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return NO_FILE
    with open_file(parent, name) as file:
        return State(hashlib.file_digest(file, "sha256").hexdigest(), bool(status.st_mode & stat.S_IXUSR))


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unsafe(path: str) -> str:
    """Return the reason why files at this path are never sent and never come back, or ""."""
    if not is_plain(path) or len(path.encode()) > MOST_PATH_BYTES:
        return "has a name that is not allowed"
    if any(segment.startswith(".") for segment in path.split("/")):
        return HIDDEN
    reason = junk(f"{path}/x") or junk(path)
    return reason.message if reason else ""


def scan(root: int, folder: Path) -> tuple[dict[str, State], list[dict[str, str]]]:
    """Return the state of each file to send, by path, and the path and reason of each file that is not sent."""
    states: dict[str, State] = {}
    left_out: list[dict[str, str]] = []
    size = 0

    def leave(path: str, reason: str) -> None:
        left_out.append({"path": printable(path), "reason": reason})

    def unreadable(error: OSError) -> None:
        leave(str(error.filename).removeprefix("./"), f"cannot be read: {error.strerror}")

    for at, folders, names, parent in os.fwalk(".", dir_fd=root, onerror=unreadable):
        for name in [*folders, *names]:
            path = f"{at}/{name}".removeprefix("./")
            try:
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                if reason := unsafe(path) or ("" if is_folder else _not_sent(status)):
                    leave(path, reason)
                    if is_folder:
                        folders.remove(name)
                elif not is_folder:
                    size += status.st_size
                    if len(states) >= MOST_FILES or size > MOST_MIB * MIB:
                        limits = f"{MOST_FILES} files or {MOST_MIB} MiB"
                        raise StartupError(f"the --work-dir '{folder}' has more than {limits}: choose a smaller folder")
                    state = state_of(parent, name)
                    if state is not None and state != NO_FILE:
                        states[path] = state
            except OSError as error:
                leave(path, f"cannot be read: {error.strerror}")
    return states, left_out


def _not_sent(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    return f"has more than {MOST_FILE_MIB} MiB" if status.st_size > MOST_FILE_MIB * MIB else ""
