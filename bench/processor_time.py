"""Processor time of a server and all its processes: user and system time, also of processes that have ended.

A cgroup counts it (v1: `cpuacct.usage`, v2: `cpu.stat`). If no cgroup can be made, the processor time of the whole
machine is used instead, so measure on a machine without other work.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from skillery.testing.sandbox.leftovers import hierarchies

SETTLE_SECONDS, END_SECONDS = 0.3, 2.0


class ProcessorTime:
    """The processor time of the processes that are started inside `counted`, and of their descendants."""

    def __init__(self) -> None:
        self._folder = _new_group()

    @property
    def source(self) -> str:
        return "the server's processes" if self._folder is not None else "the whole machine"

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Context manager: processes that this process starts inside are counted."""
        if self._folder is None:
            yield
            return
        _move_to(self._folder)
        try:
            yield
        finally:
            _move_to(self._folder.parent)

    def milliseconds(self) -> float:
        """Return the processor time so far, after a moment in which the last run is cleaned up."""
        time.sleep(SETTLE_SECONDS)
        if self._folder is None:
            return _busy_milliseconds()
        if (self._folder / "cpuacct.usage").exists():
            return int((self._folder / "cpuacct.usage").read_text()) / 1e6
        fields = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e3

    def close(self) -> None:
        """Remove the cgroup. All counted processes must have ended."""
        deadline = time.monotonic() + END_SECONDS
        while self._folder is not None and self._folder.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            time.sleep(0.01)


def processor_seconds(pid: int) -> float:
    """Return the user and system time of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _new_group() -> Path | None:
    """Return a new cgroup that counts processor time; None if this process may not make one."""
    for point in hierarchies():
        for name in ("cpuacct.usage", "cpu.stat"):
            own = point / _own_path(point).lstrip("/")
            if (own / name).exists() and (name == "cpuacct.usage" or (own / "cgroup.type").exists()):
                with contextlib.suppress(OSError):
                    folder = own / f"skillery-bench-{os.getpid()}"
                    folder.mkdir()
                    _move_to(folder)
                    _move_to(own)
                    return folder
    return None


def _own_path(point: Path) -> str:
    """Return the path of this process's cgroup in the hierarchy that is mounted at `point`."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return next((path for _, names, path in lines if point.name in names.split(",")), lines[-1][2])


def _move_to(folder: Path) -> None:
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def _busy_milliseconds() -> float:
    user, nice, system, _, _, interrupts, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft) * 1000 / os.sysconf("SC_CLK_TCK")
