"""Tests of this host, for the probes. Each function checks one property by using it, in a separate process.

`python -c "…; host_tests.main(name)"` reads the plan from stdin, prints one line with the finding, and exits with 1 if
the property is missing.
"""

# ruff: noqa: T201, PTH102, PTH108, PTH123, PTH211, S108, SIM115 - a program that prints; no pathlib, as in all modules here
from __future__ import annotations

import errno
import json
import os
import resource
import socket
import sys

from . import kernel, lockdown, outlet, root

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Plan = dict[str, Any]
    Try = Callable[[Plan], str]


NAMESPACES = (
    kernel.NEWUSER | kernel.NEWNS | kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET | kernel.NEWCGROUP
)
PROC = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC


def expect_errno(step: str, wanted: int, act: Callable[[], object]) -> None:
    """Call `act`, and raise an exception unless the kernel refuses it with the errno `wanted`."""
    try:
        act()
    except OSError as error:
        if error.errno == wanted:
            return
        raise kernel.failed(step, error.errno or 0) from None
    raise kernel.SetupError(f"{step}: it was not refused")


def in_child(flags: int, act: Callable[[], None]) -> None:
    """Run `act` as pid 1 of new namespaces."""
    child = kernel.clone(flags)
    if child == 0:
        try:
            act()
        except (kernel.SetupError, OSError) as error:
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise kernel.SetupError("see above")


def user_namespaces(plan: Plan) -> str:
    kernel.unshare(kernel.NEWUSER)
    return "can be made"


def uid_mapping(plan: Plan) -> str:
    """Create a child in a new user namespace, and map its uids from the parent, as for a run. Return the finding."""
    if not plan["root"]:
        root.enter_own_mounts(plan)
    reader, writer = os.pipe()
    child = kernel.clone(kernel.NEWUSER)
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent ends: the kernel refuses the uids of an ended process
        os._exit(0)
    outside = plan["uid"] if plan["root"] else 1000
    root.write_once(f"/proc/{child}/uid_map", f"1000 {outside} 1", "write uid_map")
    return f"runs have host uids from {plan['uid']} on" if plan["root"] else "runs have the uid of the server"


def mounts(plan: Plan) -> str:
    root.enter_own_mounts(plan)
    kernel.mount("t", "/usr", "tmpfs", kernel.MS_NOSUID, "size=1m")
    kernel.set_mount_attributes("/usr", root.FROZEN, recursive=True)
    expect_errno("a read-only mount", errno.EROFS, lambda: open("/usr/x", "w", encoding="ascii"))
    return "tmpfs, binds and read-only attributes work"


def new_root(plan: Plan) -> str:
    root.enter_own_mounts(plan)
    root.build(plan)
    return "pivot_root works, and the root of the host is unmounted"


def disk_quota(plan: Plan) -> str:
    root.enter_own_mounts(plan)
    kernel.mount("t", "/usr", "tmpfs", kernel.MS_NOSUID, "size=64k,nr_inodes=4")

    def fill() -> None:
        with open("/usr/x", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def litter() -> None:
        for number in range(8):
            os.symlink("x", f"/usr/{number}")

    expect_errno("the size of a tmpfs", errno.ENOSPC, fill)
    os.unlink("/usr/x")
    expect_errno("the files of a tmpfs", errno.ENOSPC, litter)
    return "tmpfs limits the size and the number of files"


def namespaces(plan: Plan) -> str:
    if plan["root"]:  # as for a run: some hosts restrict the user namespaces of processes without capabilities
        os.setresgid(-1, plan["uid"], -1)
        os.setresuid(-1, plan["uid"], -1)
    else:
        root.enter_own_mounts(plan)
    in_child(NAMESPACES, lambda: None)
    return "user, mount, pid, ipc, uts, net and cgroup"


def own_proc(plan: Plan) -> str:
    root.enter_own_mounts(plan)
    root.build(plan)
    flags = kernel.NEWUSER | kernel.NEWNS | kernel.NEWPID
    in_child(flags, lambda: kernel.mount("proc", "/proc", "proc", PROC, "hidepid=2,subset=pid"))
    return "each run can have its own /proc"


def capabilities(plan: Plan) -> str:
    if not plan["root"]:
        root.enter_own_mounts(plan)
    in_child(kernel.NEWUSER, lockdown.drop_capabilities)
    return "a run can drop all capabilities permanently"


def no_new_privs(plan: Plan) -> str:
    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    return "setuid programs gain no privileges"


def system_calls(plan: Plan) -> str:
    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    for text in (plan["base_filter"], plan["filters"][0]):
        lockdown.load_filter(bytes.fromhex(text))
    if kernel.syscall(kernel.SYS_UNSHARE, kernel.NEWUSER) == 0:
        raise kernel.SetupError("seccomp: a forbidden call was let through")
    return "the allow-list filters system calls"


def files(plan: Plan) -> str:
    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    version = kernel.landlock_version()
    if version == 0:
        raise kernel.SetupError("the kernel has none")
    rights = ((1 << 13) - 1).to_bytes(8, sys.byteorder)  # all of version 1
    ruleset = kernel.call("landlock", kernel.SYS_LANDLOCK_CREATE, rights, len(rights), 0)
    kernel.call("landlock_restrict_self", kernel.SYS_LANDLOCK_RESTRICT, ruleset, 0)
    expect_errno("Landlock", errno.EACCES, lambda: os.mkdir("/tmp/cellblock-landlock"))
    return f"Landlock version {version} works"


def process_limits(plan: Plan) -> str:
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    expect_errno("RLIMIT_NOFILE", errno.EMFILE, lambda: [os.dup(0) for _ in range(20)])
    lockdown.set_cpu_time(10)
    return "the limits of a process work"


def open_network(plan: Plan) -> str:
    if not plan["root"]:
        root.enter_own_mounts(plan)

    def hand_over() -> None:
        host, run = socket.socketpair()
        with host, run:
            outlet.hand_over_listener(run.fileno(), 3128)

    in_child(kernel.NEWUSER | kernel.NEWNET, hand_over)
    return "a run with a network list can use the proxy"


def own_servers(plan: Plan) -> str:
    if not plan["root"]:
        root.enter_own_mounts(plan)

    def set_up() -> None:
        for path, text in outlet.SETTINGS.items():
            root.write_once(path, text, f"write {path}")

    in_child(kernel.NEWUSER | kernel.NEWNET, set_up)
    return "programs of a run can have servers on 127.0.0.1"


TRIES: dict[str, Try] = {
    "user namespaces": user_namespaces,
    "uid mapping": uid_mapping,
    "mounts": mounts,
    "own root": new_root,
    "disk quota": disk_quota,
    "namespaces": namespaces,
    "own /proc": own_proc,
    "capabilities": capabilities,
    "no_new_privs": no_new_privs,
    "seccomp": system_calls,
    "landlock": files,
    "rlimits": process_limits,
    "way to the network": open_network,
    "own servers": own_servers,
}


def main(name: str) -> None:
    plan = json.load(sys.stdin)
    try:
        detail = TRIES[name](plan)
    except kernel.SetupError as error:
        detail = ""
        print(error)
    except OSError as error:
        detail = ""
        print(os.strerror(error.errno or 0))
    print(detail, flush=True)
    os._exit(0 if detail else 1)  # skip the cleanup, which the locks may prevent
