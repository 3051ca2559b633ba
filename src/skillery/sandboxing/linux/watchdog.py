"""Holding the memory of a process tree where no cgroup can: sum what it uses, many times a second.

Weaker than a cgroup (a burst between two looks is held only by each process's address space), and named in `degraded`.
What cannot be summed here the system call filter refuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

INTERVAL = 0.04
NEAR = 0.5
"""The part of the limit from which on shared pages are told apart: that takes the kernel as long as the run has
mappings, which is as long as it likes."""
SLOW_WORK, SLOW = 0.1, 0.4
"""Seconds of a look's own work, and in all, after which it is told apart no further."""
LOOKS = 3
KIBIBYTE = 1024
SOCKET_OPTIONS = 128 * KIBIBYTE
"""What the kernel lets the options of one socket take (net.core.optmem_max)."""


def threads(pid: int) -> list[int]:
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Of all threads of a process. A thread that ends leaves its children to another, which may have been asked by
    then: all are asked once more, a few times at most, for there may be no end of threads that end."""
    found: dict[int, None] = {}
    for _ in range(LOOKS):
        has_ended = False
        for thread in threads(pid):
            try:
                text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            except OSError:
                has_ended = True
            else:
                found |= dict.fromkeys(map(int, text.split()))
        if not has_ended:
            break
    return list(found)


def descendants(root: int) -> Iterator[int]:
    """One after the other, each asked for its own children when the next is wanted. Orphans of a run go to its pid 1,
    so none escapes the tree."""
    left = children(root)
    while left:
        pid = left.pop()
        yield pid
        left += children(pid)


def fields(path: Path, wanted: tuple[str, ...]) -> int:
    """The sum of some kB fields of a file of `Name: value kB` lines, in bytes; 0 where it may not be read."""
    try:
        pairs = [line.partition(":") for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(value.split()[0]) for name, _, value in pairs if name in wanted) * KIBIBYTE


def memory_of(pid: int, thread_memory: Callable[[int], int]) -> int:
    """Bytes that a process holds.

    A process whose first thread has ended shows nothing under its own number, but under those of the others.
    """
    return next((held for held in map(thread_memory, threads(pid)) if held), 0)


def rough_memory(thread: int) -> int:
    """All that is mapped, whoever shares it, from counters: no walk through the mappings."""
    return fields(Path(f"/proc/{thread}/status"), ("RssAnon", "RssShmem", "VmSwap", "VmPTE"))


def shared_memory(thread: int) -> int:
    """Shared pages by their share; where that may not be read, all of them."""
    pages = fields(Path(f"/proc/{thread}/smaps_rollup"), ("Pss", "SwapPss"))
    return pages + fields(Path(f"/proc/{thread}/status"), ("VmPTE",)) if pages else rough_memory(thread)


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


def tree_memory(root: int, thread_memory: Callable[[int], int] = shared_memory) -> Iterator[int]:
    """What is held by all descendants of `root`, and by the sockets of its network, where it has one that is its own:
    the sum so far, growing from process to process."""
    total = socket_memory(root)
    yield total
    for pid in descendants(root):
        total += memory_of(pid, thread_memory)
        yield total


def over(root: int, limit: int) -> bool:
    """Whether the descendants of `root` hold more than `limit` bytes. A look that they make slow counts pages in full
    that they share."""
    began, worked = time.monotonic(), time.thread_time()
    roughly = max(tree_memory(root, rough_memory))
    if roughly <= limit * NEAR:
        return False
    for held in tree_memory(root):
        if held > limit:
            return True
        if time.thread_time() - worked > SLOW_WORK or time.monotonic() - began > SLOW:
            return roughly > limit
    return False


async def exceeds(root: int, limit: int) -> None:
    """Returns when the descendants of `root` hold more than `limit` bytes. Looks from a thread of its own: no other
    work, and no other run's slow look, comes before it."""
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "watchdog")
    try:
        while not await loop.run_in_executor(thread, over, root, limit):  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(INTERVAL)
    finally:
        thread.shutdown(wait=False)
