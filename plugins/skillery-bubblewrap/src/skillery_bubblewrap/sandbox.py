"""The backend `bubblewrap`: it checks the host, refuses a host that cannot enforce limits, and runs jobs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import skillery
from cellblock.parts import (
    Egress,
    Processors,
    Uids,
    cgroup_probes,
    control_groups,
    interpreter_probe,
    kernel,
    machine_probe,
    namespace_fix,
    watchdog_possible,
)
from skillery.backends import Capability, Job, Outcome, Place, Probe, RunHost, Sandbox
from skillery.errors import SandboxUnavailable
from skillery.jobs import NO_OP, NoHost, probe_of, run_probes
from skillery_bubblewrap.command import fixed
from skillery_bubblewrap.run import HostCapabilities, run_job

CAPABILITIES: frozenset[str] = frozenset(
    {
        Capability.PYTHON,
        Capability.JAVASCRIPT,
        Capability.BASH,
        Capability.PACKAGES,
        Capability.STUBS,
        Capability.BLOBS,
        Capability.FILES,
        Capability.OUTPUTS,
        Capability.WORKSPACE,
        Capability.SECRETS,
        Capability.NETWORK,
        Capability.ISOLATION,
        Capability.PROCESSES,
        Capability.CPUS,
        Capability.DISK,
        Capability.DISK_FILES,
    }
)
INSTALL = (
    "install bubblewrap (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap), or set its path "
    "with the setting `program` of [backends.sandbox.bubblewrap]"
)
OLDEST = (0, 7)
"""The first version of bwrap with --size, --perms and --json-status-fd."""
VERSION_SECONDS = 10
LANDLOCK_FIX = "use a kernel from 5.13 on with `landlock` among its security modules, or set allow_degraded"


class BubblewrapSandbox(Sandbox):
    """See `skillery.backends.Sandbox`."""

    def __init__(self, program: str, uids: Uids, egress: Egress, place: Place) -> None:
        self.egress = egress
        self._program = program
        self._uids = uids
        self._allow_degraded = place.allow_degraded
        self._home = place.home
        self._private = (str(place.home), str(Path(skillery.__file__).parents[1]))
        self._means: HostCapabilities | None = None
        self._starting = asyncio.Lock()

    @property
    def capabilities(self) -> frozenset[str]:
        held = self._means is not None and self._means.memory_held
        return CAPABILITIES | {Capability.MEMORY_TREE} if held else CAPABILITIES

    async def start(self) -> None:
        async with self._starting:
            if self._means is None:
                self._means = await self._find_means()

    async def _find_means(self) -> HostCapabilities:
        program = await asyncio.to_thread(self._program_probe)
        for probe in (*map(probe_of, (machine_probe(), interpreter_probe(), self._uids.probe())), program):
            if not probe.ok:
                raise SandboxUnavailable(f"the sandbox `bubblewrap` cannot use {probe.detail}: {probe.fix}")
        capabilities = self._look_around()
        try:
            self._refuse_what_is_weak(capabilities)
            outcome = await run_job(capabilities, NO_OP, NoHost())
            if outcome.result != b"true":
                failure = outcome.failure.message if outcome.failure else "a run that does nothing failed"
                raise SandboxUnavailable(
                    f"the sandbox `bubblewrap` cannot run here: {failure}; {namespace_fix()} (the log of the server "
                    "contains the output of bwrap)"
                )
        except BaseException:
            close(capabilities)
            raise
        return capabilities

    def _look_around(self) -> HostCapabilities:
        """Return the capabilities of the host. The caller must close them."""
        groups = control_groups()
        held = groups is not None and "memory" in groups.controllers
        return HostCapabilities(
            program=shutil.which(self._program) or self._program,
            uids=self._uids if os.geteuid() == 0 else None,
            groups=groups,
            landlock=kernel.landlock_version() > 0,
            egress=self.egress,
            processors=Processors(counted=groups is not None and "cpu" in groups.controllers),
            fixed=fixed(self._private, self._home, with_zero=held),
        )

    def _refuse_what_is_weak(self, capabilities: HostCapabilities) -> None:
        if self._allow_degraded:
            return
        if not capabilities.landlock:
            raise SandboxUnavailable(f"the sandbox `bubblewrap` needs Landlock: {LANDLOCK_FIX}")
        if not capabilities.memory_held and not watchdog_possible():
            raise SandboxUnavailable(
                "this host cannot limit the memory of a run: make cgroups writable for the server, use a kernel with "
                "CONFIG_PROC_CHILDREN, or set allow_degraded"
            )

    def _program_probe(self) -> Probe:
        """Check the bwrap binary. Blocking."""
        path = shutil.which(self._program)
        if path is None:
            return Probe("bwrap", False, f"'{self._program}', which is not a program on this host", INSTALL)
        try:
            done = subprocess.run([path, "--version"], env={}, capture_output=True, timeout=VERSION_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return Probe("bwrap", False, f"{path}: {type(error).__name__}", INSTALL)
        text = done.stdout.decode(errors="replace").strip()
        numbers = text.rpartition(" ")[2].split(".")
        new_enough = all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) >= OLDEST
        detail = f"{text or 'a program without a version'} at {path}"
        return Probe("bwrap", new_enough, detail, "" if new_enough else "bubblewrap 0.7 or newer is needed: " + INSTALL)

    def probe(self) -> list[Probe]:
        machine, program = probe_of(machine_probe()), self._program_probe()
        if not machine.ok or not program.ok:
            return [machine, program]
        version = kernel.landlock_version()
        locked = f"version {version}" if version else "the kernel has none"
        fix = "" if version else LANDLOCK_FIX
        land = Probe("landlock", version > 0, locked, fix)
        parts = [
            machine,
            program,
            probe_of(interpreter_probe()),
            land,
            *map(probe_of, (self._uids.probe(), *cgroup_probes())),
        ]
        *languages, ran = run_probes(self._run_apart)
        return [*parts, *languages, ran if ran.ok else Probe(ran.name, False, ran.detail, namespace_fix())]

    async def _run_apart(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run jobs in a separate sandbox. Any thread may call this method."""
        host = self._look_around()
        try:
            return [await run_job(host, job, NoHost()) for job in jobs]
        finally:
            close(host)

    async def run(self, job: Job, host: RunHost) -> Outcome:
        await self.start()
        if self._means is None:
            raise SandboxUnavailable("the sandbox `bubblewrap` is closed")
        return await run_job(self._means, job, host)

    async def close(self) -> None:
        await self.egress.close()
        if self._means is not None:
            close(self._means)
        self._means = None


def close(capabilities: HostCapabilities) -> None:
    if capabilities.groups is not None:
        capabilities.groups.close()
