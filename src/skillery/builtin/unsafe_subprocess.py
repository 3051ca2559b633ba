"""The backend `unsafe-subprocess`: it runs code in an ordinary process of the server's user.

Each run has its own folder, log and timeout, but nothing isolates it: the code can read, write, call and kill
everything that the server can. Use the backend for trusted code on systems that cannot run `linux`. It needs the
settings `allow_unsafe_sandbox = true` and `sandbox = "unsafe-subprocess"`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from cellblock import doctor
from cellblock.host.channel import BrokenSetup, Channel
from cellblock.host.plan import HERE
from cellblock.host.sessions import run_whole
from skillery import hookimpl
from skillery.backends import Capability, Failure, FailureType, Job, Offer, Outcome, Place, Probe, RunHost, Sandbox
from skillery.jobs import outcomes
from skillery.jobs.collecting import (
    Collection,
    collect,
    collecting_dialogue,
    collection_of,
    try_to_collect,
)
from skillery.jobs.dialogue import Dialogue, NoHost
from skillery.jobs.filling import filling_seconds
from skillery.jobs.header import GUEST, Places, job_header
from skillery.jobs.outcomes import LogPipe, RunSession

RUNNER = HERE
START = "import sys; sys.path.append('.'); from runtime import _run; _run.main(int(sys.argv[1]), *sys.argv[2:])"
SETUP_SECONDS = 20.0
LOG_SECONDS = 0.5
DEGRADED = ("isolation", "memory_tree", "processes", "cpus", "disk", "disk_files", "network")


class UnsafeSubprocess(Sandbox):
    """See `skillery.backends.Sandbox`. Every outcome lists the missing limits in `degraded`."""

    capabilities: frozenset[str] = frozenset(
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
            Capability.LOOPBACK,
        }
    )
    """The network is listed, because code can connect to its hosts. It can also connect to others, which `degraded`
    reports.
    """

    def probe(self) -> list[Probe]:
        fix = "on Linux, use the sandbox `linux`"
        isolation = Probe("isolation", False, "unsafe-subprocess isolates nothing: run only code you trust", fix, False)
        return [isolation, *outcomes.language_probes(*doctor.run_apart(self._run_all, outcomes.JOBS))]

    async def _run_all(self, jobs: Sequence[Job]) -> list[Outcome]:
        return [await self.run(job, NoHost()) for job in jobs]

    async def start(self) -> None:
        """Do nothing, because this backend prepares nothing."""

    async def run(self, job: Job, host: RunHost) -> Outcome:
        try:
            run = PlainRun(job, host)
        except OSError as error:
            reason = f"the process could not be started: {error.strerror}"
            return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, reason), degraded=DEGRADED)
        return await run_whole(run)

    async def close(self) -> None:
        """Do nothing, because this backend keeps nothing between runs."""


# `skillery plugin new` copies everything from here to `open_sandbox` into the package of a new sandbox.


class PlainRun:
    """One job in one process and one temporary folder."""

    def __init__(self, job: Job, host: RunHost) -> None:
        self._job = job
        self._host = host
        self._log = LogPipe(job.limits.log_kb * 1024, host)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="skillery-run-"))
        except OSError:
            self._log.close()
            raise
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._exit: asyncio.Future[int] | None = None
        self._session = RunSession(job.limits)

    async def live(self) -> None:
        try:
            async with asyncio.timeout(SETUP_SECONDS + filling_seconds(self._job)):
                dialogue = await self._set_up()
        except (BrokenSetup, TimeoutError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            message = f"the process could not be started: {reason or 'it took too long'}"
            self._session.stopped = Failure(FailureType.SANDBOX_ERROR, message)
        else:
            await self._session.follow(dialogue, self._end_of_code)

    async def _set_up(self) -> Dialogue:
        """Start the process and send it the job. Return the dialogue with its code."""
        places = self._lay_out()
        own_end, child_end = socket.socketpair()
        with child_end:
            self._channel = await Channel.over(own_end)
            self._process = self._start(child_end.fileno(), self._log)
        self._exit = exit_of(self._process)
        self._log.close_write_end()
        dialogue = Dialogue(self._channel, self._job, self._host)
        header = job_header(self._job, self._job.environment, places) | {
            "memory_bytes": self._job.limits.memory_mb << 20
        }
        await self._channel.send(header, self._job.args)
        await dialogue.wait_ready()
        await dialogue.go()
        return dialogue

    def _lay_out(self) -> Places:
        """Create the folders that another sandbox would mount. Read-only content is linked. Return the paths."""
        names = ("skills", "blobs", "packages", "workspace")
        skills, blobs, packages, workspace = (self._folder / name for name in names)
        for folder in (skills, blobs, packages, workspace):
            folder.mkdir()
        for skill in self._job.skills:
            (skills / skill.name).symlink_to(skill.folder.absolute())
        for blob in self._job.blobs:
            (blobs / blob.blob_id).symlink_to(blob.path.absolute())
        for package in self._job.packages:
            (packages / package.name).symlink_to(package.folder.absolute())
        return Places(
            str(skills), str(blobs), str(packages), str(workspace), str(self._folder / "home"), own_processes=False
        )

    def _environment(self) -> dict[str, str]:
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self._folder / "workspace"), "LANG": "C.UTF-8"}

    def _start(self, channel: int, log: LogPipe) -> subprocess.Popen[bytes]:
        """Start the process of the run. A sandbox isolates it here; this one does not."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", START, str(channel), str(GUEST.folder), GUEST.module],
            cwd=RUNNER,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=log.write_end,
            stderr=log.write_end,
            pass_fds=(channel,),
            start_new_session=True,
        )

    async def _end_of_code(self) -> int | None:
        return await asyncio.shield(self._exit) if self._exit is not None else None

    async def end(self) -> Outcome:
        """Kill the processes of the run, save its files, and return its outcome."""
        if self._process is not None and self._exit is not None:
            kill_group(self._process)
            await self._exit
        log = await self._log.finish(LOG_SECONDS)
        self._log.close()
        await self._collect()
        if self._channel is not None:
            self._channel.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        return self._session.outcome(log=log, degraded=DEGRADED)

    async def _collect(self) -> None:
        """Keep the files that the code did not keep because it was stopped, and save the workspace of the run."""
        workspace = str(self._folder / "workspace")
        collection = collection_of(self._session, self._job, workspace, str(self._folder))
        if collection is not None:
            await try_to_collect(self._collect_again(collection), collection)

    async def _collect_again(self, collection: Collection) -> None:
        """Collect the files in another process, because the first one did not finish."""
        own_end, child_end = socket.socketpair()
        async with AsyncExitStack() as stack:
            with child_end:
                channel = await Channel.over(own_end)
                stack.callback(channel.close)
                log = LogPipe(self._job.limits.log_kb * 1024, self._host)
                stack.callback(log.close)
                process = self._start(child_end.fileno(), log)
            stack.push_async_callback(log.finish, LOG_SECONDS)
            stack.push_async_callback(lambda: exit_of(process))
            stack.callback(kill_group, process)
            dialogue = collecting_dialogue(channel, collection, self._host)
            await dialogue.begin(collection.header())
            await dialogue.wait_ready()
            await collect(dialogue)


def exit_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Return a future with the wait status of the process.

    A thread waits for the process, because pidfds exist only on Linux, and a thread pool could be exhausted.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        code = process.wait()
        status = -code if code < 0 else code << 8
        loop.call_soon_threadsafe(ended.set_result, status)

    threading.Thread(target=wait, daemon=True).start()
    return ended


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes in the group of the process. Children that changed their group stay alive."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def open_sandbox(settings: msgspec.Struct, place: Place) -> UnsafeSubprocess:
    del settings, place
    return UnsafeSubprocess()


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer(name="unsafe-subprocess", open=open_sandbox, unsafe=True)
