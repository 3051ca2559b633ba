"""Changes of folders, found by polling.

Polling works on every file system, also on network mounts and in containers, and needs no further package. A skill
rarely has more than a few hundred files, so that one look takes a few milliseconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from skillery.publishing.folders import IGNORED

EVERY_SECONDS = 0.05
SHARE = 0.1
"""The share of the time that polling may take, so that large folders are polled less often."""


async def changes(folders: Sequence[Path], every: float = EVERY_SECONDS) -> AsyncIterator[list[Path]]:
    """Yield all folders, then those that have changed since they were yielded."""
    seen: dict[Path, str] = {}
    while True:
        began = time.monotonic()
        now = await asyncio.to_thread(lambda: {folder: fingerprint(folder) for folder in folders})
        changed = [folder for folder in folders if seen.get(folder) != now[folder]]
        seen = now
        if changed:
            yield changed
        else:
            await asyncio.sleep(max(every, (time.monotonic() - began) / SHARE))


def fingerprint(folder: Path) -> str:
    """Return a hash of the names, sizes, times and modes of the files that belong to a skill."""
    lines = hashlib.sha256()
    _add(folder, "", lines)
    return lines.hexdigest()


def _add(folder: Path, prefix: str, lines: hashlib._Hash) -> None:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:  # the folder may be replaced now
        lines.update(f"{prefix!r} {type(error).__name__}\n".encode())
        return
    for path in entries:
        if path.name in IGNORED or path.name.startswith("."):
            continue
        try:
            status = path.lstat()
        except OSError:
            continue
        name = f"{prefix}/{path.name}"
        lines.update(f"{name!r} {status.st_size} {status.st_mtime_ns} {status.st_mode}\n".encode())
        if path.is_dir() and not path.is_symlink():
            _add(path, name, lines)
