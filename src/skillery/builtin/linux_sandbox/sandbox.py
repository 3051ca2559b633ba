"""The backend `linux`: it checks the host, refuses a host that cannot enforce limits, and runs jobs."""

from __future__ import annotations

import asyncio
import compileall
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import skillery
from cellblock.egress.service import Egress
from cellblock.filter import rules
from cellblock.host import groups, probes
from cellblock.host.plan import INSIDE, RUNTIME, base_python, make_plan
from cellblock.host.pool import Pool, Warmth
from cellblock.host.preloaded import Bounds, Environment
from cellblock.host.preloaded_pool import PreloadedPool
from cellblock.host.shares import Uids
from cellblock.inside import landlock
from skillery.backends import Capability, Job, Outcome, Place, Probe, RunHost, Sandbox, Warm
from skillery.builtin.linux_sandbox.engine import HostCapabilities, run_job
from skillery.builtin.linux_sandbox.warm_environments import WarmEnvironments
from skillery.errors import SandboxUnavailable
from skillery.jobs import NO_OP, NoHost, languages

# Compiled Python code of the programs that start with every run. The first start compiles it if the installer has
# not.


def compile_ahead(*folders: Path) -> None:
    """Compile the modules in the folders.

    Do nothing if the compiled code is up to date, or if a folder is not writable; then runs are slower.
    """
    for folder in folders:
        compileall.compile_dir(folder, maxlevels=0, quiet=2)


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
COLD = Warmth(prepared=0, recycle_runs=1, recycle_seconds=60.0)


class LinuxSandbox(Sandbox):
    """See `skillery.backends.Sandbox`."""

    def __init__(self, uids: Uids, warmth: Warmth, egress: Egress, place: Place, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self.egress = egress
        self._uids = uids
        self._warmth = warmth
        self._allow_degraded = place.allow_degraded
        self._private = (str(place.home), str(Path(skillery.__file__).parents[1]))
        self._capabilities: HostCapabilities | None = None
        self._starting = asyncio.Lock()

    @property
    def capabilities(self) -> frozenset[str]:
        held = self._capabilities is not None and self._capabilities.memory_held
        return CAPABILITIES | {Capability.MEMORY_TREE} if held else CAPABILITIES

    async def start(self) -> None:
        if self._capabilities is not None:
            return
        async with self._starting:
            if self._capabilities is None:
                self._capabilities = await self._find_capabilities()

    async def _find_capabilities(self) -> HostCapabilities:
        machine = probes.machine_probe()
        if not machine.ok:
            raise SandboxUnavailable(f"the sandbox `linux` cannot run on {machine.detail}: {machine.fix}")
        interpreter = probes.interpreter_probe()
        if not interpreter.ok:
            raise SandboxUnavailable(f"the sandbox `linux` cannot use {interpreter.detail}: {interpreter.fix}")
        compile_ahead(INSIDE, RUNTIME)
        capabilities = self.look_around(self._warmth, self._bounds)
        try:
            self._refuse_what_is_weak(capabilities)
            await self._insist(capabilities)
            await capabilities.pool.start()
        except BaseException:
            await capabilities.close()
            raise
        return capabilities

    def look_around(self, warmth: Warmth, bounds: Bounds | None = None) -> HostCapabilities:
        """Return the capabilities of the host with new pools, which the caller must close.

        With `bounds`, zygotes with preloaded packages are kept, unless each run has a new zygote.
        """
        control_groups = groups.find()
        root, held = os.geteuid() == 0, control_groups is not None and "memory" in control_groups.controllers
        has_landlock = landlock.abi() > 0
        filters = rules.filters(platform.machine(), cgroups=held)
        plan = make_plan(
            root=root, filters=filters, cgroups=held, without_landlock=not has_landlock, private=self._private
        )
        python = base_python()

        def open_pool(environment: Environment, spoiled: Callable[[str], None]) -> PreloadedPool:
            return PreloadedPool(
                python, plan, self._uids, control_groups, warmth, environment, bounds or Bounds(), spoiled
            )

        return HostCapabilities(
            root=root,
            groups=control_groups,
            landlock=has_landlock,
            pool=Pool(python, plan, self._uids, control_groups, warmth),
            egress=self.egress,
            environments=WarmEnvironments(open_pool, bounds) if bounds and warmth.recycle_runs > 1 else None,
        )

    def _refuse_what_is_weak(self, capabilities: HostCapabilities) -> None:
        if self._allow_degraded:
            return
        if not capabilities.landlock:
            raise SandboxUnavailable(f"the sandbox `linux` needs Landlock: {probes.LANDLOCK_FIX}")
        if not capabilities.memory_held and not probes.watchdog_possible():
            raise SandboxUnavailable(
                "this host cannot limit the memory of a run: make cgroups writable for the server, use a kernel with "
                "CONFIG_PROC_CHILDREN, or set allow_degraded"
            )

    async def _insist(self, capabilities: HostCapabilities) -> None:
        """Run a job that does nothing, which tests more than the probes do.

        If the job fails, raise SandboxUnavailable with the results of the probes.
        """
        outcome = await run_job(capabilities, NO_OP, NoHost())
        if outcome.result == b"true":
            return
        missing = [probe for probe in await asyncio.to_thread(probes.host_probes) if probe.required and not probe.ok]
        reasons = [f"{probe.name}: {probe.detail}; {probe.fix}" for probe in missing]
        failure = outcome.failure.message if outcome.failure else "a run that does nothing failed"
        raise SandboxUnavailable("the sandbox `linux` cannot run here: " + (" | ".join(reasons) or failure))

    def probe(self) -> list[Probe]:
        return languages.all_probes(self._run_apart)

    async def _run_apart(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run jobs in a separate sandbox. Any thread may call this method."""
        capabilities = self.look_around(COLD)
        try:
            return [await run_job(capabilities, job, NoHost()) for job in jobs]
        finally:
            await capabilities.close()

    async def run(self, job: Job, host: RunHost) -> Outcome:
        await self.start()
        if self._capabilities is None:
            raise SandboxUnavailable("the sandbox `linux` is closed")
        return await run_job(self._capabilities, job, host)

    def figures(self) -> dict[str, float]:
        """See `skillery.backends.Sandbox`."""
        if self._capabilities is None:
            return {}
        environments = self._capabilities.environments
        return self._capabilities.pool.figures() | (environments.figures() if environments is not None else {})

    def warm(self) -> list[Warm]:
        """See `skillery.backends.KeepsWarm`."""
        environments = self._capabilities.environments if self._capabilities is not None else None
        return environments.warm() if environments is not None else []

    async def close(self) -> None:
        await self.egress.close()
        if self._capabilities is not None:
            await self._capabilities.close()
        self._capabilities = None
