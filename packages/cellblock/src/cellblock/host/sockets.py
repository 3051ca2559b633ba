"""UNIX sockets of the host that runs could reach. A read-only mount does not prevent `connect` to a socket in it.

So a program may name and connect UNIX sockets only if no folder that it sees holds a socket. A thread scans the folders
of all runs. The mounts of a run are scanned before the run starts.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cellblock.inside import etc, root
from cellblock.values import Mount

log = logging.getLogger(__name__)
FRESH_SECONDS, VALID_SECONDS = 600.0, 3600.0
"""Ages of a scan in seconds: first, the next scan starts in the background; then programs wait for the next scan."""
WAIT_SECONDS = 10.0
"""Maximum seconds that a run waits for a scan. After that, its program gets no UNIX sockets."""
MOST_ENTRIES = 2048
"""Most files and folders in the mounts of a run that may change. If there are more, its program gets no UNIX sockets.
"""


def find_socket(
    sources: Iterable[str],
    hidden: Collection[str] = (),
    most: float = math.inf,
    goes_on: Callable[[], bool] = lambda: True,
) -> str | None:
    """Return the path of a socket in these files and folders, or None. Folders in `hidden` are left out. Blocking.

    Return the path of a folder instead if runs may enter it and this process cannot list it, if the folders hold more
    than `most` entries, or if `goes_on` returns False.
    """
    waiting = []
    for source in sources:
        mode = Path(source).stat().st_mode
        if stat.S_ISSOCK(mode):
            return source
        if stat.S_ISDIR(mode):
            waiting.append(source)
    while waiting:
        folder = waiting.pop()
        if folder in hidden:
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    most -= 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif is_socket(entry):
                        return entry.path
        except FileNotFoundError:
            continue
        except OSError:
            if os.geteuid() == 0 or os.access(folder, os.X_OK):
                return folder
        if most < 0 or not goes_on():
            return folder
    return None


def is_socket(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


# -- The mounts of a run -----------------------------------------------------------------------------------------------


async def mounts_hold_socket(mounts: Sequence[Mount]) -> bool:
    """Return whether one of the mounts may hold a socket. A mount with a digest is scanned once."""
    return bool(mounts) and await asyncio.to_thread(_hold_socket, mounts)


def _hold_socket(mounts: Sequence[Mount]) -> bool:
    if any(_never_changing(os.path.realpath(mount.source), mount.digest) for mount in mounts if mount.digest):
        return True
    changing = [os.path.realpath(mount.source) for mount in mounts if not mount.digest]
    return find_socket(changing, most=MOST_ENTRIES) is not None


@lru_cache(maxsize=4096)
def _never_changing(source: str, digest: str) -> bool:
    return find_socket([source]) is not None


# -- The folders of all runs -------------------------------------------------------------------------------------------


def shared_sources(plan: dict[str, Any], packages: Path | None = None) -> tuple[list[str], list[str]]:
    """Return the paths of the host that all runs of a sandbox see: at the same path, and at another one.

    The root of runs has copies of all other files. Folders that are hidden at their path may be visible at another.
    """
    system = [f"/{name}" for name in root.SYSTEM if not Path(f"/{name}").is_symlink()]
    node = [plan["node"]["program"], *plan["node"]["npm"].values()] if plan["node"] else []
    own = [os.path.realpath(packages)] if packages is not None else []
    here = [path for path in ("/usr", *system, *plan["prefixes"], *etc.BOUND) if Path(path).exists()]
    return here, [path for path in (*node, *own) if Path(path).exists()]


class SharedFolders:
    """The folders that all runs of a sandbox see. Its methods belong to one event loop."""

    def __init__(self, plan: dict[str, Any], packages: Path | None = None) -> None:
        self._plan = plan
        self._packages = packages
        self._began = -math.inf
        """The start of the last complete scan."""
        self._socket: str | None = None
        """The socket that this scan has found, or None."""
        self._scanning: asyncio.Task[None] | None = None
        self._closing = threading.Event()

    async def hold_socket(self) -> bool:
        """Return whether the folders may hold a socket. Start a scan if the last one is old, and wait for the first."""
        age = time.monotonic() - self._began
        if age > FRESH_SECONDS and (self._scanning is None or self._scanning.done()):
            self._scanning = asyncio.create_task(self._scan())
        if age > VALID_SECONDS and self._scanning is not None:
            await asyncio.wait({self._scanning}, timeout=WAIT_SECONDS)
        return self._socket is not None or time.monotonic() - self._began > VALID_SECONDS

    async def _scan(self) -> None:
        began = time.monotonic()
        try:
            socket = await asyncio.to_thread(self.find)
        except OSError as error:
            log.warning("the folders of runs could not be scanned, so programs get no UNIX sockets: %s", error.strerror)
            return
        if socket is not None and not self._closing.is_set():
            log.warning("%s", finding(socket))
        self._began, self._socket = began, socket

    def find(self) -> str | None:
        """Return the path of a socket in the folders, or None. Blocking."""
        here, elsewhere = shared_sources(self._plan, self._packages)

        def goes_on() -> bool:
            return not self._closing.is_set()

        hidden = frozenset(self._plan["hidden"])
        return find_socket(here, hidden, goes_on=goes_on) or find_socket(elsewhere, goes_on=goes_on)

    async def close(self) -> None:
        """End a scan that still runs."""
        self._closing.set()
        if self._scanning is not None:
            await asyncio.wait({self._scanning})


def finding(socket: str) -> str:
    """Return the sentence about a socket that all runs could reach."""
    return f"runs could reach {socket}, so they get no UNIX sockets"
