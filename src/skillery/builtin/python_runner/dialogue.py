"""The server's half of one run: hands over the job, answers what the code asks, ends with what became of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from skillery.backends import BlobWriter, Failure, Job, RunHost, SkillCall
from skillery.builtin.python_runner.wire import Channel, ChannelAbused, Message
from skillery.errors import SkilleryError, TooLarge

logger = logging.getLogger(__name__)
MEBIBYTE = 1 << 20
BIG_RESULT = 256 * 1024
BURST, PAUSE = 16, 0.002


class Places(msgspec.Struct, frozen=True):
    """Where things are, as the code sees them."""

    skills: str = "/skills"
    blobs: str = "/blobs"
    lock: str = "/workspace"
    code: str = "/run/code/run_code.py"


class BrokenSetup(Exception):
    """The place could not be made ready; the message is for the caller. `explained` is what the place itself said."""

    def __init__(self, message: str, *, explained: bool = False) -> None:
        super().__init__(message)
        self.explained = explained


def job_header(job: Job, environment: Mapping[str, str], places: Places) -> dict[str, Any]:
    """All that the process inside is told of its run, but the arguments."""
    call = job.call
    named = {"skill": call.skill, "code": None} if isinstance(call, SkillCall) else {"skill": None, "code": call.code}
    return {
        **named,
        "function": call.function,
        "code_path": places.code,
        "lock_folder": places.lock,
        "blobs_folder": places.blobs,
        "environment": dict(environment),
        "result_bytes": job.limits.result_mb * MEBIBYTE,
        "skills": [
            {"name": skill.name, "folder": f"{places.skills}/{skill.name}", "entrypoint": skill.entrypoint}
            for skill in job.skills
        ],
    }


class Dialogue:
    """One conversation. After `listen` exactly one of `result` and `failure` is set, or neither where the code ended
    without a word."""

    def __init__(self, channel: Channel, job: Job, host: RunHost) -> None:
        self._channel = channel
        self._limits = job.limits
        self._host = host
        self._blobs = 0
        self._blob_bytes = 0
        self.summary: str | None = None
        self.result: bytes | None = None
        self.failure: Failure | None = None

    async def wait_ready(self) -> None:
        """Until the code could start. Raises BrokenSetup."""
        try:
            message = await self._channel.receive()
        except ChannelAbused:  # it was killed in the middle of a word
            message = None
        if message is None:
            raise BrokenSetup("the sandbox ended while it was being set up")
        if message.op != "ready":
            raise BrokenSetup(message.message[:500] or "the sandbox could not be set up", explained=True)

    async def go(self) -> None:
        await self._channel.send({"op": "go"})

    async def listen(self) -> None:
        """Answer until the code hands over its result or its failure, or is gone."""
        try:
            for number in itertools.count():
                if self.result is not None or self.failure is not None:
                    return
                message = await self._channel.receive()
                if message is None:
                    return
                await self._answer(message)
                if number % BURST == BURST - 1:
                    await asyncio.sleep(PAUSE)  # code that floods us waits; the other runs of this server do not
        except ChannelAbused as abuse:
            self.failure = Failure("InvalidOutput", f"the code wrote to the result channel of its run: {abuse}")

    async def _answer(self, message: Message) -> None:
        match message.op:
            case "result":
                await self._take_result(message.body)
            case "failure":
                self.failure = Failure(
                    message.type[:200] or "Exception", message.message[:1000], message.traceback[:4000]
                )
            case "summary":
                self.summary = message.text[:2000]
            case "blob_write":
                await self._write_blob(message)
            case "blob_read":
                await self._read_blob(message.blob_id)
            case _:
                raise ChannelAbused("an unknown message")

    async def _take_result(self, size: int) -> None:
        if size > self._limits.result_mb * MEBIBYTE:
            raise ChannelAbused(f"a result of {size} bytes")
        body = await self._channel.body(size)
        normalise = asyncio.to_thread(normal_json, body) if size > BIG_RESULT else None
        try:
            self.result = await normalise if normalise else normal_json(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise ChannelAbused("a result that is not JSON") from None

    async def _write_blob(self, message: Message) -> None:
        try:
            self._count_blob(message.body)
        except TooLarge as error:
            await self._discard(message.body)
            await self._refuse(error)
            return
        unread = message.body
        writer: BlobWriter | None = None
        try:
            writer = await self._host.begin_blob(message.kind)
            async for piece in self._channel.pieces(message.body):
                unread -= len(piece)
                await writer.write(piece)
            blob_id = await writer.commit()
        except BaseException as error:
            if writer is not None:
                await writer.abort()
            if not isinstance(error, Exception) or isinstance(error, ChannelAbused):
                raise
            await self._discard(unread)
            await self._refuse(error)
            return
        await self._channel.send({"blob_id": blob_id})

    def _count_blob(self, size: int) -> None:
        self._blobs += 1
        self._blob_bytes += size
        if self._blobs > self._limits.blobs:
            raise TooLarge(f"a run may write {self._limits.blobs} blobs")
        if self._blob_bytes > self._limits.blobs_mb * MEBIBYTE:
            raise TooLarge(f"a run may write {self._limits.blobs_mb} MiB of blobs")

    async def _read_blob(self, blob_id: str) -> None:
        try:
            content = await self._host.read_blob(blob_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            await self._refuse(error)
            return
        await self._channel.send({}, content)

    async def _discard(self, size: int) -> None:
        async for _ in self._channel.pieces(size):
            pass

    async def _refuse(self, error: Exception) -> None:
        if isinstance(error, SkilleryError):
            await self._channel.send({"error": {"type": type(error).__name__, "message": error.message}})
            return
        logger.error("a call from a sandbox failed", exc_info=error)
        await self._channel.send({"error": {"type": "HostError", "message": "the host could not do this"}})


def normal_json(body: bytes) -> bytes:
    """The same value in the compact form. Raises where it is not JSON.

    A big one is checked as text: millions of small values would take seconds in which nobody else is served.
    """
    if len(body) > BIG_RESULT:
        return msgspec.json.format(str(body, "utf-8"), indent=-1).encode()
    return msgspec.json.encode(msgspec.json.decode(body))
