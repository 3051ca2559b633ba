"""The sandbox: `AsyncSandbox` for programs with an event loop, `Sandbox` for all others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import platform
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from cellblock.host.shares import UIDS
from cellblock.inside import etc
from cellblock.values import Host, Job, Language, Limits, Mount, Probe, Result, Template, Unavailable

if TYPE_CHECKING:
    from cellblock.host.engine import Capabilities

T = TypeVar("T")
CLOSED = "the sandbox is closed"
OF_SANDBOX = {
    *("dev", "proc", "run", "tmp", "workspace", "packages"),
    *("etc", "var", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"),
}
"""The names in the root folder of runs, in addition to those of the interpreter."""
OTHER_SYSTEM = Probe("machine", False, f"{sys.platform} on {platform.machine()}", "use Linux on x86_64 or aarch64")


class AsyncSandbox:
    """A sandbox for foreign code. All its methods belong to one event loop.

        async with AsyncSandbox() as box:
            done = await box.run("def main(args): return args['a'] + 1", {"a": 41})

    A *zygote*, an interpreter process, starts once and forks a locked process for each run.
    """

    def __init__(
        self,
        template: Template = Template(),  # noqa: B008 - frozen
        prepared: int = 2,
        recycle_runs: int = 1000,
        recycle_seconds: float = 3600.0,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        uids: range = UIDS,
        allow_private: Sequence[str] = (),
        allow_degraded: bool = False,
    ) -> None:
        """Check the arguments. Raise ValueError if one is not valid. `start` starts the processes.

        - `prepared`: the number of cells that are forked in advance. A run starts in one within 2 ms.
        - `recycle_runs`, `recycle_seconds`: after so many runs, or so much time, a new zygote replaces the present one.
          The runs of one zygote share a memory layout. With `recycle_runs=1`, each run has its own zygote.
        - `limits`: the defaults of `run`, and the limits of the first prepared cells.
        - `uids`: host uids for runs, if the caller is root. If a user of the host has one of them, the start fails.
        - `allow_private`: addresses and networks that are not public, which hosts in a network list may have.
        - `allow_degraded`: accept a host without Landlock, or one that cannot limit the memory of a run.
        """
        check_points(template.points)
        etc.check_names(template.etc)
        if prepared < 0 or recycle_runs < 1 or recycle_seconds <= 0 or not uids:
            raise ValueError("`prepared` must be at least 0; `recycle_runs`, `recycle_seconds` and `uids` at least 1")
        limits.check()
        self._template = template
        self._warmth = (prepared, recycle_runs, float(recycle_seconds), limits)
        self._limits = limits
        self._uids = uids
        self._allow_private = tuple(allow_private)
        self._allow_degraded = allow_degraded
        self._capabilities: Capabilities | None = None
        self._starting = asyncio.Lock()
        self._runs: set[asyncio.Task[Result]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the zygote, and check the sandbox with a run that does nothing. `run` calls this method if needed.

        Raise Unavailable if the host cannot keep the promises of the sandbox. `Unavailable.probes` says why.
        """
        async with self._starting:
            if self._closed:
                raise Unavailable(CLOSED)
            if self._capabilities is None:
                self._capabilities = await self._open()

    async def _open(self) -> Capabilities:
        if sys.platform != "linux":
            raise Unavailable(f"{OTHER_SYSTEM.detail}: {OTHER_SYSTEM.fix}", (OTHER_SYSTEM,))
        # These modules import modules of the standard library that only Linux has.
        from cellblock import doctor
        from cellblock.egress.service import Egress
        from cellblock.host.engine import look_around
        from cellblock.host.shares import Uids
        from cellblock.host.succession import Warmth

        uids = Uids(self._uids.start, len(self._uids), "give the sandbox more `uids`, or run fewer jobs at once")
        doctor.refuse_machine(uids)
        egress = Egress(self._allow_private)
        with doctor.named_unavailable():
            capabilities = look_around(self._template, Warmth(*self._warmth), uids, egress)
            await doctor.start(capabilities, allow_degraded=self._allow_degraded)
            return capabilities

    async def run(
        self,
        code: str,
        args: Any = None,
        *,
        limits: Limits | None = None,
        language: Language = "python",
        function: str = "main",
        mounts: Sequence[Mount] = (),
        environment: Mapping[str, str] | None = None,
        network: Sequence[str] = (),
    ) -> Result:
        """Run code, and return its result. `args` is any JSON value; None means `{}`. See `Job` for the arguments.

        A failure of the code is `Result.failure`. Raise Unavailable, Busy, or ValueError for a wrong argument.
        """
        job = Job(
            code=code,
            function=function,
            language=language,
            args=encode(args),
            limits=limits or self._limits,
            mounts=tuple(mounts),
            environment=dict(environment or {}),
            network=tuple(network),
        )
        return await self.run_job(job)

    async def run_job(self, job: Job, host: Host | None = None) -> Result:
        """Run a job, and return its result. `host` gets the log while the code runs. The errors are those of `run`.

        An error that `host` raises may end the run, and is then raised too.
        """
        if self._capabilities is None:
            await self.start()
        if self._closed or self._capabilities is None:
            raise Unavailable(CLOSED)
        from cellblock import jobs

        jobs.check_job(job, self._template)
        run = asyncio.create_task(jobs.run_job(self._capabilities, self._template, job, host))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        try:
            return await run
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and caller is not None and not caller.cancelling():
                raise Unavailable(CLOSED) from None
            raise

    async def doctor(self) -> list[Probe]:
        """Return the probes of this host, each with a remedy if it fails. The sandbox need not be started."""
        if sys.platform != "linux":
            return [OTHER_SYSTEM]
        from cellblock import doctor
        from cellblock.host.shares import Uids

        return await asyncio.to_thread(doctor.probes, None, Uids(self._uids.start, len(self._uids)), self._template)

    async def close(self) -> None:
        """End all runs and processes of the sandbox. Afterwards, it cannot be used again.

        A run that has not ended raises Unavailable.
        """
        self._closed = True
        if self._capabilities is None and not self._starting.locked():
            return
        from cellblock.host.sessions import finish_whole

        await finish_whole(self._end())

    async def _end(self) -> None:
        async with self._starting:
            capabilities, self._capabilities = self._capabilities, None
            if capabilities is None:
                return
            try:
                for run in self._runs:
                    run.cancel()
                await asyncio.gather(*self._runs, return_exceptions=True)
            finally:
                try:
                    await capabilities.close()
                finally:
                    await capabilities.egress.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, frames: object) -> None:
        await self.close()


class Sandbox:
    """A sandbox for foreign code. It is ready when the constructor returns. Any thread may call its methods.

        with Sandbox() as box:
            done = box.run("def main(args): return args['a'] + 1", {"a": 41})

    The arguments, and the arguments of the methods, are those of `AsyncSandbox`, which it runs on its own thread.
    """

    def __init__(
        self,
        template: Template = Template(),  # noqa: B008 - frozen
        prepared: int = 2,
        recycle_runs: int = 1000,
        recycle_seconds: float = 3600.0,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        uids: range = UIDS,
        allow_private: Sequence[str] = (),
        allow_degraded: bool = False,
    ) -> None:
        """See `AsyncSandbox`. Raise Unavailable if the host cannot keep the promises of the sandbox."""
        self._box = AsyncSandbox(
            template,
            prepared,
            recycle_runs,
            recycle_seconds,
            limits=limits,
            uids=uids,
            allow_private=allow_private,
            allow_degraded=allow_degraded,
        )
        # The zygote ends with the thread that starts it, so this thread lives as long as the sandbox.
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._leave = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="cellblock", daemon=True)
        self._thread.start()
        try:
            self._wait(self._box.start())
        except BaseException:
            self.close()
            raise

    def _serve(self) -> None:
        """Run the event loop until `_leave` is set. Then cancel what is left, for which threads may wait."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._leave.wait())

    def _wait(self, doing: Coroutine[Any, Any, T]) -> T:
        with self._lock:  # after `close`, the loop would not run the coroutine
            if self._closed:
                doing.close()
                raise Unavailable(CLOSED)
            future = asyncio.run_coroutine_threadsafe(doing, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable(CLOSED) from None
        except BaseException:
            future.cancel()  # for KeyboardInterrupt: the run must end too
            raise

    def run(
        self,
        code: str,
        args: Any = None,
        *,
        limits: Limits | None = None,
        language: Language = "python",
        function: str = "main",
        mounts: Sequence[Mount] = (),
        environment: Mapping[str, str] | None = None,
        network: Sequence[str] = (),
    ) -> Result:
        """See `AsyncSandbox.run`."""
        options = {"limits": limits, "language": language, "function": function, "mounts": mounts}
        return self._wait(self._box.run(code, args, **options, environment=environment, network=network))  # type: ignore[arg-type]

    def run_job(self, job: Job, host: Host | None = None) -> Result:
        """See `AsyncSandbox.run_job`. The sandbox calls `host` on its own thread."""
        return self._wait(self._box.run_job(job, host))

    def doctor(self) -> list[Probe]:
        """See `AsyncSandbox.doctor`."""
        return self._wait(self._box.doctor())

    def close(self) -> None:
        """End all runs and processes of the sandbox. A thread that waits for a run gets Unavailable.

        A second call waits until the first has ended.
        """
        with self._lock:
            ending = None if self._closed else asyncio.run_coroutine_threadsafe(self._box.close(), self._loop)
            self._closed = True
        try:
            if ending is not None:
                ending.result()
        finally:
            if ending is not None:
                self._loop.call_soon_threadsafe(self._leave.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, frames: object) -> None:
        self.close()


def check_points(points: tuple[str, ...]) -> None:
    """Raise ValueError if a mount point is not a folder of the root that the sandbox leaves free."""
    of_python = {Path(prefix).resolve().parts[1] for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    for point in points:
        name = point.removeprefix("/")
        if point != f"/{name}" or not name.isidentifier() or name in OF_SANDBOX | of_python:
            raise ValueError(f"mount point {point!r}: write /NAME, with a name that the sandbox does not use")


def encode(args: Any) -> bytes:
    """Return the arguments as JSON. Raise ValueError if they are not JSON."""
    try:
        return json.dumps({} if args is None else args, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"args are not JSON: {error}") from None
