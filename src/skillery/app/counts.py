"""What the limits of a whole server count with: in one process, or shared by its worker processes."""

from __future__ import annotations

from typing import NamedTuple

from skillery.app.connections import ConnectionCount, OwnConnections
from skillery.context.queue import OwnSlots, Slots
from skillery.context.tallies import OwnTally, Peers, Tally
from skillery.settings.load import Settings


class Counts(NamedTuple):
    """The numbers of one server that its limits compare with."""

    bodies: Tally
    """Bytes of request bodies in memory."""
    answers: Tally
    """Bytes of answers in memory."""
    waiting: Tally
    """Runs that wait for a slot."""
    waiting_bytes: Tally
    """Bytes of the requests of these runs."""
    slots: Slots
    """The slots of runs."""
    connections: ConnectionCount
    peers: Peers | None = None
    """The other worker processes. None if the server has one process."""


def counts_of_one_process(settings: Settings) -> Counts:
    slots = OwnSlots(settings.runs_at_once)
    return Counts(OwnTally(), OwnTally(), OwnTally(), OwnTally(), slots, OwnConnections())
