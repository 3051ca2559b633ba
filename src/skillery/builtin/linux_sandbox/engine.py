"""One run of a job in a cell of `cellblock`: its header, its files, and the collection of files that it left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cellblock.host.cells import Cell
from cellblock.host.channel import Channel
from cellblock.host.engine import LOG_SECONDS, SETUP_SECONDS, Capabilities, Needs
from cellblock.host.engine import CellRun as AnyRun
from cellblock.host.plan import mount_entries
from cellblock.host.pool import Pool
from cellblock.host.sessions import run_whole
from skillery.backends import Job, Outcome, RunHost
from skillery.builtin.linux_sandbox.warm_environments import WarmEnvironments
from skillery.jobs.collecting import (
    Collection,
    collect,
    collecting_dialogue,
    collection_of,
    try_to_collect,
)
from skillery.jobs.dialogue import Dialogue
from skillery.jobs.filling import filling_seconds
from skillery.jobs.header import Places, job_header, mounts_of
from skillery.jobs.outcomes import limits_of, outcome_of, sink_of


@dataclass(frozen=True)
class HostCapabilities(Capabilities):
    """The capabilities of this host, determined at start, and the pools of cells."""

    environments: WarmEnvironments | None = None
    """Pools of cells with preloaded packages. None if no packages are preloaded."""

    async def close(self) -> None:
        if self.environments is not None:
            await self.environments.close()
        await super().close()


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
        )
        super().__init__(capabilities, needs)
        self._environments = capabilities.environments
        self._job = job
        self._host = host

    def _pool_for(self, attempt: int) -> Pool:
        """Only the first attempt (0) may use preloaded packages."""
        warm = self._environments.pool_for(self._job) if self._environments is not None and attempt == 0 else None
        return warm or super()._pool_for(attempt)

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
