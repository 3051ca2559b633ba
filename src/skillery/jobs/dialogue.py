"""The server's side of one run: send the job, answer the requests of the code, receive the result."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from cellblock.host.channel import Channel, ChannelAbused, Message, wait_ready
from cellblock.values import Failure, FailureKind
from skillery.backends import (
    BlobWriter,
    Job,
    KeptFile,
    Progress,
    RunHost,
)
from skillery.backends.outcomes import completed_host
from skillery.context.threads import BIG_TEXT, JSON
from skillery.errors import BlobNotFound, NotAllowed, SkilleryError, SkillFailed, TooLarge
from skillery.formats.json_values import slow_numbers
from skillery.formats.media_types import kind_of_output
from skillery.jobs.filling import send_files, send_workspace
from skillery.jobs.header import MEBIBYTE

logger = logging.getLogger(__name__)
BURST = 16
LEAST_PAUSE = 0.002
MOST_LISTED = 64 << 20
"""The most bytes of the list of a workspace. A workspace has at most some ten thousand files."""


class _Listed(msgspec.Struct):
    """The files of a workspace, and the paths of entries that cannot be saved."""

    files: list[KeptFile]
    left_out: list[str]


class NoHost(RunHost):
    """A RunHost for runs that write no blobs and call no skills: it refuses both."""

    async def begin_blob(self, kind: str, path: str | None = None) -> BlobWriter:
        raise TooLarge(f"this run cannot write blobs, such as one of the kind {kind}")

    async def read_blob(self, blob_id: str) -> bytes:
        raise BlobNotFound(f"no blob {blob_id}")

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        raise NotAllowed(f"this run cannot call skills, such as {skill}")


class _Pace:
    """Slows down code that sends too many messages, so that other runs do not wait."""

    def __init__(self, per_second: int) -> None:
        self._burst = min(BURST, per_second)
        self._interval = self._burst / per_second
        self._began = time.monotonic()

    async def after(self, number: int) -> None:
        """Wait after the message `number`, counted from 0.

        A burst of messages may be fast. After its last message, this method waits until the time for the burst is over,
        and yields to other tasks even if no wait is needed.
        """
        if number % self._burst < self._burst - 1:
            return
        remaining = self._began + self._interval - time.monotonic()
        await asyncio.sleep(max(remaining, min(self._interval, LEAST_PAUSE)))
        self._began = time.monotonic()


def _do_nothing() -> None:
    pass


class Dialogue:
    """The dialogue with the code of one run.

    After `listen`, either `result` or `failure` is set. Both are None if the code ended and sent neither.
    """

    def __init__(self, channel: Channel, job: Job, host: RunHost, *, collects: bool = False) -> None:
        """With `collects`, the process inside executes no code of a run, and may send the workspace of a run."""
        self._collects = collects
        self._workspace = job.workspace
        self._channel = channel
        self._files = job.files
        self._limits = job.limits
        self._host = completed_host(host)
        self._blobs = 0
        self._blob_bytes = 0
        self._calls = 0
        self._ahead: asyncio.Future[Message | None] | None = None
        """The next message, if it was received during a call."""
        self.heard_at: float | None = None
        """The time (`time.monotonic`) at which the last byte of the result or failure arrived. Later work does not
        count as time of the run.
        """
        self.when_heard: Callable[[], None] = _do_nothing
        """Called when `heard_at` is set."""
        self.summary: str | None = None
        self.result: bytes | None = None
        self.failure: Failure | None = None
        self.disk_bytes: int | None = None
        """The size of the files in the workspace, as the process of the code has measured it at its end."""
        self.kept: set[str] = set()
        """The paths of the files that the code has stored as blobs."""

    async def wait_ready(self) -> None:
        """Wait until the sandbox is ready for code. Raise BrokenSetup if it cannot be prepared."""
        await wait_ready(self._channel)

    async def begin(self, header: dict[str, Any], args: bytes = b"{}") -> None:
        """Send the job."""
        await self._channel.send(header, args)

    async def go(self) -> None:
        """Copy the kept files and the input files to the workspace, then start the code. Raise BrokenSetup if a file
        cannot be copied.
        """
        if self._workspace is not None:
            await send_workspace(self._channel, self._workspace)
        if self._files:
            await send_files(self._channel, self._files)
        await self._channel.send({"op": "go"})

    async def listen(self) -> None:
        """Answer requests until the code sends its result or its failure, or ends."""
        pace = _Pace(self._limits.callbacks_per_second)
        try:
            for number in itertools.count():
                if self.result is not None or self.failure is not None:
                    return
                message = await self._receive()
                if message is None:
                    return
                await self._answer(message)
                await pace.after(number)
        except ChannelAbused as abuse:
            self.failure = Failure(FailureKind.OUTPUT, f"the code wrote to the result channel of its run: {abuse}")
        finally:
            if self._ahead is not None:
                self._ahead.cancel()

    async def _receive(self) -> Message | None:
        ahead, self._ahead = self._ahead, None
        return await (ahead or self._channel.receive())

    async def _answer(self, message: Message) -> None:
        """Handle one message of the code. Raise ChannelAbused if the message is unknown or not allowed."""
        if message.disk is not None and message.disk >= 0:
            self.disk_bytes = min(message.disk, self._limits.disk_mb * MEBIBYTE)
        match message.op:
            case "result":
                await self._take_result(message.body)
            case "failure":
                self._heard()
                self.failure = Failure(
                    FailureKind.EXCEPTION,
                    message.message[:1000],
                    message.type[:200] or "Exception",
                    message.traceback[:4000],
                )
            case "summary":
                self.summary = message.text[:2000]
            case "progress":
                self._host.progressed(Progress(message.done, message.total, message.text[:2000]))
            case "blob_write":
                await self._write_blob(message)
            case "blob_read":
                await self._read_blob(message.blob_id)
            case "call":
                await self._call_skill(message)
            case "workspace" if self._collects:
                await self._list_workspace(message.body)
            case "workspace_contents" if self._collects:
                await self._host.keep_contents(self._channel.pieces(message.body))
                await self._channel.send({})
            case _:
                raise ChannelAbused("an unknown message")

    async def _take_result(self, size: int) -> None:
        """Receive the result of the code. Raise ChannelAbused if it is too large or not JSON."""
        if size > self._limits.result_mb * MEBIBYTE:
            raise ChannelAbused(f"a result of {size} bytes")
        body = await self._channel.body(size)
        self._heard()
        try:
            self.result = await JSON.run(normal_json, body) if size > BIG_TEXT else normal_json(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise ChannelAbused("a result that is not JSON") from None

    def _heard(self) -> None:
        """Note the time at which the code has ended with a result or a failure."""
        self.heard_at = self._channel.heard_at
        self.when_heard()

    async def _write_blob(self, message: Message) -> None:
        """Receive a blob and answer with its id. If it is refused, discard its bytes and answer with the error."""
        try:
            self._count_blob(message.body)
        except TooLarge as error:
            await self._discard(message.body)
            await self._refuse(error)
            return
        unread = message.body
        writer: BlobWriter | None = None
        try:
            kind = message.kind or kind_of_output(message.path)
            writer = await self._host.begin_blob(kind, message.path or None)
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
        if message.path:
            self.kept.add(message.path)
        await self._channel.send({"blob_id": blob_id})

    def _count_blob(self, size: int) -> None:
        """Count a blob of `size` bytes. Raise TooLarge if the run may not write it."""
        self._blobs += 1
        self._blob_bytes += size
        if self._blobs > self._limits.blobs:
            raise TooLarge(f"a run may write {self._limits.blobs} blobs")
        if self._blob_bytes > self._limits.blobs_mb * MEBIBYTE:
            raise TooLarge(f"a run may write {self._limits.blobs_mb} MiB of blobs")

    async def _read_blob(self, blob_id: str) -> None:
        try:
            size, pieces = await self._host.blob_pieces(blob_id)
        except Exception as error:  # noqa: BLE001 - any error is the answer
            await self._refuse(error)
            return
        await self._channel.send_pieces({}, size, pieces)

    async def _call_skill(self, message: Message) -> None:
        """Call a skill for the code, and answer with the returned value. If the code ends first, cancel the call."""
        try:
            self._count_call(message.body)
        except TooLarge as error:
            await self._discard(message.body)
            await self._refuse(error)
            return
        args = await self._channel.body(message.body)
        call = asyncio.ensure_future(self._host.call_skill(message.skill, message.function, args))
        self._ahead = asyncio.ensure_future(self._channel.receive())
        try:
            await asyncio.wait({call, self._ahead}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not call.done():  # the code no longer waits, or has ended
                call.cancel()
                await asyncio.wait({call})
        if call.cancelled():
            return
        problem = call.exception()
        if isinstance(problem, Exception):
            await self._refuse(problem)
        else:
            await self._channel.send({}, call.result())

    def _count_call(self, size: int) -> None:
        """Count a call with `size` bytes of arguments. Raise TooLarge if the run may not make it."""
        self._calls += 1
        if self._calls > self._limits.calls:
            raise TooLarge(f"a run may call skills in separate sandboxes at most {self._limits.calls} times")
        if size > self._limits.result_mb * MEBIBYTE:
            raise TooLarge(
                f"the arguments of a call are {size} bytes of JSON; the limit is {self._limits.result_mb} MiB: "
                "write a blob and pass its id"
            )

    async def _list_workspace(self, size: int) -> None:
        """Pass the list of saved files to the host, and answer with the positions of the contents
        that the host needs.
        """
        if size > MOST_LISTED:
            raise ChannelAbused(f"a list of files with {size} bytes")
        listing = await JSON.run(partial(msgspec.json.decode, type=_Listed), await self._channel.body(size))
        positions = await self._host.list_workspace(listing.files, listing.left_out)
        await self._channel.send({}, msgspec.json.encode(list(positions)))

    async def _discard(self, size: int) -> None:
        async for _ in self._channel.pieces(size):
            pass

    async def _refuse(self, error: Exception) -> None:
        """Answer with the error, which becomes an exception in the code. An unexpected error is logged and not sent."""
        if isinstance(error, SkilleryError):
            shown = {"type": type(error).__name__, "message": error.message}
            if isinstance(error, SkillFailed):
                shown["failed_as"] = error.failed_as
            await self._channel.send({"error": shown})
            return
        logger.error("a call from a sandbox failed", exc_info=error)
        await self._channel.send({"error": {"type": "HostError", "message": "the host could not do this"}})


MANY_SLOW_NUMBERS = 100
"""Most slow numbers (`formats.json_values.slow_numbers`) in a result that is decoded."""


def normal_json(body: bytes) -> bytes:
    """Return a JSON text without blanks. Raise ValueError if the text is not JSON.

    A text that is large or has many slow numbers is checked without decoding: decoding would block the server for
    seconds.
    """
    if len(body) > BIG_TEXT or slow_numbers(body) > MANY_SLOW_NUMBERS:
        return msgspec.json.format(str(body, "utf-8"), indent=-1).encode()
    return msgspec.json.encode(msgspec.json.decode(body))
