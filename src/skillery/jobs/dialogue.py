"""The server's side of one run: send its files, and answer the requests of its code."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import msgspec

from cellblock.host import dialogue
from cellblock.host.channel import Channel, ChannelAbused, Message
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
from skillery.jobs.header import MEBIBYTE, waits

logger = logging.getLogger(__name__)
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


class Dialogue(dialogue.Dialogue):
    """The dialogue with the code of one run of a job.

    After `listen`, either `result` or `failure` is set. Both are None if the code ended and sent neither.
    """

    def __init__(self, channel: Channel, job: Job, host: RunHost, *, collects: bool = False) -> None:
        """With `collects`, the process inside executes no code of a run, and may send the workspace of a run."""
        limits = self._limits = job.limits
        super().__init__(
            channel,
            result_bytes=limits.result_mb * MEBIBYTE,
            disk_bytes=limits.disk_mb * MEBIBYTE,
            per_second=limits.callbacks_per_second,
            waits=waits(job),
        )
        self._collects = collects
        self._workspace = job.workspace
        self._files = job.files
        self._host = completed_host(host)
        self.kept: set[str] = set()
        """The paths of the files that the code has stored."""
        self._blobs = 0
        self._blob_bytes = 0
        self._calls = 0

    async def go(self) -> None:
        """Copy the kept files and the input files to the workspace, then start the code. Raise BrokenSetup if a file
        cannot be copied.
        """
        if self._workspace is not None:
            await send_workspace(self._channel, self._workspace)
        if self._files:
            await send_files(self._channel, self._files)
        await super().go()

    async def _answer_request(self, message: Message) -> None:
        """Answer a request of the code. Raise ChannelAbused if it is unknown or not allowed."""
        match message.op:
            case "progress":
                self._host.progressed(Progress(message.done, message.total, message.text[:2000]))
            case "blob_write":
                await self._write_blob(message)
            case "blob_read":
                await self._read_blob(message.text_at("blob_id"))
            case "call":
                await self._call_skill(message)
            case "workspace" if self._collects:
                await self._list_workspace(message.body)
            case "workspace_contents" if self._collects:
                await self._host.keep_contents(self._channel.pieces(message.body))
                await self._channel.send({})
            case _:
                raise ChannelAbused("an unknown message")

    async def _normal(self, body: bytes) -> bytes:
        try:
            return await JSON.run(normal_json, body) if len(body) > BIG_TEXT else normal_json(body)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None

    async def _write_blob(self, message: Message) -> None:
        """Receive a blob and answer with its id. If it is refused, discard its bytes and answer with the error."""
        path = message.text_at("path")
        try:
            self._count_blob(message.body)
        except TooLarge as error:
            await self._discard(message.body)
            await self._refuse(error)
            return
        unread = message.body
        writer: BlobWriter | None = None
        try:
            kind = message.text_at("kind") or kind_of_output(path)
            writer = await self._host.begin_blob(kind, path or None)
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
        if path:
            self.kept.add(path)
        await self._channel.send({}, blob_id.encode())

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
        skill, function = message.text_at("skill"), message.text_at("function")
        args = await self._channel.body(message.body)
        call = asyncio.ensure_future(self._host.call_skill(skill, function, args))
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
