"""The outer process of a run: builds the root, starts pid 1 in the run's namespaces, waits, and ends it when told.

Talks to the server over a socket, one JSON object a line. In: the plan, then `go` (once pid 1 is in its cgroups), `kill`.
Out: `{"event": "born", "pid"}`, `{"event": "ended", "status"}`, `{"event": "failed", "message"}`.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from . import inmate, kernel, root


def say(control: socket.socket, **event: Any) -> None:
    control.sendall(json.dumps(event).encode() + b"\n")


def die_with(parent: int) -> None:
    """A server that is killed takes its runs with it."""
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def write_maps(pid: int, plan: dict[str, Any]) -> None:
    """Who uid 1000 of the run is outside: a host uid of its own where the server is root, else our own one."""
    outside = plan["uid"] if plan["root"] else inmate.posture.UID
    for name in ("uid_map", "gid_map"):
        root.write_once(f"/proc/{pid}/{name}", f"1000 {outside} 1", f"write {name}")


def arrange_descriptors(channel: int, log: int) -> None:
    """0 is /dev/null, 1 and 2 the log, 3 the channel."""
    null = os.open("/dev/null", os.O_RDWR)
    for source, target in ((null, 0), (log, 1), (log, 2), (channel, inmate.CHANNEL)):
        os.dup2(source, target)


def be_first(plan: dict[str, Any], channel: int, log: int, gate: int, status: int) -> None:
    """Pid 1 of the run, from its first instruction to its last."""
    wire = importlib.import_module("runtime._wire")
    running = importlib.import_module("runtime._run")
    try:
        if os.read(gate, 1) != b"g":
            os._exit(1)
        arrange_descriptors(channel, log)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # pid 1 then ignores it when it comes from inside
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


def watch(control: socket.socket, pid: int, status: int) -> None:
    """Until pid 1 has ended: everything of the run is dead then, that is what a pid namespace is for."""
    poller = select.poll()
    for descriptor in (control.fileno(), status):
        poller.register(descriptor, select.POLLIN)
    ready = {descriptor for descriptor, _ in poller.poll()}
    if control.fileno() in ready:  # `kill`, or the server is gone
        os.kill(pid, signal.SIGKILL)
    written = os.read(status, 32)
    _, first = os.waitpid(pid, 0)
    say(control, event="ended", status=int(written) if written else first, whole=bool(written))


def run(control: socket.socket, channel: int, log: int) -> None:
    lines = control.makefile("rb")
    plan = json.loads(lines.readline())
    root.build(plan)
    importlib.invalidate_caches()
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
    say(control, event="born", pid=pid)
    if lines.readline() == b"go\n":
        os.write(opener, b"g")
    os.close(opener)
    watch(control, pid, status)


def main(parent: int, control: int, channel: int, log: int) -> None:
    die_with(parent)
    server = socket.socket(fileno=control)
    try:
        run(server, channel, log)
    except kernel.SetupError as error:
        say(server, event="failed", message=str(error))
    except OSError as error:
        say(server, event="failed", message=f"set-up: {os.strerror(error.errno or 0)}")
