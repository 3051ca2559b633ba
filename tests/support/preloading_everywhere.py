"""A sandbox that preloads: each run without packages is forked from a process that has imported a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from skillery.backends import CodeCall, Job, Outcome, PackageMount, RunHost
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox, can_be_preloaded
from skillery.testing.sandbox import MemoryHost
from tests.support.processes import eventually_async

WARM_UP = Job("run_0", CodeCall("def main(args): pass", "main"), b"{}")


class PreloadingEverywhere:
    """Wraps a sandbox. Calls and attributes are those of the wrapped sandbox, except that runs use preloading."""

    def __init__(self, sandbox: LinuxSandbox, folder: Path) -> None:
        self._sandbox = sandbox
        site = folder / "preloaded"
        site.mkdir(exist_ok=True)
        (site / "preloaded_module.py").write_text("STATE = []\n")
        self._mount = PackageMount("cd" * 32, site)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def warm_up(self) -> None:
        await self._sandbox.start()
        await self._sandbox.run(self._changed(WARM_UP), MemoryHost())
        await eventually_async(lambda: self._sandbox.warm()[0].state != "starting")
        [state] = self._sandbox.warm()[:1]
        assert state.state == "ready", state

    async def run(self, job: Job, host: RunHost) -> Outcome:
        return await self._sandbox.run(self._changed(job), host)

    def _changed(self, job: Job) -> Job:
        if job.packages:
            return job
        changed = msgspec.structs.replace(job, packages=(self._mount,), preload=("preloaded_module",))
        return changed if can_be_preloaded(changed) else job
