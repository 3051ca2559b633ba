"""Stage two: one run's own namespaces. Pid 1 mounts what belongs to the run, locks itself in, forks pid 2 and becomes
the tiny program of `init`. Pid 2 has nothing left to give up: it looks at itself, says that it is ready, waits for its
job, and lets the code in. What the run is given of skills and blobs the workshop mounts from outside meanwhile.

Pid 1 tells the server over its control socket that it `failed`, or as `init` the wait status of the code.
"""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of it, in memory that no run needs
import fcntl
import gc
import os

from . import init, kernel, landlock, lockdown, outlet, posture
from .link import Link

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

CHANNEL = 3
TMPFS = kernel.MS_NOSUID | kernel.MS_NODEV
PROC = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
NAMESPACES = kernel.NEWUSER | kernel.NEWNS | kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET
"""Those of a run from its first moment on. It takes its cgroup namespace when it is in its cgroups."""


def become_nobody(*, keeps_groups: bool) -> None:
    """Uid and gid 1000 of the run's user namespace, the only ones it has. There is no root in it.

    An ordinary user's namespace `keeps_groups`: the kernel lets nobody drop them there. They are unmapped inside.
    """
    if not keeps_groups:
        os.setgroups([])
    os.setresgid(posture.UID, posture.UID, posture.UID)
    os.setresuid(posture.UID, posture.UID, posture.UID)


def sizes(limits: dict[str, Any]) -> dict[str, str]:
    return {
        "/workspace": f"size={limits['disk_bytes']},nr_inodes={limits['disk_files'] + 1}",
        "/tmp": f"size={limits['tmp_bytes']},nr_inodes=4096",
        "/dev/shm": f"size={limits['shm_bytes']},nr_inodes=1024",
    }


def mount_own(limits: dict[str, Any]) -> None:
    for folder, size in sizes(limits).items():
        mode = "0755" if folder == "/workspace" else "1777"
        flags = TMPFS | kernel.MS_NOEXEC if folder == "/dev/shm" else TMPFS
        kernel.mount("tmpfs", folder, "tmpfs", flags, f"mode={mode},{size}")
    mount_proc()


def mount_proc() -> None:
    try:
        kernel.mount("proc", "/proc", "proc", PROC, "hidepid=2,subset=pid")
    except kernel.SetupError:
        # Inside some containers no new procfs may be mounted. None is better than the host's.
        kernel.mount("none", "/proc", "tmpfs", PROC | kernel.MS_RDONLY, "size=4k,mode=0555")


def arrange_descriptors(channel: int, log: int) -> None:
    """0 is /dev/null, 1 and 2 the log, 3 the channel."""
    null, log, channel = map(out_of_the_way, (os.open("/dev/null", os.O_RDWR), log, channel))
    for source, target in ((null, 0), (log, 1), (log, 2), (channel, CHANNEL)):
        os.dup2(source, target)


def out_of_the_way(descriptor: int) -> int:
    """A copy whose number is none of those that are about to be overwritten."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, CHANNEL + 1)


# -- pid 1 ---------------------------------------------------------------------------------------------------------


def be_first(plan: dict[str, Any], message: dict[str, Any], descriptors: list[int], gate: int) -> NoReturn:
    """Pid 1 of the run, from its first instruction to its last."""
    control, channel, log, *doors = descriptors
    link = Link(out_of_the_way(control))
    try:
        join_groups(doors)
        if os.read(gate, 1) == b"g":
            os.close(gate)
            live(plan, message, link, (channel, log))
    except (kernel.SetupError, OSError) as error:
        complain(link, error)
    os._exit(1)


def in_words(error: Exception) -> str:
    """Without a path: those of an OSError are the host's business."""
    return f"set-up: {os.strerror(error.errno or 0)}" if isinstance(error, OSError) else str(error)


def complain(link: Link, error: Exception) -> None:
    try:
        link.say(event="failed", message=in_words(error))
    except OSError:
        return  # the server has gone


def live(plan: dict[str, Any], message: dict[str, Any], link: Link, ends: tuple[int, int]) -> NoReturn:
    settle(plan, message, *ends)
    version, ruleset = landlock.prepare(lockdown.WRITABLE, message["port"])
    lockdown.set_limits(message["limits"])
    lockdown.lock(plan["program"], {0, 1, 2, CHANNEL, link.descriptor}, ruleset)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # the zygote's children are nobody's to wait for; this one's are
    if os.fork() == 0:
        link.close()
        be_second(plan, version, ahead=message["ahead"])
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGCHLD,))
    os.dup2(link.descriptor, 0)
    os.dup2(kernel.signal_descriptor(_signal.SIGCHLD), 1)
    os.execve(init.PATH, ["init"], {})  # noqa: S606 - our own


def settle(plan: dict[str, Any], message: dict[str, Any], channel: int, log: int) -> None:
    """Everything that takes a privilege, down to the last one."""
    become_nobody(keeps_groups=plan["keeps_groups"])
    mount_own(message["limits"])
    os.chdir("/workspace")
    if message["affinity"]:
        os.sched_setaffinity(0, message["affinity"])
    if message["port"] is not None:
        outlet.hand_over_listener(channel, message["port"])
    arrange_descriptors(channel, log)
    lockdown.close_bounds()


def join_groups(doors: list[int]) -> None:
    """Before anything else: what we use from here on counts, and our view of cgroups begins there."""
    for door in doors:
        os.write(door, b"0")
        os.close(door)
    kernel.unshare(kernel.NEWCGROUP)


# -- pid 2 ---------------------------------------------------------------------------------------------------------


def be_second(plan: dict[str, Any], landlock_abi: int, *, ahead: bool) -> None:
    """A session without a terminal, locked in already; it becomes the run."""
    run, wire = plan["run"], plan["wire"]
    try:
        os.setsid()
        gc.enable()
        kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)
        wrong = posture.faults(plan, {0, 1, 2, CHANNEL}, landlock_abi)
        if wrong:
            raise kernel.SetupError("posture: " + "; ".join(wrong))
        if ahead:  # there is time, and what is done now need not be done later
            run.rehearse()
        os.write(CHANNEL, plan["ready"])
        job, args = wire.receive(CHANNEL)
        lockdown.set_cpu_time(job["cpu_seconds"])
    except (kernel.SetupError, OSError) as error:
        wire.send(CHANNEL, {"op": "broken", "message": in_words(error)})
        os._exit(1)
    except EOFError:
        os._exit(1)  # not wanted any more
    run.serve(CHANNEL, job, args)
