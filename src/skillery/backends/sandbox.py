"""Sandboxes: they run jobs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

import msgspec

from skillery.backends.jobs import Job
from skillery.backends.outcomes import Outcome, RunHost
from skillery.backends.values import Kind, WithDefaults, default


class Probe(msgspec.Struct, frozen=True):
    """The result of a test of one property that a backend needs. The test uses the property."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """The remedy if `ok` is false. If `off` is true: how to turn the part on."""
    required: bool = True
    """False: without the property, runs are `degraded`, but safe."""
    off: bool = False
    """Whether the settings turn this part off. `ok` is then true."""


class Capability(StrEnum):
    """A feature or a guarantee of a sandbox.

    If a run needs a feature that the sandbox does not have, the run is refused, and the error names the capability. If
    a guarantee is missing (one of LIMITS), the field `degraded` of every run names it.
    """

    PYTHON = "python"
    """Runs Python: the entrypoints of skills, and the code of `run_code`."""
    JAVASCRIPT = "javascript"
    """Runs JavaScript, if the host has Node.js."""
    BASH = "bash"
    """Runs bash, if the host has bash."""
    BLOBS = "blobs"
    """Lets the code read its input blobs as files."""
    FILES = "files"
    """Copies `Job.files` to the workspace of the run."""
    OUTPUTS = "outputs"
    """Keeps the files that `Job.outputs` names, and keeps the files in `/workspace/out` even if the run was killed."""
    WORKSPACE = "workspace"
    """Fills `/workspace` from `Job.workspace` and passes its files to the host when the run has ended."""
    SECRETS = "secrets"
    """Passes environment variables to the code, but not in arguments or files, so that no other process can read
    them.
    """
    NETWORK = "network"
    """Lets the code connect to the hosts in `Job.network`."""
    LOOPBACK = "loopback"
    """Lets programs (scripts, bash, JavaScript) have servers on 127.0.0.1, which only their own run reaches."""
    PACKAGES = "packages"
    """Lets the code import installed packages (`Job.packages`), but no packages of the host."""
    STUBS = "stubs"
    """Lets the code call skills in other sandboxes (`SkillMount.stub`) with `RunHost.call_skill`."""

    ISOLATION = "isolation"
    """The code can reach nothing of the host except the things that its job names."""
    MEMORY_TREE = "memory_tree"
    """Enforces `memory_mb` for all processes of a run together and at any time, not only by checks at intervals."""
    PROCESSES = "processes"
    """Enforces the limit `processes`, which includes threads."""
    CPUS = "cpus"
    """Enforces the limit `cpus`."""
    DISK = "disk"
    """Enforces the limits `disk_mb` and `tmp_mb`."""
    DISK_FILES = "disk_files"
    """Enforces the limit `disk_files`."""


LIMITS: frozenset[str] = frozenset(
    {
        Capability.ISOLATION,
        Capability.MEMORY_TREE,
        Capability.PROCESSES,
        Capability.CPUS,
        Capability.DISK,
        Capability.DISK_FILES,
    }
)
"""The guarantees: if one of these capabilities is missing, runs are `degraded`."""


@runtime_checkable
class Sandbox(Protocol, metaclass=WithDefaults):
    """Runs each job in a new environment, which is destroyed afterwards."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities of the sandbox on this host: values of `Capability`, and possibly other words.

        The set is complete after `start` has returned.
        """
        ...

    def probe(self) -> list[Probe]:
        """Test every property that the sandbox needs, by using the property. `skillery doctor` shows the results.
        Blocking.
        """
        ...

    @default()
    async def start(self) -> None:
        """Prepare for runs. A second call does nothing.

        Raise SandboxUnavailable if this host cannot enforce the guarantees of the sandbox. Default: do nothing.
        """
        return

    async def run(self, job: Job, host: RunHost) -> Outcome:
        """Run the job and return its outcome. Never raise because of the code: its failures are part of the outcome.

        If the host fails, return a Failure of the type SandboxError. Cancelling this coroutine kills the run, and waits
        until all processes of the run have ended.
        """
        ...

    @default()
    async def close(self) -> None:
        """Release what `start` has prepared. Default: do nothing."""
        return

    @default()
    def pythons(self) -> Mapping[str, str]:
        """Return the other interpreters of Python that scripts can have: paths for `ScriptCall.python` by version, such
        as "3.13". Default: {}.
        """
        return {}

    @default()
    def figures(self) -> Mapping[str, float]:
        """Return a few values for `/metrics`, by name in snake_case. The names must always be the same. Default: {}."""
        return {}


@runtime_checkable
class LimitsRuns(Protocol):
    """A Sandbox that cannot take each run at any time, for example because other computers run the code."""

    def check_room(self, job: Job) -> None:
        """Raise Busy if the sandbox has no room for the job now, Unavailable if it cannot run the job at present.

        The server calls this when the run has its slot, before it records the start of the run. The caller gets the
        error, and the run has no record. Must not block. A sandbox that is not started does nothing.
        """
        ...


class Warm(msgspec.Struct, frozen=True):
    """A process that a sandbox keeps for later runs, with the modules in `preload` imported from the packages of one
    lock.
    """

    lock: str
    preload: tuple[str, ...]
    state: Literal["starting", "ready", "failed"]
    memory_mb: float = 0.0
    """Memory of the process in MB. Runs that are forked from the process share it."""
    message: str = ""
    """The reason if the process did not start. Runs then import the modules themselves."""


@runtime_checkable
class KeepsWarm(Protocol):
    """A Sandbox that keeps processes with imported packages for later runs."""

    def warm(self) -> list[Warm]:
        """Return the processes that the sandbox keeps, including processes that failed recently."""
        ...


KIND = Kind("sandbox", Sandbox, (KeepsWarm, LimitsRuns), setting="sandbox")
"""Without `reads`, because the limits of each run end its calls."""
