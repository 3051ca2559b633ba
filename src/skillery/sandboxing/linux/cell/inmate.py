"""Stage two: one run's own namespaces. Pid 1 mounts what belongs to the run, locks itself in, forks pid 2 and becomes
the tiny program of `init`; all that by a script that was written ahead (`calls`). Pid 2 has nothing left to give up: it
looks at itself, says that it is ready, waits for its job, and lets the code in. What the run is given of skills and
blobs the workshop mounts from outside meanwhile.

Pid 1 tells the server over its control socket the step that failed, or as `init` the wait status of the code.
"""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import ctypes
import gc
import os
import sys

from . import calls, init, kernel, landlock, lockdown, outlet, posture

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

CHANNEL = 3
CHANNEL_BEFORE, LOG, GATE, NULL, GROUPS = 203, 201, 205, 206, 207
"""Where the zygote puts what it was given for a run, before it forks: out of the way of everything else. GROUPS is the
first of several."""
SIG_BLOCK = 0
TMPFS = kernel.MS_NOSUID | kernel.MS_NODEV
PROC = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
NAMESPACES = kernel.NEWUSER | kernel.NEWNS | kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET
"""Those of a run from its first moment on. It takes its cgroup namespace when it is in its cgroups."""


def become_nobody(*, keeps_groups: bool) -> None:
    """Uid and gid 1000 of the run's user namespace, the only ones it has. There is no root in it.

    An ordinary user's namespace `keeps_groups`: the kernel lets nobody drop them there. They are unmapped inside.
    """
    if not keeps_groups:
        kernel.call("groups", kernel.SYS_SETGROUPS, 0, None)
    kernel.call("gid", kernel.SYS_SETRESGID, posture.UID, posture.UID, posture.UID)
    kernel.call("uid", kernel.SYS_SETRESUID, posture.UID, posture.UID, posture.UID)


def sizes(limits: dict[str, Any]) -> dict[str, str]:
    return {
        "/workspace": f"size={limits['disk_bytes']},nr_inodes={limits['disk_files'] + 1}",
        "/tmp": f"size={limits['tmp_bytes']},nr_inodes=4096",
        "/dev/shm": f"size={limits['shm_bytes']},nr_inodes=1024",
    }


def mount_own(limits: dict[str, Any], script: calls.Script) -> None:
    for folder, size in sizes(limits).items():
        mode = "0755" if folder == "/workspace" else "1777"
        flags = TMPFS | kernel.MS_NOEXEC if folder == "/dev/shm" else TMPFS
        kernel.mount("tmpfs", folder, "tmpfs", flags, f"mode={mode},{size}")
    script.unless(mount_proc, mount_no_proc)


def mount_proc() -> None:
    kernel.mount("proc", "/proc", "proc", PROC, "hidepid=2,subset=pid")


def mount_no_proc() -> None:
    """Inside some containers no new procfs may be mounted. None is better than the host's."""
    kernel.mount("none", "/proc", "tmpfs", PROC | kernel.MS_RDONLY, "size=4k,mode=0555")


# -- pid 1 ---------------------------------------------------------------------------------------------------------


class Part:
    """What pid 1 of a run does, from its first instruction to its last: for all runs that are made for the same."""

    def __init__(self, plan: dict[str, Any], flags: int, message: dict[str, Any], doors: int) -> None:
        self.pidfd = ctypes.c_int(-1)
        self.landlock_abi = 0
        with calls.Script(descriptors=CHANNEL + 1) as script:
            first = kernel.clone_arguments(flags | kernel.CLONE_PIDFD, parent=self.pidfd)
            script.add("new namespaces", kernel.SYS_CLONE, *first, kind=calls.FIRST)
            join_groups(doors)
            arrange_descriptors()
            if plan["environment"]:
                meet_server()
            wait_at_gate()
            self._settle(plan, message, script)
            self._lock(plan, message)
            self._split(script, plan["thread_id"])
        self.written = script.end()

    def _settle(self, plan: dict[str, Any], message: dict[str, Any], script: calls.Script) -> None:
        """Everything that takes a privilege, down to the last one."""
        become_nobody(keeps_groups=plan["keeps_groups"])
        mount_own(message["limits"], script)
        kernel.call("chdir", kernel.SYS_CHDIR, b"/workspace")
        if message["affinity"]:
            processors = sum(1 << number for number in message["affinity"]).to_bytes(128, sys.byteorder)
            kernel.call("affinity", kernel.SYS_SETAFFINITY, 0, len(processors), processors)
        if message["port"] is not None:
            outlet.hand_over_listener(CHANNEL, message["port"])
        lockdown.close_bounds()

    def _lock(self, plan: dict[str, Any], message: dict[str, Any]) -> None:
        self.landlock_abi, ruleset = landlock.prepare(lockdown.WRITABLE, message["port"])
        lockdown.set_limits(message["limits"])
        program = plan["program"] if message["port"] is None else plan["network_program"]
        lockdown.lock(program, None, ruleset)

    def _split(self, script: calls.Script, thread_id: int) -> None:
        """Pid 2 goes back into the interpreter; pid 1 becomes the tiny program of `init`."""
        # the zygote's children are nobody's to wait for; this one's are
        kernel.set_default_action(kernel.SIGCHLD)
        # Until it is `init`, which nobody may read, it is a copy of the zygote. Where the ids of a run are those of an
        # ordinary user, nothing else keeps pid 2 from reading it.
        kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 0)
        script.add("pid 2", kernel.SYS_CLONE, *kernel.fork_arguments(thread_id), kind=calls.SECOND)
        kernel.call("signals", kernel.SYS_SIGPROCMASK, SIG_BLOCK, kernel.signals(kernel.SIGCHLD), None, 8)
        kernel.call("descriptors", kernel.SYS_DUP3, calls.CONTROL, 0, 0, answer=0)
        kernel.call("descriptors", kernel.SYS_DUP3, kernel.signal_descriptor(kernel.SIGCHLD), 1, 0, answer=1)
        arguments = (ctypes.c_char_p * 2)(b"init", None)
        kernel.call("init", kernel.SYS_EXECVE, os.fsencode(init.PATH), arguments, bytes(8))


def join_groups(doors: int) -> None:
    """Before anything else: what we use from here on counts, and our view of cgroups begins there."""
    for door in range(GROUPS, GROUPS + doors):
        kernel.call("cgroup", kernel.SYS_WRITE, door, b"0", 1, answer=1)
    kernel.unshare(kernel.NEWCGROUP)


def arrange_descriptors() -> None:
    """0 is /dev/null, 1 and 2 the log, 3 the channel, and CONTROL is for pid 1 alone. Nothing else is open."""
    for source, target in ((NULL, 0), (LOG, 1), (LOG, 2), (CHANNEL_BEFORE, CHANNEL)):
        kernel.call("descriptors", kernel.SYS_DUP3, source, target, 0, answer=target)
    kernel.close_others({0, 1, 2, CHANNEL, calls.CONTROL, GATE})


def meet_server() -> None:
    """The kernel tells the server who said this; the server, that it has seen us."""
    kernel.call("greeting", kernel.SYS_WRITE, calls.CONTROL, b"h", 1, answer=1)
    kernel.call("greeting", kernel.SYS_READ, calls.CONTROL, bytes(1), 1, answer=1)


def wait_at_gate() -> None:
    """Until we have our ids. The other end is the zygote's alone, now that our copy of it is closed: when the zygote
    dies, this ends."""
    kernel.call("gate", kernel.SYS_READ, GATE, bytes(1), 1, answer=1)
    kernel.call("gate", kernel.SYS_CLOSE, GATE)


# -- pid 2 ---------------------------------------------------------------------------------------------------------


def be_second(plan: dict[str, Any], landlock_abi: int, *, ahead: bool) -> NoReturn:
    """A session without a terminal, locked in already; it becomes the run."""
    run, wire = plan["run"], plan["wire"]
    try:
        os.close(calls.CONTROL)
        os.setsid()
        gc.enable()
        kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)
        wrong = posture.faults(plan, {0, 1, 2, CHANNEL}, landlock_abi)
        if wrong:
            raise kernel.SetupError("posture: " + "; ".join(wrong))
        if plan["environment"]:
            plan["reseed"]()
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
    os._exit(1)  # it does not come back, and must not: behind us is the zygote


def in_words(error: Exception) -> str:
    """Without a path: those of an OSError are the host's business."""
    return f"set-up: {os.strerror(error.errno or 0)}" if isinstance(error, OSError) else str(error)
