"""The limits of the process, and the last steps of its lockdown. The sandbox `linux` has its own version in C."""

# ruff: noqa: S108 - the paths are those of the sandbox
from __future__ import annotations

import resource

from . import landlock

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

    from cellblock.parts import kernel, lockdown
else:
    from inside import kernel, lockdown

WRITABLE = ["/workspace", "/tmp", "/dev/shm"]


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
        lockdown.hold(name, value, limits["address_ceiling"] if name == resource.RLIMIT_AS else value)


def lock(program: bytes, keep: set[int], ruleset: int) -> None:
    """Restrict this process and its future children to what a run may do. Call `lockdown.close_bounds` before.

    Close all descriptors except `keep`.
    """
    lockdown.keep_capabilities(0)
    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.close_others({*keep, ruleset} if ruleset >= 0 else keep)
    landlock.enforce(ruleset)
    lockdown.load_filter(program)
