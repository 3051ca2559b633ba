"""Jobs on packages in the server's sandbox. Untrusted packages are downloaded, unpacked and built only there."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from skillery.backends import (
    BlobMount,
    BlobWriter,
    CodeCall,
    FailureType,
    Job,
    Limits,
    NetworkUse,
    PackageMount,
    RunHost,
    Sandbox,
)
from skillery.context.queue import BuildProgress, BuildQueue
from skillery.environments.sources import PackageSources
from skillery.errors import (
    BlobNotFound,
    NotAllowed,
    PackagesNotOffered,
    StartupError,
    TooLarge,
    Unavailable,
    is_disk_full,
)
from skillery.formats.requirements import LeftOutReason

IN_SANDBOX = Path(__file__).parent / "in_sandbox"
TASKS = {
    "lock": ("downloads",),
    "fetch": ("downloads",),
    "build": ("downloads",),
    "unpack": ("wheels",),
    "warm": ("wheels",),
    "npm_lock": ("downloads", "npm"),
    "npm_fetch": ("downloads", "npm"),
    "npm_unpack": ("wheels", "npm"),
}
"""The files in `in_sandbox` with the code of each task."""
MOST_PIECE = 64 * 1024 * 1024
"""The maximum number of bytes of one piece of output. The limit bounds the memory of the server."""
MEMORY_MB = 2048
PROCESSES = 256
UNBOUNDED = 1 << 30
"""A limit that is never reached, because the host counts the bytes itself."""

UNNAMED = "is not in permissions.network"
"""Text with which the egress proxy refuses hosts that are not in `Job.network`."""

Task = Literal["lock", "fetch", "build", "unpack", "warm", "npm_lock", "npm_fetch", "npm_unpack"]


class JobFailed(Exception):
    """Raised if a job fails. It has the failure, and the hosts that the egress proxy refused."""

    def __init__(self, kind: str, message: str, refused: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.refused = refused


class JobResult(NamedTuple):
    """The answer of the code in the sandbox, and the hosts that the egress proxy refused."""

    result: dict[str, Any]
    refused: tuple[str, ...]


class Receiver(Protocol):
    def take(self, kind: str, piece: bytes) -> None:
        """Receive a piece of output. The calls come from a thread, one at a time. Raise BuildFailed or OSError to
        end the job.
        """
        ...


class NoOutput:
    def take(self, kind: str, piece: bytes) -> None:
        raise BuildFailed(f"the sandbox returned unexpected data ({len(piece)} bytes, {kind[:20]})")


class Jobs:
    """Runs a few jobs at a time. They do not wait in the queue of runs."""

    def __init__(self, sandbox: Sandbox, sources: PackageSources, at_once: int, reserved: int = 0) -> None:
        """The jobs of builds without a caller never use the last `reserved` slots."""
        self._sandbox = sandbox
        self._sources = sources
        self.queue = BuildQueue(at_once, reserved)

    async def run(
        self,
        task: Task,
        args: Mapping[str, Any],
        *,
        seconds: float,
        receiver: Receiver | None = None,
        paths: Mapping[str, Path] | None = None,
        installed: Path | None = None,
        disk_mb: int = 1024,
        build: BuildProgress | None = None,
    ) -> JobResult:
        """Run a job, of `build` if there is one, and return its answer. If this coroutine is cancelled, the job ends.
        Its code can import the packages in the folder `installed`.

        Raise JobFailed if the job fails, BuildFailed if `receiver` refuses the output, and PackagesNotOffered or
        Unavailable if the sandbox cannot run jobs.
        """
        job = self._job(task, args, paths or {}, installed, seconds, disk_mb)
        host = _Host(receiver or NoOutput())
        async with self.queue.slot(build or BuildProgress()):
            await self._start(job)
            outcome = await self._sandbox.run(job, host)
        if host.problem is not None:
            raise host.problem
        refused = _refused(outcome.network)
        if outcome.failure is not None or outcome.result is None:
            failure = outcome.failure
            raise JobFailed(*((failure.type, failure.message) if failure else (FailureType.SANDBOX_ERROR, "")), refused)
        return JobResult(msgspec.json.decode(outcome.result, type=dict[str, Any]), refused)

    def _job(
        self,
        task: Task,
        args: Mapping[str, Any],
        paths: Mapping[str, Path],
        installed: Path | None,
        seconds: float,
        disk: int,
    ) -> Job:
        alone, npm = task in {"unpack", "npm_unpack", "warm"}, self._sources.npm
        is_npm = task.startswith("npm")
        wheelhouse = None if alone or is_npm else self._sources.wheelhouse
        npm_store = npm.store if task == "npm_fetch" else None
        stores = {"wheelhouse": wheelhouse, "npm_store": npm_store, "installed": installed}
        ca = {"ca": bundle} if not alone and (bundle := ca_bundle()) else {}
        tools = ca if alone or is_npm else {"uv": find_uv(), **ca}
        return Job(
            run_id=f"packages_{secrets.token_hex(8)}",
            call=CodeCall(source_of(TASKS[task]), task),
            args=msgspec.json.encode({**args, "wheelhouse": wheelhouse is not None}),
            blobs=tuple(BlobMount(name, path) for name, path in {**tools, **paths}.items()),
            packages=tuple(PackageMount(name, path) for name, path in stores.items() if path is not None),
            environment={} if alone else npm.environment() if is_npm else self._sources.environment(),
            network=() if alone else npm.network if is_npm else self._sources.network,
            private_network=True,
            limits=Limits(
                timeout_ms=max(1, int(seconds * 1000)),
                memory_mb=MEMORY_MB,
                processes=PROCESSES,
                cpus=float(workers()),
                disk_mb=disk,
                disk_files=200_000,
                tmp_mb=256,
                blobs=UNBOUNDED,
                blobs_mb=UNBOUNDED,
                log_kb=64,
            ),
        )

    async def _start(self, job: Job) -> None:
        try:
            await self._sandbox.start()
        except StartupError as error:
            raise Unavailable(f"the sandbox for packages cannot be started: {error}") from None
        needed = (
            {"python", "blobs"} | ({"network"} if job.network else set()) | ({"packages"} if job.packages else set())
        )
        missing = sorted(needed - self._sandbox.capabilities)
        if missing:
            raise PackagesNotOffered(
                f"no packages are available: the sandbox does not support '{missing[0]}'",
                hint="The admin can choose another sandbox with the setting 'sandbox'.",
            )


class _Host(RunHost):
    """The RunHost of a job. The job can only send output."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.problem: BuildFailed | None = None

    async def begin_blob(self, kind: str, path: str | None = None) -> BlobWriter:
        return _Piece(self, kind)

    async def take(self, kind: str, piece: bytes) -> None:
        if self.problem is None:
            try:
                await asyncio.to_thread(self._receiver.take, kind, piece)
            except BuildFailed as error:
                self.problem = error
            except OSError as error:
                self.problem = not_written(error)
        if self.problem is not None:
            raise TooLarge(self.problem.message)  # the type does not matter: the job ends

    async def read_blob(self, blob_id: str) -> bytes:
        raise BlobNotFound(f"no blob {blob_id}")

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        raise NotAllowed(f"this job cannot call skills, such as {skill}")


class _Piece:
    def __init__(self, host: _Host, kind: str) -> None:
        self._host = host
        self._kind = kind
        self._parts: list[bytes] = []
        self._size = 0

    async def write(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > MOST_PIECE:
            raise TooLarge(f"a piece has more than {MOST_PIECE} bytes")
        self._parts.append(chunk)

    async def commit(self) -> str:
        await self._host.take(self._kind, b"".join(self._parts))
        return "taken"

    async def abort(self) -> None:
        self._parts.clear()


def _refused(uses: Sequence[NetworkUse]) -> tuple[str, ...]:
    """Return the refused hosts, in the form of the setting packages.file_hosts."""
    unnamed = [use for use in uses if not use.allowed and use.port and UNNAMED in use.reason]
    return tuple(
        f"{'http' if use.port == 80 else 'https'}://{use.host}" + ("" if use.port in {80, 443} else f":{use.port}")
        for use in unnamed
    )


@cache
def source_of(modules: tuple[str, ...]) -> str:
    return "\n".join((IN_SANDBOX / f"{module}.py").read_text("utf-8") for module in modules)


def workers() -> int:
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def find_uv() -> Path:
    """Return the path of uv, which the extra `packages` installs, or else of uv on the PATH. Raise PackagesNotOffered
    if both are missing.
    """
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        if program := shutil.which("uv"):
            return Path(program).resolve()
        raise PackagesNotOffered(
            "uv is missing on this server, so packages cannot be locked",
            hint="The admin can install uv: pip install 'skillery[packages]'.",
        ) from None


def ca_bundle() -> Path | None:
    """Return the file with the trusted certificates, or None if they are not in one file."""
    paths = ssl.get_default_verify_paths()
    named = [os.environ.get("SSL_CERT_FILE", ""), paths.cafile or "", paths.openssl_cafile, _certifi()]
    return next((Path(path) for path in named if path and Path(path).is_file()), None)


def _certifi() -> str:
    try:
        import certifi
    except ImportError:
        return ""
    return certifi.where()


class BuildFailed(Exception):
    """Raised if packages cannot be installed. The message names the cause, and the package if it is known.

    If `passing` is true, the cause is temporary, so a retry may succeed. `package` is the package at fault, or "".
    """

    def __init__(
        self, message: str, *, passing: bool = False, package: str = "", reason: LeftOutReason = "unavailable"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.passing = passing
        self.package = package
        self.reason = reason


def not_written(error: OSError) -> BuildFailed:
    if is_disk_full(error):
        return BuildFailed("the server has no space left on its disk", passing=True)
    return BuildFailed(f"the files could not be written: {os.strerror(error.errno or 0)}", passing=True)


def too_large(max_mb: int, package: str = "") -> BuildFailed:
    """Return the failure for an environment that is too large. `package` exceeded the limit; "" if that is unknown."""
    since = f"with {package} " if package else ""
    return BuildFailed(
        f"{since}the packages take more than {max_mb} MiB (the setting packages.max_mb)", reason="too_large"
    )
