"""The check of a process by itself, before the first byte of user code: its state must be as expected.

The sandbox `linux` has its own version in C.
"""

from __future__ import annotations

import errno
import os
import select
import sys

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

    from cellblock.parts import kernel
else:
    from inside import kernel

UID = 1000
UNMAPPED = 65534
EXPECTED = (
    *((name, "0" * 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
    ("NoNewPrivs", "1"),
    ("Seccomp", "2"),
)
EXPECTED_LINES = [f"\n{name}:\t{value}\n".encode() for name, value in EXPECTED]
SYS_FCNTL, F_GETFD = 72 if kernel.X86 else 25, 1
SYS_CAPGET = 125 if kernel.X86 else 90
PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS = 21, 39


def status_faults(status: bytes) -> list[str]:
    return [f"not {line.decode().strip()}" for line in EXPECTED_LINES if line not in status]


def own_status() -> bytes:
    """Return /proc/self/status; empty without a /proc."""
    try:
        descriptor = os.open("/proc/self/status", os.O_RDONLY)  # not open(), which imports a decoder
    except FileNotFoundError:
        return b""
    content = os.read(descriptor, 1 << 16)
    os.close(descriptor)
    return content


def syscall_faults() -> list[str]:
    """Return all deviations that system calls show. Used in a run without /proc."""
    header, sets = bytearray((0x20080522).to_bytes(4, sys.byteorder) + bytes(4)), bytearray(24)
    kernel.call("capget", SYS_CAPGET, header, sets)
    faults = ["capabilities are left"] if any(sets) else []
    for name, option, wanted in (("Seccomp", PR_GET_SECCOMP, 2), ("NoNewPrivs", PR_GET_NO_NEW_PRIVS, 1)):
        value = kernel.syscall(kernel.SYS_PRCTL, option, 0, 0, 0, 0)
        faults += [f"{name} is {value}"] if value != wanted else []
    return faults


def can_open(path: bytes, flags: int) -> bool:
    """Return whether a file can be opened. The function uses the system call, because an exception would slow down
    each run.
    """
    descriptor = kernel.syscall(kernel.SYS_OPENAT, kernel.AT_FDCWD, path, flags, 0o600)
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0


def faults(expected: dict[str, Any], keep: set[int], landlock_abi: int) -> list[str]:
    """Return all deviations from the expected state, or [] if the process is locked as expected."""
    status = own_status()
    deviations = status_faults(status) if status else syscall_faults()
    if os.getresuid() != (UID,) * 3 or os.getresgid() != (UID,) * 3:
        deviations.append(f"uids are {os.getresuid()}, gids {os.getresgid()}")
    # An ordinary user cannot drop groups in a user namespace; they arrive unmapped and open nothing inside.
    if set(os.getgroups()) - ({UNMAPPED, UID} if expected["keeps_groups"] else set()):
        deviations.append("supplementary groups are left")
    if os.getpid() == 1:
        deviations.append("the code would be pid 1")
    if landlock_abi == 0 and not expected["without_landlock"]:
        deviations.append("Landlock is missing")
    if can_open(b"/usr/.posture", os.O_WRONLY | os.O_CREAT) or can_open(b"/etc/shadow", os.O_PATH):
        deviations.append("a forbidden file could be opened")
    if kernel.syscall(kernel.SYS_UNSHARE, kernel.NEWUSER) != -errno.EPERM:
        deviations.append("a forbidden system call was let through")
    surplus = open_descriptors() - keep
    return [*deviations, f"descriptors {sorted(surplus)} are open"] if surplus else deviations


def open_descriptors() -> set[int]:
    """Return the open descriptors, from /proc or, without /proc, by testing each number below 256."""
    try:
        listed = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - as above
    except FileNotFoundError:
        return polled_descriptors()
    return {
        number for number in listed if kernel.syscall(SYS_FCNTL, number, F_GETFD) >= 0
    }  # the listing includes its own descriptor


def polled_descriptors() -> set[int]:
    poller = select.poll()
    for number in range(256):
        poller.register(number, 0)
    return set(range(256)) - {number for number, event in poller.poll(0) if event & select.POLLNVAL}
