"""The end of a run, and the host that answers the code while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from skillery.backends.jobs import KeptFile
from skillery.backends.values import Completed, default


class Failure(msgspec.Struct, frozen=True):
    """The reason of a failed run. `type` is a `FailureType`, or the class name of the exception that the code
    raised.
    """

    type: str
    message: str
    traceback: str = ""
    """The traceback of the exception, only with frames of user code."""


class Log(msgspec.Struct, frozen=True):
    """The log of a run: stdout, stderr and `log` lines in the order of writing. Of a long log, only head and tail
    are stored.
    """

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0
    """Number of bytes that are missing between head and tail."""


class Progress(msgspec.Struct, frozen=True):
    """The progress of a run, as its code has reported it with `runtime.progress`."""

    done: float
    total: float | None = None
    """None if the code does not know the total."""
    text: str = ""


class NetworkUse(msgspec.Struct, frozen=True):
    """Connections of a run to one host and port with the same outcome."""

    host: str
    """The host as the code requested it. If the text is not a host name, it is escaped and shortened."""
    port: int
    allowed: bool
    reason: str
    """The pattern that allowed the connections, or the reason of the refusal."""
    connections: int = 1
    bytes_out: int = 0
    """Bytes from the code to the host."""
    bytes_in: int = 0


class Used(msgspec.Struct, frozen=True):
    """What a run has used, as far as the sandbox measures it. None: not measured."""

    prepared_ms: float | None = None
    """Time from the call of `run` to the start of the code."""
    memory_bytes: int | None = None
    """The most memory of all processes of the run together, with the files in `/workspace` and `/tmp`."""
    processes: int | None = None
    """The most processes and threads at one time."""
    disk_bytes: int | None = None
    """Size of the files in `/workspace` at the end of the code. The code could falsify this value."""


class Outcome(msgspec.Struct, frozen=True):
    """The end of a run. Exactly one of `result` and `failure` is not None."""

    result: bytes | None = None
    """The returned value as compact JSON in UTF-8."""
    failure: Failure | None = None
    summary: str | None = None
    """The text that the code set with `runtime.summary(text)`."""
    log: Log = Log()
    duration_ms: float = 0.0
    degraded: tuple[str, ...] = ()
    """Limits that this host enforces only by weaker means, such as `memory_tree`."""
    network: tuple[NetworkUse, ...] = ()
    """Every allowed or refused connection of the run, grouped by target and outcome."""
    used: Used = Used()


class BlobWriter(Protocol):
    """A blob to which a run is writing."""

    async def write(self, chunk: bytes) -> None:
        """Append a chunk to the blob. Raise TooLarge if the blobs of the run exceed a limit."""
        ...

    async def commit(self) -> str:
        """Store the blob. Return its id."""
        ...

    async def abort(self) -> None: ...


@runtime_checkable
class RunHost(Protocol):
    """Answers requests of the code in a sandbox. The core implements this Protocol, and the sandbox calls it.

    If a method raises a SkilleryError, the sandbox raises an exception in the code. The run and the server continue.
    """

    async def begin_blob(self, kind: str, path: str | None = None) -> BlobWriter:
        """Start to write a blob, and return its writer. `kind` is a media type.

        `path` is the name that the code gave to the blob: a path below /workspace/out or the name of a picture. The
        text is untrusted.
        """
        ...

    async def read_blob(self, blob_id: str) -> bytes:
        """Return a blob that this run wrote. Raise BlobNotFound for any other id."""
        ...

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        """Call a function of a skill that this run mounts as a stub, and return the returned value as JSON.

        The function runs in a separate sandbox, with the permissions of its skill. `args` is the JSON `{"args": [...],
        "kwargs": {...}}`. Raise SkillFailed if the function failed. Raise another SkilleryError if the function could
        not be called. Cancelling this coroutine ends the call.
        """
        ...

    @default()
    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        """Return the size in bytes of a blob that this run wrote, and its content in pieces. Raise BlobNotFound for
        any other id.

        Default: the result of `read_blob` in pieces. Code that requests a blob but does not read it then occupies
        memory of the server.
        """
        content = await self.read_blob(blob_id)
        return len(content), _pieces(content)

    @default()
    def progressed(self, progress: Progress) -> None:
        """Take the newest progress of the code. Must return at once and never raise. Default: ignore it."""
        return

    @default("list_workspace", "keep_contents")
    async def list_workspace(self, files: Sequence[KeptFile], left_out: Sequence[str]) -> Sequence[int]:
        """Take the files of the workspace, and in `left_out` the paths of entries that cannot be saved. Return the
        positions in `files` of the contents that the host needs.

        The files come from a process in which no code of the run has ever been, after the run has ended. Default: the
        host saves no workspace, and needs no contents.
        """
        return ()

    @default("list_workspace", "keep_contents")
    async def keep_contents(self, pieces: AsyncIterator[bytes]) -> None:
        """Take the contents that `list_workspace` requested, one after the other. The workspace is then complete."""
        async for _ in pieces:
            pass


PIECE_BYTES = 512 * 1024


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


def completed_host(host: RunHost) -> RunHost:
    """Return the host, with the defaults of the methods that it does not have."""
    if isinstance(host, RunHost):
        return host
    completed: RunHost = Completed(host, (RunHost, FollowsLog))
    return completed


@runtime_checkable
class FollowsLog(Protocol):
    """A RunHost that gets the log while the code runs, and stores it.

    A sandbox that passes the log to such a host leaves `Outcome.log` empty. A sandbox need not do this: then, readers
    see the log only after the end of the run.
    """

    def printed(self, piece: bytes) -> None:
        """Take the next bytes of the log: stdout, stderr or `log` lines. Must return at once and never raise."""
        ...
