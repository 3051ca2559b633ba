"""What nothing refers to any more, and how it goes: a list of steps, each safe beside everything else that happens."""

from skillery.garbage.collecting import Collector, Step, Sweep, Swept
from skillery.garbage.steps import (
    cached_files,
    expired_blobs,
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
    "leftovers",
    "old_locks",
    "old_runs",
    "unused_contents",
    "unused_environments",
]
