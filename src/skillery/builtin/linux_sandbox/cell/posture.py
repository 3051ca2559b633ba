"""Looking at ourselves from inside, before the first byte of user code: what was asked for must be what is there."""

# ruff: noqa: PTH110 - importing pathlib would cost every run milliseconds
from __future__ import annotations

import ctypes
import errno
import os
import select
import sys

from . import kernel

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

UID = 1000
UNMAPPED = 65534
NO_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
EXPECTED_STATUS = {"NoNewPrivs": "1", "Seccomp": "2"}
SYS_UNSHARE = 272 if kernel.X86 else 97
SYS_PRCTL = 157 if kernel.X86 else 167
SYS_CAPGET = 125 if kernel.X86 else 90
PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS = 21, 39


def status() -> dict[str, str]:
    descriptor = os.open("/proc/self/status", os.O_RDONLY)  # not open(): its decoder would have to be imported
    content = os.read(descriptor, 1 << 16).decode()
    os.close(descriptor)
    pairs = [line.partition(":") for line in content.splitlines()]
    return {name: value.strip() for name, _, value in pairs}


def status_faults() -> list[str]:
    seen = status()
    faults = [f"{name} is {seen.get(name)}" for name in NO_CAPABILITIES if int(seen.get(name, "1"), 16)]
    return faults + [
        f"{name} is {seen.get(name)}" for name, wanted in EXPECTED_STATUS.items() if seen.get(name) != wanted
    ]


def syscall_faults() -> list[str]:
    """The same questions where there is no /proc to read the answers from."""
    sets = ctypes.create_string_buffer(24)
    header = ctypes.create_string_buffer((0x20080522).to_bytes(4, sys.byteorder), 8)
    kernel.checked("capget", kernel.syscall(SYS_CAPGET, header, sets))
    faults = ["capabilities are left"] if any(sets.raw) else []
    for name, option, wanted in (("Seccomp", PR_GET_SECCOMP, 2), ("NoNewPrivs", PR_GET_NO_NEW_PRIVS, 1)):
        found = kernel.syscall(SYS_PRCTL, option, 0, 0, 0, 0)
        faults += [f"{name} is {found}"] if found != wanted else []
    return faults


def opened(path: str, flags: int) -> bool:
    try:
        os.close(os.open(path, flags, 0o600))
    except OSError:
        return False
    return True


def faults(expected: dict[str, Any], keep: set[int], landlock_abi: int) -> list[str]:
    """Everything that is not as it must be; empty in a sound sandbox."""
    found = status_faults() if os.path.exists("/proc/self/status") else syscall_faults()
    if os.getresuid() != (UID,) * 3 or os.getresgid() != (UID,) * 3:
        found.append(f"uids are {os.getresuid()}, gids {os.getresgid()}")
    # An ordinary user cannot give up groups in a user namespace; they arrive unmapped and open nothing inside.
    if set(os.getgroups()) - ({UNMAPPED, UID} if expected["keeps_groups"] else set()):
        found.append("supplementary groups are left")
    if os.getpid() == 1:
        found.append("the code would be pid 1")
    if landlock_abi == 0 and not expected["without_landlock"]:
        found.append("Landlock is missing")
    if opened("/usr/.posture", os.O_WRONLY | os.O_CREAT) or opened("/etc/passwd", os.O_RDONLY):
        found.append("a forbidden file could be opened")
    if kernel.syscall(SYS_UNSHARE, kernel.NEWUSER) == 0 or ctypes.get_errno() != errno.EPERM:
        found.append("a forbidden system call was let through")
    surplus = sorted(open_descriptors() - keep)
    return [*found, f"descriptors {surplus} are open"] if surplus else found


def open_descriptors() -> set[int]:
    """Those below 256, asked of the kernel in one call."""
    poller = select.poll()
    for number in range(256):
        poller.register(number, 0)
    return set(range(256)) - {number for number, event in poller.poll(0) if event & select.POLLNVAL}
