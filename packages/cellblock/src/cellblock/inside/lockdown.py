"""The lockdown in Python, for zygotes and for backends with another isolation. A failed step ends the process.

Pid 1 of a run locks itself in with its own version, in native/cell.c.
"""

from __future__ import annotations

import array
import resource
import struct

from . import kernel

# No uid gives capabilities, no change of uid changes them, and none is ambient: all of it locked.
SECUREBITS = 0xEF
LAST_CAPABILITY = 63
SECCOMP_SET_MODE_FILTER = 1
LIMIT = struct.Struct("=QQ")


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
