"""Stage two: one run's own namespaces. Pid 1 locks itself in and is a tiny init; pid 2 mounts what belongs to the run,
waits for it, mounts what it is given, locks itself in, looks at itself, and lets the code in.

Both talk to the server over one socket. In: the doors of the cgroups, then the order with the descriptors of log,
channel and mounts. Out: `prepared`, then `ended` with the wait status of the code, or `failed`.
"""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import fcntl
import importlib
import os
import select
import signal

from . import kernel, landlock, lockdown, outlet, posture
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
    kernel.prctl("undumpable", kernel.PR_SET_DUMPABLE, 0)  # pid 1 is nobody's to read


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


def resize(before: dict[str, Any], limits: dict[str, Any]) -> None:
    """Where this run may have more or less than was thought when its place was made."""
    old = sizes(before)
    for folder, size in sizes(limits).items():
        if size != old[folder]:
            flags = TMPFS | kernel.MS_NOEXEC if folder == "/dev/shm" else TMPFS
            kernel.mount(None, folder, None, flags | kernel.MS_REMOUNT, size)


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


def arrange_descriptors(channel: int, log: int) -> None:
    """0 is /dev/null, 1 and 2 the log, 3 the channel."""
    null, log, channel = map(out_of_the_way, (os.open("/dev/null", os.O_RDWR), log, channel))
    for source, target in ((null, 0), (log, 1), (log, 2), (channel, CHANNEL)):
        os.dup2(source, target)


def out_of_the_way(descriptor: int) -> int:
    """A copy whose number is none of those that are about to be overwritten."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, CHANNEL + 1)


# -- pid 1 ---------------------------------------------------------------------------------------------------------


def be_first(plan: dict[str, Any], message: dict[str, Any], control: int, gate: int) -> NoReturn:
    """Pid 1 of the run, from its first instruction to its last."""
    link = Link(control)
    try:
        if os.read(gate, 1) == b"g":
            os.close(gate)
            live(plan, message, link)
    except (kernel.SetupError, OSError, EOFError) as error:
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


def live(plan: dict[str, Any], message: dict[str, Any], link: Link) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # pid 1 then ignores it when it comes from inside
    join_groups(link.hear()[1])
    become_nobody(keeps_groups=plan["keeps_groups"])
    lockdown.close_bounds()
    locked, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        be_second(plan, message, link, locked)
    os.close(locked)
    woken = watch_children()
    _, ruleset = landlock.prepare([])
    lockdown.lock(plan["program"], {link.descriptor, hold, *woken}, ruleset)
    os.close(hold)
    status = wait_for(child, link, woken[0])
    link.say(event="ended", status=status)
    os._exit(0)


def join_groups(doors: list[int]) -> None:
    """Before anything else: what we use from here on counts, and our view of cgroups begins there."""
    for door in doors:
        os.write(door, b"0")
        os.close(door)
    kernel.unshare(kernel.NEWCGROUP)


def watch_children() -> tuple[int, int]:
    """A pipe that becomes readable when a child has ended."""
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading, writing


def wait_for(child: int, link: Link, woken: int) -> int:
    """Reap everybody who is left to us until the code itself has ended: its wait status. Ends with the server."""
    poller = select.poll()
    poller.register(link.descriptor, 0)  # tells of the other end's closing, and of nothing else
    poller.register(woken, select.POLLIN)
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return status
        if pid:
            continue
        ready = dict(poller.poll())
        if link.descriptor in ready:
            os._exit(1)
        os.read(woken, 4096)


# -- pid 2 ---------------------------------------------------------------------------------------------------------


def be_second(plan: dict[str, Any], message: dict[str, Any], link: Link, locked: int) -> None:
    """A session without a terminal; it waits, and becomes the run."""
    wire = importlib.import_module("runtime._wire")
    running = importlib.import_module("runtime._run")
    limits, port, talking = message["limits"], message["port"], False
    try:
        os.setsid()
        kernel.set_hostname("sandbox")
        mount_own(limits)
        os.chdir("/workspace")
        kernel.limit_heaps(2)
        version, ruleset = landlock.prepare(lockdown.WRITABLE, port)
        running.set_stage()
        if message["ahead"]:  # there is time, and what is done now need not be done later
            running.rehearse()
            posture.status()
            posture.open_descriptors()
        link.say(event="prepared")
        order, descriptors = link.hear()
        log, channel, *trees = descriptors
        for kind, tree in zip(order["kinds"], trees, strict=True):
            kernel.attach_tree(tree, f"/{kind}")
        resize(limits, order["limits"])
        if order["affinity"]:
            os.sched_setaffinity(0, order["affinity"])
        if port is not None:
            outlet.hand_over_listener(channel, port)
        os.read(locked, 1)  # until pid 1 is locked
        if ruleset >= 0:
            ruleset = out_of_the_way(ruleset)
        link.close()
        arrange_descriptors(channel, log)
        talking = True
        job, args = wire.receive(CHANNEL)
        save_code(job.get("code"))
        lockdown.set_limits(order["limits"])
        lockdown.lock(plan["program"], {0, 1, 2, CHANNEL}, ruleset)
        kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)
        wrong = posture.faults(plan, {0, 1, 2, CHANNEL}, version)
        if wrong:
            raise kernel.SetupError("posture: " + "; ".join(wrong))
    except (kernel.SetupError, OSError, EOFError) as error:
        if talking:
            wire.send(CHANNEL, {"op": "broken", "message": in_words(error)})
        else:
            complain(link, error)
        os._exit(1)
    running.serve(CHANNEL, job, args)
