"""One run on a connection, the server's side: send the job, answer the requests of the node, receive the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from skillery.backends import (
    BlobWriter,
    FollowsLog,
    Job,
    KeptFile,
    Outcome,
    Progress,
    RunHost,
    completed_host,
)
from skillery.errors import BlobNotFound, ContentMissing, SkilleryError, SkillFailed
from skillery_ray.jobs import Packed
from skillery_ray.trees import Tree
from skillery_ray.wire import Frame, Wire

logger = logging.getLogger(__name__)

Answer = tuple[dict[str, Any], bytes]
CANCEL_SECONDS = 30.0
"""The longest time that a node may take to end a cancelled run."""


class _Listed(msgspec.Struct):
    """The files of a saved workspace, and the paths that cannot be saved."""

    files: list[KeptFile]
    left_out: list[str]


class Conversation:
    """The server's side of one run: its dialogue with the node. The connection serves no other run at the same time."""

    def __init__(self, wire: Wire, job: Job, packed: Packed, host: RunHost) -> None:
        self._wire = wire
        self._job = job
        self._packed = packed
        self._host = completed_host(host)
        self._numbers = itertools.count(1)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._blobs: dict[int, BlobWriter] = {}
        self._streams: dict[int, AsyncIterator[bytes]] = {}
        self._kept: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._keeping: asyncio.Task[None] | None = None
        self._operations: Mapping[str, Callable[[Frame], Awaitable[Answer]]] = {
            "begin_blob": self._begin_blob,
            "write_blob": self._write_blob,
            "commit_blob": self._commit_blob,
            "abort_blob": self._abort_blob,
            "open_blob": self._open_blob,
            "open_tree": self._open_tree,
            "open_workspace": self._open_workspace,
            "next_piece": self._next_piece,
            "call_skill": self._call_skill,
            "list_workspace": self._list_workspace,
            "begin_contents": self._begin_contents,
            "kept_piece": self._kept_piece,
            "end_contents": self._end_contents,
        }

    async def hold(self) -> tuple[Outcome, dict[str, Any]]:
        """Return the outcome of the run, and the last header of the node, with its load and trouble.

        Raise Broken if the connection is lost. If this coroutine is cancelled, the node ends the run first.
        """
        try:
            await self._wire.send(self._header(), self._job.args)
            return await self._listen()
        except asyncio.CancelledError:
            await self._cancel()
            raise
        finally:
            await self._end_tasks()

    def _header(self) -> dict[str, Any]:
        skills = [*(["log"] if isinstance(self._host, FollowsLog) else []), "progress", "workspace"]
        return {"op": "run", "job": msgspec.to_builtins(self._packed.job), "host": skills}

    async def _listen(self) -> tuple[Outcome, dict[str, Any]]:
        """Handle the frames of the node until the run has ended."""
        while True:
            frame = await self._wire.receive()
            match frame.header["op"]:
                case "ended":
                    return _outcome(frame), frame.header
                case "log" if isinstance(self._host, FollowsLog):
                    self._host.printed(frame.payload)
                case "progress":
                    self._host.progressed(msgspec.convert(frame.header["progress"], Progress))
                case "drop":
                    self._drop(frame.header["n"])
                case _:
                    self._begin(frame)

    def _begin(self, frame: Frame) -> None:
        number = frame.header["n"]
        task = self._tasks[number] = asyncio.ensure_future(self._answer(number, frame))
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _drop(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    async def _answer(self, number: int, frame: Frame) -> None:
        """Carry out the operation that a node requests and send its result, or its error, with the request's number."""
        try:
            header, payload = await self._operations[frame.header["op"]](frame)
        except SkilleryError as error:
            await self._wire.send({"op": "answer", "n": number, "error": _message_of(error)})
        except Exception:
            logger.exception("a request of a node failed in %s", self._job.run_id)
            await self._wire.send({"op": "answer", "n": number, "error": {"type": "HostError"}})
        else:
            await self._wire.send({"op": "answer", "n": number, **header}, payload)

    async def _cancel(self) -> None:
        """Let the node end the run, and wait for its end. Close the connection if the node does not answer."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._wire.send({"op": "cancel"})
                await self._listen()
        except Exception:  # noqa: BLE001 - without the connection, the node ends the run by itself
            self._wire.close()

    async def _end_tasks(self) -> None:
        """Cancel the open requests of the node, and close their blobs and streams."""
        tasks = [*self._tasks.values(), *([self._keeping] if self._keeping is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for writer in self._blobs.values():
            await writer.abort()
        for stream in self._streams.values():  # a node takes the bytes that it needs, not always the end
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    # -- requests of the node ------------------------------------------------------------------------------------

    async def _begin_blob(self, frame: Frame) -> Answer:
        writer = await self._host.begin_blob(frame.header["kind"], frame.header["path"])
        number = next(self._numbers)
        self._blobs[number] = writer
        return {"blob": number}, b""

    async def _write_blob(self, frame: Frame) -> Answer:
        await self._blobs[frame.header["blob"]].write(frame.payload)
        return {}, b""

    async def _commit_blob(self, frame: Frame) -> Answer:
        blob_id = await self._blobs[frame.header["blob"]].commit()
        del self._blobs[frame.header["blob"]]
        return {"blob_id": blob_id}, b""

    async def _abort_blob(self, frame: Frame) -> Answer:
        await self._blobs.pop(frame.header["blob"]).abort()
        return {}, b""

    async def _open_blob(self, frame: Frame) -> Answer:
        blob_id = frame.header["blob_id"]
        size, pieces = await self._host.blob_pieces(blob_id)
        return {"size": size, "stream": self._stream(pieces)}, b""

    async def _open_tree(self, frame: Frame) -> Answer:
        tree = self._packed.trees.get(frame.header["tree"])
        if tree is None:
            raise ContentMissing(f"this job has no tree {frame.header['tree']}")
        return {"stream": self._stream(_read(tree))}, msgspec.json.encode(tree.entries)

    async def _open_workspace(self, frame: Frame) -> Answer:
        if self._job.workspace is None:
            raise BlobNotFound("this run has no workspace")
        return {"stream": self._stream(self._job.workspace.contents())}, b""

    def _stream(self, pieces: AsyncIterator[bytes]) -> int:
        number = next(self._numbers)
        self._streams[number] = pieces
        return number

    async def _next_piece(self, frame: Frame) -> Answer:
        """Answer with the next piece that is not empty. The answer at the end of the stream is empty."""
        number = frame.header["stream"]
        async for piece in self._streams[number]:
            if piece:
                return {}, bytes(piece)
        del self._streams[number]
        return {}, b""

    async def _call_skill(self, frame: Frame) -> Answer:
        return {}, await self._host.call_skill(frame.header["skill"], frame.header["function"], frame.payload)

    async def _list_workspace(self, frame: Frame) -> Answer:
        listing = msgspec.json.decode(frame.payload, type=_Listed)
        return {"needed": list(await self._host.list_workspace(listing.files, listing.left_out))}, b""

    async def _begin_contents(self, frame: Frame) -> Answer:
        self._keeping = asyncio.ensure_future(self._host.keep_contents(self._kept_pieces()))
        return {}, b""

    async def _kept_pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._kept.get()) is not None:
            yield piece

    async def _kept_piece(self, frame: Frame) -> Answer:
        await self._keep(frame.payload)
        return {}, b""

    async def _end_contents(self, frame: Frame) -> Answer:
        await self._keep(None)
        if self._keeping is not None:
            await self._keeping
        return {}, b""

    async def _keep(self, piece: bytes | None) -> None:
        """Pass a piece to the host. Raise the error of the host if it takes no more pieces."""
        if self._keeping is None:
            return
        putting = asyncio.ensure_future(self._kept.put(piece))
        await asyncio.wait({putting, self._keeping}, return_when=asyncio.FIRST_COMPLETED)
        if not putting.done():
            putting.cancel()
            await self._keeping


def _message_of(error: SkilleryError) -> dict[str, Any]:
    message = {"type": type(error).__name__, "message": error.message}
    return message | {"failed_as": error.failed_as} if isinstance(error, SkillFailed) else message


def _outcome(frame: Frame) -> Outcome:
    outcome = msgspec.convert(frame.header["outcome"], Outcome)
    return msgspec.structs.replace(outcome, result=frame.payload) if frame.header["has_result"] else outcome


async def _read(tree: Tree) -> AsyncIterator[bytes]:
    with contextlib.closing(tree.pieces()) as pieces:
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece
