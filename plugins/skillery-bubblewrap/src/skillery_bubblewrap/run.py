"""One run on the server: start bwrap, enforce limits, talk to the code, end bwrap, return the outcome."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import socket
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cellblock import Busy
from cellblock.parts import (
    ENVIRONMENT,
    PROXY_ENVIRONMENT,
    PROXY_PORT,
    BrokenSetup,
    Channel,
    ControlGroup,
    Egress,
    EgressBroken,
    HostLimits,
    Processors,
    Session,
    Sockets,
    Uids,
    call_filter,
    cpu_seconds,
    exceeds_memory,
    receive,
    receive_listener,
    run_whole,
    tree_limits,
)
from skillery.backends import CodeCall, Failure, FailureType, Job, Outcome, RunHost
from skillery.jobs import (
    COLLECTING_LIMITS,
    GUEST,
    Collection,
    Dialogue,
    LogPipe,
    Places,
    RunSession,
    collect,
    collecting_dialogue,
    collection_of,
    filling_seconds,
    job_header,
    limits_of,
    try_to_collect,
)
from skillery_bubblewrap import command
from skillery_bubblewrap.process import Bwrap, in_memory

log = logging.getLogger(__name__)
SETUP_SECONDS = 20.0
LOG_SECONDS = 2.0
OOM_INTERVAL = 0.1
WORKSPACE_INSIDE = "/proc/self/fd/4/."
"""The workspace of an ended run, as the process that collects its files sees it."""
BEFORE_THE_LOCK = ("mount", "socket", "bind", "listen", "ioctl")
"""Filtered system calls that bwrap and the prologue need until the complete filter is loaded."""


@dataclass(frozen=True)
class HostCapabilities(HostLimits):
    """The capabilities of this host, determined at start."""

    program: str
    uids: Uids | None
    """The uids for runs if the server is root. None if runs have the uid of the server."""
    egress: Egress
    processors: Processors
    fixed: command.Fixed


class Ended(msgspec.Struct, frozen=True):
    """A run whose processes have ended, and whose files another process collects."""

    collection: Collection
    workspace: int
    """A descriptor of its workspace."""
    uid: int | None


class BubblewrapRun:
    """A job in bwrap. Call `live`, then always `end`."""

    def __init__(self, capabilities: HostCapabilities, job: Job, host: RunHost, collected: Ended | None = None) -> None:
        """`collected` is the run whose files this run collects."""
        self._collected = collected
        self._workspace = -1
        self._means = capabilities
        self._job = job
        self._host = host
        self._log = LogPipe(job.limits.log_kb * 1024, host)
        self._limits = tree_limits(limits_of(job.limits), cgroups=capabilities.memory_held)
        self._uid: int | None = None
        self._group: ControlGroup | None = None
        self._bwrap: Bwrap | None = None
        self._end_of_channel: socket.socket | None = None
        self._channel: Channel | None = None
        self._network: Session | None = None
        self._session = RunSession(job.limits)

    # -- set-up ------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run the job until the code has ended, or until a limit has ended the code."""
        seconds = SETUP_SECONDS + filling_seconds(self._job)
        try:
            async with asyncio.timeout(seconds):
                dialogue = await self._set_up()
        except (Busy, BrokenSetup, EgressBroken, command.NotThere) as problem:
            if not self._oom_kills():  # else the outcome names the limit
                self._session.stopped = Failure(FailureType.SANDBOX_ERROR, str(problem))
        except TimeoutError:
            self._session.stopped = Failure(
                FailureType.SANDBOX_ERROR, f"the sandbox was not ready after {seconds:.0f} seconds"
            )
        except OSError as error:
            self._session.stopped = not_started(error)
        else:
            await self._follow(dialogue)

    async def _follow(self, dialogue: Dialogue) -> None:
        if self._collected is None:
            await self._session.follow(dialogue, self._end_of_code, self._exceeds_memory)
        elif self._channel is not None:
            await collect(dialogue)

    async def _set_up(self) -> Dialogue:
        if self._collected is not None:
            self._uid = self._collected.uid
        elif self._means.uids is not None:
            self._uid = self._means.uids.take()
        if self._means.groups is not None:
            self._group = self._means.groups.make()
            # One process more than the group's allowance for pid 1: bwrap itself, outside.
            limits = limits_of(self._job.limits)
            self._group.limit(replace(limits, processes=limits.processes + 1))
        self._end_of_channel, theirs = socket.socketpair()
        with theirs:
            self._bwrap = self._start(theirs.fileno())
        self._log.close_write_end()
        try:
            return await self._greet(self._end_of_channel)
        except BrokenSetup as broken:
            await self._bwrap.exited()
            log.error("a run could not be set up: %s %s", self._bwrap.message or broken, self._bwrap.errors())
            if broken.explained or not self._bwrap.message:
                raise
            raise BrokenSetup(self._bwrap.message) from None

    def _start(self, channel: int) -> Bwrap:
        """Start bwrap. Raise OSError if that fails, NotThere if a file of the run is missing."""
        with ExitStack() as stack:

            def held(name: str, content: bytes) -> int:
                descriptor = in_memory(name, content)
                stack.callback(os.close, descriptor)
                return descriptor

            read_end, write_end = os.pipe()
            stack.callback(os.close, write_end)
            unread = stack.enter_context(ExitStack())
            unread.callback(os.close, read_end)
            group_files = stack.enter_context(self._group.group_files()) if self._group else []
            numbers = command.Descriptors(
                status=write_end,
                prologue=held("prologue", json.dumps(self._for_prologue(channel)).encode()),
                filter=held("filter", self._filter(also=BEFORE_THE_LOCK, rights=True)),
            )
            sources = command.Sources(staged=self._uid is not None)
            message = command.arguments(self._job, self._means.fixed, sources, self._limits, numbers)
            arguments = held("arguments", b"\0".join(os.fsencode(argument) for argument in message))
            order = {
                "program": self._means.program,
                "command": ["bwrap", "--args", str(arguments), "--", *command.first_program(numbers)],
                "status": write_end,
                "group_files": group_files,
                "affinity": self._means.processors.some(self._job.limits.cpus),
                "uid": self._uid,
                "stage": command.STAGE,
                "binds": sources.binds,
            }
            shown = (self._collected.workspace,) if self._collected else ()
            inherited = (
                *msgspec.structs.astuple(numbers),
                *group_files,
                arguments,
                channel,
                self._log.write_end,
                *shown,
            )
            started = Bwrap(order, inherited, read_end)
            unread.pop_all()
            return started

    def _for_prologue(self, channel: int) -> dict[str, Any]:
        return {
            "limits": self._limits,
            "port": PROXY_PORT if self._job.network else None,
            "channel": channel,
            "log": self._log.write_end,
            "workspace": self._collected.workspace if self._collected else None,
            "environment": ENVIRONMENT,
            "guest": GUEST.module,
            "filter": self._filter().hex(),
            "without_landlock": not self._means.landlock,
            "keeps_groups": self._uid is None,
        }

    def _filter(self, *, also: tuple[str, ...] = (), rights: bool | None = None) -> bytes:
        sockets = Sockets.CLIENTS if self._job.network else Sockets.PAIRS
        return call_filter(
            platform.machine(), cgroups=self._means.memory_held, sockets=sockets, also=also, rights=rights
        )

    async def _greet(self, end: socket.socket) -> Dialogue:
        """Exchange messages with the prologue until the code starts. Raise BrokenSetup or EgressBroken on failure."""
        if self._collected is None:
            self._workspace = await received_folder(end)
        if self._job.network:  # the next message is the listener for the proxy
            job, egress = self._job, self._means.egress
            listener = await receive_listener(end)
            self._network = await egress.open(
                job.network, listener, self._log.note, private=job.private_network, identity=job.identity
            )
        self._channel = await Channel.over(end)
        if self._collected is not None:
            return await self._greet_collector(self._channel, self._collected.collection)
        dialogue = Dialogue(self._channel, self._job, self._host)
        await dialogue.wait_ready()
        proxy = PROXY_ENVIRONMENT if self._job.network else {}
        header = job_header(self._job, {**proxy, **self._job.environment}, Places())
        await self._channel.send(header | {"cpu_seconds": cpu_seconds(limits_of(self._job.limits))}, self._job.args)
        await dialogue.go()
        return dialogue

    async def _greet_collector(self, channel: Channel, collection: Collection) -> Dialogue:
        dialogue = collecting_dialogue(channel, collection, self._host)
        await dialogue.wait_ready()
        await dialogue.begin(collection.header())
        return dialogue

    # -- while the code runs -----------------------------------------------------------------------------------

    async def _end_of_code(self) -> int | None:
        return await self._bwrap.exited() if self._bwrap is not None else None

    async def _exceeds_memory(self) -> None:
        """Return when the run has exceeded its memory limit."""
        if not self._means.memory_held and self._bwrap is not None:
            first = await self._bwrap.first()
            if first is not None:
                await exceeds_memory(first, self._job.limits.memory_mb << 20)
            return
        while self._oom_kills() == 0:  # noqa: ASYNC110 - the kernel counts, without an event
            await asyncio.sleep(OOM_INTERVAL)

    def _oom_kills(self) -> int:
        return self._group.oom_kills() if self._group and self._means.memory_held else 0

    # -- the end -----------------------------------------------------------------------------------------------

    async def end(self) -> Outcome:
        """End the run and return its outcome. Afterwards no process, mount or file of the run is left."""
        if self._channel is None and self._end_of_channel is not None:
            self._end_of_channel.close()
        if self._bwrap is not None:
            await self._bwrap.end()
            self._bwrap.close()
        oom_killed = self._oom_kills() > 0
        if self._group is not None:
            await self._group.remove()
        await self._collect()
        if self._uid is not None and self._means.uids is not None and self._collected is None:
            self._means.uids.give_back(self._uid)
        network = await self._network.close() if self._network is not None else ()
        log = await self._log.finish(LOG_SECONDS)
        self._log.close()
        if self._channel is not None:
            self._channel.close()
        return self._session.outcome(log=log, degraded=self._means.degraded, oom_killed=oom_killed, network=network)

    async def _collect(self) -> None:
        """Keep the files that the code could not keep itself, and save its workspace."""
        collection = collection_of(self._session, self._job, WORKSPACE_INSIDE)
        if collection is not None and self._workspace >= 0:
            await try_to_collect(self._collect_in_another(collection), collection)
        if self._workspace >= 0:
            os.close(self._workspace)

    async def _collect_in_another(self, collection: Collection) -> None:
        ended = Ended(collection, self._workspace, self._uid)
        job = Job(self._job.run_id, CodeCall("", "main"), b"{}", limits=COLLECTING_LIMITS)
        await run_whole(BubblewrapRun(self._means, job, self._host, ended))


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


async def received_folder(end: socket.socket) -> int:
    """Return the descriptor of the first message, or -1 if the sandbox could not be set up. Raise Busy if this process
    may open no more descriptors.
    """
    loop = asyncio.get_running_loop()
    end.setblocking(False)
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(end, _wake, readable)
    try:
        await readable
    finally:
        loop.remove_reader(end)
    if end.recv(1, socket.MSG_PEEK) != b"w":  # the end, or the message why the set-up failed
        return -1
    received = receive(end, 1)
    if received is None or not received.descriptors:
        raise Busy("no descriptor is free for the workspace of a run: raise the limit of open files (ulimit -n)")
    return received.descriptors[0]


def not_started(error: OSError) -> Failure:
    return Failure(FailureType.SANDBOX_ERROR, f"the sandbox could not be started: {os.strerror(error.errno or 0)}")


async def run_job(capabilities: HostCapabilities, job: Job, host: RunHost) -> Outcome:
    try:
        run = BubblewrapRun(capabilities, job, host)
    except OSError as error:
        return Outcome(failure=not_started(error), degraded=capabilities.degraded)
    return await run_whole(run)
