"""Garbage collection: the steps of a sweep delete data that is no longer used, while servers are running."""

from skillery.maintenance.garbage.collector import Collector, Sweep, SweepStep, Swept
from skillery.maintenance.garbage.steps import (
    cached_files,
    ended_sessions,
    expired_blobs,
    expired_workspaces,
    leftovers,
    old_exchanges,
    old_locks,
    old_runs,
    unused_contents,
    unused_environments,
)

__all__ = [
    "Collector",
    "Sweep",
    "SweepStep",
    "Swept",
    "cached_files",
    "ended_sessions",
    "expired_blobs",
    "expired_workspaces",
    "leftovers",
    "old_exchanges",
    "old_locks",
    "old_runs",
    "unused_contents",
    "unused_environments",
]
