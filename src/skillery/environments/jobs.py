"""Work on packages as jobs of the server's own sandbox: what others have written is read, fetched, built and unpacked
there and nowhere else."""

from __future__ import annotations

import asyncio
import os
import secrets
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
    Sandbox,
)
from skillery.environments.errors import BuildFailed, not_written
from skillery.environments.sources import Sources
from skillery.errors import (
    BlobNotFound,
    NotAllowed,
    PackagesNotOffered,
    StartupError,
    TooLarge,
    Unavailable,
)

INSIDE = Path(__file__).parent / "inside"
TASKS = {"lock": "getting", "fetch": "getting", "build": "getting", "unpack": "unpacking"}
MOST_PIECE = 64 * 1024 * 1024
"""Of what is handed out at once: bounded memory, whatever the inside does."""
MEMORY_MB = 2048
PROCESSES = 256
UNBOUNDED = 1 << 30
"""Where the host counts for itself."""

UNNAMED = "is not in permissions.network"
"""What the way out says of a host that is not in `Job.network`."""

Task = Literal["lock", "fetch", "build", "unpack"]


class Stopped(Exception):
    """The job did not come to its end: what ended it, and the hosts that it was not let through to."""

    def __init__(self, kind: str, message: str, refused: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.refused = refused


class Answer(NamedTuple):
    """What the code inside answered, and the hosts that it was not let through to."""

    told: dict[str, Any]
    refused: tuple[str, ...]


class Receiver(Protocol):
    def take(self, kind: str, piece: bytes) -> None:
        """Blocking, one at a time. Raises BuildFailed, OSError: that ends the job."""
        ...


class NothingComes:
    def take(self, kind: str, piece: bytes) -> None:
        raise BuildFailed(f"the sandbox handed out what nobody asked for ({len(piece)} bytes, {kind[:20]})")


class Jobs:
    """A few at once, apart from the queue of runs."""

    def __init__(self, sandbox: Sandbox, sources: Sources, at_once: int) -> None:
        self._sandbox = sandbox
        self._sources = sources
        self._turns = asyncio.Semaphore(at_once)

    async def run(
        self,
        task: Task,
        args: Mapping[str, Any],
        *,
        seconds: float,
        receiver: Receiver | None = None,
        given: Mapping[str, Path] | None = None,
        disk_mb: int = 1024,
    ) -> Answer:
        """Raises Stopped, BuildFailed as the receiver does, PackagesNotOffered, Unavailable. Cancelling it ends the
        job."""
        job = self._job(task, args, given or {}, seconds, disk_mb)
        host = _Host(receiver or NothingComes())
        async with self._turns:
            await self._start(job)
            outcome = await self._sandbox.run(job, host)
        if host.problem is not None:
            raise host.problem
        refused = _refused(outcome.network)
        if outcome.failure is not None or outcome.result is None:
            failure = outcome.failure
            raise Stopped(*((failure.type, failure.message) if failure else (FailureType.SANDBOX_ERROR, "")), refused)
        return Answer(msgspec.json.decode(outcome.result, type=dict[str, Any]), refused)

    def _job(self, task: Task, args: Mapping[str, Any], given: Mapping[str, Path], seconds: float, disk: int) -> Job:
        alone = task == "unpack"
        wheelhouse = None if alone else self._sources.wheelhouse
        tools = {} if alone else {"uv": find_uv(), **({"ca": bundle} if (bundle := ca_bundle()) else {})}
        return Job(
            run_id=f"packages_{secrets.token_hex(8)}",
            call=CodeCall(text_of(TASKS[task]), task),
            args=msgspec.json.encode({**args, "wheelhouse": wheelhouse is not None}),
            blobs=tuple(BlobMount(name, path) for name, path in {**tools, **given}.items()),
            packages=() if wheelhouse is None else (PackageMount("wheelhouse", wheelhouse),),
            environment={} if alone else self._sources.environment(),
            network=() if alone else self._sources.network,
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
            raise Unavailable(f"packages are handled in the sandbox, which cannot be started: {error}") from None
        needed = (
            {"python", "blobs"} | ({"network"} if job.network else set()) | ({"packages"} if job.packages else set())
        )
        lacking = sorted(needed - self._sandbox.capabilities)
        if lacking:
            raise PackagesNotOffered(
                f"this server has no packages: its sandbox lacks '{lacking[0]}'",
                hint="Its admin can choose another one with the setting 'sandbox'.",
            )


class _Host:
    """What the code inside can ask for: to hand something out."""

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
            raise TooLarge(self.problem.message)  # whatever it is called: nothing more is taken

    async def read_blob(self, blob_id: str) -> bytes:
        raise BlobNotFound(f"no blob {blob_id}")

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        raise NotAllowed(f"this job calls no skill, not even {skill}")


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
    """Those that nobody named, as the setting packages.file_hosts would."""
    unnamed = [use for use in uses if not use.allowed and use.port and UNNAMED in use.reason]
    return tuple(
        f"{'http' if use.port == 80 else 'https'}://{use.host}" + ("" if use.port in {80, 443} else f":{use.port}")
        for use in unnamed
    )


@cache
def text_of(module: str) -> str:
    return (INSIDE / f"{module}.py").read_text("utf-8")


def workers() -> int:
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def find_uv() -> Path:
    """The program that the extra `packages` installs. Raises PackagesNotOffered."""
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        raise PackagesNotOffered(
            "this server has no uv, which locks packages",
            hint="Its admin can install it: pip install 'skillery[packages]'.",
        ) from None


def ca_bundle() -> Path | None:
    """The certificates that this server trusts, where they are one file."""
    paths = ssl.get_default_verify_paths()
    named = [os.environ.get("SSL_CERT_FILE", ""), paths.cafile or "", paths.openssl_cafile, _certifi()]
    return next((Path(path) for path in named if path and Path(path).is_file()), None)


def _certifi() -> str:
    try:
        import certifi
    except ImportError:
        return ""
    return certifi.where()
