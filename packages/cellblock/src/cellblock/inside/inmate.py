"""Stage two: the namespaces of one run.

Pid 1 mounts the folders of the run, drops its rights, forks pid 2 and becomes the small program of `init`. A prepared
script of system calls does all of this (`calls`). Pid 2 has no privileges. It checks its own state, reports that it is
ready, waits for its job, and starts the code. At the same time, the workshop mounts skills and blobs from outside.

Pid 1 reports a failed step to the server over its control socket. As `init`, it reports the wait status of the code.
"""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import ctypes
import os
import sys

from . import calls, init, kernel, landlock, lockdown, messages, outlet, posture, zygote
from .link import ID_MAP_BYTES
from .zygote import CHANNEL

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .kernel import Buffer

SIG_BLOCK = 0
TMPFS = kernel.MS_NOSUID | kernel.MS_NODEV
PROC = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
NAMESPACES = kernel.NEWUSER | kernel.NEWNS | kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET
"""The namespaces that a run has from its start. The cgroup namespace follows after the run has joined its cgroups."""


def become_nobody() -> None:
    """Become uid and gid 1000, the only ids in the user namespace of the run. This namespace has no root."""
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
    """Mount an empty /proc, because some containers allow no new procfs, and the host's procfs must stay hidden."""
    kernel.mount("none", "/proc", "tmpfs", PROC | kernel.MS_RDONLY, "size=4k,mode=0555")


# -- pid 1 ---------------------------------------------------------------------------------------------------------


def add_first(
    script: calls.Script, plan: dict[str, Any], parameters: dict[str, Any], received: range, null: int, ids: Buffer
) -> int:
    """Append all calls of pid 1 to the script. Return the version of Landlock; 0 if the kernel has none.

    `received` are the numbers of the descriptors that the zygote received for the run, `null` is that of /dev/null.
    `ids` is the text of the id maps, which the kernel reads for each run.
    """
    control, channel, log, *groups = received
    kernel.call("descriptors", kernel.SYS_DUP3, control, calls.CONTROL, os.O_CLOEXEC, answer=calls.CONTROL)
    join_groups(groups)
    arrange_descriptors(null, log, channel)
    map_ids(ids)
    if plan["environment"]:
        meet_server()
    else:
        show_mounts()
    settle(plan, parameters, script)
    landlock_abi = lock(plan, parameters)
    split(script, plan["thread_id"])
    return landlock_abi


def settle(plan: dict[str, Any], parameters: dict[str, Any], script: calls.Script) -> None:
    """Append all steps that need a privilege to the script."""
    become_nobody()
    mount_own(parameters["limits"], script)
    kernel.call("chdir", kernel.SYS_CHDIR, b"/workspace")
    if parameters["affinity"]:
        processors = sum(1 << number for number in parameters["affinity"]).to_bytes(128, sys.byteorder)
        kernel.call("affinity", kernel.SYS_SETAFFINITY, 0, len(processors), processors)
    if parameters["port"] is not None:
        outlet.hand_over_listener(CHANNEL, parameters["port"])
    lockdown.close_bounds()


def lock(plan: dict[str, Any], parameters: dict[str, Any]) -> int:
    """Append the lockdown to the script. Return the version of Landlock."""
    landlock_abi, ruleset = landlock.prepare(lockdown.WRITABLE, parameters["port"])
    lockdown.set_limits(parameters["limits"])
    program = plan["program"] if parameters["port"] is None else plan["network_program"]
    lockdown.lock(program, None, ruleset)
    return landlock_abi


def split(script: calls.Script, thread_id: int) -> None:
    """Fork pid 2, which returns to the interpreter. Pid 1 becomes the program of `init`."""
    # The zygote ignores SIGCHLD, so that the kernel reaps its children; pid 1 waits for its own children.
    kernel.set_default_action(kernel.SIGCHLD)
    # Until pid 1 is `init`, which is not readable, it has the zygote's memory or a copy of it. With an ordinary user's
    # ids, nothing else prevents pid 2 from reading it.
    kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 0)
    script.add("pid 2", kernel.SYS_CLONE, *kernel.fork_arguments(thread_id), kind=calls.SECOND)
    kernel.call("signals", kernel.SYS_SIGPROCMASK, SIG_BLOCK, kernel.signals(kernel.SIGCHLD), None, 8)
    kernel.call("descriptors", kernel.SYS_DUP3, calls.CONTROL, 0, 0, answer=0)
    kernel.call("descriptors", kernel.SYS_DUP3, kernel.signal_descriptor(kernel.SIGCHLD), 1, 0, answer=1)
    arguments = (ctypes.c_char_p * 2)(b"init", None)
    kernel.call("init", kernel.SYS_EXECVE, os.fsencode(init.PATH), arguments, bytes(8))


def join_groups(group_files: list[int]) -> None:
    """Join the cgroups before all other steps, so that the memory of these steps counts too.

    `group_files` are the descriptors of cgroup files.
    """
    for file in group_files:
        kernel.call("cgroup", kernel.SYS_WRITE, file, b"0", 1, answer=1)
    kernel.unshare(kernel.NEWCGROUP)


def arrange_descriptors(null: int, log: int, channel: int) -> None:
    """Set the descriptors: 0 is /dev/null, 1 and 2 are the log, 3 is the channel.

    CONTROL stays open, all others are closed. Only pid 1 keeps CONTROL.
    """
    for source, target in ((null, 0), (log, 1), (log, 2), (channel, CHANNEL)):
        kernel.call("descriptors", kernel.SYS_DUP3, source, target, 0, answer=target)
    kernel.close_others({0, 1, 2, CHANNEL, calls.CONTROL})


def map_ids(ids: Buffer) -> None:
    """Map uid and gid 1000 of the new user namespace to one id outside, which is the effective id of this process.

    The kernel allows that to a process itself, if `setgroups` is denied.
    """
    # A change of ids makes a process undumpable, and its files below /proc then belong to root.
    kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)
    for name, text, length in (
        ("setgroups", b"deny", 4),
        ("uid_map", ids, ID_MAP_BYTES),
        ("gid_map", ids, ID_MAP_BYTES),
    ):
        step = f"write {name}"
        file = kernel.opening(step, kernel.SYS_OPENAT, kernel.AT_FDCWD, f"/proc/self/{name}".encode(), os.O_WRONLY)
        kernel.call(step, kernel.SYS_WRITE, file, text, length, answer=length)
        kernel.close(file)


def show_mounts() -> None:
    """Send the server a descriptor of the mount namespace. The server may not open it: pid 1 is not dumpable."""
    mounts = kernel.opening("mounts", kernel.SYS_OPENAT, kernel.AT_FDCWD, b"/proc/self/ns/mnt", os.O_RDONLY)
    kernel.call("mounts", kernel.SYS_SENDMSG, calls.CONTROL, messages.with_descriptor(mounts), 0, answer=1)
    kernel.close(mounts)


def meet_server() -> None:
    """Send a byte to the server: with it, the kernel passes the pid of this process. Wait for the answer, one byte."""
    kernel.call("greeting", kernel.SYS_WRITE, calls.CONTROL, b"h", 1, answer=1)
    kernel.call("greeting", kernel.SYS_READ, calls.CONTROL, bytes(1), 1, answer=1)


# -- pid 2 ---------------------------------------------------------------------------------------------------------


def be_second(plan: dict[str, Any], landlock_abi: int, *, ahead: bool) -> NoReturn:
    """Start a session without a terminal, check the state of the locked process, and run the job."""
    try:
        os.close(calls.CONTROL)
        os.setsid()
        kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)
        wrong = posture.faults(plan, {0, 1, 2, CHANNEL}, landlock_abi)
        if wrong:
            raise kernel.SetupError("posture: " + "; ".join(wrong))
    except (kernel.SetupError, OSError) as error:
        zygote.give_up(plan, error)
    zygote.begin(plan, ahead=ahead)
