"""What a run may have left behind on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from pathlib import Path

import msgspec

PATIENCE = 5.0


class Traces(msgspec.Struct, frozen=True):
    """What there is now: descendants of this process, its descriptors, the mounts it sees, temporary files of ours, and
    cgroups that are named after this process or hold one of the descendants."""

    processes: frozenset[int]
    descriptors: int
    mounts: int
    files: frozenset[str]
    groups: frozenset[str] = frozenset()


def descendants(pid: int, others: frozenset[int] = frozenset()) -> set[int]:
    """Without those of `others`, and what is theirs."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in {int(one) for one in path.read_text().split()} - others:
                found |= {child, *descendants(child, others)}
        except OSError:
            continue  # it has ended meanwhile
    return found


def hierarchies() -> list[Path]:
    """Where cgroups are mounted, of either version."""
    mounts = (line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [Path(left.split()[4]) for left, right in mounts if right.split()[0] in {"cgroup", "cgroup2"}]


def cgroups(processes: frozenset[int]) -> frozenset[str]:
    """Those made by this process, as far as it can be known: its number is in their name, or in that of one above,
    which is not one that we are in."""
    ours = re.compile(rf"(?<![0-9a-z]){os.getpid()}(?![0-9a-z])")
    found = {str(group) for point in hierarchies() for group in folders_below(point) if ours.search(str(group))}
    return frozenset(found | groups_of(processes) - groups_of(frozenset({os.getpid(), os.getppid()})))


def folders_below(folder: Path) -> list[Path]:
    found = []
    for path, below, _ in os.walk(folder):
        found += [Path(path, name) for name in below]
    return found


def groups_of(processes: frozenset[int]) -> set[str]:
    """As /proc names them: `4:memory:/path`."""
    found: set[str] = set()
    for pid in processes:
        try:
            groups = set(Path(f"/proc/{pid}/cgroup").read_text().splitlines())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has ended meanwhile
        if state not in "ZX":  # the dead are counted to the topmost group, and hold none
            found |= groups
    return found


def traces(others: frozenset[int] = frozenset()) -> Traces:
    """`others` are processes that have nothing to do with it, nor have their children."""
    processes = frozenset(descendants(os.getpid(), others))
    return Traces(
        processes=processes,
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        files=frozenset(str(path) for path in Path(tempfile.gettempdir()).glob("skillery-run-*")),
        groups=cgroups(processes),
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


def surplus_when_closed(before: Traces, now: Traces) -> list[str]:
    """A backend that has been closed keeps nothing ready any more."""
    named = (("process", before.processes, now.processes), ("cgroup", before.groups, now.groups))
    found = [f"{kind} {one}" for kind, old, new in named for one in sorted(map(str, new - old))]
    return found + [one for one in surplus(before, now) if not one.startswith("processes")]


async def assert_none_since(before: Traces, *, closed: bool = False) -> None:
    """Closing may need a turn of the event loop; nothing is given longer than a moment."""
    left_over = surplus_when_closed if closed else surplus
    # What was there before the backend was opened is not of it: servers of other tests see to their own meanwhile.
    others = before.processes if closed else frozenset()
    deadline = time.monotonic() + PATIENCE
    while (left := left_over(before, traces(others))) and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(0.02)
    assert not left, f"left behind: {', '.join(left)}"
