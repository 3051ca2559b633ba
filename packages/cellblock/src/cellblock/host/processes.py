"""Processes of the host: start times, parents, children and threads, as the kernel lists them in /proc, and
descriptors of processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

LOOKS = 3
GENERATIONS = 8


def start_time(pid: int) -> str | None:
    """Return the start of a process in clock ticks since boot, or None if it has ended. Pid and start identify a
    process.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def pid_of(pidfd: int) -> int:
    """Return the pid of the process that a descriptor refers to, or -1 if the process has ended."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), -1)


def parent_of(pid: int) -> int:
    """Return the pid of the parent. Raise OSError if the process has ended."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_descendant(pid: int, ancestor: int) -> bool:
    """Return whether a process descends from another one. Another process may have got the pid since."""
    with contextlib.suppress(OSError):
        for _ in range(GENERATIONS):
            pid = parent_of(pid)
            if pid == ancestor:
                return True
    return False


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


# -- descriptors of processes ----------------------------------------------------------------------------------------


def open_pidfd(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when the process ends. If none can be opened, kill the process."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


def open_child(pid: int, parent: tuple[int, str | None]) -> tuple[int, int]:
    """Return a descriptor of the process, and one of its mount namespace. `parent` is the pid and start of its parent.

    A pid is reliable only while a descriptor holds it, so the parent of the process is checked after the descriptor
    was opened. Raise OSError if the process has another parent.
    """
    pidfd = os.pidfd_open(pid)
    try:
        mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except BaseException:
        os.close(pidfd)
        raise
    try:
        parent_pid = parent_of(pid)
        if (parent_pid, start_time(parent_pid)) != parent:
            raise ProcessLookupError(pid)
        signal.pidfd_send_signal(pidfd, 0)  # still the same process
    except BaseException:
        os.close(pidfd)
        os.close(mounts)
        raise
    return pidfd, mounts
