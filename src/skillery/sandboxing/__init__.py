"""What sandbox backends in packages of their own are built from: the same parts as the built-in one.

On the host: `Channel` and `Dialogue` are the conversation with the runtime, `LogPipe` its log, `Egress` its way to the
network, `control_groups` and `exceeds_memory` its limits, `call_filter` the system calls. In the place of a run:
`RUNTIME` and `INSIDE` are folders to be shown at `/run/skillery/runtime` and `/run/skillery/cell`. What runs there
imports `runtime._run` and `runtime._wire` to call the code, and before that, to lock itself in, the modules of `cell`
that are named below; neither needs anything but the standard library. For type checkers these modules have names here
as well; `running` and `wire` are the two of `runtime`.

A change of these names stands in the changelog, and is announced one release before.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from skillery.builtin import python_runner as _runner
from skillery.builtin.egress.listeners import ENVIRONMENT as PROXY_ENVIRONMENT
from skillery.builtin.egress.listeners import PORT as PROXY_PORT
from skillery.builtin.egress.service import Egress, EgressBroken, Session
from skillery.builtin.linux_sandbox import cell as _cell
from skillery.builtin.linux_sandbox.cell import idmap, kernel, landlock, lockdown, outlet, posture, root
from skillery.builtin.linux_sandbox.groups import ControlGroup, ControlGroups
from skillery.builtin.linux_sandbox.groups import find as control_groups
from skillery.builtin.linux_sandbox.plan import cpu_seconds, hidden, is_open_to_all, prefixes, tree_limits
from skillery.builtin.linux_sandbox.probes import (
    cgroup_probes,
    interpreter_probe,
    machine_probe,
    namespace_fix,
    run_probes,
    watchdog_possible,
)
from skillery.builtin.linux_sandbox.processors import Processors
from skillery.builtin.linux_sandbox.seccomp import program as call_filter
from skillery.builtin.linux_sandbox.uids import Uids
from skillery.builtin.linux_sandbox.watchdog import exceeds as exceeds_memory
from skillery.builtin.python_runner.dialogue import Dialogue, NoHost, Places, job_header
from skillery.builtin.python_runner.logs import LogPipe
from skillery.builtin.python_runner.run_session import RunSession, run_whole
from skillery.builtin.python_runner.runtime import _run as running
from skillery.builtin.python_runner.runtime import _wire as wire
from skillery.builtin.python_runner.setup import BrokenSetup, copy_seconds
from skillery.builtin.python_runner.wire import Channel

RUNTIME = Path(_runner.__file__).parent / "runtime"
INSIDE = Path(_cell.__file__).parent

__all__ = [
    "INSIDE",
    "PROXY_ENVIRONMENT",
    "PROXY_PORT",
    "RUNTIME",
    "BrokenSetup",
    "Channel",
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
    "control_groups",
    "copy_seconds",
    "cpu_seconds",
    "exceeds_memory",
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
    "watchdog_possible",
    "wire",
]

_RENAMED = {"Course": "RunSession"}


def __getattr__(name: str) -> object:
    """Return a name that this module had before, with a DeprecationWarning. The next release removes the old names."""
    if name not in _RENAMED:
        raise AttributeError(f"module 'skillery.sandboxing' has no attribute '{name}'")
    new = _RENAMED[name]
    warnings.warn(f"skillery.sandboxing.{name} is now called {new}", DeprecationWarning, stacklevel=2)
    return globals()[new]
