"""The RunHost on a node: it sends the requests of the code to the server of the run, and returns the answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from skillery import errors
from skillery.backends import KeptFile, Progress, RunHost
from skillery.errors import SkilleryError, SkillFailed
from skillery_ray.trees import Entry
from skillery_ray.wire import Broken, Frame, Wire

MOST_UNSENT = 1 << 20
"""Above this number of unsent bytes, the log waits in memory, so that the code never waits for the network."""


class HostFailed(Exception):
    """Raised if the server could not answer a request for another reason than a SkilleryError."""


class Requests:
    """Requests of a node to the server of one run, and their answers by number."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._is_ended = False

    async def ask(self, op: str, payload: bytes = b"", **fields: Any) -> Frame:
        """Return the answer of the server. Raise its SkilleryError, HostFailed, or Broken without a connection."""
        if self._is_ended:
            raise Broken("the server of this run is gone")
        number = next(self._numbers)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._wire.send({"op": op, "n": number, **fields}, payload)
            answer = await future
        except asyncio.CancelledError:
            self._wire.put({"op": "drop", "n": number})
            raise
        finally:
            del self._waiting[number]
        if "error" in answer.header:
            raise _error(answer.header["error"])
        return answer

    def answered(self, frame: Frame) -> None:
        """Take an answer. An answer to a request that was dropped is ignored."""
        future = self._waiting.get(frame.header["n"])
        if future is not None and not future.done():
            future.set_result(frame)

    def end(self) -> None:
        """Let all requests fail, because the connection is closed."""
        self._is_ended = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Broken("the server of this run is gone"))


def _error(message: dict[str, Any]) -> Exception:
    """Return the error of the server: the SkilleryError with this name, or HostFailed."""
    kind = getattr(errors, str(message.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, SkilleryError)):
        return HostFailed("the host could not do this")
    error = kind.__new__(kind)
    SkilleryError.__init__(error, str(message.get("message", "")))
    if isinstance(error, SkillFailed):
        error.failed_as = str(message.get("failed_as", ""))
    return error


class NodeBlob:
    """The `BlobWriter` of one blob."""

    def __init__(self, requests: Requests, number: int) -> None:
        self._requests = requests
        self._number = number

    async def write(self, chunk: bytes) -> None:
        await self._requests.ask("write_blob", bytes(chunk), blob=self._number)

    async def commit(self) -> str:
        return str((await self._requests.ask("commit_blob", blob=self._number)).header["blob_id"])

    async def abort(self) -> None:
        await self._requests.ask("abort_blob", blob=self._number)


class NodeHost(RunHost):
    """The RunHost of one run on a node: it sends the requests of the code to the server.

    The log is sent only by a `LogHost`.
    """

    def __init__(self, wire: Wire, requests: Requests, most_log: int) -> None:
        self._wire = wire
        self._requests = requests
        self._most_log = most_log
        self._held = bytearray()
        self._lost = 0

    async def begin_blob(self, kind: str, path: str | None = None) -> NodeBlob:
        answer = await self._requests.ask("begin_blob", kind=kind, path=path)
        return NodeBlob(self._requests, answer.header["blob"])

    async def read_blob(self, blob_id: str) -> bytes:
        _, pieces = await self.blob_pieces(blob_id)
        return b"".join([piece async for piece in pieces])

    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        answer = await self._requests.ask("open_blob", blob_id=blob_id)
        return answer.header["size"], self._stream(answer.header["stream"])

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        return (await self._requests.ask("call_skill", args, skill=skill, function=function)).payload

    async def contents(self) -> AsyncIterator[bytes]:
        """Yield the contents of the workspace, for `Workspace.contents`."""
        answer = await self._requests.ask("open_workspace")
        async for piece in self._stream(answer.header["stream"]):
            yield piece

    async def tree(self, digest: str) -> tuple[tuple[Entry, ...], int]:
        """Return the entries of a tree, and the number of the stream of its contents."""
        answer = await self._requests.ask("open_tree", tree=digest)
        return msgspec.json.decode(answer.payload, type=tuple[Entry, ...]), answer.header["stream"]

    async def piece(self, stream: int) -> bytes:
        """Return the next piece of a stream, or b"" at its end."""
        return (await self._requests.ask("next_piece", stream=stream)).payload

    async def _stream(self, number: int) -> AsyncIterator[bytes]:
        while piece := await self.piece(number):
            yield piece

    async def list_workspace(self, files: Sequence[KeptFile], left_out: Sequence[str]) -> Sequence[int]:
        listing = msgspec.json.encode({"files": files, "left_out": left_out})
        answer = await self._requests.ask("list_workspace", listing)
        return [int(number) for number in answer.header["needed"]]

    async def keep_contents(self, pieces: AsyncIterator[bytes]) -> None:
        await self._requests.ask("begin_contents")
        async for piece in pieces:
            await self._requests.ask("kept_piece", bytes(piece))
        await self._requests.ask("end_contents")

    def progressed(self, progress: Progress) -> None:
        if self._wire.is_open and self._wire.unsent < MOST_UNSENT:
            self._wire.put({"op": "progress", "progress": msgspec.to_builtins(progress)})

    def flush(self) -> None:
        """Send the part of the log that waits in memory."""
        if self._lost:
            self._wire.put({"op": "log"}, f"\n[{self._lost} bytes of output were not sent to the server]\n".encode())
            self._lost = 0
        if self._held:
            self._wire.put({"op": "log"}, bytes(self._held))
            self._held.clear()


class LogHost(NodeHost):
    """A NodeHost that also sends the log. A sandbox looks for `printed` in the class of a host."""

    def printed(self, piece: bytes) -> None:
        if not self._wire.is_open:
            return
        self._held += piece
        if self._wire.unsent < MOST_UNSENT:
            self.flush()
        elif len(self._held) > self._most_log:
            self._lost += len(self._held) // 2
            del self._held[: len(self._held) // 2]
