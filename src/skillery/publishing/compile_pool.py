"""Compilation of untrusted Python source in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from skillery.context.worker_pool import TookTooLong, WorkerFailed, WorkerPool, WorkLimits
from skillery.context.worker_process import name_of
from skillery.formats.bundle import SourceFile
from skillery.formats.defined_tools import python_handler
from skillery.formats.graders import Answer, Grader, grade, load_validator
from skillery.formats.imports import Import, RelativeImport, imports_of_all, relative_imports_of_all
from skillery.formats.python_source import (
    Signature,
    SourceFault,
    fault_at,
    find_fault,
    find_signature,
    load_codecs,
    located,
    size_fault,
)
from skillery.formats.scripts import Script, describe_scripts
from skillery.formats.wording import Problem

P = ParamSpec("P")
T = TypeVar("T")
KEPT_SOURCES = 2_000
"""Limit of the sources with cached imports."""

TOO_LONG = fault_at(1, "takes too long to compile")
CRASHED = fault_at(1, "does not compile: the compiler crashed")
TOO_LONG_TOGETHER = SourceFault("was not checked: the Python files of this bundle take too long to compile together")


class Compilers(Protocol):
    """Compiles Python source: `CompilePool`, or `skillery test` in its own process."""

    async def check(self, caller: str, sources: Sequence[SourceFile]) -> dict[str, Problem]: ...

    async def imports(self, caller: str, sources: Mapping[str, bytes]) -> dict[str, tuple[Import, ...]] | None: ...

    async def relative_imports(
        self, caller: str, sources: Sequence[bytes]
    ) -> tuple[tuple[RelativeImport, ...], ...]: ...

    async def signature(self, caller: str, source: SourceFile) -> Signature | None: ...

    async def scripts(self, caller: str, files: Sequence[tuple[str, bytes]]) -> tuple[Script, ...]: ...


class CompileLimits(WorkLimits, frozen=True):
    """Limits for the compilation of one source. `bundle_seconds` limits the processor time for all files of a bundle:
    the files after that are not checked. `grade_seconds` limits that of the graders of one answer.
    """

    cpu_seconds: float = 10
    wall_seconds: float = 30
    # Ordinary code of python_source.MAX_BYTES takes 60 MiB, and the most expensive lists and statements 470 MiB.
    memory_bytes: int = 512 * 1024 * 1024
    resident_bytes: int = 64 * 1024 * 1024
    bundle_seconds: float = 20
    grade_seconds: float = 1


class CompilePool:
    """Compiles Python source in worker processes. A caller uses at most one worker at a time."""

    def __init__(self, limits: CompileLimits = CompileLimits()) -> None:  # noqa: B008 - frozen
        self._limits = limits
        functions = find_fault, find_signature, python_handler, imports_of_all, relative_imports_of_all
        names = [name_of(function) for function in (*functions, describe_scripts)]
        self._workers = WorkerPool(names, limits, [name_of(load_codecs)])
        # Few versions have graders, and the validator of schemas takes time and memory.
        grading = msgspec.structs.replace(limits, cpu_seconds=limits.grade_seconds)
        self._grading = WorkerPool([name_of(grade)], grading, [name_of(load_validator)])
        self._imports: dict[str, tuple[Import, ...]] = {}
        """Imports of earlier sources, by SHA-256."""

    async def close(self) -> None:
        """End all workers. Callers that wait for a worker get Unavailable."""
        await self._workers.close()
        await self._grading.close()

    async def check(self, caller: str, sources: Sequence[SourceFile]) -> dict[str, Problem]:
        """Return the problems of the sources, by path. Raise Unavailable if no worker can be started.

        The check ends at the first problem in a source with `export` (the entrypoint or a handler).
        """
        problems: dict[str, Problem] = {}
        spent_seconds = 0.0
        for source in sources:
            fault, seconds = await self._check(caller, source, spent_seconds)
            spent_seconds += seconds
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
        answer = await self._call(caller, python_handler, body.decode())
        return located(path, answer) if isinstance(answer, SourceFault) else answer

    async def imports(self, caller: str, sources: Mapping[str, bytes]) -> dict[str, tuple[Import, ...]] | None:
        """Return the imports of each source. `sources` maps the SHA-256 of a source to the source.

        Return None if a worker crashed or took too long. Raise Unavailable if no worker can be started.
        """
        cached = {sha256: self._imports[sha256] for sha256 in sources if sha256 in self._imports}
        new = [sha256 for sha256 in sources if sha256 not in cached]
        if not new:
            return cached
        answer = await self._call(caller, imports_of_all, tuple(sources[sha256] for sha256 in new))
        if isinstance(answer, SourceFault):
            return None
        imports = dict(zip(new, answer, strict=True))
        self._keep(imports)
        return cached | imports

    async def relative_imports(self, caller: str, sources: Sequence[bytes]) -> tuple[tuple[RelativeImport, ...], ...]:
        """Return the relative imports of each source, or () if a worker crashed or took too long.

        Raise Unavailable if no worker can be started.
        """
        answer = await self._call(caller, relative_imports_of_all, tuple(sources))
        return () if isinstance(answer, SourceFault) else answer

    async def signature(self, caller: str, source: SourceFile) -> Signature | None:
        """Return the result of `find_signature` for the export of a source, or None if a worker crashed or took too
        long. Raise Unavailable if no worker can be started.
        """
        answer = await self._call(caller, find_signature, source.content, source.export or "")
        return None if isinstance(answer, SourceFault) else answer

    async def scripts(self, caller: str, files: Sequence[tuple[str, bytes]]) -> tuple[Script, ...]:
        """Return the scripts in these files, or () if a worker crashed or took too long. Raise Unavailable if no worker
        can be started.
        """
        answer = await self._call(caller, describe_scripts, tuple(files))
        return () if isinstance(answer, SourceFault) else answer

    async def grade(
        self, caller: str, graders: Sequence[Grader], answer: Answer, files: Mapping[str, bytes]
    ) -> tuple[str, ...]:
        """Return the result of `grade`, or one problem if the graders use up their time or memory. Raise Unavailable if
        no worker can be started.
        """
        try:
            problems, _ = await self._grading.call(caller, grade, tuple(graders), answer, dict(files))
        except TookTooLong:
            return (f"its graders take longer than {self._limits.grade_seconds:g} s",)
        except WorkerFailed:
            return ("its graders need too much memory",)
        return problems

    def _keep(self, imports: Mapping[str, tuple[Import, ...]]) -> None:
        """Cache the imports of the most recent sources, because many skills contain copies of the same files."""
        self._imports |= imports
        for sha256 in list(self._imports)[: max(0, len(self._imports) - KEPT_SOURCES)]:
            del self._imports[sha256]

    async def _check(self, caller: str, source: SourceFile, spent_seconds: float) -> tuple[SourceFault | None, float]:
        """Return the fault of a source or None, and the processor seconds of its check. `spent_seconds` is the sum for
        the earlier files.
        """
        too_large = size_fault(source.content)
        if too_large:
            return too_large, 0
        if spent_seconds > self._limits.bundle_seconds:
            return TOO_LONG_TOGETHER, 0
        try:
            return await self._workers.call(caller, find_fault, source.content, source.export)
        except TookTooLong:
            return TOO_LONG, self._limits.cpu_seconds
        except WorkerFailed:
            return CRASHED, self._limits.cpu_seconds

    async def _call(self, caller: str, function: Callable[P, T], *args: P.args, **nothing: P.kwargs) -> T | SourceFault:
        try:
            result, _ = await self._workers.call(caller, function, *args, **nothing)
        except TookTooLong:
            return TOO_LONG
        except WorkerFailed:
            return CRASHED
        return result
