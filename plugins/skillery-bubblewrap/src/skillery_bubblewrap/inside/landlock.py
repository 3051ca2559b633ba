"""Landlock: a second protection in addition to the mounts, which a process enforces on itself.

Needs Linux 5.13. Source: userspace-api/landlock.rst. The sandbox `linux` has its own version in C.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from cellblock.parts import kernel
else:
    from inside import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER, MAKE_DEVICES = 1 << 0, 1 << 1, 1 << 2, 1 << 3, (1 << 6) | (1 << 11)
READ = EXECUTE | READ_FILE | READ_FOLDER
FILE_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
TRUNCATE = 1 << 14
BIND_AND_CONNECT_TCP, CONNECT_TCP = 3, 2
SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3
ON_FOLDER, ON_PORT = 1, 2
# struct landlock_ruleset_attr (files, net, scoped), landlock_path_beneath_attr (packed), landlock_net_port_attr
RULESET, BENEATH, RIGHTS = struct.Struct("=QQQ"), struct.Struct("=Qi"), struct.Struct("=QQ")


def file_rights(version: int) -> int:
    return int((1 << FILE_RIGHTS_BY_ABI[min(version, 5)]) - 1)


def allow(ruleset: int, folder: str, rights: int) -> None:
    flags = os.O_PATH | os.O_CLOEXEC
    descriptor = kernel.call("open", kernel.SYS_OPENAT, kernel.AT_FDCWD, os.fsencode(folder), flags, 0)
    rule = BENEATH.pack(rights, descriptor)
    kernel.call("landlock rule", kernel.SYS_LANDLOCK_ADD, ruleset, ON_FOLDER, rule, 0)
    os.close(descriptor)


def allow_connecting(ruleset: int, version: int, port: int) -> None:
    """Allow connections to a port.

    Landlock before version 4 cannot restrict ports. With such kernels, only the empty net namespace restricts the
    network.
    """
    if version < 4:
        return
    rule = RIGHTS.pack(CONNECT_TCP, port)
    kernel.call(f"landlock rule for port {port}", kernel.SYS_LANDLOCK_ADD, ruleset, ON_PORT, rule, 0)


def prepare(writable: list[str], port: int | None = None) -> tuple[int, int]:
    """Prepare rules: read all files, write only below `writable` and to devices, no TCP except connections to `port`.

    Return the ABI version and a descriptor of the rules; (0, -1) without Landlock.
    """
    version = kernel.landlock_version()
    if version == 0:
        return 0, -1
    every = file_rights(version)
    wanted = RULESET.pack(every, BIND_AND_CONNECT_TCP, SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = kernel.call("landlock", kernel.SYS_LANDLOCK_CREATE, wanted, size, 0)
    allow(ruleset, "/", READ)
    allow(ruleset, "/dev", (READ | WRITE_FILE | TRUNCATE) & every)
    for folder in writable:
        allow(ruleset, folder, every & ~MAKE_DEVICES)
    if port is not None:
        allow_connecting(ruleset, version, port)
    return version, ruleset


def enforce(ruleset: int) -> None:
    """Enforce the rules on this process and its future children. no_new_privs must be set.

    Do nothing if `ruleset` is -1.
    """
    if ruleset < 0:
        return
    kernel.call("landlock_restrict_self", kernel.SYS_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
