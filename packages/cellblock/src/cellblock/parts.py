"""Parts of the sandbox, for other backends. They may change with every minor version.

On the host:

- `Channel` talks to the runtime inside the sandbox. `LogPipe` reads the log of a run. `RunSession` follows a run to its
  `Result`. `Egress` gives a run access to the network.
- `control_groups` and `exceeds_memory` enforce limits. `HostLimits` says which limits are weaker.
- `call_filter` is the system call filter, with the `Sockets` of a run.

Inside a run:

- `RUNTIME` and `INSIDE` are folders to mount at `/run/cellblock/runtime` and `/run/cellblock/inside`.
- The process inside imports `runtime._run` and `runtime._wire` to call the code, and lets `runtime._guest` load the
  guest. Before that, the process locks itself in with the modules of `inside` that this module names. All of these
  modules import only the standard library.
- `running`, `guest` and `wire` are these three modules, for annotations that type checkers can resolve.
"""

from __future__ import annotations

from cellblock.egress.listeners import ENVIRONMENT as PROXY_ENVIRONMENT
from cellblock.egress.listeners import PORT as PROXY_PORT
from cellblock.egress.listeners import receive_listener
from cellblock.egress.policy import ListNames
from cellblock.egress.service import Egress, EgressBroken, Session
from cellblock.filter.rules import Sockets
from cellblock.filter.rules import program as call_filter
from cellblock.host.channel import BrokenSetup, Channel
from cellblock.host.groups import ControlGroup, ControlGroups, HostLimits
from cellblock.host.groups import find as control_groups
from cellblock.host.logs import KeptLog, LogPipe
from cellblock.host.packets import receive
from cellblock.host.plan import (
    ENVIRONMENT,
    HERE,
    INSIDE,
    RUNTIME,
    certificates,
    cpu_seconds,
    hidden,
    is_open_to_all,
    mount_entries,
    prefixes,
    tree_limits,
)
from cellblock.host.probes import (
    cgroup_probes,
    interpreter_probe,
    machine_probe,
    namespace_fix,
    watchdog_possible,
)
from cellblock.host.sessions import RunSession, run_whole
from cellblock.host.shares import Processors, Uids
from cellblock.host.watchdog import exceeds as exceeds_memory
from cellblock.inside import etc, idmap, kernel, lockdown, outlet, root
from cellblock.runtime import _guest as guest
from cellblock.runtime import _run as running
from cellblock.runtime import _wire as wire

__all__ = [
    "ENVIRONMENT",
    "HERE",
    "INSIDE",
    "PROXY_ENVIRONMENT",
    "PROXY_PORT",
    "RUNTIME",
    "BrokenSetup",
    "Channel",
    "ControlGroup",
    "ControlGroups",
    "Egress",
    "EgressBroken",
    "HostLimits",
    "KeptLog",
    "ListNames",
    "LogPipe",
    "Processors",
    "RunSession",
    "Session",
    "Sockets",
    "Uids",
    "call_filter",
    "certificates",
    "cgroup_probes",
    "control_groups",
    "cpu_seconds",
    "etc",
    "exceeds_memory",
    "guest",
    "hidden",
    "idmap",
    "interpreter_probe",
    "is_open_to_all",
    "kernel",
    "lockdown",
    "machine_probe",
    "mount_entries",
    "namespace_fix",
    "outlet",
    "prefixes",
    "receive",
    "receive_listener",
    "root",
    "run_whole",
    "running",
    "tree_limits",
    "watchdog_possible",
    "wire",
]
