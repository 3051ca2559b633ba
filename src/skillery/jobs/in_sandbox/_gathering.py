"""The files below `out` and the files that the caller requested, stored as blobs."""

# ruff: noqa: PTH101, PTH118, PTH208 - importing pathlib costs every such run time
from __future__ import annotations

import mmap
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from cellblock.runtime import _host, _run
else:
    from . import _host, _run

OUT = "out"
MOST_FILES = 100
MOST_NAMED = 10
MOST_DEPTH = 16
ONLY_FILES = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


GATHERED: set[str] = set()
"""The paths that this process has stored."""
BEFORE: set[str] = set()
"""The paths that the run stored before this process began."""


def gather(folder: str) -> dict[str, Any]:
    """Store the regular files below the folder as blobs.

    Return `files` (path below the folder, blob id and size, sorted by path). If some files could not be stored, also
    return `left_out` with their paths, at most MOST_FILES.
    """
    return store(folder, paths_below(folder))


def store(folder: str, paths: Iterable[str]) -> dict[str, Any]:
    """Store the files at `paths` below `folder`. Return the same as `gather`."""
    files: list[dict[str, Any]] = []
    left_out: list[str] = []
    refused = False
    for path in paths:
        if shown(path) in BEFORE:
            continue
        kept = None
        if not refused and len(GATHERED) + len(BEFORE) < MOST_FILES and shown(path) not in GATHERED:
            try:
                kept = keep(os.path.join(folder, path), shown(path))
            except _host.HostError:
                refused = True  # the run has reached its limit of blobs
            except OSError:
                kept = None
        if kept is not None:
            GATHERED.add(shown(path))
            files.append(kept)
        else:
            left_out.append(shown(path))
        if len(left_out) == MOST_FILES:
            break
    return {"files": files, "left_out": left_out} if left_out else {"files": files}


def matching(folder: str, patterns: list[str]) -> Iterator[str]:
    """Yield the paths below the folder, except those in its folder `out`, that match one of the patterns."""
    from fnmatch import fnmatchcase

    def fits(path: list[str], pattern: list[str]) -> bool:
        if not pattern or not path:
            return not path and (not pattern or pattern == ["**"])
        if pattern[0] == "**":
            return fits(path, pattern[1:]) or fits(path[1:], pattern)
        return fnmatchcase(path[0], pattern[0]) and fits(path[1:], pattern[1:])

    split = [pattern.split("/") for pattern in patterns]
    for path in paths_below(folder):
        segments = path.split("/")
        if segments[0] != OUT and any(fits(segments, pattern) for pattern in split):
            yield path


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
        blob_id = _host.ask("blob_write", {"path": path}, view).decode()
    if isinstance(content, mmap.mmap):
        content.close()
    return {"path": path, "blob_id": blob_id, "size_bytes": size}


def leave(folder: str, patterns: list[str], *, with_out: bool, name: str = "") -> str:
    """Store the files of `folder` that match a pattern. With `with_out`, also store the files below its folder `out`.

    Return up to two lines about files that were left out; "" if there are none. The lines call the folder `name`.
    """
    name = name or folder
    lines = [left(f"{name}/{OUT}", gather(os.path.join(folder, OUT)))] if with_out else []
    if patterns:
        lines.append(left(name, store(folder, matching(folder, patterns))))
    return "\n".join(filter(None, lines))


def left(folder: str, listing: dict[str, Any]) -> str:
    """Return a line about files that were left out; "" if there are none."""
    left_out = listing.get("left_out", ())
    if not left_out:
        return ""
    named = ", ".join(left_out[:MOST_NAMED]) + (", …" if len(left_out) > MOST_NAMED else "")
    return (
        f"not kept of {folder}: {named} (a run keeps {MOST_FILES} files with different paths, as many bytes as it may "
        "write as blobs)"
    )


# -- files of a run that has ended, read by a process in which no code of it has ever run ---------------------------


def collect(order: dict[str, Any]) -> None:
    """Pass the files of the run to the host. Its workspace is visible."""
    if order["workspace"] is not None:
        from . import _snapshots

        _snapshots.save(order["folder"], order["workspace"])
    if order["gathers"]:
        gather_rest(order)


def gather_rest(order: dict[str, Any]) -> None:
    """Store the files that the code of the run did not store before it was stopped."""
    open_up(order["folder"] if order["outputs"] else order["folder"] + "/" + OUT)
    BEFORE.update(order["kept"])
    _run.note(leave(order["folder"], order["outputs"], with_out=True, name="/workspace"))


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
        elif depth < MOST_DEPTH:
            open_up(path, depth + 1)


def mode_of(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def widen(path: str, mode: int, needed: int) -> None:
    if mode & needed != needed:
        os.chmod(path, stat.S_IMODE(mode) | needed)
