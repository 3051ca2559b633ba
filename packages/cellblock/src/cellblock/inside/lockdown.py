"""The lockdown in Python, for zygotes and for backends with another isolation. A failed step ends the process.

Pid 1 of a run locks itself in with its own version, in native/cell.c.
"""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import array
import resource
import struct

from . import kernel, landlock

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

WRITABLE = ["/workspace", "/tmp", "/dev/shm"]
# No uid gives capabilities, no change of uid changes them, and none is ambient: all of it locked.
SECUREBITS = 0xEF
LAST_CAPABILITY = 63
CAP_KILL = 1 << 5
SECCOMP_SET_MODE_FILTER = 1
LIMIT = struct.Struct("=QQ")


def set_limits(limits: dict[str, Any]) -> None:
    """Set the rlimits of one process. The cgroup or the watchdog of the host limits all processes together.

    The process cannot raise a limit again, except RLIMIT_AS up to its hard limit. The runtime lowers this hard limit
    before any user code runs, when it knows whether the code reserves more address space than it uses.
    """
    wanted = {
        # 1 instead of 0: a kernel that pipes core dumps to a host program ignores 0, and no dump fits into 1.
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_NPROC: limits["processes"] + 1,
        resource.RLIMIT_NOFILE: limits["descriptors"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_STACK: 8 << 20,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_AS: limits["address_bytes"],
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }
    for name, value in wanted.items():
        hold(name, value, limits["address_ceiling"] if name == resource.RLIMIT_AS else value)


def set_cpu_time(seconds: int) -> None:
    """Limit the CPU seconds of each process. The limit is known only when the job arrives."""
    hold(resource.RLIMIT_CPU, seconds, seconds)


def hold(name: int, value: int, most: int) -> None:
    """Set a soft limit to `value` and its hard limit to `most`, or to the current hard limit if that is lower."""
    _, ceiling = resource.getrlimit(name)  # a later fork inherits these
    held, most = (wish if ceiling == resource.RLIM_INFINITY else min(wish, ceiling) for wish in (value, most))
    kernel.call("limits", kernel.SYS_PRLIMIT, 0, name, LIMIT.pack(held, most), 0)


def close_bounds() -> None:
    """Make it impossible to gain a capability. The present capabilities stay until `keep_capabilities`."""
    kernel.prctl("securebits", kernel.PR_SET_SECUREBITS, SECUREBITS)
    kernel.prctl("ambient capabilities", kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(LAST_CAPABILITY + 1):
        if kernel.syscall(kernel.SYS_PRCTL, kernel.PR_CAPBSET_READ, capability, 0, 0, 0) < 0:
            break  # beyond the kernel's last capability
        kernel.prctl("bounding set", kernel.PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    close_bounds()
    keep_capabilities(0)


def keep_capabilities(kept: int) -> None:
    """Drop all capabilities except those in `kept`, a bit set of capabilities below 32."""
    header, sets = struct.pack("=2I", 0x20080522, 0), struct.pack("=6I", kept, kept, 0, 0, 0, 0)
    kernel.call("capset", kernel.SYS_CAPSET, header, sets)


def load_filter(program: bytes) -> None:
    instructions = array.array("B", program)
    wanted = struct.pack("HP", len(program) // 8, instructions.buffer_info()[0])  # struct sock_fprog
    kernel.call("seccomp", kernel.SYS_SECCOMP, SECCOMP_SET_MODE_FILTER, 0, wanted)


def lock(program: bytes, keep: set[int] | None, ruleset: int) -> None:
    """Restrict this process and its future children to what a run may do. Call `close_bounds` before.

    Close all descriptors except `keep`. None means that they are closed already.
    """
    keep_capabilities(0)
    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    if keep is not None:
        kernel.close_others({*keep, ruleset} if ruleset >= 0 else keep)
    landlock.enforce(ruleset)
    load_filter(program)
