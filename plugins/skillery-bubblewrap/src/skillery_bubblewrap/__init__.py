"""The sandbox `bubblewrap`: the `bwrap` program isolates each run, and Skillery adds limits and filters.

The backend starts an interpreter for each run, so it is slower than `linux`, which forks runs from a warm process. In
return, namespaces and mounts are made by a small audited program, which distributions patch.
"""

from __future__ import annotations

import msgspec

from cellblock.parts import Egress, Uids
from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery.errors import StartupError
from skillery.jobs import list_names
from skillery_bubblewrap.sandbox import BubblewrapSandbox

REMEDY = "raise `uids` in [backends.sandbox.bubblewrap], or lower concurrent_runs"


class BubblewrapSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sandbox `bubblewrap`, from `[backends.sandbox.bubblewrap]`."""

    program: str = "bwrap"
    """The bwrap program: a path, or a name on the PATH of the server."""
    first_uid: int = 2_100_020_000
    """The first host uid of runs, if the server is root.

    Each running run has its own uid. If a user of the host has one of these uids, the server does not start.
    """
    uids: int = 20_000
    """The number of host uids for runs."""
    allow_private: tuple[str, ...] = ()
    """Private addresses and networks that runs may connect to, if a host name in their `permissions.network`
    resolves to them.
    """
    hosts: dict[str, tuple[str, ...]] = {}
    """Fixed addresses of host names, used instead of DNS."""


def open_sandbox(settings: BubblewrapSettings, place: Place) -> BubblewrapSandbox:
    try:
        egress = Egress(settings.allow_private, settings.hosts, names=list_names("bubblewrap"))
    except ValueError as error:
        raise StartupError(f"[backends.sandbox.bubblewrap]: {error}") from None
    return BubblewrapSandbox(settings.program, Uids(settings.first_uid, settings.uids, REMEDY), egress, place)


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer(name="bubblewrap", open=open_sandbox, settings=BubblewrapSettings)
