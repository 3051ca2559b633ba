"""Open files of the server process: raise the limit, and derive how many connections it leaves room for."""

from __future__ import annotations

import contextlib
import resource

MOST = 65_536
"""The soft limit that the server asks for. Programs that walk through all possible descriptors get slow above it."""
RESERVE = 128
"""Descriptors for the database, the listener, pipes of sandboxes, health checks and connections that are closing."""
RESERVE_FOR_A_RUN = 8
FOR_A_CONNECTION = 2
"""The socket, and a file of the storage that is received or sent on it."""
FEWEST_CONNECTIONS = 16


def raise_limit() -> int:
    """Raise the soft limit on open files to the hard limit, at most to MOST. Return the limit that now holds.

    Runs are not affected: a sandbox sets the limit of each run itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems have a lower ceiling than the hard limit says.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def most_connections(limit: int, runs_at_once: int) -> int:
    """Return how many connections a process with `limit` descriptors may hold, so that no other part runs out."""
    reserve = RESERVE + RESERVE_FOR_A_RUN * runs_at_once
    return max(FEWEST_CONNECTIONS, (limit - reserve) // FOR_A_CONNECTION)
