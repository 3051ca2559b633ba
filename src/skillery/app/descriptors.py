"""The file descriptors of the server process: raise their limit, and compute how many connections fit into the
limit.
"""

from __future__ import annotations

import contextlib
import resource
from typing import NamedTuple

DEFAULT_LIMIT = 16_384
"""The limit on descriptors that the server requests if no setting needs more. An idle connection takes 9 KB of
memory.
"""
RESERVE = 128
"""Descriptors that connections cannot use: database, listener, pipes of sandboxes, health checks, closing
connections.
"""
RESERVE_PER_RUN = 8
PER_CONNECTION = 2
"""Descriptors of a connection: its socket, and a storage file that is received or sent."""
MIN_CONNECTIONS = 16


class Descriptors(NamedTuple):
    """The file descriptors of this process, divided between runs, connections and the rest."""

    limit: int
    reserve: int

    @property
    def connections(self) -> int:
        """The number of connections that leaves enough descriptors for all other uses."""
        return max(MIN_CONNECTIONS, (self.limit - self.reserve) // PER_CONNECTION)


def allot_descriptors(runs_at_once: int, max_connections: int) -> Descriptors:
    """Raise the soft limit on open files as far as needed and allowed, and divide the descriptors.

    Runs are not affected, because a sandbox sets the limit of each run.
    """
    reserve = RESERVE + RESERVE_PER_RUN * runs_at_once
    wanted = max(DEFAULT_LIMIT, reserve + PER_CONNECTION * max_connections)
    return Descriptors(min(wanted, _raise_limit(wanted)), reserve)


def _raise_limit(wanted: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems have a lower ceiling than the hard limit.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else soft
