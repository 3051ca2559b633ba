"""The sandbox `bubblewrap`: each run in a place that the `bwrap` binary makes, with limits and locks of Skillery's own.

Slower than `linux`, which forks runs from a warm process: an interpreter is started for each. In return namespaces and
mounts are made by a small program that others audit, and that distributions patch.
"""

from __future__ import annotations

import msgspec

from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery.errors import StartupError
from skillery.sandboxing import Egress, Uids
from skillery_bubblewrap.sandbox import BubblewrapSandbox


class BubblewrapSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[backends.sandbox.bubblewrap]`"""

    program: str = "bwrap"
    """The bwrap binary: a path, or a name to be found on the server's PATH."""
    first_uid: int = 120_000
    """Where the server is root: the first host uid of runs. Each run in progress has one of its own; it must belong
    to nobody else."""
    uids: int = 20_000
    """How many there are from there on."""
    allow_private: tuple[str, ...] = ()
    """Addresses and networks that runs may reach though they are not public, by a name that their skill's
    `permissions.network` allows."""
    hosts: dict[str, tuple[str, ...]] = {}
    """Addresses for names that runs may reach, instead of looking these up."""


def open_sandbox(settings: BubblewrapSettings, place: Place) -> BubblewrapSandbox:
    try:
        egress = Egress(settings.allow_private, settings.hosts)
    except ValueError as error:
        raise StartupError(f"[backends.sandbox.bubblewrap]: {error}") from None
    return BubblewrapSandbox(settings.program, Uids(settings.first_uid, settings.uids), egress, place)


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer(name="bubblewrap", open=open_sandbox, settings=BubblewrapSettings)
