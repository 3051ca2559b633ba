"""Processes of the host: start times, parents, children and threads, as the kernel lists them in /proc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

LOOKS = 3


def start_time(pid: int) -> str | None:
    """Return the start of a process in clock ticks since boot; None if it has ended. Pid and start identify a
    process.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def pid_of(pidfd: int) -> int:
    """Return the pid of the process that a descriptor refers to; -1 if the process has ended."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), -1)


def parent_of(pid: int) -> int:
    """Return the pid of the parent. Raise OSError if the process has ended."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def threads(pid: int) -> list[int]:
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process.

    If a thread ends, the kernel gives its children to another thread, whose children may have been read already. Then
    all threads are read again. The number of attempts is limited, because hostile code can end threads all the time.
    """
    pids: dict[int, None] = {}
    for _ in range(LOOKS):
        has_ended = False
        for thread in threads(pid):
            try:
                text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            except OSError:
                has_ended = True
            else:
                pids |= dict.fromkeys(map(int, text.split()))
        if not has_ended:
            break
    return list(pids)


def descendants(root: int) -> Iterator[int]:
    """Yield the descendants of a process. The children of a descendant are read when the next one is requested.

    Orphans of a run become children of its pid 1, so no process leaves the tree.
    """
    left = children(root)
    while left:
        pid = left.pop()
        yield pid
        left += children(pid)
