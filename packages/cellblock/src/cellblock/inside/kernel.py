"""System calls that the standard library does not have, through the helper in C. Each function raises SetupError."""

from __future__ import annotations

import _thread
import errno
import os
import struct
import sys

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from typing import NoReturn

X86 = os.uname().machine == "x86_64"
SYS_CLONE, SYS_UNSHARE, SYS_SETNS = (56, 272, 308) if X86 else (220, 97, 268)
SYS_MOUNT, SYS_UMOUNT = (165, 166) if X86 else (40, 39)
SYS_PIVOT_ROOT = 155 if X86 else 41
SYS_PRCTL = 157 if X86 else 167
SYS_CAPSET = 126 if X86 else 91
SYS_SECCOMP = 317 if X86 else 277
SYS_PRLIMIT = 302 if X86 else 261
SYS_SETGROUPS = 116 if X86 else 159
SYS_SETRESGID, SYS_SETRESUID = (119, 117) if X86 else (149, 147)
SYS_SETHOSTNAME = 170 if X86 else 161
SYS_SIGACTION = 13 if X86 else 134
SYS_OPENAT = 257 if X86 else 56
SYS_CLOSE_RANGE, SYS_MOUNT_SETATTR = 436, 442
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
SIGKILL, SIGCHLD = 9, 17

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, 0o2000000
MOVE_MOUNT_F_EMPTY_PATH = 4

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 28, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
PR_CAPBSET_READ, PR_GET_TID_ADDRESS = 23, 40

MISSING = f"the helper for {os.uname().machine} was not built"
REMEDY = "reinstall with a C compiler (gcc or clang)"


class SetupError(Exception):
    """Raised if a set-up step fails. The message names the step and the errno, never a path of the host."""


try:
    from . import _cell

    serve, syscall = _cell.serve, _cell.syscall
    IS_BUILT = True
except ImportError:
    IS_BUILT = False

    def _missing(*_: object) -> NoReturn:
        raise SetupError(f"{MISSING}: {REMEDY}")

    serve = syscall = _missing


def failed(step: str, number: int) -> SetupError:
    return SetupError(f"{step}: {errno.errorcode.get(number, number)}")


def checked(step: str, result: int) -> int:
    """Return the result of a system call. Raise SetupError if the result is minus an errno."""
    if result < 0:
        raise failed(step, -result)
    return result


def call(step: str, number: int, *arguments: int | bytes | bytearray) -> int:
    """Make one set-up step, and return its result."""
    return checked(step, syscall(number, *arguments))


def unshare(flags: int) -> None:
    call("unshare", SYS_UNSHARE, flags)


def set_namespace(descriptor: int, kind: int) -> None:
    call("setns", SYS_SETNS, descriptor, kind)


def clone(flags: int) -> int:
    """Fork into new namespaces, like os.fork(): return 0 in the child, and the pid of the child in the parent.

    The caller must have only one thread.
    """
    return call("new namespaces", SYS_CLONE, flags | SIGCHLD)


def ignore(number: int) -> None:
    """Ignore a signal with a system call. The interpreter still reports the default action."""
    call("signal", SYS_SIGACTION, number, (1).to_bytes(8, sys.byteorder) + bytes(24), 0, 8)


def clone_tree(path: str) -> int:
    """Return a descriptor of a detached copy of the mount at `path` and all mounts below it."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    return call("open_tree", SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)


def attach_tree(tree: int, target: str) -> None:
    """Mount the result of `clone_tree` in the mount table of this process. A tree can be mounted only once."""
    call(f"mount {target}", SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [os.fsencode(text) if text is not None else 0 for text in (source, target, kind)]
    call(f"mount {kind or 'bind'} {target}", SYS_MOUNT, *encoded, flags, os.fsencode(options) or 0)


def set_hostname(name: str) -> None:
    call("sethostname", SYS_SETHOSTNAME, os.fsencode(name), len(name))


def detach(target: str) -> None:
    call(f"umount {target}", SYS_UMOUNT, os.fsencode(target), MNT_DETACH)


def pivot_root(new_root: str, put_old: str) -> None:
    call("pivot_root", SYS_PIVOT_ROOT, os.fsencode(new_root), os.fsencode(put_old))


def mount_attributes(attributes: int, namespace: int = 0) -> bytes:
    """Return `struct mount_attr`: attributes to add, and a descriptor of the user namespace of an id-mapped mount."""
    return struct.pack("=4Q", attributes, 0, 0, namespace)


def set_mount_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes to the mount at `target`; with `recursive`, also to all mounts below it. Needs Linux 5.12."""
    wanted, flags = mount_attributes(attributes), AT_RECURSIVE if recursive else 0
    call(f"mount_setattr {target}", SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), flags, wanted, len(wanted))


def set_tree_attributes(tree: int, attributes: int) -> None:
    """Add attributes to all mounts of a detached tree, for example of `clone_tree`."""
    wanted = mount_attributes(attributes)
    call("mount_setattr", SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, wanted, len(wanted))


def prctl(step: str, option: int, value: int = 0, third: int = 0) -> None:
    call(step, SYS_PRCTL, option, value, third, 0, 0)


def landlock_version() -> int:
    """Return the Landlock version of this kernel; 0 without Landlock."""
    return max(0, syscall(SYS_LANDLOCK_CREATE, 0, 0, 1))


def close_others(keep: set[int]) -> None:
    """Close all descriptors except those in `keep`."""
    first = 0
    for descriptor in sorted(keep):
        if descriptor > first:
            call("close_range", SYS_CLOSE_RANGE, first, descriptor - 1, 0)
        first = descriptor + 1
    call("close_range", SYS_CLOSE_RANGE, first, 0xFFFFFFFF, 0)


def thread_id_address() -> int:
    """Return the address where the C library keeps the id of this thread.

    The C library uses this id when the process signals itself. After a fork without the C library, the id is right only
    if the kernel writes it to this address. Raise SetupError if the address cannot be found.
    """
    known, own = bytearray(8), os.getpid().to_bytes(4, sys.byteorder)
    syscall(SYS_PRCTL, PR_GET_TID_ADDRESS, known, 0, 0, 0)
    address = int.from_bytes(known, sys.byteorder)  # 0 if the kernel does not know it
    start, length = (address, 4) if address else (_thread.get_ident(), 2048)  # the thread's data of the C library
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    content = os.pread(memory, length, start)
    os.close(memory)
    places = [offset for offset in range(0, len(content), 4) if content[offset : offset + 4] == own]
    if len(places) != 1:
        raise SetupError("the C library's record of the thread is not to be found")
    return start + places[0]
