"""The sandbox `linux`: every run in its own namespaces, read-only root, cgroups, Landlock and seccomp.

No daemon, nothing to install: the kernel's own means, for a server run as root and as an ordinary user.
"""

from __future__ import annotations

import msgspec

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox


class LinuxSandboxSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[sandbox.linux]`"""

    first_uid: int = 100_000
    """Where the server is root: the first host uid of runs. Each run in progress has one of its own; it must belong
    to nobody else."""
    uids: int = 20_000
    """How many there are from there on."""


def open_sandbox(settings: LinuxSandboxSettings, place: Place) -> LinuxSandbox:
    return LinuxSandbox(settings.first_uid, settings.uids, place)


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer(name="linux", open=open_sandbox, settings=LinuxSandboxSettings)
