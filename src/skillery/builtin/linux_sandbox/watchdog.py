"""Holding the memory of a process tree where no cgroup can: sum what it uses, many times a second.

Weaker than a cgroup (a burst between two looks is held only by each process's address space), and named in `degraded`.
What cannot be summed here the system call filter refuses.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

INTERVAL = 0.04
KIBIBYTE = 1024
SOCKET_OPTIONS = 128 * KIBIBYTE
"""What the kernel lets the options of one socket take (net.core.optmem_max)."""


def threads(pid: int) -> list[int]:
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def children(pid: int) -> list[int]:
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in lists for child in text.split()]


def descendants(root: int) -> list[int]:
    """Orphans of a run go to its pid 1, so none escapes the tree."""
    left, found = children(root), []
    while left:
        pid = left.pop()
        found.append(pid)
        left += children(pid)
    return found


def fields(path: Path, wanted: tuple[str, ...]) -> int:
    """The sum of some kB fields of a file of `Name: value kB` lines, in bytes; 0 where it may not be read."""
    try:
        pairs = [line.partition(":") for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(value.split()[0]) for name, _, value in pairs if name in wanted) * KIBIBYTE


def memory_of(pid: int) -> int:
    """Bytes that a process holds, shared pages by its share; where that may not be read, all of them.

    A process whose first thread has ended shows nothing under its own number, but under those of the others.
    """
    return next((held for held in map(thread_memory, threads(pid)) if held), 0)


def thread_memory(thread: int) -> int:
    folder = Path(f"/proc/{thread}")
    pages = fields(folder / "smaps_rollup", ("Pss", "SwapPss")) or fields(
        folder / "status", ("RssAnon", "RssShmem", "VmSwap")
    )
    return pages + fields(folder / "status", ("VmPTE",))


@cache
def socket_bytes() -> int:
    """The most that one socket holds for its run."""
    return int(Path("/proc/sys/net/core/wmem_default").read_text()) + SOCKET_OPTIONS


def socket_memory(pid: int) -> int:
    """The most that the sockets of this process's network hold: no process shows what waits in them."""
    try:
        first = Path(f"/proc/{pid}/net/sockstat").read_text().split("\n", 1)[0]
        return int(first.split()[-1]) * socket_bytes()
    except (OSError, ValueError, IndexError):
        return 0  # it has ended meanwhile


def tree_memory(root: int) -> int:
    """Bytes held by all descendants of `root`, and by the sockets of its network, where it has one that is its own.

    Orphans of a run go to its pid 1, so none escapes the tree."""
    left, total = children(root), socket_memory(root)
    while left:
        pid = left.pop()
        total += memory_of(pid)
        left += children(pid)
    return total


async def exceeds(root: int, limit: int) -> None:
    """Returns when the descendants of `root` hold more than `limit` bytes."""
    while await asyncio.to_thread(tree_memory, root) <= limit:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(INTERVAL)
