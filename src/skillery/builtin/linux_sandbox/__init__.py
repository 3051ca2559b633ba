"""The sandbox `linux`: every run in its own namespaces, read-only root, cgroups, Landlock and seccomp.

No daemon, nothing to install: the kernel's own means, for a server run as root and as an ordinary user.
"""

from __future__ import annotations

import msgspec

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery.builtin.linux_sandbox.pool import Warmth
from skillery.builtin.linux_sandbox.preloaded import Bounds
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.errors import StartupError
from skillery.sandboxing.egress.service import Egress
from skillery.sandboxing.linux.uids import Uids


class LinuxSandboxSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[backends.sandbox.linux]`"""

    first_uid: int = 100_000
    """Where the server is root: the first host uid of runs. Each run in progress has one of its own; it must belong
    to nobody else."""
    uids: int = 20_000
    """How many there are from there on."""
    prepared: int = 3
    """Sandboxes that wait for a run, so that one starts in a millisecond or two. Runs beyond them do not wait for
    them, and those that may use the network take none."""
    recycle_runs: int = 1_000
    """Runs are forked from one process, and share its memory layout and hash seed; after so many a new one takes its
    place. 1: each run has its own, and costs the start of an interpreter."""
    recycle_minutes: int = 60
    """So old it may become while it is in use."""
    environment_zygotes: int = 4
    """Of environments whose runs find modules imported, so many keep a process that has imported them; the one that
    was not used for longest leaves for another. 0: each run imports for itself."""
    environment_memory_mb: int = 1024
    """What such a process may use, beside its runs."""
    environment_idle_seconds: int = 600
    """After so long without a run it ends."""
    preload_seconds: int = 60
    """What imports ahead may take; where they take longer, runs import for themselves."""
    allow_private: tuple[str, ...] = ()
    """Addresses and networks that runs may reach though they are not public (`10.1.2.3`, `10.1.0.0/16`), by a name
    that their skill's `permissions.network` allows."""
    hosts: dict[str, tuple[str, ...]] = {}
    """Addresses for names that runs may reach, instead of looking these up."""


def open_sandbox(settings: LinuxSandboxSettings, place: Place) -> LinuxSandbox:
    try:
        egress = Egress(settings.allow_private, settings.hosts)
    except ValueError as error:
        raise StartupError(f"[backends.sandbox.linux]: {error}") from None
    warmth = Warmth(settings.prepared, settings.recycle_runs, settings.recycle_minutes * 60.0)
    bounds = Bounds(
        settings.environment_zygotes,
        settings.environment_memory_mb,
        settings.preload_seconds,
        settings.environment_idle_seconds,
    )
    return LinuxSandbox(Uids(settings.first_uid, settings.uids), warmth, egress, place, bounds)


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer(name="linux", open=open_sandbox, settings=LinuxSandboxSettings)
