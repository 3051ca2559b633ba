"""Holding the memory of a process tree where no cgroup can: sum what it uses, many times a second.

Weaker than a cgroup (a burst between two looks is held only by each process's address space), and named in `degraded`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

INTERVAL = 0.04
KIBIBYTE = 1024


def children(pid: int) -> list[int]:
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in lists for child in text.split()]


def fields(path: Path, wanted: tuple[str, ...]) -> int:
    """The sum of some kB fields of a file of `Name: value kB` lines, in bytes."""
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return sum(int(value.split()[0]) for name, _, value in pairs if name in wanted) * KIBIBYTE


def memory_of(pid: int) -> int:
    """Bytes that a process holds, shared pages by its share; where that may not be read, all of them."""
    folder = Path(f"/proc/{pid}")
    try:
        return fields(folder / "smaps_rollup", ("Pss", "SwapPss"))
    except OSError:
        pass
    try:
        return fields(folder / "status", ("RssAnon", "RssShmem", "VmSwap"))
    except OSError:
        return 0  # it has ended meanwhile


def tree_memory(root: int) -> int:
    """Bytes held by all descendants of `root`. Orphans of a run go to its pid 1, so none escapes the tree."""
    total, left = 0, children(root)
    while left:
        pid = left.pop()
        total += memory_of(pid)
        left += children(pid)
    return total


async def exceeds(root: int, limit: int) -> None:
    """Returns when the descendants of `root` hold more than `limit` bytes."""
    while await asyncio.to_thread(tree_memory, root) <= limit:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(INTERVAL)
