"""Limit of the open files of the server process, and the number of connections that this limit allows."""

from __future__ import annotations

import contextlib
import resource
from typing import NamedTuple

DEFAULT_LIMIT = 16_384
"""The limit of open files that the server requests if the settings need no higher limit. An idle connection takes 9
KB of memory.
"""
RESERVE = 128
"""File descriptors for the database, the listening socket, pipes of sandboxes, health checks and connections that
are closing.
"""
RESERVE_PER_RUN = 8
PER_CONNECTION = 2
"""File descriptors of a connection: the socket, and a file of the storage that is uploaded or downloaded."""
MIN_CONNECTIONS = 16


class Descriptors(NamedTuple):
    """The file descriptors of this process: the limit, and the number that is reserved for other uses than
    connections.
    """

    limit: int
    reserve: int

    @property
    def connections(self) -> int:
        """The limit of connections: at least MIN_CONNECTIONS, even if that takes reserved file descriptors."""
        return max(MIN_CONNECTIONS, (self.limit - self.reserve) // PER_CONNECTION)


def allot_descriptors(runs_at_once: int, max_connections: int) -> Descriptors:
    """Raise this process's soft limit of open files to the needed number, as far as the hard limit allows.

    Return the resulting limit, or the needed number if that is lower, and the number of reserved file descriptors. Runs
    are not affected, because a sandbox sets the limit of each run.
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
