"""The sandbox `linux`: every run in its own namespaces, read-only root, cgroups, Landlock and seccomp.

No daemon, nothing to install: the kernel's own means, for a server run as root and as an ordinary user.
"""

from __future__ import annotations

import msgspec

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery.builtin.linux_sandbox.pool import Warmth
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.builtin.linux_sandbox.uids import Uids


class LinuxSandboxSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[sandbox.linux]`"""

    first_uid: int = 100_000
    """Where the server is root: the first host uid of runs. Each run in progress has one of its own; it must belong
    to nobody else."""
    uids: int = 20_000
    """How many there are from there on."""
    prepared: int = 3
    """Sandboxes that wait for a run, so that one starts in two or three milliseconds. Runs beyond them do not wait."""
    recycle_runs: int = 1_000
    """Runs are forked from one process, and share its memory layout and hash seed; after so many a new one takes its
    place. 1: each run has its own, and costs the start of an interpreter."""
    recycle_minutes: int = 60
    """So old it may become while it is in use."""


def open_sandbox(settings: LinuxSandboxSettings, place: Place) -> LinuxSandbox:
    warmth = Warmth(settings.prepared, settings.recycle_runs, settings.recycle_minutes * 60.0)
    return LinuxSandbox(Uids(settings.first_uid, settings.uids), warmth, place)


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer(name="linux", open=open_sandbox, settings=LinuxSandboxSettings)
