"""The system calls that the standard library lacks, each a thin function that raises SetupError."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
# Keeps the interpreter's lock during the call, as os.fork does: a clone must not start with the lock in the air.
_libc_locked = ctypes.PyDLL(None, use_errno=True)

X86 = os.uname().machine == "x86_64"
SYS_CLONE = 56 if X86 else 220
SYS_PIVOT_ROOT = 155 if X86 else 41
SYS_CAPSET = 126 if X86 else 91
SYS_SECCOMP = 317 if X86 else 277
SYS_SIGNALFD = 289 if X86 else 74
SYS_CLOSE_RANGE, SYS_MOUNT_SETATTR = 436, 442
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
SIGCHLD = 17
CLONE_PIDFD = 0x1000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, 0o2000000
MOVE_MOUNT_F_EMPTY_PATH = 4

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 28, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4


class SetupError(Exception):
    """A step of the set-up failed. The message names the step and the errno, never a path of the host."""


def failed(step: str, number: int) -> SetupError:
    return SetupError(f"{step}: {errno.errorcode.get(number, number)}")


def checked(step: str, result: int) -> int:
    if result < 0:
        raise failed(step, ctypes.get_errno())
    return result


Argument = int | bytes | ctypes.Array[ctypes.c_char] | ctypes.Structure | None


def _converted(argument: Argument) -> object:
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    if isinstance(argument, bytes) or argument is None:
        return ctypes.c_char_p(argument)
    return ctypes.byref(argument)


def syscall(number: int, *arguments: Argument) -> int:
    """The raw call: its result, or -1 with errno in `ctypes.get_errno()`."""
    return int(_libc.syscall(ctypes.c_long(number), *(_converted(argument) for argument in arguments)))


def unshare(flags: int) -> None:
    checked("unshare", _libc.unshare(ctypes.c_int(flags)))


def set_namespace(descriptor: int, kind: int) -> None:
    checked("setns", _libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)))


def clone(flags: int) -> int:
    """As os.fork(), into new namespaces: 0 in the child, its pid in the parent. Single-threaded callers only."""
    return clone_watched(flags, watched=False)[0]


def clone_watched(flags: int, *, watched: bool = True) -> tuple[int, int]:
    """As clone: the pid, and in the parent a pidfd of the child (-1 where it is not to be `watched`)."""
    pidfd = ctypes.c_int(-1)
    wanted = flags | SIGCHLD | (CLONE_PIDFD if watched else 0)
    place = ctypes.byref(pidfd) if watched else None
    zero = ctypes.c_long(0)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_libc_locked.syscall(ctypes.c_long(SYS_CLONE), ctypes.c_long(wanted), zero, place, zero, zero))
    number = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0, -1
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise failed("new namespaces", number)
    return pid, pidfd.value


def signal_descriptor(number: int) -> int:
    """Readable when this signal waits, which must be blocked. It stays open over an exec."""
    return checked("signalfd", syscall(SYS_SIGNALFD, -1, (1 << (number - 1)).to_bytes(8, sys.byteorder), 8, 0))


def clone_tree(path: str) -> int:
    """A descriptor of a copy of what is mounted at `path` and below, not mounted anywhere itself."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    return checked("open_tree", syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags))


def attach_tree(tree: int, target: str) -> None:
    """Mount what `clone_tree` gave, in this process's own mount table. It can be mounted once."""
    moved = syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    checked(f"mount {target}", moved)
    os.close(tree)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [os.fsencode(text) if text is not None else None for text in (source, target, kind)]
    result = _libc.mount(*encoded[:3], ctypes.c_ulong(flags), os.fsencode(options) or None)
    if result < 0:
        raise failed(f"mount {kind or 'bind'} {target}", ctypes.get_errno())


def set_hostname(name: str) -> None:
    checked("sethostname", _libc.sethostname(os.fsencode(name), len(name)))


def detach(target: str) -> None:
    checked(f"umount {target}", _libc.umount2(os.fsencode(target), MNT_DETACH))


def pivot_root(new_root: str, put_old: str) -> None:
    checked("pivot_root", syscall(SYS_PIVOT_ROOT, os.fsencode(new_root), os.fsencode(put_old)))


class MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def set_mount_attributes(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes to the mount at `target`, and to all below it where `recursive`. Linux 5.12."""
    wanted = MountAttributes(attributes, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    result = syscall(SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), flags, wanted, ctypes.sizeof(wanted))
    checked(f"mount_setattr {target}", result)


def freeze_tree(tree: int, attributes: int) -> None:
    """Add attributes to all mounts of a tree that is not mounted yet."""
    wanted = MountAttributes(attributes, 0, 0, 0)
    result = syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, wanted, ctypes.sizeof(wanted))
    checked("mount_setattr", result)


def prctl(step: str, option: int, value: int = 0, third: int = 0) -> None:
    checked(step, _libc.prctl(option, value, third, 0, 0))


def limit_heaps(count: int) -> None:
    """At most `count` malloc arenas: each reserves 64 MiB of address space, which RLIMIT_AS counts."""
    _libc.mallopt(ctypes.c_int(-8), ctypes.c_int(count))


def close_others(keep: set[int]) -> None:
    """Close every descriptor but these."""
    first = 0
    for descriptor in sorted(keep):
        if descriptor > first:
            checked("close_range", syscall(SYS_CLOSE_RANGE, first, descriptor - 1, 0))
        first = descriptor + 1
    checked("close_range", syscall(SYS_CLOSE_RANGE, first, 0xFFFFFFFF, 0))
