"""Memory limit of a process tree without a cgroup: a thread adds up the memory of its processes many times a second.

This limit is weaker than that of a cgroup, so runs list it in `degraded`. Between two checks, only the address space of
each process limits its growth. The system call filter refuses kinds of memory that the watchdog cannot count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from cellblock.host.processes import descendants, threads

INTERVAL = 0.04
NEAR = 0.5
"""Share of the limit above which shared pages are divided among processes. Below it, cheaper counters are enough. The
exact figure takes time in proportion to the mappings of the run, which the run controls.
"""
SLOW_WORK, SLOW = 0.1, 0.4
"""Processor seconds and wall-clock seconds of one check. A slower check stops dividing shared pages."""
KIBIBYTE = 1024
SOCKET_OPTIONS = 128 * KIBIBYTE
"""The kernel's limit for the options of one socket in bytes (net.core.optmem_max)."""


def fields(path: Path, wanted: tuple[str, ...]) -> int:
    """Return the sum of the wanted fields of a file of `Name: value kB` lines, in bytes, or 0 if it cannot be read."""
    try:
        pairs = [line.partition(":") for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(value.split()[0]) for name, _, value in pairs if name in wanted) * KIBIBYTE


def memory_of(pid: int, thread_memory: Callable[[int], int]) -> int:
    """Return the memory of a process in bytes.

    If the first thread of a process has ended, /proc shows the memory only for the other threads.
    """
    return next((held for held in map(thread_memory, threads(pid)) if held), 0)


def rough_memory(thread: int) -> int:
    """Return the memory of a process in bytes, without pages of files. Shared memory counts in full.

    The kernel has counters for it, so the call is cheap.
    """
    return fields(Path(f"/proc/{thread}/status"), ("RssAnon", "RssShmem", "VmSwap", "VmPTE"))


def shared_memory(thread: int) -> int:
    """Return the memory of a process in bytes, with mapped files. Shared pages are divided among their processes.

    If the kernel does not report the shares, return `rough_memory`.
    """
    pages = fields(Path(f"/proc/{thread}/smaps_rollup"), ("Pss", "SwapPss"))
    return pages + fields(Path(f"/proc/{thread}/status"), ("VmPTE",)) if pages else rough_memory(thread)


@cache
def socket_bytes() -> int:
    """Return the most bytes that one socket can hold."""
    return int(Path("/proc/sys/net/core/wmem_default").read_text()) + SOCKET_OPTIONS


def tcp_sockets(pid: int) -> int:
    """Return the number of TCP sockets in the process's net namespace that can hold data, also of sockets that no
    process has any more. 0 if the process has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/net/sockstat").read_text().splitlines()
        return next(int(line.split()[2]) for line in lines if line.startswith("TCP: inuse "))
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


def socket_memory(pid: int) -> int:
    """Return the most bytes that the sockets in the process's net namespace can hold.

    The memory figures of processes do not contain the data in sockets.
    """
    try:
        first = Path(f"/proc/{pid}/net/sockstat").read_text().split("\n", 1)[0]
        return int(first.split()[-1]) * socket_bytes()
    except (OSError, ValueError, IndexError):
        return 0  # the process has ended


def tree_memory(root: int, thread_memory: Callable[[int], int] = shared_memory) -> Iterator[int]:
    """Yield the growing sum of the memory of all descendants of `root`, and of the sockets of its own network."""
    total = socket_memory(root)
    yield total
    for pid in descendants(root):
        total += memory_of(pid, thread_memory)
        yield total


def over(root: int, limit: int) -> bool:
    """Return whether the descendants of `root` use more than `limit` bytes.

    If the exact count takes too long, shared pages count in full.
    """
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
    """Return when the descendants of `root` use more than `limit` bytes.

    The checks run in a separate thread, so that no other work and no slow check of another run delays them.
    """
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "watchdog")
    try:
        while not await loop.run_in_executor(thread, over, root, limit):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(INTERVAL)
    finally:
        thread.shutdown(wait=False)
