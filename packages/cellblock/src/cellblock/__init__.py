"""A sandbox for foreign code on Linux: namespaces, a read-only root, cgroups, Landlock and a system call filter.

`cellblock` has no dependencies. `values` has the limits and the results of runs, `parts` what other backends use.
"""

from __future__ import annotations

from cellblock.values import Busy, Failure, FailureKind, Limits, Log, Mount, NetworkUse, Probe, Result, Used

__all__ = ["Busy", "Failure", "FailureKind", "Limits", "Log", "Mount", "NetworkUse", "Probe", "Result", "Used"]
