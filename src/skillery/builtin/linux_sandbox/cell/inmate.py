"""Stage two: the run's own namespaces. Pid 1 mounts what belongs to the run, locks itself and its children in, lets
the code run as its child, reaps, and says how the code ended."""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import os
import signal

from . import kernel, lockdown, posture

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Serve = Callable[[int, dict[str, Any], bytes], None]

CHANNEL = 3
TMPFS = kernel.MS_NOSUID | kernel.MS_NODEV
PROC = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
NAMESPACES = (
    kernel.NEWUSER | kernel.NEWNS | kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET | kernel.NEWCGROUP
)


def become_nobody(*, keeps_groups: bool) -> None:
    """Uid and gid 1000 of the run's user namespace, the only ones it has. There is no root in it.

    An ordinary user's namespace `keeps_groups`: the kernel lets nobody drop them there. They are unmapped inside.
    """
    if not keeps_groups:
        os.setgroups([])
    os.setresgid(posture.UID, posture.UID, posture.UID)
    os.setresuid(posture.UID, posture.UID, posture.UID)
    # Changing the uid clears this and makes the process undumpable; the second is wanted: pid 1 is nobody's to read.
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl("undumpable", kernel.PR_SET_DUMPABLE, 0)


def mount_own(limits: dict[str, Any]) -> None:
    workspace = f"mode=0755,size={limits['disk_bytes']},nr_inodes={limits['disk_files'] + 1}"
    temporary = f"mode=1777,size={limits['tmp_bytes']},nr_inodes=4096"
    shared = f"mode=1777,size={limits['shm_bytes']},nr_inodes=1024"
    kernel.mount("workspace", "/workspace", "tmpfs", TMPFS, workspace)
    kernel.mount("tmp", "/tmp", "tmpfs", TMPFS, temporary)
    kernel.mount("shm", "/dev/shm", "tmpfs", TMPFS | kernel.MS_NOEXEC, shared)
    mount_proc()


def mount_proc() -> None:
    try:
        kernel.mount("proc", "/proc", "proc", PROC, "hidepid=2,subset=pid")
    except kernel.SetupError:
        # Inside some containers no new procfs may be mounted. None is better than the host's.
        kernel.mount("none", "/proc", "tmpfs", PROC | kernel.MS_RDONLY, "size=4k,mode=0555")


def save_code(code: str | None) -> None:
    if code is None:
        return
    content = code.encode("utf-8", "surrogatepass")
    kernel.mount("code", "/run/code", "tmpfs", TMPFS, f"mode=0755,size={len(content) + 65536},nr_inodes=8")
    descriptor = os.open("/run/code/run_code.py", os.O_WRONLY | os.O_CREAT, 0o444)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    kernel.set_mount_attributes("/run/code", kernel.ATTR_RDONLY, recursive=False)


def prepare(plan: dict[str, Any], job: dict[str, Any], keep: set[int]) -> int:
    """Everything up to the lock. Returns the Landlock ABI that holds us."""
    become_nobody(keeps_groups=plan["keeps_groups"])
    kernel.set_hostname("sandbox")
    mount_own(plan["limits"])
    save_code(job.get("code"))
    os.chdir("/workspace")
    if plan["affinity"]:
        os.sched_setaffinity(0, plan["affinity"])
    kernel.limit_heaps(2)
    return lockdown.lock(plan["limits"], bytes.fromhex(plan["filter"]), keep, plan["network"])


def let_in(plan: dict[str, Any], job: dict[str, Any], args: bytes, status: int, abi: int, serve: Serve) -> None:
    """The child of pid 1: a session without a terminal, checked once more, and then the code's own."""
    os.close(status)
    os.setsid()
    kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)
    wrong = posture.faults(plan, {0, 1, 2, CHANNEL}, abi)
    if wrong:
        raise kernel.SetupError("posture: " + "; ".join(wrong))
    serve(CHANNEL, job, args)


def reap(child: int) -> int:
    """Wait for everybody who is left to us until the code itself has ended; its wait status."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status
