"""Garbage collection: a sweep takes steps that delete what is no longer used, while the servers serve."""

from skillery.maintenance.garbage.collector import Collector, Step, Sweep, Swept
from skillery.maintenance.garbage.steps import (
    cached_files,
    expired_blobs,
    expired_workspaces,
    leftovers,
    old_locks,
    old_runs,
    unused_contents,
    unused_environments,
)

__all__ = [
    "Collector",
    "Step",
    "Sweep",
    "Swept",
    "cached_files",
    "expired_blobs",
    "expired_workspaces",
    "leftovers",
    "old_locks",
    "old_runs",
    "unused_contents",
    "unused_environments",
]
