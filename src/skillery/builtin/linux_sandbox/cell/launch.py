"""The outer process of a run: builds the root, starts pid 1 in the run's namespaces, waits, and ends it when told.

Talks to the server over a socket, line by line. In: the plan (once this process is in the run's cgroups), then `kill`.
Out: `{"event": "ended", "status", "whole"}` or `{"event": "failed", "message"}`.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys

from . import inmate, kernel, lockdown, outlet, posture, root

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Control:
    """The socket to the server, line by line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._unread = b""

    def say(self, **event: Any) -> None:
        os.write(self.descriptor, json.dumps(event).encode() + b"\n")

    def hear(self) -> bytes:
        """The next line, without its end; `kill` where the server is gone."""
        while b"\n" not in self._unread:
            piece = os.read(self.descriptor, 1 << 20)
            if not piece:
                return b"kill"
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def has_more(self) -> bool:
        return bool(self._unread)


def die_with(parent: int) -> None:
    """A server that is killed takes its runs with it."""
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def write_maps(pid: int, plan: dict[str, Any]) -> None:
    """Who uid 1000 of the run is outside: a host uid of its own where the server is root, else our own one."""
    outside = plan["uid"] if plan["root"] else posture.UID
    for name in ("uid_map", "gid_map"):
        root.write_once(f"/proc/{pid}/{name}", f"1000 {outside} 1", f"write {name}")


def arrange_descriptors(channel: int, log: int) -> None:
    """0 is /dev/null, 1 and 2 the log, 3 the channel."""
    null = os.open("/dev/null", os.O_RDWR)
    for source, target in ((null, 0), (log, 1), (log, 2), (channel, inmate.CHANNEL)):
        os.dup2(source, target)


def be_first(plan: dict[str, Any], channel: int, log: int, gate: int, status: int) -> NoReturn:
    """Pid 1 of the run, from its first instruction to its last."""
    wire = importlib.import_module("runtime._wire")
    running = importlib.import_module("runtime._run")
    try:
        if os.read(gate, 1) != b"g":
            os._exit(1)
        arrange_descriptors(channel, log)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # pid 1 then ignores it when it comes from inside
        if plan["network"]:
            outlet.hand_over_listener(inmate.CHANNEL, plan["network"])
        job, args = wire.receive(inmate.CHANNEL)
        abi = inmate.prepare(plan, job, {0, 1, 2, inmate.CHANNEL, status})
        child = os.fork()
        if child == 0:
            inmate.let_in(plan, job, args, status, abi, running.serve)
            os._exit(0)
    except kernel.SetupError as error:
        wire.send(inmate.CHANNEL, {"op": "broken", "message": str(error)})
        os._exit(1)
    kernel.close_others({status})
    os.write(status, b"%d" % inmate.reap(child))
    os._exit(0)


def watch(control: Control, pid: int, status: int) -> None:
    """Until pid 1 has ended: everything of the run is dead then, that is what a pid namespace is for."""
    poller = select.poll()
    for descriptor in (control.descriptor, status):
        poller.register(descriptor, select.POLLIN)
    ready = {control.descriptor} if control.has_more() else {descriptor for descriptor, _ in poller.poll()}
    if control.descriptor in ready:  # `kill`, or the server is gone
        os.kill(pid, signal.SIGKILL)
    written = os.read(status, 32)
    _, first = os.waitpid(pid, 0)
    control.say(event="ended", status=int(written) if written else first, whole=bool(written))


def run(control: Control, channel: int, log: int) -> None:
    line = control.hear()
    if line == b"kill":
        return
    plan = json.loads(line)
    root.build(plan)
    sys.path = ["/run/skillery", *(entry for entry in sys.path if entry != ".")]
    importlib.import_module("runtime._run")
    gate, opener = os.pipe()
    status, reporter = os.pipe()
    pid = kernel.clone(inmate.NAMESPACES)
    if pid == 0:
        os.close(opener)
        be_first(plan, channel, log, gate, reporter)
    for descriptor in (channel, log, gate, reporter):
        os.close(descriptor)
    write_maps(pid, plan)
    os.write(opener, b"g")
    os.close(opener)
    lockdown.keep_capabilities(lockdown.CAP_KILL)  # all that is left to do is to wait, and perhaps to kill
    watch(control, pid, status)


def main(parent: int, control: int, channel: int, log: int) -> None:
    die_with(parent)
    os.umask(0o022)  # the server may have a closed one, and what is made here is for another uid to enter
    server = Control(control)
    try:
        run(server, channel, log)
    except kernel.SetupError as error:
        server.say(event="failed", message=str(error))
    except ConnectionError:
        return  # the server is gone, and pid 1 with us
    except OSError as error:
        server.say(event="failed", message=f"set-up: {os.strerror(error.errno or 0)}")
