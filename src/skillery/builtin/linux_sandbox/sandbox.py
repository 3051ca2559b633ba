"""The backend `linux`: it checks the host, refuses a host that cannot enforce limits, and runs jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import skillery
from cellblock import Job as CellJob
from cellblock import Result, Template, Unavailable, doctor
from cellblock.egress.service import Egress
from cellblock.host.engine import find_plan
from cellblock.host.plan import base_python
from cellblock.host.pool import Pool, Warmth
from cellblock.host.preloaded import Bounds, Environment
from cellblock.host.preloaded_pool import PreloadedPool
from cellblock.host.shares import Uids
from cellblock.jobs import run_job as run_cell_job
from skillery.backends import Capability, Job, Outcome, Place, Probe, RunHost, Sandbox, Warm
from skillery.builtin.linux_sandbox.engine import HostCapabilities, run_job
from skillery.builtin.linux_sandbox.warm_environments import WarmEnvironments
from skillery.errors import SandboxUnavailable
from skillery.jobs import probe_of

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
        try:
            doctor.refuse_machine()
        except Unavailable as error:
            raise SandboxUnavailable(f"linux: {error}") from None
        capabilities = self.look_around(self._warmth, self._bounds)
        try:
            if not self._allow_degraded:
                doctor.refuse_weak(capabilities)
            await doctor.insist(capabilities)
            await capabilities.pool.start()
        except Unavailable as error:
            await capabilities.close()
            raise SandboxUnavailable(f"linux: {error}") from None
        except BaseException:
            await capabilities.close()
            raise
        return capabilities

    def look_around(self, warmth: Warmth, bounds: Bounds | None = None) -> HostCapabilities:
        """Return the capabilities of the host with new pools, which the caller must close.

        With `bounds`, zygotes with preloaded packages are kept, unless each run has a new zygote.
        """
        control_groups, plan = find_plan((), self._private)
        python = base_python()

        def open_pool(environment: Environment, spoiled: Callable[[str], None]) -> PreloadedPool:
            return PreloadedPool(
                python, plan, self._uids, control_groups, warmth, environment, bounds or Bounds(), spoiled
            )

        return HostCapabilities(
            root=plan["root"],
            groups=control_groups,
            landlock=not plan["without_landlock"],
            pool=Pool(python, plan, self._uids, control_groups, warmth),
            egress=self.egress,
            environments=WarmEnvironments(open_pool, bounds) if bounds and warmth.recycle_runs > 1 else None,
        )

    def probe(self) -> list[Probe]:
        return [probe_of(probe) for probe in doctor.probes(self._run_apart)]

    async def _run_apart(self, jobs: Sequence[CellJob]) -> list[Result]:
        """Run jobs in a separate sandbox. Any thread may call this method."""
        capabilities = self.look_around(doctor.COLD)
        try:
            return [await run_cell_job(capabilities, Template(), job) for job in jobs]
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
