"""Facts from /proc about the processes of a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

WAIT_SECONDS = 60


def own_seconds(pid: int) -> float:
    """Return the processor seconds of the process, without its children."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_of_ended_children(pid: int) -> float:
    """Return the processor seconds of the children that have ended and were waited for."""
    fields = _stat(pid)
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of the process, in bytes."""
    return _status_bytes(pid, "VmHWM")


def resident_bytes(pid: int) -> int:
    """Return the current resident memory of the process, in bytes."""
    return _status_bytes(pid, "VmRSS")


def compile_workers(server: int) -> set[int]:
    """Return the pids of the server's compile workers. A zombie has no command line."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            pid = int(folder.name)
            if b"compile_process" in (folder / "cmdline").read_bytes() and int(_stat(pid)[1]) == server:
                found.add(pid)
    return found


def is_running(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. Fail after a generous time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def _status_bytes(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def _stat(pid: int) -> list[str]:
    """Return the fields after the program name: state, parent …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
