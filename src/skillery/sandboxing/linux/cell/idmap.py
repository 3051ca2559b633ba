"""Mounting what only the server's root may read, for a run that is another host uid: the mount shows root's files as
the run's own. Linux 5.12, and a filesystem that can do it."""

from __future__ import annotations

import ctypes
import os
import signal

from . import kernel, root

ATTR_IDMAP = 0x00100000


def user_namespace(uid: int) -> int:
    """A descriptor of a user namespace that says: root's files are those of `uid`."""
    ready, said = os.pipe()
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        kernel.unshare(kernel.NEWUSER)
        os.write(said, b"r")
        os.close(release)
        os.read(hold, 1)  # killed here, once the namespace is held by a descriptor
        os._exit(0)
    os.close(said)
    try:
        if os.read(ready, 1) != b"r":
            raise kernel.SetupError("a user namespace for mounts: refused")
        for name in ("uid_map", "gid_map"):
            root.write_once(f"/proc/{child}/{name}", f"0 {uid} 1", f"write {name} for mounts")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for descriptor in (ready, hold, release):
            os.close(descriptor)


def bind(source: str, target: str, attributes: int, namespace: int) -> None:
    """As a bind mount of `source` alone, seen through the namespace's eyes."""
    flags = kernel.OPEN_TREE_CLONE | kernel.OPEN_TREE_CLOEXEC
    step = f"mount mapped {target}"
    tree = kernel.checked(step, kernel.syscall(kernel.SYS_OPEN_TREE, kernel.AT_FDCWD, os.fsencode(source), flags))
    wanted = kernel.MountAttributes(attributes | ATTR_IDMAP, 0, 0, namespace)
    size = ctypes.sizeof(wanted)
    kernel.checked(
        f"{step}: its files are for the server's root alone, and this filesystem cannot map them",
        kernel.syscall(kernel.SYS_MOUNT_SETATTR, tree, b"", kernel.AT_EMPTY_PATH, wanted, size),
    )
    kernel.attach_tree(tree, target)
