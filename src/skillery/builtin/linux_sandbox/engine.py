"""One run from the server's side: start the launcher, hold the limits, listen, end it, say what became of it."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import socket
import time

import msgspec

from skillery.backends import Failure, Job, Outcome, RunHost
from skillery.builtin.egress.handing import ENVIRONMENT as PROXY_ENVIRONMENT
from skillery.builtin.egress.service import Egress, EgressBroken, Session
from skillery.builtin.linux_sandbox import watchdog
from skillery.builtin.linux_sandbox.groups import ControlGroup, ControlGroups
from skillery.builtin.linux_sandbox.plan import make_plan
from skillery.builtin.linux_sandbox.spawning import BASE_ENVIRONMENT, Event, Launcher
from skillery.builtin.linux_sandbox.uids import Uids
from skillery.builtin.python_runner.dialogue import BrokenSetup, Dialogue, Places, job_header
from skillery.builtin.python_runner.endings import ended_early, finish_whole
from skillery.builtin.python_runner.logs import LogPipe
from skillery.builtin.python_runner.wire import Channel

SETUP_SECONDS = 20.0
LOG_SECONDS = 2.0
OOM_INTERVAL = 0.1


class Means(msgspec.Struct, frozen=True):
    """What this host has, found out once at start."""

    python: str
    root: bool
    program: bytes
    groups: ControlGroups | None
    landlock: bool
    uids: Uids
    egress: Egress
    cpus: itertools.cycle[int]
    private: tuple[str, ...]
    """Folders of the server, hidden from runs where they lie in what runs are given."""

    @property
    def memory_held(self) -> bool:
        return self.groups is not None and "memory" in self.groups.controllers

    @property
    def degraded(self) -> tuple[str, ...]:
        weaker = {"memory_tree": not self.memory_held, "landlock": not self.landlock}
        return tuple(name for name, is_weaker in weaker.items() if is_weaker)

    def close(self) -> None:
        if self.groups is not None:
            self.groups.close()

    def affinity(self, cpus: float) -> list[int]:
        """Without a cgroup that counts CPU time a run is held on as many processors as it may use."""
        if self.groups is not None and "cpu" in self.groups.controllers:
            return []
        count = math.ceil(cpus)
        return [] if count >= len(os.sched_getaffinity(0)) else sorted(itertools.islice(self.cpus, count))


class Run:
    """One job on its way. `live`, then `end` whatever happened, then `outcome`."""

    def __init__(self, means: Means, job: Job, host: RunHost, uid: int) -> None:
        self._means = means
        self._job = job
        self._host = host
        self._uid = uid
        self._log = LogPipe(job.limits.log_kb * 1024)
        self._channel: Channel | None = None
        self._end_of_channel: socket.socket | None = None
        self._way_out: Session | None = None
        self._launcher: Launcher | None = None
        self._grouping: asyncio.Future[ControlGroup | None] | None = None
        self._group: ControlGroup | None = None
        self._dialogue: Dialogue | None = None
        self._stopped: Failure | None = None
        self._ended: Event | None = None
        self._duration = 0.0

    # -- set-up ------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Until the code has ended, or a limit has ended it."""
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                dialogue = await self._set_up()
        except BrokenSetup as broken:
            self._ended = await self._launcher.event() if self._launcher else None
            self._stopped = Failure("SandboxError", (self._ended and self._ended.message) or str(broken))
        except EgressBroken as broken:
            self._stopped = Failure("SandboxError", str(broken))
        except TimeoutError:
            self._stopped = Failure("SandboxError", f"the sandbox was not ready after {SETUP_SECONDS:.0f} seconds")
        except OSError as error:
            self._stopped = not_started(error)
        else:
            await self._let_run(dialogue)

    async def _set_up(self) -> Dialogue:
        self._end_of_channel, theirs = socket.socketpair()
        with theirs:
            self._launcher = Launcher(self._means.python, theirs, self._log.write_end)
        self._log.close_write_end()
        # The interpreter starts meanwhile: joining a group can take the kernel as long as that.
        self._grouping = asyncio.ensure_future(self._join_groups(self._launcher.pid))
        await self._launcher.connect()
        self._group = await asyncio.shield(self._grouping)
        self._launcher.tell_plan(self._plan())
        self._channel = await self._open_channel(self._end_of_channel)
        self._dialogue = Dialogue(self._channel, self._job, self._host)
        proxy = PROXY_ENVIRONMENT if self._job.network else {}
        header = job_header(self._job, {**BASE_ENVIRONMENT, **proxy, **self._job.environment}, Places())
        await self._channel.send(header, self._job.args)
        await self._dialogue.wait_ready()
        return self._dialogue

    async def _open_channel(self, end: socket.socket) -> Channel:
        """The first thing that comes over it is the listener of a run that may use the network."""
        if self._job.network:
            self._way_out = await self._means.egress.open_over(end, self._job.network, self._log.note)
        return await Channel.over(end)

    async def _join_groups(self, pid: int) -> ControlGroup | None:
        if self._means.groups is None:
            return None
        return await asyncio.to_thread(self._means.groups.make, self._job.limits, pid)

    def _plan(self) -> dict[str, object]:
        return make_plan(
            self._job,
            root=self._means.root,
            uid=self._uid,
            cgroups=self._means.memory_held,
            program=self._means.program,
            affinity=self._means.affinity(self._job.limits.cpus),
            without_landlock=not self._means.landlock,
            private=self._means.private,
        )

    # -- while the code runs -----------------------------------------------------------------------------------

    async def _let_run(self, dialogue: Dialogue) -> None:
        timeout = self._job.limits.timeout_ms
        started = time.monotonic()
        await dialogue.go()
        listening = asyncio.ensure_future(self._listen(dialogue))
        guarding = asyncio.ensure_future(self._exceeds_memory())
        try:
            done, _ = await asyncio.wait(
                {listening, guarding}, timeout=timeout / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            self._duration = (time.monotonic() - started) * 1000
            if listening in done:
                listening.result()
            elif guarding in done:
                guarding.result()
                self._stopped = self._too_much_memory()
            else:
                self._stopped = Failure("TimeoutError", f"the run took longer than {timeout} ms")
        finally:
            await cancel(listening, guarding)

    async def _listen(self, dialogue: Dialogue) -> None:
        await dialogue.listen()
        if dialogue.result is None and dialogue.failure is None and self._launcher is not None:
            # It closed the channel, or has ended. Only the launcher knows which, and only the end counts.
            self._ended = await self._launcher.event()

    async def _exceeds_memory(self) -> None:
        """Returns when the run has used more memory than it may."""
        if not self._means.memory_held and self._launcher is not None:
            await watchdog.exceeds(self._launcher.pid, self._job.limits.memory_mb << 20)
            return
        while self._oom_kills() == 0:  # noqa: ASYNC110 - it is the kernel that counts
            await asyncio.sleep(OOM_INTERVAL)

    def _oom_kills(self) -> int:
        return self._group.oom_kills() if self._group is not None else 0

    def _too_much_memory(self) -> Failure:
        limit = self._job.limits.memory_mb
        return Failure("MemoryLimitExceeded", f"the run and its processes used more than {limit} MiB of memory")

    # -- the end -----------------------------------------------------------------------------------------------

    async def end(self) -> Outcome:
        """Nothing of the run is left when this returns, however it began."""
        if self._launcher is not None:
            await self._launcher.end()
            self._ended = self._ended or await self._launcher.event()
        oom_killed = self._oom_kills() > 0
        await self._leave_groups()
        network = await self._way_out.close() if self._way_out is not None else ()
        log = await self._log.finish(LOG_SECONDS)
        self._log.close()
        if self._channel is not None:
            self._channel.close()
        elif self._end_of_channel is not None:
            self._end_of_channel.close()
        dialogue = self._dialogue
        failure = self._failure(oom_killed=oom_killed)
        return Outcome(
            result=dialogue.result if dialogue and failure is None else None,
            failure=failure,
            summary=dialogue.summary if dialogue else None,
            log=log,
            duration_ms=self._duration,
            degraded=self._means.degraded,
            network=network,
        )

    async def _leave_groups(self) -> None:
        """Also of those that were still being made when the run was cancelled."""
        if self._grouping is None:
            return
        await asyncio.wait({self._grouping})
        group = None if self._grouping.exception() else self._grouping.result()
        if group is not None:
            await group.remove()

    def _failure(self, *, oom_killed: bool) -> Failure | None:
        if self._stopped is not None:
            return self._stopped
        if oom_killed:
            return self._too_much_memory()
        if self._dialogue is not None and self._dialogue.failure is not None:
            return self._dialogue.failure
        if self._dialogue is not None and self._dialogue.result is not None:
            return None
        if self._ended is None or self._ended.event != "ended" or not self._ended.whole:
            return Failure("SandboxError", "the sandbox was ended from outside")
        return ended_early(self._ended.status)


def not_started(error: OSError) -> Failure:
    return Failure("SandboxError", f"the sandbox could not be started: {os.strerror(error.errno or 0)}")


async def cancel(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_job(means: Means, job: Job, host: RunHost) -> Outcome:
    with means.uids.one() as uid:
        try:
            run = Run(means, job, host, uid)
        except OSError as error:
            return Outcome(failure=not_started(error), degraded=means.degraded)
        try:
            await run.live()
        except BaseException:
            await finish_whole(run.end())
            raise
        return await finish_whole(run.end())
