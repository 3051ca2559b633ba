"""The first program in the sandbox that bwrap has made.

The prologue does what bwrap does not do, drops the rights that it needed, and checks its own state. Only then does it
read the first byte of the job and become the run.

Usage: `python prologue.py DESCRIPTOR`. The descriptor contains one JSON object.
"""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from cellblock.parts import guest, kernel, lockdown, outlet, root, running, wire
    from skillery_bubblewrap.inside import landlock, locking, posture
else:
    sys.path.insert(0, "/run/cellblock")
    from bubblewrap import landlock, locking, posture
    from inside import kernel, lockdown, outlet, root
    from runtime import _guest as guest
    from runtime import _run as running
    from runtime import _wire as wire

CHANNEL, WORKSPACE = 3, 4
TMPFS = kernel.MS_NOSUID | kernel.MS_NODEV
PROC = TMPFS | kernel.MS_NOEXEC
GET_FLAGS, SET_FLAGS, SET_ADDRESS, UP = 0x8913, 0x8914, 0x8916, 1
NO_ADDRESS = struct.pack("=HH4s16x", socket.AF_INET, 0, bytes(4))


def finish_mounts(limits: dict[str, Any]) -> None:
    """Limit the number of files, because bwrap limits only sizes. Mount a /proc that shows only processes of this
    run.
    """
    own = (
        ("/workspace", TMPFS, limits["disk_bytes"], limits["disk_files"] + 1),
        ("/tmp", TMPFS, limits["tmp_bytes"], 4096),
        ("/dev/shm", TMPFS | kernel.MS_NOEXEC, limits["shm_bytes"], 1024),
    )
    for folder, flags, size, files in own:
        kernel.mount(None, folder, None, flags | kernel.MS_REMOUNT, f"size={size},nr_inodes={files}")
    kernel.mount("proc", "/proc", "proc", PROC, "hidepid=2,subset=pid")


def take_lo_down() -> None:
    """Take `lo` down, which bwrap brings up, and remove its address, which would stay."""
    request = bytearray(b"lo".ljust(16, b"\0") + bytes(24))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket.fileno(), GET_FLAGS, request)
        request[16] &= ~UP
        fcntl.ioctl(any_socket.fileno(), SET_FLAGS, bytes(request))
        fcntl.ioctl(any_socket.fileno(), SET_ADDRESS, b"lo".ljust(16, b"\0") + NO_ADDRESS)


def arrange_descriptors(channel: int, log: int) -> None:
    """Set 0 to /dev/null, 1 and 2 to the log, 3 to the channel."""
    wanted = ((os.open("/dev/null", os.O_RDWR), 0), (log, 1), (log, 2), (channel, CHANNEL))
    for source, target in [(out_of_the_way(source), target) for source, target in wanted]:
        os.dup2(source, target)


def send_workspace(channel: int) -> None:
    """Send the host a descriptor of the workspace as the first message, for a process that collects its files later."""
    workspace = os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(fileno=os.dup(channel)) as end:
        socket.send_fds(end, [b"w"], [workspace])
    os.close(workspace)


def out_of_the_way(descriptor: int) -> int:
    """Return a copy of the descriptor whose number `arrange_descriptors` does not overwrite."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, WORKSPACE + 1)


def prepare(order: dict[str, Any]) -> tuple[int, int]:
    """Do all steps that need a capability or a descriptor of the host.

    Return the Landlock version and a descriptor of its rules.
    """
    os.setsid()
    os.umask(0o022)
    finish_mounts(order["limits"])
    if order["port"] is None:
        take_lo_down()
    os.chdir("/workspace")
    visible = -1
    if order["workspace"] is None:
        send_workspace(order["channel"])
    else:  # the descriptor of another run's workspace, which this process collects
        visible = out_of_the_way(order["workspace"])
    others = [f"/proc/self/fd/{visible}"] if visible >= 0 else []
    version, ruleset = landlock.prepare([*locking.WRITABLE, *others], order["port"])
    os.environ.clear()
    os.environ.update(order["environment"])
    running.look_fresh()
    for name in [name for name in sys.modules if name.split(".")[0] == "bubblewrap"]:
        del sys.modules[name]
    guest.load(root.GUEST, order["guest"])
    lockdown.close_bounds()
    if order["port"] is not None:
        outlet.hand_over_listener(order["channel"], order["port"])
    if ruleset >= 0:
        ruleset = out_of_the_way(ruleset)
    arrange_descriptors(order["channel"], order["log"])
    if visible >= 0:
        os.dup2(visible, WORKSPACE)
    return version, ruleset


def enter(order: dict[str, Any]) -> NoReturn:
    talking = order["port"] is None  # otherwise the first message is the listener for the proxy
    channel = order["channel"]
    try:
        version, ruleset = prepare(order)
        kept = {0, 1, 2, CHANNEL} if order["workspace"] is None else {0, 1, 2, CHANNEL, WORKSPACE}
        talking, channel = True, CHANNEL
        locking.set_limits(order["limits"])
        locking.lock(bytes.fromhex(order["filter"]), kept, ruleset)
        kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)
        wrong = posture.faults(order, kept, version)
        if wrong:
            raise kernel.SetupError("posture: " + "; ".join(wrong))
        wire.send(CHANNEL, {"op": "ready"})
        job, args = wire.receive(CHANNEL)
        lockdown.set_cpu_time(job["cpu_seconds"])
    except (kernel.SetupError, OSError, EOFError) as error:
        words = f"set-up: {os.strerror(error.errno or 0)}" if isinstance(error, OSError) else str(error)
        if talking:
            wire.send(channel, {"op": "broken", "message": words})
        os._exit(1)
    running.serve(CHANNEL, job, args)


def main(descriptor: int) -> NoReturn:
    with os.fdopen(descriptor) as file:
        order = json.load(file)
    enter(order)


if __name__ == "__main__":
    main(int(sys.argv[1]))
