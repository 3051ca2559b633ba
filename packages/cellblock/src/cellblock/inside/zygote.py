"""The process from which every run is forked. It is built once, preloaded, and has no threads, secrets or data of a
run.

The zygote talks to the server over one socket (`link`). It first receives the plan. For each run, it receives an order
with the descriptors of the run's control socket, channel, log and cgroup files. It sends `ready` once, and for each run
the pidfd. A zygote with preloaded packages (`preloading`) sends no descriptors. The helper in C (folder native) serves
the orders: between an order and pid 2 of a run, no line of Python is executed.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import struct
import sys

from . import kernel, lockdown, root, workshop
from .link import Link

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN = 1 << 6, 1 << 7, 1 << 21
WARM = (
    "traceback",
    "linecache",
    "runtime",
    "runtime._run",
    "runtime._wire",
)
OF_RUNS = ("run", "wire", "ready", "reseed")
"""The members of the plan that the code of a run needs and can see. The other members have paths of the host."""
DESCRIPTORS = 512
CHANNEL = 3
VERSION = 1
"""The version of the plan and of orders."""
PLAN = struct.Struct("=2Ii4x2q16Q4I")
ROOT, PRELOADED, KEEPS_GROUPS, WITHOUT_LANDLOCK = 1, 2, 4, 8
FAILURES = {
    -2: "order: EPROTO: the helper does not fit this version, or an order was damaged; reinstall cellblock",
    -3: "the zygote has more than one thread",
}


def die_with(parent: int) -> None:
    """End this process if the process `parent` (the server) is killed. Runs detect the end of the server themselves."""
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def lowered(descriptor: int) -> int:
    """Return the descriptor with the lowest free number.

    A server with many descriptors passes on a high number, which could be that of a net namespace (SLOTS_FROM).
    """
    lowest = os.dup(descriptor)
    os.close(descriptor)
    return lowest


def warm_up(guest: tuple[str, str] | None) -> dict[str, Any]:
    """Import the modules that every run needs, so that runs inherit the imported modules. `guest` names that of the
    owner.
    """
    sys.path = ["/run/cellblock", *(entry for entry in sys.path if entry != ".")]
    for name in WARM:
        importlib.import_module(name)
    run = importlib.import_module("runtime._run")
    run.look_fresh()
    if guest:
        load_guest(guest[1])
    run.rehearse()
    freeze()
    wire = importlib.import_module("runtime._wire")
    return {"run": run, "wire": wire, "ready": wire.packed({"op": "ready"}, 0)}


def load_guest(module: str) -> None:
    try:
        importlib.import_module("runtime._guest").load(root.GUEST, module)
    except Exception as error:  # noqa: BLE001 - the owner's code
        raise kernel.SetupError(f"the guest: {type(error).__name__}: {error}") from None


def freeze() -> None:
    """Exclude all present objects from garbage collection, so that runs share the memory of these objects."""
    gc.collect()
    gc.freeze()


def make_room_for_descriptors() -> None:
    """Raise the limit on descriptors: net namespaces of runs stay open, at high numbers (SLOTS_FROM)."""
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
        from . import preloading
    plan["thread_id"] = kernel.thread_id_address()
    root.enter_own_mounts(plan)
    if kernel.clone(kernel.NEWNS) == 0:
        server.close()
        workshop.serve(room)
        os._exit(0)
    os.close(room)
    root.build(plan)
    root.check_root(plan)
    kernel.unshare(kernel.NEWUTS)
    kernel.set_hostname("sandbox")
    plan |= warm_up(plan["guest"])
    if plan["environment"]:
        preloading.step_back(server, plan, group_files)
        preloading.preload(plan)
        freeze()
        return plan | {"reseed": preloading.reseed}
    if not plan["keeps_groups"]:
        os.setgroups([])  # runs may not change their groups, so they inherit none
    lockdown.keep_capabilities(CAP_SETGID | CAP_SETUID | CAP_SYS_ADMIN)
    # CAP_SYS_ADMIN permits a filter without no_new_privs, and the zygote executes no set-uid program.
    lockdown.load_filter(bytes.fromhex(plan["base_filter"]))  # pid 1 of a run loads the rest
    return plan


# -- forking runs: native/cell.c ---------------------------------------------------------------------------------------


def packed(plan: dict[str, Any], link: int) -> bytes:
    """Return `struct plan`, followed by the filters of runs."""
    flags = {
        ROOT: plan["root"],
        PRELOADED: plan["environment"],
        KEEPS_GROUPS: plan["keeps_groups"],
        WITHOUT_LANDLOCK: plan["without_landlock"],
    }
    # A later fork inherits the hard limits, so pid 1 need not read them. RLIM_INFINITY is -1.
    ceilings = (resource.getrlimit(number)[1] & 0xFFFF_FFFF_FFFF_FFFF for number in range(16))
    filters = [bytes.fromhex(text) for text in plan["filters"]]
    return PLAN.pack(
        VERSION,
        sum(flag for flag, is_set in flags.items() if is_set),
        link,
        plan["server"],
        plan["thread_id"],
        *ceilings,
        *map(len, filters),
    ) + b"".join(filters)


def occupy_low_numbers() -> None:
    """Open /dev/null at the free numbers of streams and of the channel, so that no received descriptor has one."""
    while (number := os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)) <= CHANNEL:
        pass
    os.close(number)


def serve(server: Link, plan: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Fork runs until the server closes the link, and raise EOFError then. In pid 2 of a run, return the members of
    the plan that `begin` needs, and whether the run is prepared ahead.
    """
    kernel.ignore(kernel.SIGCHLD)  # the kernel reaps children; the server has a pidfd of each
    gc.disable()
    occupy_low_numbers()
    content = packed(plan, server.descriptor)
    of_runs = {name: plan[name] for name in OF_RUNS if name in plan}
    del plan  # here, because each run would copy the memory pages to which it returns objects
    gc.freeze()
    result = kernel.serve(content)
    if result >= 0:
        server.detach()
        return of_runs, bool(result)
    if result in FAILURES:
        raise kernel.SetupError(FAILURES[result])
    raise EOFError("the server has gone")


# -- pid 2 of a run, after its self-check ------------------------------------------------------------------------------


def begin(plan: dict[str, Any], *, ahead: bool) -> NoReturn:
    """Report that pid 2 is ready, wait for its job, and start the code."""
    run, wire = plan["run"], plan["wire"]
    try:
        gc.enable()
        root.check_run()
        if "reseed" in plan:
            plan["reseed"]()
        if ahead:  # no caller waits for a prepared run yet
            run.rehearse()
        os.write(CHANNEL, plan["ready"])
        job, args = wire.receive(CHANNEL)
        lockdown.set_cpu_time(job["cpu_seconds"])
    except (kernel.SetupError, OSError) as error:
        report(plan, error)
    except EOFError:
        os._exit(1)  # the server has closed the channel
    run.serve(CHANNEL, job, args)
    os._exit(1)  # `serve` never returns; the zygote's code must not continue here


def report(plan: dict[str, Any], error: Exception) -> NoReturn:
    plan["wire"].send(CHANNEL, {"op": "broken", "message": in_words(error)})
    os._exit(1)


def in_words(error: Exception) -> str:
    """Return the error as text, without any path of the host."""
    return f"set-up: {os.strerror(error.errno or 0)}" if isinstance(error, OSError) else str(error)


# ----------------------------------------------------------------------------------------------------------------------


def main(parent: int, control: int, room: int) -> None:
    """Serve runs. In pid 2 of a run, execute its code."""
    child = be_zygote(parent, control, room)
    # Code sees the variables of all callers. This function has no path of the host.
    del parent, control, room
    if child is not None:
        begin(child[0], ahead=child[1])


def be_zygote(parent: int, control: int, room: int) -> tuple[dict[str, Any], bool] | None:
    """Act as a zygote until the server closes the link. In pid 2 of a run, return the result of `serve`."""
    die_with(parent)
    os.environ.pop("MALLOC_ARENA_MAX")  # for this process only; the C library has read it
    os.umask(0o022)  # another uid must be able to enter the folders created here
    server = Link(lowered(control))
    try:
        return serve(server, prepare(server, room) | {"server": parent})
    except (EOFError, ConnectionError):
        pass  # the server has closed the link
    except kernel.SetupError as error:
        server.say(message=str(error))
    except OSError as error:
        server.say(message=f"set-up: {os.strerror(error.errno or 0)}")
    return None
