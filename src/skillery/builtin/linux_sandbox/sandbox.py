"""The backend `linux`: it checks the host, refuses a host that cannot enforce limits, and runs jobs in cells of
`cellblock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import skillery
from cellblock import Job as CellJob
from cellblock import Mount, Result, Template, Unavailable, doctor
from cellblock.egress.service import Egress
from cellblock.host.cells import Cell
from cellblock.host.channel import Channel
from cellblock.host.engine import LOG_SECONDS, SETUP_SECONDS, Capabilities, Needs, find_plan
from cellblock.host.engine import CellRun as AnyRun
from cellblock.host.plan import MEBIBYTE, Preload, can_set_network, mount_entries
from cellblock.host.pool import Pool
from cellblock.host.pools import Pools
from cellblock.host.sessions import run_whole
from cellblock.host.shares import Uids
from cellblock.host.sockets import SharedFolders
from cellblock.host.succession import Shared, Warmth
from cellblock.jobs import run_job as run_cell_job
from skillery.backends import Capability, CodeCall, Job, Outcome, Place, Probe, RunHost, Sandbox, SkillCall, Warm
from skillery.backends.jobs import is_program
from skillery.errors import SandboxUnavailable
from skillery.jobs.collecting import Collection, collect, collecting_dialogue, collection_of, try_to_collect
from skillery.jobs.dialogue import Dialogue
from skillery.jobs.filling import filling_seconds
from skillery.jobs.header import GUEST, POINTS, PROGRAMS, Places, job_header, mounts_of
from skillery.jobs.outcomes import limits_of, outcome_of, probe_of, sink_of

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


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of zygotes with preloaded modules."""

    most: int = 4
    memory_mb: int = 1024
    preload_seconds: float = 60.0
    idle_seconds: float = 600.0


NOTHING_PRELOADED = Bounds(most=0)


@dataclass(frozen=True)
class HostCapabilities(Capabilities):
    """The capabilities of this host, determined at start, and the pools of cells. `pool` is for all runs that use no
    preloaded modules.
    """

    pools: Pools
    preload_mb: int
    """Memory limit of a zygote with preloaded modules, without its runs."""
    preload_seconds: float

    def pool_for(self, job: Job) -> Pool:
        """Return the pool with the preloaded packages of a job, or `pool`."""
        if not can_be_preloaded(job):
            return self.pool
        first = job.packages[0]
        preload = Preload(first.lock, str(first.folder), job.preload, self.preload_mb, self.preload_seconds)
        return self.pools.of(preload, holder=first)

    async def close(self) -> None:
        try:
            await self.pools.close()
        finally:
            await super().close()


def can_be_preloaded(job: Job) -> bool:
    """Return whether a zygote may preload modules for the job.

    A job with variables (secrets) or a network never runs in such a zygote, because code of packages would be its
    parent process. Neither does a job whose code is not a Python function.
    """
    is_python = isinstance(job.call, SkillCall) or (isinstance(job.call, CodeCall) and job.call.language == "python")
    is_first = bool(job.packages) and job.packages[0].kind == "python"
    return bool(job.preload and is_first and is_python and not job.environment and not job.network)


class CellRun(AnyRun):
    """One job in a cell. Call `live`, then always `end`, which returns the result."""

    def __init__(self, capabilities: HostCapabilities, job: Job, host: RunHost) -> None:
        needs = Needs(
            limits_of(job.limits),
            job.network,
            job.private_network,
            job.identity,
            sink_of(host),
            SETUP_SECONDS + filling_seconds(job),
            is_program(job.call),
        )
        super().__init__(capabilities, needs)
        self._host_capabilities = capabilities
        self._job = job
        self._host = host

    def _pool_for(self, attempt: int) -> Pool:
        """Only the first attempt (0) may use preloaded packages."""
        return super()._pool_for(attempt) if attempt else self._host_capabilities.pool_for(self._job)

    def _mounts(self) -> Sequence[Mount]:
        return mounts_of(self._job)

    def _entries(self) -> list[dict[str, Any]]:
        """Return the entries that the workshop mounts for the run.

        If the zygote has preloaded the only environment of the job, its packages are mounted already.
        """
        is_there = self._pool is not self._capabilities.pool and len(self._job.packages) == 1
        return mount_entries(mounts_of(self._job, packages=not is_there), root=self._capabilities.root)

    def _header(self, environment: Mapping[str, str]) -> dict[str, Any]:
        return job_header(self._job, {**environment, **self._job.environment}, Places())

    def _args(self) -> bytes:
        return self._job.args

    def _dialogue(self, channel: Channel) -> Dialogue:
        return Dialogue(channel, self._job, self._host)

    # -- collection ----------------------------------------------------------------------------------------------

    async def _after(self, cell: Cell) -> None:
        """Keep the files that the code could not keep itself, and save its workspace."""
        collection = collection_of(self._session, self._job)
        if collection is not None:
            await try_to_collect(self._collect_after(cell, collection), collection)

    async def _collect_after(self, cell: Cell, collection: Collection) -> None:
        """Collect in a new cell, which sees the workspace of the ended one."""
        fresh = self._next_cell = await self._pool.cell_after(cell)
        fresh.log.keep(self._job.limits.log_kb * 1024, sink_of(self._host))
        dialogue = collecting_dialogue(await fresh.open_channel(), collection, self._host)
        await dialogue.wait_ready()  # its own workspace is mounted then, and the other one covers it
        await cell.home.show_workspace(cell, fresh)
        await dialogue.begin(collection.header())
        await collect(dialogue)
        if collection.kept is not None:  # it may have written which files are lost
            await fresh.end()
            await fresh.log.finish(LOG_SECONDS)


async def run_job(capabilities: HostCapabilities, job: Job, host: RunHost) -> Outcome:
    return outcome_of(await run_whole(CellRun(capabilities, job, host)))


class LinuxSandbox(Sandbox):
    """See `skillery.backends.Sandbox`."""

    def __init__(
        self,
        uids: Uids,
        warmth: Warmth,
        egress: Egress,
        place: Place,
        bounds: Bounds | None = None,
        node: Path | None = None,
        etc: tuple[str, ...] = (),
        pythons: Mapping[str, Path] = {},
    ) -> None:
        self._bounds = bounds or Bounds()
        self.egress = egress
        self._uids = uids
        self._warmth = warmth
        self._allow_degraded = place.allow_degraded
        private = (place.home, Path(skillery.__file__).parents[1])
        self._pythons = {version: str(path) for version, path in pythons.items()}
        self._template = Template(
            POINTS,
            private=private,
            guest=GUEST,
            node=node,
            pythons=tuple(pythons.values()),
            etc=etc,
            programs=PROGRAMS,
        )
        self._capabilities: HostCapabilities | None = None
        self._starting = asyncio.Lock()

    @property
    def capabilities(self) -> frozenset[str]:
        held = self._capabilities is not None and self._capabilities.memory_held
        optional = {Capability.MEMORY_TREE: held, Capability.LOOPBACK: can_set_network()}
        return CAPABILITIES.union(capability for capability, is_there in optional.items() if is_there)

    async def start(self) -> None:
        if self._capabilities is not None:
            return
        async with self._starting:
            if self._capabilities is None:
                self._capabilities = await self._find_capabilities()

    async def _find_capabilities(self) -> HostCapabilities:
        try:
            doctor.refuse_machine(self._uids)
            capabilities = self.look_around(self._warmth, self._bounds)
            with doctor.named_unavailable():
                await doctor.start(capabilities, allow_degraded=self._allow_degraded)
        except Unavailable as error:
            raise SandboxUnavailable(f"linux: {error}") from None
        return capabilities

    def look_around(self, warmth: Warmth, bounds: Bounds = NOTHING_PRELOADED) -> HostCapabilities:
        """Return the capabilities of the host with new pools, which the caller must close.

        No modules are preloaded if each run has a new zygote.
        """
        control_groups, plan = find_plan(self._template)
        shared = Shared(plan, self._uids, control_groups, warmth)
        trusted, most = Pool(shared), bounds.most if warmth.recycle_runs > 1 else 0
        return HostCapabilities(
            root=plan["root"],
            loopback=can_set_network(),
            folders=SharedFolders(plan),
            groups=control_groups,
            landlock=not plan["without_landlock"],
            pool=trusted,
            pools=Pools(trusted, partial(Pool, shared), most, bounds.idle_seconds),
            egress=self.egress,
            preload_mb=bounds.memory_mb,
            preload_seconds=bounds.preload_seconds,
        )

    def probe(self) -> list[Probe]:
        return [probe_of(probe) for probe in doctor.probes(self._run_apart, self._uids, self._template)]

    async def _run_apart(self, jobs: Sequence[CellJob]) -> list[Result]:
        """Run jobs in a separate sandbox. Any thread may call this method."""
        capabilities = self.look_around(doctor.COLD)
        try:
            return [await run_cell_job(capabilities, Template(), job) for job in jobs]
        finally:
            await capabilities.close()

    def pythons(self) -> Mapping[str, str]:
        """See `skillery.backends.Sandbox`."""
        return self._pythons

    async def run(self, job: Job, host: RunHost) -> Outcome:
        await self.start()
        if self._capabilities is None:
            raise SandboxUnavailable("the sandbox `linux` is closed")
        return await run_job(self._capabilities, job, host)

    def figures(self) -> dict[str, float]:
        """See `skillery.backends.Sandbox`."""
        if self._capabilities is None:
            return {}
        return self._capabilities.pools.figures()

    def warm(self) -> list[Warm]:
        """See `skillery.backends.KeepsWarm`."""
        kept = self._capabilities.pools.preloaded() if self._capabilities is not None else []
        return [
            Warm(
                pool.preload.lock,
                pool.preload.modules,
                pool.state,
                round(pool.memory / MEBIBYTE, 1) if pool.state == "ready" else 0.0,
                pool.message,
            )
            for pool in kept
        ]

    async def close(self) -> None:
        await self.egress.close()
        if self._capabilities is not None:
            await self._capabilities.close()
        self._capabilities = None
