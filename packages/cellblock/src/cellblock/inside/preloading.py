"""A zygote of one environment. It imports packages of that environment, and runs are forked from it.

A package may execute any code during its import, so the zygote gives up its rights before:

- The process that built the root only waits.
- A keeper is pid 1 of new namespaces. It ends when its link to the server closes, and then the kernel kills all other
  processes in the namespaces.
- A child of the keeper becomes another host uid (if the server is root) in a user namespace without other ids. It loses
  the network and the host's /proc, and gets a smaller set of system calls. Only this child imports the packages and
  forks runs, like the zygote of an ordinary user's server. It sends no descriptors to the server: each run sends a
  message to the server itself.
"""

# ruff: noqa: PTH208, S108 - importing pathlib costs milliseconds; the paths are those of the sandbox
from __future__ import annotations

import importlib
import os
import resource
import select
import signal
import sys

from . import kernel, lockdown, root

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .link import Link

NAMESPACES = kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP
PROC = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
SCRATCH = "mode=1777,size=64m,nr_inodes=4096"
CAP_SYS_ADMIN = 1 << 21
"""The only capability of the zygote, valid in its own user namespace. It creates the net namespaces of runs."""
ONE_THREAD_EACH = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
"""Environment variables that stop libraries from starting threads during their import."""
MOST_SAID = 300


def step_back(server: Link, plan: dict[str, Any], group_files: list[int]) -> None:
    """Fork a keeper and a child without rights. Return only in the child, which may then import packages."""
    for file in group_files:
        os.write(file, b"0")
        os.close(file)
    keeper = kernel.clone(NAMESPACES)
    if keeper > 0:
        server.close()
        os.waitpid(keeper, 0)
        os._exit(0)
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 0)
    mount_own()
    child = fork_with_another_number()
    if child > 0:
        keep_house(server, child)
    drop_rights(server, plan)


def mount_own() -> None:
    """Replace the host's /proc with a new one, and mount a new /workspace and /tmp.

    The host's /proc is unmounted, not covered: a process with mount rights could remove a mount on top.
    """
    kernel.mount("proc", "/tmp", "proc", PROC, "subset=pid")
    kernel.detach("/proc")
    kernel.mount("/tmp", "/proc", None, kernel.MS_MOVE)
    for folder in ("/workspace", "/tmp"):
        kernel.mount("tmpfs", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, SCRATCH)


def fork_with_another_number() -> int:
    """Fork a child whose pid is not 2. Return as os.fork does.

    The code of each run has the pid 2. Libraries that detect a fork by a changed pid must see a different pid.
    """
    first = os.fork()
    if first == 0:
        os._exit(0)
    os.waitpid(first, 0)
    return os.fork()


def keep_house(server: Link, child: int) -> NoReturn:
    """Wait until the server closes the link, or the child has ended. No process inside can kill or read the keeper."""
    # First: an ended child can be opened only until the kernel reaps it.
    ends = os.pidfd_open(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    kernel.ignore(kernel.SIGCHLD)
    lockdown.drop_capabilities()
    kernel.close_others({0, 1, 2, server.descriptor, ends})
    poller = select.poll()
    poller.register(server.descriptor, 0)  # reports only that it closes
    poller.register(ends, select.POLLIN)
    poller.poll()
    os._exit(0)


def drop_rights(server: Link, plan: dict[str, Any]) -> None:
    own = plan["environment"]
    if own["uid"] is not None:
        kernel.call("groups", kernel.SYS_SETGROUPS, 0, 0)
        kernel.call("gid", kernel.SYS_SETRESGID, own["uid"], own["uid"], own["uid"])
        kernel.call("uid", kernel.SYS_SETRESUID, own["uid"], own["uid"], own["uid"])
    user, group = os.geteuid(), os.getegid()
    kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)  # otherwise it could not write its own maps
    kernel.unshare(kernel.NEWUSER)
    root.write_own_maps(user, group)
    kernel.prctl("dumpable", kernel.PR_SET_DUMPABLE, 1)
    for stream in (0, 1, 2):
        os.dup2(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), stream)
    kernel.close_others({0, 1, 2, server.descriptor})
    lockdown.close_bounds()
    lockdown.keep_capabilities(CAP_SYS_ADMIN)
    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    if own["processes"]:
        resource.setrlimit(resource.RLIMIT_NPROC, (own["processes"], own["processes"]))
    os.setsid()  # some kernels share CPU time by session: keep the server's share
    lockdown.load_filter(bytes.fromhex(own["filter"]))
    for forgotten in ("runtime", "guest", "hidden", "private", "prefixes"):  # hide paths of the host
        del plan[forgotten]
    plan |= {"root": False, "keeps_groups": True}  # like an ordinary user's zygote from now on
    plan["environment"] = {name: own[name] for name in ("lock", "preload", "address_bytes")}


def preload(plan: dict[str, Any]) -> None:
    """Import the modules of the plan. Raise SetupError with the reason for the admin who listed the modules."""
    own = plan["environment"]
    streams, argv = (sys.stdout, sys.stderr), [*sys.argv]
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if own["address_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (own["address_bytes"], hard))
    added = {name: "1" for name in ONE_THREAD_EACH if name not in os.environ}
    os.environ.update(added)
    os.chdir("/workspace")
    sys.path.append(f"/packages/{own['lock']}")
    for name in own["preload"]:
        import_one(name)
    os.chdir("/")
    for name in added:
        os.environ.pop(name, None)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    sys.stdout, sys.stderr = streams
    sys.argv[:] = argv
    check_alone()
    check_memory()


def import_one(name: str) -> None:
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - any exception means a failed import
        raise kernel.SetupError(f"import {name}: {type(error).__name__}: {error}"[:MOST_SAID]) from None


def check_alone() -> None:
    """Raise SetupError if another thread or process runs.

    A fork copies only one thread, but the locks of all threads. Other processes could observe all runs.
    """
    others = [name for name in os.listdir("/proc") if name.isdecimal() and int(name) not in {1, os.getpid()}]
    if len(os.listdir("/proc/self/task")) > 1:
        raise kernel.SetupError("the import left threads running")
    if others:
        raise kernel.SetupError("the import left processes running")


def check_memory() -> None:
    """Raise SetupError if the import left memory that a fork does not copy: all runs would read and write it."""
    with open("/proc/self/maps", "rb") as file:  # noqa: PTH123
        for line in file:
            _, rights, _, _, _, *path = line.split(None, 5)
            if rights.endswith(b"s") and not is_read_only(path[0].rstrip(b"\n") if path else b""):
                raise kernel.SetupError("the import left memory that processes share")


def is_read_only(path: bytes) -> bool:
    """Return whether the file is on a read-only mount. Memory without a file has a path that does not exist."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def reseed() -> None:
    """Reseed the global generator of numpy, if numpy is imported. `random` reseeds its own generator after a fork."""
    numbers = sys.modules.get("numpy.random")
    if numbers is None:
        return
    try:
        numbers.seed()
    except Exception as error:  # noqa: BLE001 - foreign code
        raise kernel.SetupError(f"numpy.random.seed: {type(error).__name__}") from None
