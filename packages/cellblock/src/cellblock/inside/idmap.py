"""Id-mapped mounts: with them, a run with another host uid can read files that only the root user of the host may read.

They need Linux 5.12 and a filesystem that supports them.
"""

from __future__ import annotations

import os
import signal

from . import kernel, root

ATTR_IDMAP = 0x00100000


def user_namespace(uid: int) -> int:
    """Return a descriptor of a user namespace that maps root's files to `uid`."""
    ready, signal_end = os.pipe()
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        kernel.unshare(kernel.NEWUSER)
        os.write(signal_end, b"r")
        os.close(release)
        os.read(hold, 1)  # killed here, after the parent has opened the namespace
        os._exit(0)
    os.close(signal_end)
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
    """Bind-mount `source` at `target`, without the mounts below `source`.

    `namespace` is a descriptor of a user namespace: it maps the owners of the files in the new mount. `attributes` are
    attributes of mount_setattr(2).
    """
    flags = kernel.OPEN_TREE_CLONE | kernel.OPEN_TREE_CLOEXEC
    step = f"mount mapped {target}"
    tree = kernel.call(step, kernel.SYS_OPEN_TREE, kernel.AT_FDCWD, os.fsencode(source), flags)
    wanted = kernel.mount_attributes(attributes | ATTR_IDMAP, namespace)
    kernel.call(
        f"{step}: its files are for the server's root alone, and this filesystem cannot map them",
        *(kernel.SYS_MOUNT_SETATTR, tree, b"", kernel.AT_EMPTY_PATH, wanted, len(wanted)),
    )
    kernel.attach_tree(tree, target)
