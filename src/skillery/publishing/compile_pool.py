"""Compilation of untrusted Python source in worker processes, so that no publisher can block the server or fill its
memory.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec

from skillery.context.queue import Queue
from skillery.errors import Unavailable
from skillery.formats.bundle import SourceFile
from skillery.formats.compile_process import Check, Look, LookBeside, Request, WorkerReply, Wrap
from skillery.formats.imports import Import
from skillery.formats.problems import Problem
from skillery.formats.python_source import SourceFault, fault_at, located, size_fault
from skillery.formats.relative_imports import RelativeImport
from skillery.publishing.compile_workers import CompileWorker, WorkerDied

WORKERS = 2
KEPT_SOURCES = 2_000
"""Limit of the sources with cached imports."""
UNBOUNDED = 1 << 40
"""A limit that is never reached. The waiting requests already count against the server's limits of requests."""

TOO_LONG = fault_at(1, "takes too long to compile")
CRASHED = fault_at(1, "does not compile: the compiler crashed")
TOO_LONG_TOGETHER = SourceFault("was not checked: the Python files of this bundle take too long to compile together")


class CompileLimits(msgspec.Struct, frozen=True):
    """Limits for one source: processor time, elapsed time, and address space of the worker.

    `bundle_seconds` limits the processor time of all files of a bundle: the later files are not checked. A worker that
    has more than `resident_bytes` of memory after an answer is replaced.
    """

    cpu_seconds: int = 10
    wall_seconds: float = 30
    # Ordinary code of python_source.MAX_BYTES takes 60 MiB, and the most expensive lists and statements 470 MiB.
    memory_bytes: int = 512 * 1024 * 1024
    resident_bytes: int = 64 * 1024 * 1024
    bundle_seconds: float = 20


class CompilePool:
    """Worker processes that compile Python source. A worker is started at the first request, and kept for the next
    caller.

    A caller has only one worker at a time, so that a publisher of slow sources does not occupy all workers. Callers are
    served in the order of their arrival.
    """

    def __init__(self, limits: CompileLimits = CompileLimits(), workers: int = WORKERS) -> None:  # noqa: B008 - frozen
        self._limits = limits
        self._worker_queue = Queue(workers, UNBOUNDED, UNBOUNDED)
        self._queues_by_caller: WeakValueDictionary[str, Queue] = WeakValueDictionary()
        self._idle: list[CompileWorker] = []
        self._busy: set[CompileWorker] = set()
        self._imports: dict[str, tuple[Import, ...]] = {}
        """Imports of earlier sources, by SHA-256."""
        self._closed = False

    async def check(self, caller: str, sources: Sequence[SourceFile]) -> dict[str, Problem]:
        """Return the problems of the sources, by path. Raise Unavailable if no worker can be started.

        The check ends at the first problem in a source with `export` (the entrypoint or a handler).
        """
        problems: dict[str, Problem] = {}
        spent = 0.0
        for source in sources:
            fault, seconds = await self._check(caller, source, spent)
            spent += seconds
            if fault is None:
                continue
            problems[source.path] = located(source.path, fault)
            if source.export is not None:
                break
        return problems

    async def handler(self, caller: str, path: str, code: str) -> str | Problem:
        """Return the text of the file `path` with the handler of a tool. `code` is the Python body that `define_tool`
        got.

        Return a problem if the body does not compile. Raise Unavailable if no worker can be started.
        """
        body = code.encode("utf-8", "replace")
        too_large = size_fault(body)
        if too_large:
            return located(path, too_large)
        answer = await self._request(caller, Wrap(body))
        if isinstance(answer, SourceFault):
            return located(path, answer)
        return located(path, answer.fault) if answer.fault else answer.handler.decode()

    async def imports(self, caller: str, sources: Mapping[str, bytes]) -> dict[str, tuple[Import, ...]] | None:
        """Return the imports of each source. `sources` maps the SHA-256 of a source to the source.

        Return None if a worker crashed or took too long. Raise Unavailable if no worker can be started.
        """
        known = {sha256: self._imports[sha256] for sha256 in sources if sha256 in self._imports}
        new = [sha256 for sha256 in sources if sha256 not in known]
        if not new:
            return known
        answer = await self._request(caller, Look(tuple(sources[sha256] for sha256 in new)))
        if isinstance(answer, SourceFault):
            return None
        found = dict(zip(new, answer.imports, strict=True))
        self._keep(found)
        return known | found

    async def relative_imports(self, caller: str, sources: Sequence[bytes]) -> tuple[tuple[RelativeImport, ...], ...]:
        """Return the relative imports of each source, or () if a worker crashed or took too long.

        Raise Unavailable if no worker can be started.
        """
        answer = await self._request(caller, LookBeside(tuple(sources)))
        return () if isinstance(answer, SourceFault) else answer.relative

    def _keep(self, found: Mapping[str, tuple[Import, ...]]) -> None:
        """Cache the imports of the most recent sources, because many skills contain copies of the same files."""
        self._imports |= found
        for sha256 in list(self._imports)[: max(0, len(self._imports) - KEPT_SOURCES)]:
            del self._imports[sha256]

    async def close(self) -> None:
        """End all workers. Callers that wait for a worker get Unavailable."""
        self._closed = True
        workers = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(worker.end() for worker in workers))

    async def _check(self, caller: str, source: SourceFile, spent: float) -> tuple[SourceFault | None, float]:
        too_large = size_fault(source.content)
        if too_large:
            return too_large, 0
        if spent > self._limits.bundle_seconds:
            return TOO_LONG_TOGETHER, 0
        answer = await self._request(caller, Check(source.content, source.export))
        if isinstance(answer, SourceFault):
            return answer, self._limits.cpu_seconds
        return answer.fault, answer.cpu_seconds

    # -- workers -------------------------------------------------------------------------------------------------

    async def _request(self, caller: str, request: Request) -> WorkerReply | SourceFault:
        async with self._turn(caller):
            if self._idle:
                answer = await self._answer(self._idle.pop(), request)
                # A used worker may have died because of earlier sources, so a fresh worker tries again.
                if answer is not CRASHED:
                    return answer
            return await self._answer(await self._start(), request)

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

    async def _start(self) -> CompileWorker:
        self._check_open()
        limits = self._limits
        worker = await CompileWorker.start(limits.cpu_seconds, limits.memory_bytes, limits.resident_bytes)
        if self._closed:
            await worker.end()
        self._check_open()
        return worker

    async def _answer(self, worker: CompileWorker, request: Request) -> WorkerReply | SourceFault:
        """Send a request to the worker and return its answer. Return a fault if the worker crashes or takes too long.

        A worker that can continue is kept for the next caller. Any other worker is ended.
        """
        answer: WorkerReply | SourceFault | None = None
        self._busy.add(worker)
        try:
            answer = await worker.ask(request, self._limits.wall_seconds)
        except TimeoutError:
            answer = TOO_LONG
        except WorkerDied:
            self._check_open()
            answer = TOO_LONG if await worker.end() == -signal.SIGXCPU else CRASHED
        finally:
            self._busy.discard(worker)
            if isinstance(answer, WorkerReply) and not answer.is_last and not self._closed:
                self._idle.append(worker)
            else:
                await asyncio.shield(worker.end())
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the server is stopping", hint="Nothing was stored. Try again when it is back.")
