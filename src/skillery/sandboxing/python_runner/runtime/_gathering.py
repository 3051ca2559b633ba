"""The files in the output folder of a run, stored as blobs."""

# ruff: noqa: PTH118, PTH208 - importing pathlib costs every such run time
from __future__ import annotations

import mmap
import os
import stat

from . import _host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_FILES = 100
MOST_NAMED = 10
MOST_DEPTH = 16
ONLY_FILES = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def gather(folder: str) -> dict[str, Any]:
    """Store the regular files below the folder as blobs.

    Return `files` (path below the folder, blob id and size, sorted by path). If some files could not be stored, also
    return
    `left_out` with their paths, at most MOST_FILES.
    """
    files: list[dict[str, Any]] = []
    left_out: list[str] = []
    refused = False
    for path in paths_below(folder):
        kept = None
        if not refused and len(files) < MOST_FILES:
            try:
                kept = keep(os.path.join(folder, path), shown(path))
            except _host.HostError:
                refused = True  # the run has reached its limit of blobs
            except OSError:
                kept = None
        if kept is not None:
            files.append(kept)
        else:
            left_out.append(shown(path))
        if len(left_out) == MOST_FILES:
            break
    return {"files": files, "left_out": left_out} if left_out else {"files": files}


def shown(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def paths_below(folder: str, below: str = "", depth: int = 1) -> Iterator[str]:
    """Yield the sorted paths of regular files. Symlinks are not followed, even if `folder` is one."""
    here = os.path.join(folder, below) if below else folder
    try:
        if not stat.S_ISDIR(os.lstat(here).st_mode):
            return
        names = sorted(os.listdir(here))
    except OSError:
        return
    for name in names:
        path = os.path.join(below, name) if below else name
        try:
            mode = os.lstat(os.path.join(folder, path)).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode):
            yield path
        elif stat.S_ISDIR(mode) and depth < MOST_DEPTH:
            yield from paths_below(folder, path, depth + 1)


def keep(file: str, path: str) -> dict[str, Any]:
    """Store the file as a blob with this path. Raise OSError if it cannot be read, HostError if the server refuses."""
    descriptor = os.open(file, ONLY_FILES)
    try:
        size = os.fstat(descriptor).st_size
        content = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b""
    finally:
        os.close(descriptor)
    with memoryview(content) as view:
        # The host derives the kind from the name.
        blob_id = _host.ask({"op": "blob_write", "path": path}, view)[0]["blob_id"]
    if isinstance(content, mmap.mmap):
        content.close()
    return {"path": path, "blob_id": str(blob_id), "size_bytes": size}


def leave(folder: str) -> str:
    """Store the files of the folder. Return a line about files that were left out; "" if there are none."""
    left_out = gather(folder).get("left_out", ())
    if not left_out:
        return ""
    named = ", ".join(left_out[:MOST_NAMED]) + (", …" if len(left_out) > MOST_NAMED else "")
    return f"not kept of {folder}: {named} (a run keeps {MOST_FILES} files, as many bytes as it may write as blobs)"
