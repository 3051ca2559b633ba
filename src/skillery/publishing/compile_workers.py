"""A compile worker, as the server controls it: a separate interpreter process that compiles one source after the
other.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import msgspec

from skillery.errors import Unavailable
from skillery.formats.compile_process import LENGTH, MOST_ANSWER_BYTES, Request, WorkerReply

START_SECONDS = 60
_START = (
    "import sys; sys.path[:] = sys.argv[4:]; from skillery.formats.compile_process import main; "
    "main(*map(int, sys.argv[1:4]))"
)


class WorkerDied(Exception):
    """Raised if the worker process ended before its answer, or sent a malformed answer."""


class CompileWorker:
    """A running worker process. Only one caller at a time may use it."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, *limits: int) -> CompileWorker:
        """Start a worker process and wait until it is ready. `limits` are the arguments of `compile_process.main`.

        Raise Unavailable if the process cannot be started.
        """
        try:
            worker = await cls._spawn([*map(str, limits), *filter(None, sys.path)])
        except OSError as error:
            raise _unavailable(error.strerror or str(error)) from error
        try:
            async with asyncio.timeout(START_SECONDS):
                await worker._frame()
        except (TimeoutError, WorkerDied):
            raise _unavailable(f"a worker process ended with {await worker.end()} while it started") from None
        except BaseException:
            await asyncio.shield(worker.end())
            raise
        return worker

    @classmethod
    async def _spawn(cls, arguments: list[str]) -> CompileWorker:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                process = _started(theirs, arguments)
            except BaseException:
                writer.transport.abort()
                raise
        return cls(process, reader, writer)

    async def ask(self, request: Request, seconds: float) -> WorkerReply:
        """Send a request and return the answer. Raise WorkerDied if the process ends first, TimeoutError after
        `seconds`.

        After an error, the caller must end the worker, which cannot be used again.
        """
        encoded = msgspec.msgpack.encode(request)
        async with asyncio.timeout(seconds):
            self._writer.write(LENGTH.pack(len(encoded)) + encoded)
            frame = await self._frame()
        try:
            return msgspec.msgpack.decode(frame, type=WorkerReply)
        except msgspec.MsgspecError:
            raise WorkerDied from None

    async def _frame(self) -> bytes:
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > MOST_ANSWER_BYTES:
                raise WorkerDied
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerDied from None

    async def end(self) -> int:
        """Kill the process if it still runs, and return its exit code. After signal N, the exit code is -N."""
        self._writer.transport.abort()
        # If another signal is already ending the process, the exit code is that of the other signal.
        self._process.kill()
        return await asyncio.to_thread(self._process.wait)


def _started(server: socket.socket, arguments: list[str]) -> subprocess.Popen[bytes]:
    # Isolated mode (-I), with the server's sys.path as arguments, and without its environment variables.
    command = [sys.executable, "-I", "-c", _START, *arguments]
    # A separate process group, so that Ctrl-C in the server's terminal only reaches the server.
    return subprocess.Popen(command, env={}, stdin=server.fileno(), stdout=subprocess.DEVNULL, process_group=0, cwd="/")


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(f"Python source cannot be compiled now: {reason}", hint="Nothing was stored. Try again later.")
