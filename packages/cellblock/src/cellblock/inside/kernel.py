"""System calls that the standard library does not have. Each is a thin function that raises SetupError."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable

    from .calls import Script

_libc = ctypes.CDLL(None, use_errno=True)
_libc.pthread_self.restype = ctypes.c_size_t
_libc.mmap.restype = ctypes.c_ssize_t
# Keeps the interpreter's lock during the call, like os.fork: a clone must not start while the lock changes hands.
_libc_locked = ctypes.PyDLL(None, use_errno=True)
# Looked up here: the first look-up of a name is slow, and each child would do it again.
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent

X86 = os.uname().machine == "x86_64"
SYS_CLONE = 56 if X86 else 220
SYS_EXECVE = 59 if X86 else 221
SYS_UNSHARE = 272 if X86 else 97
SYS_MOUNT = 165 if X86 else 40
SYS_PIVOT_ROOT = 155 if X86 else 41
SYS_PRCTL = 157 if X86 else 167
SYS_CAPSET = 126 if X86 else 91
SYS_SECCOMP = 317 if X86 else 277
SYS_PRLIMIT = 302 if X86 else 261
SYS_SETGROUPS = 116 if X86 else 159
SYS_SETRESGID, SYS_SETRESUID = (119, 117) if X86 else (149, 147)
SYS_CHDIR = 80 if X86 else 49
SYS_SETAFFINITY = 203 if X86 else 122
SYS_SIGACTION, SYS_SIGPROCMASK, SYS_SIGNALFD = (13, 14, 289) if X86 else (134, 135, 74)
SYS_OPENAT, SYS_READ, SYS_WRITE, SYS_CLOSE = (257, 0, 1, 3) if X86 else (56, 63, 64, 57)
SYS_DUP3, SYS_GETPID, SYS_GETPPID, SYS_SETNS = (292, 39, 110, 308) if X86 else (24, 172, 173, 268)
SYS_SENDMSG, SYS_RECVMSG = (46, 47) if X86 else (211, 212)
SYS_CLOSE_RANGE, SYS_MOUNT_SETATTR = 436, 442
SYS_OPEN_TREE, SYS_MOVE_MOUNT = 428, 429
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
SIGKILL, SIGCHLD = 9, 17
CLONE_VM, CLONE_PIDFD, CLONE_VFORK = 0x100, 0x1000, 0x4000
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x200000, 0x1000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
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
PROT_READ_EXEC, MAP_PRIVATE = 5, 2

script: Script | None = None
"""The script to which `call` appends. None if `call` calls the kernel at once."""


class SetupError(Exception):
    """Raised if a set-up step fails. The message names the step and the errno, never a path of the host."""


def failed(step: str, number: int) -> SetupError:
    return SetupError(f"{step}: {errno.errorcode.get(number, number)}")


def checked(step: str, result: int) -> int:
    if result < 0:
        raise failed(step, ctypes.get_errno())
    return result


Buffer = ctypes.Array[ctypes.c_char] | ctypes.Array[ctypes.c_char_p] | ctypes.c_void_p | ctypes.c_int
Pointed = bytes | Buffer | ctypes.Structure
Argument = int | Pointed | None


def _converted(argument: Argument) -> object:
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    if isinstance(argument, bytes) or argument is None:
        return ctypes.c_char_p(argument)
    return ctypes.byref(argument)


def syscall(number: int, *arguments: Argument) -> int:
    """Make the raw system call. Return its result; -1 means an error, with its errno in `ctypes.get_errno()`."""
    return int(_libc.syscall(ctypes.c_long(number), *(_converted(argument) for argument in arguments)))


def call(step: str, number: int, *arguments: Argument, answer: int | None = None) -> int:
    """Make one set-up step now, or append it to the `script`.

    Return the result that the call has or will have. If `answer` is given, any other result is a failure. Raise
    SetupError if the call fails.
    """
    if script is not None:
        return script.add(step, number, *arguments, **({} if answer is None else {"answer": answer}))
    result = checked(step, syscall(number, *arguments))
    if answer is not None and result != answer:
        raise SetupError(f"{step}: {result} instead of {answer}")
    return result


def opening(step: str, number: int, *arguments: Argument) -> int:
    """Make or append a `call` that returns a new descriptor. Return the number of the descriptor."""
    return call(step, number, *arguments, answer=script.opens() if script is not None else None)


def close(descriptor: int) -> None:
    call("close", SYS_CLOSE, descriptor)
    if script is not None:
        script.closes(descriptor)


def unshare(flags: int) -> None:
    call("unshare", SYS_UNSHARE, flags)


def set_namespace(descriptor: int, kind: int) -> None:
    checked("setns", _libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)))


def clone_arguments(flags: int, parent: ctypes.c_int | None = None, child: int = 0) -> tuple[Argument, ...]:
    """Return the arguments of clone(2), for a child that continues on the stack of its parent.

    The kernel writes the child's pid, or its pidfd, to `parent`, and the child's thread id to `child`.
    """
    return (flags | SIGCHLD, 0, parent, child, 0) if X86 else (flags | SIGCHLD, 0, parent, 0, child)


def fork_arguments(thread_id: int) -> tuple[Argument, ...]:
    """Return the arguments of clone(2) with which the C library forks. The kernel writes the thread id to this
    address.
    """
    return clone_arguments(CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, child=thread_id)


def clone(flags: int) -> int:
    """Fork into new namespaces, like os.fork(): return 0 in the child, and the pid of the child in the parent.

    The caller must have only one thread.
    """
    wanted = [_converted(argument) for argument in clone_arguments(flags)]

    def fork() -> int:
        pid = int(_libc_locked.syscall(ctypes.c_long(SYS_CLONE), *wanted))
        return pid if pid >= 0 else -ctypes.get_errno()

    return forked(fork)


def forked(fork: Callable[..., int], *arguments: int) -> int:
    """Call `fork` with the arguments between the fork hooks of the interpreter, and return its result.

    `fork` returns 0 in the child, and in the parent the pid of the child or minus an errno. Raise SetupError for an
    errno.
    """
    _before_fork()
    pid = fork(*arguments)
    if pid == 0:
        _after_fork_child()
        return 0
    _after_fork_parent()
    if pid < 0:
        raise failed("new namespaces", -pid)
    return pid


def signals(number: int) -> bytes:
    """Return a signal set that contains one signal."""
    return (1 << (number - 1)).to_bytes(8, sys.byteorder)


def signal_descriptor(number: int) -> int:
    """Return a descriptor that is readable while this blocked signal is pending. It stays open over an exec."""
    return opening("signalfd", SYS_SIGNALFD, -1, signals(number), 8, 0)


def set_default_action(number: int) -> None:
    """Set the default action of a signal with a system call, so that the interpreter's state does not change."""
    call("signal", SYS_SIGACTION, number, bytes(32), None, 8)


def ignore(number: int) -> None:
    """Ignore a signal with a system call. The interpreter still reports the default action."""
    call("signal", SYS_SIGACTION, number, (1).to_bytes(8, sys.byteorder) + bytes(24), None, 8)


def clone_tree(path: str) -> int:
    """Return a descriptor of a detached copy of the mount at `path` and all mounts below it."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    return checked("open_tree", syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags))


def attach_tree(tree: int, target: str) -> None:
    """Mount the result of `clone_tree` in the mount table of this process. A tree can be mounted only once."""
    moved = syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    checked(f"mount {target}", moved)
    os.close(tree)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [os.fsencode(text) if text is not None else None for text in (source, target, kind)]
    call(f"mount {kind or 'bind'} {target}", SYS_MOUNT, *encoded, flags, os.fsencode(options) or None)


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
    """Add attributes to the mount at `target`; with `recursive`, also to all mounts below it. Needs Linux 5.12."""
    wanted = MountAttributes(attributes, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    result = syscall(SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), flags, wanted, ctypes.sizeof(wanted))
    checked(f"mount_setattr {target}", result)


def freeze_tree(tree: int, attributes: int) -> None:
    """Add attributes to all mounts of a detached tree."""
    wanted = MountAttributes(attributes, 0, 0, 0)
    result = syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, wanted, ctypes.sizeof(wanted))
    checked("mount_setattr", result)


def prctl(step: str, option: int, value: int = 0, third: int = 0) -> None:
    call(step, SYS_PRCTL, option, value, third, 0, 0)


def limit_heaps(count: int) -> None:
    """Allow at most `count` malloc arenas. Each arena reserves 64 MiB of address space, which counts towards
    RLIMIT_AS.
    """
    _libc.mallopt(ctypes.c_int(-8), ctypes.c_int(count))


def close_others(keep: set[int]) -> None:
    """Close all descriptors except those in `keep`."""
    first = 0
    for descriptor in sorted(keep):
        if descriptor > first:
            call("close_range", SYS_CLOSE_RANGE, first, descriptor - 1, 0)
        first = descriptor + 1
    call("close_range", SYS_CLOSE_RANGE, first, 0xFFFFFFFF, 0)


def thread_address() -> int:
    """Return the address of the thread data of the C library."""
    return int(_libc.pthread_self())


def map_program(descriptor: int) -> int:
    """Map a file as executable, and return its address."""
    length, offset = ctypes.c_size_t(os.fstat(descriptor).st_size), ctypes.c_long(0)
    address = _libc.mmap(None, length, PROT_READ_EXEC, MAP_PRIVATE, descriptor, offset)
    return checked("mmap", int(address))


def thread_id_address() -> int:
    """Return the address where the C library keeps the id of this thread.

    The C library uses this id when the process signals itself. After a fork without the C library, the id is right only
    if the kernel writes it to this address. Raise SetupError if the address cannot be found.
    """
    address = ctypes.c_void_p()
    own = os.getpid()
    is_known = syscall(SYS_PRCTL, PR_GET_TID_ADDRESS, address, 0, 0, 0) == 0
    start = thread_address()
    places = [address.value] if is_known and address.value else [start + offset for offset in range(0, 2048, 4)]
    right = [place for place in places if ctypes.c_int.from_address(place).value == own]
    if len(right) != 1:
        raise SetupError("the C library's record of the thread is not to be found")
    return right[0]
