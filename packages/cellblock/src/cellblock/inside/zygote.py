"""The process from which every run is forked. It is built once, preloaded, and has no threads, secrets or data of a
run.

The zygote talks to the server over one socket (`link`). It first receives the plan. For each run, it receives an order
with the parameters `limits`, `affinity`, `port` and `shares_memory`, and the descriptors of the run's control socket,
channel, log and cgroup files (`forks`). It sends `ready` once, and for each run the pidfd. A zygote with preloaded
packages (`preloading`) sends no descriptors.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import sys

from . import calls, forks, kernel, lockdown, root, workshop
from .link import Link

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
DESCRIPTORS = 512


def die_with(parent: int) -> None:
    """End this process if the process `parent` (the server) is killed. Runs detect the end of the server themselves."""
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


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
    if not plan["keeps_groups"]:
        os.setgroups([])  # runs may not change their groups, so they inherit none
    lockdown.keep_capabilities(CAP_SETGID | CAP_SETUID | CAP_SYS_ADMIN)
    return plan


def main(parent: int, control: int, room: int) -> None:
    die_with(parent)
    os.umask(0o022)  # another uid must be able to enter the folders created here
    server = Link(control)
    try:
        forks.serve(server, prepare(server, room) | {"server": parent})
    except (EOFError, ConnectionError):
        return  # the server has closed the link
    except kernel.SetupError as error:
        server.say(message=str(error))
    except OSError as error:
        server.say(message=f"set-up: {os.strerror(error.errno or 0)}")
