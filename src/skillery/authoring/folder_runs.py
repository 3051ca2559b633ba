"""Runs of a skill folder without a registry, in the sandbox that the settings choose.

Limits, mounts, hints and failures are the same as for a published skill. A run leaves no record and no blob.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from skillery.app.limits import limit_rules
from skillery.authoring.host import FolderHost
from skillery.backends import Failure, FailureType, Job, Outcome, PackageMount, Progress, Sandbox
from skillery.errors import SkilleryError
from skillery.plugins import load_plugins
from skillery.runs.checked_results import checked
from skillery.runs.hints import with_hint
from skillery.runs.needs import needs_of, why_refused
from skillery.settings import Settings

if TYPE_CHECKING:
    from skillery.authoring.packages import FolderPackages


class FolderRuns:
    """Runs jobs. At most `settings.runs_at_once` run at a time, as on a server."""

    def __init__(self, settings: Settings, sandbox: Sandbox, stack: AsyncExitStack) -> None:
        """`stack` closes the parts that are opened at their first use."""
        self.settings = settings
        self.sandbox = sandbox
        self.limits = limit_rules(settings)
        self._stack = stack
        self._packages: FolderPackages | None = None
        self._opening = asyncio.Lock()
        self._turns = asyncio.Semaphore(settings.runs_at_once)

    async def run(
        self,
        job: Job,
        *,
        packages: tuple[PackageMount, ...] = (),
        why_less: str = "",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Outcome:
        """Run a job to its end. A failed run is an outcome too."""
        job = msgspec.structs.replace(job, packages=packages) if packages else job
        async with self._turns:
            refusal = await self._refusal(job)
            if refusal is not None:
                return Outcome(failure=refusal)
            with TemporaryDirectory(prefix="skillery-") as blobs:
                outcome = await checked(await self.sandbox.run(job, FolderHost(Path(blobs), job, on_progress)))
        return with_hint(job, outcome, why_less)

    async def packages(self) -> FolderPackages:
        """Return the locks and environments. The first call opens them, because most folders do not need them. Raise
        StartupError if they cannot be opened.
        """
        async with self._opening:
            if self._packages is None:
                # The import of the database takes as long as a test of most folders.
                from skillery.authoring.packages import open_packages

                self._packages = await open_packages(self.settings, self.sandbox, self._stack)
        return self._packages

    async def _refusal(self, job: Job) -> Failure | None:
        try:
            await self.sandbox.start()
        except SkilleryError as error:
            return Failure(FailureType.SANDBOX_ERROR, error.message)
        return why_refused(self.settings.sandbox, self.sandbox.capabilities, job, needs_of(job))


@asynccontextmanager
async def open_runs(settings: Settings) -> AsyncIterator[FolderRuns]:
    """Context manager: open the sandbox of the settings. The sandbox starts in the background. Raise StartupError if it
    cannot be opened.
    """
    sandbox: Sandbox = load_plugins(settings.plugins_folder).open("sandbox", settings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(sandbox.close)
        starting = asyncio.create_task(sandbox.start())
        # The first run reports an error of the start.
        stack.push_async_callback(asyncio.wait, {starting})
        await asyncio.sleep(0)  # the process of the sandbox starts now, while the caller imports further modules
        yield FolderRuns(settings, sandbox, stack)
