"""Worker processes for foreign texts, as the server controls them: no text can block the server or fill its memory."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import msgspec

from skillery.context.queue import Queue
from skillery.context.worker_process import LENGTH, Call, Reply, Signature, name_of, signature_of
from skillery.errors import Unavailable

WORKERS = 2
START_SECONDS = 60
MOST_ANSWER_BYTES = 64 * 1024 * 1024
UNBOUNDED = 1 << 40
"""A limit that is never reached. The waiting calls already count against the server's limits of requests."""
_START = (
    "import sys; sys.path[:] = sys.argv[5:]; from skillery.context.worker_process import main; "
    "main(*sys.argv[1:3], *map(int, sys.argv[3:5]))"
)
P = ParamSpec("P")
T = TypeVar("T")


class TookTooLong(Exception):
    """Raised if a call has used up its time. The worker was ended."""


class Delayed(TookTooLong):
    """Raised if the elapsed time is used up. Other processes may have had the processor: a later call may succeed."""


class WorkerFailed(Exception):
    """Raised if the worker process ended before its reply, or if the text is too deep or too large for it."""


class WorkLimits(msgspec.Struct, frozen=True):
    """Limits for one call: processor time, elapsed time, and address space of the worker.

    A worker that has more than `resident_bytes` of memory after a reply is replaced.
    """

    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    resident_bytes: int


class WorkerPool:
    """Worker processes that call `functions`. A worker is started at the first call, and kept for the next caller.

    A caller has only one worker at a time, so that a caller with slow texts does not occupy all workers. Callers are
    served in the order of their arrival.
    """

    def __init__(
        self, functions: Sequence[str], limits: WorkLimits, loaders: Sequence[str] = (), workers: int = WORKERS
    ) -> None:
        """`functions` and `loaders` are names, so that the server need not import them (`worker_process.main`)."""
        self._arguments = [",".join(functions), ",".join(loaders), str(limits.memory_bytes), str(limits.resident_bytes)]
        self.limits = limits
        self._signatures: dict[str, Signature] = {}
        self._worker_queue = Queue(workers, UNBOUNDED, UNBOUNDED)
        self._queues_by_caller: WeakValueDictionary[str, Queue] = WeakValueDictionary()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False

    async def call(self, caller: str, function: Callable[P, T], *args: P.args, **_nothing: P.kwargs) -> tuple[T, float]:
        """Call a function in a worker. Return its result and the used processor time.

        Raise TookTooLong or WorkerFailed. Raise Unavailable if no worker can be started.
        """
        name = name_of(function)
        signature = self._signatures.setdefault(name, signature_of(function))
        request = Call(name, msgspec.Raw(msgspec.msgpack.encode(args)), self.limits.cpu_seconds)
        async with self._turn(caller):
            reply = None
            if self._idle:
                # A used worker may have died because of earlier texts, so a fresh worker tries again.
                with suppress(WorkerFailed):
                    reply = await self._reply(self._idle.pop(), request)
            reply = reply or await self._reply(await self._start(), request)
        if reply.failure:
            raise WorkerFailed(reply.failure)
        try:
            return msgspec.msgpack.decode(reply.result, type=signature.result), reply.cpu_seconds
        except msgspec.MsgspecError:
            raise WorkerFailed("malformed result") from None

    async def close(self) -> None:
        """End all workers. Callers that wait for a worker get Unavailable."""
        self._closed = True
        workers = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(worker.end() for worker in workers))

    @asynccontextmanager
    async def _turn(self, caller: str) -> AsyncIterator[None]:
        queue = self._queues_by_caller.get(caller)
        if queue is None:
            self._queues_by_caller[caller] = queue = Queue(1, UNBOUNDED, UNBOUNDED)
        own_ticket = await queue.enter(caller, 0)
        try:
            ticket = await self._worker_queue.enter(caller, 0)
            try:
                yield
            finally:
                ticket.leave()
        finally:
            own_ticket.leave()

    async def _start(self) -> _Worker:
        self._check_open()
        worker = await _Worker.start(self._arguments)
        if self._closed:
            await worker.end()
        self._check_open()
        return worker

    async def _reply(self, worker: _Worker, request: Call) -> Reply:
        """Send a call to the worker and return its reply.

        A worker that can continue is kept for the next caller. Any other worker is ended.
        """
        reply: Reply | None = None
        self._busy.add(worker)
        try:
            reply = await worker.ask(request, self.limits.wall_seconds)
        except TimeoutError:
            raise Delayed from None
        except WorkerFailed:
            self._check_open()
            if await worker.end() == -signal.SIGPROF:
                raise TookTooLong from None
            raise
        finally:
            self._busy.discard(worker)
            if reply is not None and not reply.is_last and not self._closed:
                self._idle.append(worker)
            else:
                await asyncio.shield(worker.end())
        return reply

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(
                "the server is stopping", hint="Nothing was stored. Try again when the server runs again."
            )


class _Worker:
    """A running worker process. Only one caller at a time may use it."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, arguments: list[str]) -> _Worker:
        """Start a worker process and wait until it is ready. Raise Unavailable if the process cannot be started."""
        try:
            worker = await cls._spawn([*arguments, *filter(None, sys.path)])
        except OSError as error:
            raise _unavailable(error.strerror or str(error)) from error
        try:
            async with asyncio.timeout(START_SECONDS):
                await worker._frame()
        except (TimeoutError, WorkerFailed):
            raise _unavailable(f"a worker process ended with {await worker.end()} while it started") from None
        except BaseException:
            await asyncio.shield(worker.end())
            raise
        return worker

    @classmethod
    async def _spawn(cls, arguments: list[str]) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                process = _started(theirs, arguments)
            except BaseException:
                writer.transport.abort()
                raise
        return cls(process, reader, writer)

    async def ask(self, request: Call, seconds: float) -> Reply:
        """Send a call and return the reply. Raise WorkerFailed if the process ends first, TimeoutError after
        `seconds`.

        After an error, the caller must end the worker, which cannot be used again.
        """
        encoded = msgspec.msgpack.encode(request)
        async with asyncio.timeout(seconds):
            self._writer.write(LENGTH.pack(len(encoded)) + encoded)
            frame = await self._frame()
        try:
            return msgspec.msgpack.decode(frame, type=Reply)
        except msgspec.MsgspecError:
            raise WorkerFailed("malformed reply") from None

    async def _frame(self) -> bytes:
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if length > MOST_ANSWER_BYTES:
                raise WorkerFailed("too large")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerFailed("ended") from None

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
    return Unavailable(
        f"the server cannot read imported files now: {reason}", hint="Nothing was stored. Try again later."
    )
