"""Facts from /proc about the processes of a server, ports for programs, and the wait of all tests: `eventually`."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from datetime import time as clock_time
from pathlib import Path
from subprocess import Popen
from typing import Any, Literal, TypeVar, Union, overload

from tests.support.prefork import Forked

PATIENCE_SECONDS = 300
"""Longer than any wait on a loaded machine. A test that waits in vain takes this long."""
PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.25
WAITED_PART = 1 / 20
"""A pause is this part of the time that a test has waited so far, within both limits: each look costs processor time,
and conditions that read all of /proc used minutes of it.
"""
LAST_MINUTES = clock_time(23, 57)
Process = Popen[Any] | Forked | int
T = TypeVar("T")
Maybe = Union[T, Literal[False], None]  # noqa: UP007 - with "|", mypy takes T for the target


PORTS = range(5_500, 10_000)
"""Below the ports of workers of Ray, those of SeaweedFS, and those that the kernel chooses for sockets."""


def free_port() -> int:
    """Return a free port for a program that cannot choose its own. The kernel does not give this port to sockets that
    bind port 0, and no other call of this pytest run returns it.
    """
    from tests.support.parallel import is_first

    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            if not is_first(f"port {port}"):
                continue
            probe.bind(("127.0.0.1", port))
            return port


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
            if b"find_fault" in (folder / "cmdline").read_bytes() and int(_stat(pid)[1]) == server:
                found.add(pid)
    return found


def is_running(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def eventually(
    condition: Callable[[], T | Literal[False] | None], of: Process | None = None, problem: Callable[[], object] = str
) -> T:
    """Wait until the condition is true, and return its value. No test waits in another way.

    Fail when the process `of` has ended without it, and after PATIENCE_SECONDS. `problem` returns text for the failure.
    """
    for pause in _attempts(of):
        if value := condition():
            return value
        time.sleep(pause)
    raise AssertionError(_failure(of, problem))


@overload
async def eventually_async(
    condition: Callable[[], Awaitable[Maybe[T]]], of: Process | None = None, problem: Callable[[], object] = str
) -> T: ...
@overload
async def eventually_async(
    condition: Callable[[], Maybe[T]], of: Process | None = None, problem: Callable[[], object] = str
) -> T: ...
async def eventually_async(
    condition: Callable[[], Any], of: Process | None = None, problem: Callable[[], object] = str
) -> Any:
    """Wait like `eventually`, but let other tasks of the event loop work. The condition may be a coroutine function."""
    for pause in _attempts(of):
        value = condition()
        if answer := await value if isinstance(value, Awaitable) else value:
            return answer
        await asyncio.sleep(pause)
    raise AssertionError(_failure(of, problem))


def await_early_day() -> None:
    """Wait for the next day in the last minutes of a day (UTC), for tests whose steps belong to one day."""
    eventually(lambda: datetime.now(UTC).time() < LAST_MINUTES)


def _attempts(of: Process | None) -> Iterator[float]:
    """Yield the pause after each attempt, in seconds."""
    begin = time.monotonic()
    has_ended = False
    while not has_ended and (waited := time.monotonic() - begin) < PATIENCE_SECONDS:
        has_ended = of is not None and _has_ended(of)  # before the last attempt, because the end may be the event
        yield min(max(PAUSE_SECONDS, waited * WAITED_PART), LONGEST_PAUSE_SECONDS)


def _has_ended(of: Process) -> bool:
    return not is_running(of) if isinstance(of, int) else of.poll() is not None


def _failure(of: Process | None, problem: Callable[[], object]) -> str:
    reason = "the process has ended" if of is not None and _has_ended(of) else f"{PATIENCE_SECONDS} s have passed"
    return f"the condition did not become true, and {reason}: {problem()}"


def _status_bytes(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def _stat(pid: int) -> list[str]:
    """Return the fields after the program name: state, parent …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
