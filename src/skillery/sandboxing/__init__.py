"""Parts of sandboxes, for backends in other packages. The built-in sandboxes use the same parts.

On the host:

- `Channel` and `Dialogue` talk to the runtime inside the sandbox. `LogPipe` reads the log of a run. `Egress` gives a
  run access to the network.
- `control_groups` and `exceeds_memory` enforce limits. `call_filter` is the system call filter.

Inside a run:

- `RUNTIME` and `INSIDE` are folders to mount at `/run/skillery/runtime` and `/run/skillery/cell`.
- The process inside imports `runtime._run` and `runtime._wire` to call the code. Before that, the process locks itself
  in with the modules of `cell` that this module names. All of these modules import only the standard library.
- `running` and `wire` are `runtime._run` and `runtime._wire`, for annotations that type checkers can resolve.

A name of this module changes only after one release with a deprecation, which the changelog announces.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from skillery.sandboxing import python_runner as _runner
from skillery.sandboxing.egress.listeners import ENVIRONMENT as PROXY_ENVIRONMENT
from skillery.sandboxing.egress.listeners import PORT as PROXY_PORT
from skillery.sandboxing.egress.service import Egress, EgressBroken, Session
from skillery.sandboxing.linux import cell as _cell
from skillery.sandboxing.linux.cell import idmap, kernel, landlock, lockdown, outlet, posture, root
from skillery.sandboxing.linux.groups import ControlGroup, ControlGroups
from skillery.sandboxing.linux.groups import find as control_groups
from skillery.sandboxing.linux.plan import cpu_seconds, hidden, is_open_to_all, prefixes, tree_limits
from skillery.sandboxing.linux.probes import (
    cgroup_probes,
    interpreter_probe,
    machine_probe,
    namespace_fix,
    run_probes,
    watchdog_possible,
)
from skillery.sandboxing.linux.seccomp import program as call_filter
from skillery.sandboxing.linux.shares import Processors, Uids
from skillery.sandboxing.linux.watchdog import exceeds as exceeds_memory
from skillery.sandboxing.python_runner.collecting import LIMITS as COLLECTING_LIMITS
from skillery.sandboxing.python_runner.collecting import (
    Collection,
    collect,
    collecting_dialogue,
    collection_of,
    try_to_collect,
)
from skillery.sandboxing.python_runner.dialogue import Dialogue, NoHost
from skillery.sandboxing.python_runner.job_header import Places, job_header
from skillery.sandboxing.python_runner.logs import LogPipe
from skillery.sandboxing.python_runner.run_session import RunSession, run_whole
from skillery.sandboxing.python_runner.runtime import _run as running
from skillery.sandboxing.python_runner.runtime import _wire as wire
from skillery.sandboxing.python_runner.setup import BrokenSetup, copy_seconds, filling_seconds
from skillery.sandboxing.python_runner.wire import Channel

RUNTIME = Path(_runner.__file__).parent / "runtime"
INSIDE = Path(_cell.__file__).parent

__all__ = [
    "COLLECTING_LIMITS",
    "INSIDE",
    "PROXY_ENVIRONMENT",
    "PROXY_PORT",
    "RUNTIME",
    "BrokenSetup",
    "Channel",
    "Collection",
    "ControlGroup",
    "ControlGroups",
    "Dialogue",
    "Egress",
    "EgressBroken",
    "LogPipe",
    "NoHost",
    "Places",
    "Processors",
    "RunSession",
    "Session",
    "Uids",
    "call_filter",
    "cgroup_probes",
    "collect",
    "collecting_dialogue",
    "collection_of",
    "control_groups",
    "copy_seconds",
    "cpu_seconds",
    "exceeds_memory",
    "filling_seconds",
    "hidden",
    "idmap",
    "interpreter_probe",
    "is_open_to_all",
    "job_header",
    "kernel",
    "landlock",
    "lockdown",
    "machine_probe",
    "namespace_fix",
    "outlet",
    "posture",
    "prefixes",
    "root",
    "run_probes",
    "run_whole",
    "running",
    "tree_limits",
    "try_to_collect",
    "watchdog_possible",
    "wire",
]

_RENAMED = {"Course": "RunSession"}


def __getattr__(name: str) -> object:
    """Return the new object for an old name, with a DeprecationWarning. The next release removes the old names."""
    if name not in _RENAMED:
        raise AttributeError(f"module 'skillery.sandboxing' has no attribute '{name}'")
    new = _RENAMED[name]
    warnings.warn(f"skillery.sandboxing.{name} is now called {new}", DeprecationWarning, stacklevel=2)
    return globals()[new]
