"""What a run may have left behind on this machine."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import msgspec

PATIENCE = 5.0


class Traces(msgspec.Struct, frozen=True):
    """What there is now: descendants of this process, its descriptors, the mounts it sees, temporary files of ours."""

    processes: frozenset[int]
    descriptors: int
    mounts: int
    files: frozenset[str]


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in path.read_text().split():
                found |= {int(child), *descendants(int(child))}
        except OSError:
            continue  # it has ended meanwhile
    return found


def traces() -> Traces:
    return Traces(
        processes=frozenset(descendants(os.getpid())),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        files=frozenset(str(path) for path in Path(tempfile.gettempdir()).glob("skillery-run-*")),
    )


def surplus(before: Traces, now: Traces) -> list[str]:
    found = []
    # By number: a backend may keep some ready, and replaces those that were used.
    if len(now.processes) > len(before.processes):
        found.append(f"processes {sorted(now.processes - before.processes)}")
    if now.descriptors > before.descriptors:
        found.append(f"{now.descriptors - before.descriptors} descriptors")
    if now.mounts > before.mounts:
        found.append(f"{now.mounts - before.mounts} mounts")
    return found + sorted(now.files - before.files)


async def assert_none_since(before: Traces) -> None:
    """Closing may need a turn of the event loop; nothing is given longer than a moment."""
    deadline = time.monotonic() + PATIENCE
    while (left := surplus(before, traces())) and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.02)
    assert not left, f"left behind: {', '.join(left)}"
