"""The process from which every run is forked. It is built once, preloaded, and has no threads, secrets or data of a
run.

The zygote talks to the server over one socket (`link`). It first receives the plan. For each run, it receives an order
with `limits`, `affinity` and `port`, and the descriptors of the run's control socket, channel, log and cgroup files. It
sends `ready` once, and for each run the pid with the pidfd and the mount namespace. A zygote with preloaded packages
(`preloading`) sends no pid and no descriptors.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys

from . import calls, inmate, kernel, lockdown, posture, root, workshop
from .link import CROWDED, NUMBER, ORDER, PID, Link

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from typing import Any

CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 1 << 6, 1 << 7, 1 << 21
WARM = (
    "traceback",
    "linecache",
    "runtime",
    "runtime._run",
    "runtime._wire",
    "runtime._restoring",
    "runtime._collecting",
    "runtime._snapshots",
)
KEPT = 32
DESCRIPTORS = 512
ONE_THREAD = 3
"""The link count of a folder with exactly one subfolder."""


def die_with(parent: int) -> None:
    """End this process if the process `parent` (the server) is killed. Runs detect the end of the server themselves."""
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def write_maps(pid: int, outside: int) -> None:
    for name in ("uid_map", "gid_map"):
        root.write_once(f"/proc/{pid}/{name}", f"{posture.UID} {outside} 1", f"write {name}")


def warm_up() -> dict[str, Any]:
    """Import the modules that every run needs, so that runs inherit the imported modules."""
    sys.path = ["/run/skillery", *(entry for entry in sys.path if entry != ".")]
    for name in WARM:
        importlib.import_module(name)
    run = importlib.import_module("runtime._run")
    run.set_stage()
    run.rehearse()
    freeze()
    wire = importlib.import_module("runtime._wire")
    return {"run": run, "wire": wire, "ready": wire.packed({"op": "ready"}, 0)}


def freeze() -> None:
    """Exclude all present objects from garbage collection, so that runs share the memory of these objects."""
    gc.collect()
    gc.freeze()


class Slots:
    """Empty net namespaces. Each is created at its first use, and then reused. The server gives a namespace to one run
    at a time.
    """

    def __init__(self) -> None:
        self._made: list[int] = []

    def enter(self, slot: int) -> None:
        while len(self._made) <= slot:
            kernel.unshare(kernel.NEWNET)
            self._made.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        kernel.set_namespace(self._made[slot], kernel.NEWNET)

    def close(self) -> None:
        for descriptor in self._made:
            os.close(descriptor)


def check_threads() -> None:
    """Raise SetupError if another thread runs: a fork copies only one thread, but the locks of all threads."""
    if os.stat("/proc/self/task").st_nlink != ONE_THREAD:  # noqa: PTH116 - importing pathlib would cost milliseconds
        raise kernel.SetupError("the zygote has more than one thread")


class Forks:
    """Forks a process for each run, with a prepared script of system calls (`inmate.Part`).

    Runs with equal parameters share one script. The first of these runs creates the script.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._slots = Slots()
        self._parts: dict[tuple[int, bytes, int], inmate.Part] = {}
        self._do = calls.load()
        os.dup2(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), inmate.NULL, inheritable=False)

    def fork(self, server: Link, message: bytes, descriptors: list[int]) -> None:
        check_threads()
        number, order = message[: NUMBER.size], message[NUMBER.size :]
        uid, slot, ahead = ORDER.unpack_from(order)
        flags = inmate.NAMESPACES
        if slot >= 0:
            self._slots.enter(slot)
            flags &= ~kernel.NEWNET
        control, channel, log, *group_files = descriptors
        gate, opener = os.pipe()
        part = self._part(flags, order[ORDER.size :], len(group_files))
        places = (
            calls.CONTROL,
            inmate.CHANNEL_BEFORE,
            inmate.LOG,
            inmate.GATE,
            *range(inmate.GROUPS, inmate.GROUPS + len(group_files)),
        )
        for descriptor, place in zip((control, channel, log, gate, *group_files), places, strict=True):
            os.dup2(descriptor, place, inheritable=False)
            os.close(descriptor)
        try:
            pid = kernel.forked(lambda: self._do(part.written.address))
        except kernel.SetupError:
            if not self._plan["environment"]:
                raise
            pid = -1  # its runs have reached their common limit of processes
        if pid == 0:
            inmate.be_second(self._plan, part.landlock_abi, ahead=ahead)
        for place in places:
            os.close(place)
        if pid < 0:
            os.close(opener)
            server.send(number + PID.pack(CROWDED))
            return
        # Uid 1000 of the run is its own host uid if the server is root, else the server's uid.
        write_maps(pid, uid if self._plan["root"] else posture.UID)
        self._let_go(server, number, pid, part.pidfd.value, opener)

    def _part(self, flags: int, parameters: bytes, group_files: int) -> inmate.Part:
        known = flags, parameters, group_files
        if known not in self._parts:
            if len(self._parts) >= KEPT:
                del self._parts[next(iter(self._parts))]
            self._parts[known] = inmate.Part(self._plan, flags, json.loads(parameters), group_files)
        return self._parts[known]

    def _let_go(self, server: Link, number: bytes, pid: int, pidfd: int, opener: int) -> None:
        """Let the run continue, and report it to the server."""
        if self._plan["environment"]:
            os.close(pidfd)
            os.write(opener, b"g")
            os.close(opener)
            server.send(number + PID.pack(0))
            return
        mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        os.write(opener, b"g")
        os.close(opener)
        server.send(number + PID.pack(pid), (pidfd, mounts))
        os.close(pidfd)
        os.close(mounts)


def serve(server: Link, plan: dict[str, Any]) -> None:
    kernel.ignore(kernel.SIGCHLD)  # the kernel reaps children; the server has a pidfd of each
    forks = Forks(plan)
    gc.disable()
    server.say(ready=True)
    while True:
        message, descriptors = server.receive()
        forks.fork(server, message, descriptors)


def make_room_for_descriptors() -> None:
    """Raise the limit on descriptors. Descriptors of a run temporarily get high numbers, and net namespaces stay
    open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS:
        if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS:
            raise kernel.SetupError(f"the server may open {hard} files, and {DESCRIPTORS} are needed: raise ulimit -n")
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))


def prepare(server: Link, room: int) -> dict[str, Any]:
    """Build the sandbox from the plan of the server. Return the plan."""
    make_room_for_descriptors()
    plan, group_files = server.hear()
    if plan["environment"]:
        from . import preloading  # import now, because the folder is not visible afterwards
    plan["program"] = bytes.fromhex(plan.pop("filter"))
    plan["network_program"] = bytes.fromhex(plan.pop("network_filter"))
    plan["thread_id"] = calls.thread_id_address()
    root.enter_own_mounts(plan)
    if kernel.clone(kernel.NEWNS) == 0:
        server.close()
        workshop.serve(room)
        os._exit(0)
    os.close(room)
    root.build(plan)
    kernel.unshare(kernel.NEWUTS)
    kernel.set_hostname("sandbox")
    kernel.limit_heaps(2)
    plan |= warm_up()
    if plan["environment"]:
        preloading.step_back(server, plan, group_files)
        preloading.preload(plan)
        freeze()
        return plan | {"reseed": preloading.reseed}
    lockdown.keep_capabilities(CAP_SETGID | CAP_SETUID | CAP_SYS_ADMIN)
    return plan


def main(parent: int, control: int, room: int) -> None:
    die_with(parent)
    os.umask(0o022)  # another uid must be able to enter the folders created here
    server = Link(control)
    try:
        serve(server, prepare(server, room))
    except (EOFError, ConnectionError):
        return  # the server has closed the link
    except kernel.SetupError as error:
        server.say(message=str(error))
    except OSError as error:
        server.say(message=f"set-up: {os.strerror(error.errno or 0)}")
