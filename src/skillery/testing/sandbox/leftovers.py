"""Leftovers of a run on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
import time
from pathlib import Path

import msgspec

LOOKS = 250
"""Number of looks at leftovers that are not dying. On a loaded machine, looks take longer, as processes do."""
PAUSE_SECONDS = 0.02
DYING_SECONDS = 300.0
"""Time for killed processes to end. The kernel frees their memory first, which takes long on a loaded machine."""
_EXITING = 0x4
"""PF_EXITING among the flags of a process: include/linux/sched.h."""
_KILLED = 1 << (signal.SIGKILL - 1)


class Traces(msgspec.Struct, frozen=True):
    """A snapshot: descendants of this process, its descriptors, visible mounts, temporary files of runs, and cgroups.

    The cgroups are those with this process's id in their name, and those that contain a descendant. `others` are
    processes that do not belong to the backend: they and their descendants do not count.
    """

    processes: frozenset[int]
    descriptors: int
    mounts: int
    files: frozenset[str]
    groups: frozenset[str] = frozenset()
    others: frozenset[int] = frozenset()


def descendants(pid: int, others: frozenset[int] = frozenset()) -> set[int]:
    """Return the descendants of a process, without those in `others` and their descendants."""
    processes: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in {int(number) for number in path.read_text().split()} - others:
                processes |= {child, *descendants(child, others)}
        except OSError:
            continue  # the process has ended
    return processes


def hierarchies() -> list[Path]:
    """Return the mount points of cgroups, of both versions."""
    mounts = (line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [Path(mount.split()[4]) for mount, file_system in mounts if file_system.split()[0] in {"cgroup", "cgroup2"}]


def cgroups(processes: frozenset[int]) -> frozenset[str]:
    """Return the cgroups that this process has probably created.

    They have the id of this process in their name or in the name of a parent, or contain one of `processes`. The
    cgroups of this process and of its parent do not count.
    """
    own_pid = re.compile(rf"(?<![0-9a-z]){os.getpid()}(?![0-9a-z])")
    named_groups = {group for point in hierarchies() for group in folders_below(point) if own_pid.search(group)}
    return frozenset(named_groups | groups_of(processes) - groups_of(frozenset({os.getpid(), os.getppid()})))


def folders_below(folder: Path) -> list[str]:
    """Return all folders below a folder, at any depth."""
    folders: list[str] = []
    pending = [str(folder)]
    while pending:
        inner_folders = subfolders(pending.pop())
        folders += inner_folders
        pending += inner_folders
    return folders


def subfolders(cgroup: str) -> list[str]:
    """Return the cgroups directly below a cgroup."""
    try:
        # The kernel counts one link for each subfolder and two for the folder itself. Most cgroups have no subfolder
        # and about thirty files; listing them all would take longer than the run that is checked.
        if os.lstat(cgroup).st_nlink == 2:
            return []
        with os.scandir(cgroup) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # the cgroup was removed


def groups_of(processes: frozenset[int]) -> set[str]:
    """Return the cgroups of processes in the form of /proc: `4:memory:/path`."""
    live_groups: set[str] = set()
    for pid in processes:
        try:
            groups = set(Path(f"/proc/{pid}/cgroup").read_text().splitlines())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # the process has ended
        if state not in "ZX":  # the kernel moves dead processes to the root group
            live_groups |= groups
    return live_groups


def traces(others: frozenset[int] = frozenset(), *, with_groups: bool = True) -> Traces:
    """Return a snapshot without the processes in `others` and their descendants.

    Finding cgroups is slow, and only the check of a closed backend compares them. Other callers pass
    `with_groups=False`.
    """
    processes = frozenset(descendants(os.getpid(), others))
    return Traces(
        processes=processes,
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        files=frozenset(str(path) for path in Path(tempfile.gettempdir()).glob("skillery-run-*")),
        groups=cgroups(processes) if with_groups else frozenset(),
        others=others,
    )


def surplus(before: Traces, now: Traces) -> list[str]:
    """Return what `now` has in addition to `before`: more processes, descriptors or mounts, and new files of runs."""
    leftovers = []
    # Compare numbers: a backend may keep prepared processes, and replaces the used ones.
    if len(now.processes) > len(before.processes):
        leftovers.append(f"processes {sorted(now.processes - before.processes)}")
    if now.descriptors > before.descriptors:
        leftovers.append(f"{now.descriptors - before.descriptors} descriptors")
    if now.mounts > before.mounts:
        leftovers.append(f"{now.mounts - before.mounts} mounts")
    return leftovers + sorted(now.files - before.files)


def surplus_when_closed(before: Traces, now: Traces) -> list[str]:
    """Return the leftovers of a closed backend. Its prepared processes are leftovers too."""
    kinds = (("process", before.processes, now.processes), ("cgroup", before.groups, now.groups))
    leftovers = [f"{kind} {name}" for kind, old, new in kinds for name in sorted(map(str, new - old))]
    return leftovers + [leftover for leftover in surplus(before, now) if not leftover.startswith("processes")]


def is_dying(pid: int) -> bool:
    """Return whether the process was killed or ends now. A zombie is not dying: its parent must remove it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return fields[0] != "Z" and (int(fields[6]) & _EXITING != 0 or any(signals & _KILLED for signals in pending))


async def assert_none_since(before: Traces, *, closed: bool = False) -> None:
    """Raise AssertionError if leftovers remain. `before` was taken before the run or, if `closed`, before the start."""
    left_over = surplus_when_closed if closed else surplus
    # Processes from before the backend was opened belong to servers of other tests, which may change them now.
    others = before.others | before.processes if closed else before.others
    looks, deadline = 0, time.monotonic() + DYING_SECONDS
    while leftovers := left_over(before, now := traces(others, with_groups=closed)):
        looks += 0 if any(is_dying(pid) for pid in now.processes - before.processes) else 1
        assert looks < LOOKS, f"left behind: {', '.join(leftovers)}"
        assert time.monotonic() < deadline, f"killed, but left behind: {', '.join(leftovers)}"
        await asyncio.sleep(PAUSE_SECONDS)  # closing may need a turn of the event loop
