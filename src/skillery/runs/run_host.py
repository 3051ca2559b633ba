"""The host of a run: writes and reads blobs, saves the workspace and calls skills when the code in the sandbox asks."""

from __future__ import annotations

import asyncio
import keyword
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from skillery.backends import Identity, Job, KeptFile, Limits, Outcome, Progress, RunHost, SkillCall
from skillery.contents.blob_rows import BlobRow, Output, parse_kind
from skillery.contents.blobs import Blobs
from skillery.contents.store import Incoming
from skillery.context.threads import BIG_TEXT, JSON
from skillery.errors import BlobNotFound, InvalidParams, NotAllowed, SkillFailed, TooLarge
from skillery.formats.texts import new_run_id
from skillery.formats.wording import quoted
from skillery.runs.live_output import LiveOutput, displayable
from skillery.workspaces.snapshots import Saver

PIECE_BYTES = 256 * 1024
PATH_CHARACTERS = 1000


def one_line(path: str) -> str:
    """Return the path in printable form, on one line."""
    return displayable(path[:PATH_CHARACTERS].replace("\n", "\\n").replace("\t", "\\t"))[:PATH_CHARACTERS]


def live_output(job: Job) -> LiveOutput:
    """Return an empty output object with the log limit of the job."""
    return LiveOutput(job.limits.log_kb * 1024)


class SkillCalls(Protocol):
    """Interface for calls of skills by the code of a run. See `RunHost.call_skill`."""

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes: ...


class Host(RunHost):
    """The `RunHost` of one run.

    Each blob is stored and recorded as soon as it is complete, so that no sweep removes it. Each blob counts towards
    the quotas of the caller.
    """

    def __init__(self, blobs: Blobs, identity: Identity, job: Job) -> None:
        self._blobs = blobs
        self._identity = identity
        self._run_id = job.run_id
        self._limits = job.limits
        self._bytes_left = job.limits.blobs_mb * 1024 * 1024
        self.live = live_output(job)
        self.written: list[BlobRow] = []
        self.saver: Saver | None = None
        """Saves the workspace of the run. None if the workspace is not saved."""
        self.calls: SkillCalls | None = None
        """Calls mounted skills. None if no mounted skill has permissions, because the code imports the other ones."""

    def printed(self, piece: bytes) -> None:
        self.live.add(piece)

    def progressed(self, progress: Progress) -> None:
        self.live.set_progress(progress)

    async def begin_blob(self, kind: str, path: str | None = None) -> Writer:
        parse_kind(kind)
        if len(self.written) >= self._limits.blobs:
            raise TooLarge(f"this run has written {self._limits.blobs} blobs, which is its limit")
        return Writer(self, kind, self._blobs.incoming(), one_line(path) if path else None)

    async def read_blob(self, blob_id: str) -> bytes:
        row = self._written_blob(blob_id)
        return await asyncio.to_thread(self._blobs.read_range, row, 0, row.size_bytes)

    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        row = self._written_blob(blob_id)
        return row.size_bytes, self._pieces(row)

    async def _pieces(self, row: BlobRow) -> AsyncIterator[bytes]:
        for start in range(0, row.size_bytes, PIECE_BYTES):
            yield await asyncio.to_thread(self._blobs.read_range, row, start, PIECE_BYTES)

    def _written_blob(self, blob_id: str) -> BlobRow:
        """Return the row of a blob that this run has written. Raise BlobNotFound for other blobs."""
        for row in self.written:
            if row.id == blob_id:
                return row
        raise BlobNotFound(
            f"the blob '{blob_id}' is neither an input nor an output of this run: pass its id in input_blobs"
        )

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        if self.calls is None:
            raise NotAllowed(f"this run mounts no skill {quoted(skill[:128])} that has permissions")
        return await self.calls.call_skill(skill, function, args)

    async def list_workspace(self, files: Sequence[KeptFile], left_out: Sequence[str]) -> Sequence[int]:
        return await self.saver.list_workspace(files, left_out) if self.saver is not None else ()

    async def keep_contents(self, pieces: AsyncIterator[bytes]) -> None:
        if self.saver is not None:
            await self.saver.keep_contents(pieces)

    async def keep(self, content: bytes, kind: str) -> str:
        """Store `content` as a blob of the run, with the media type `kind`. Return the id of the blob."""
        writer = Writer(self, kind, self._blobs.incoming())
        try:
            await asyncio.to_thread(writer.incoming.write, content)
            return await writer.commit()
        except BaseException:
            await writer.abort()
            raise

    def spend(self, size: int) -> None:
        """Count `size` written bytes. Raise TooLarge if the blobs of the run exceed its limit `blobs_mb`."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TooLarge(f"the blobs of this run would exceed its limit of {self._limits.blobs_mb} MiB")

    async def store(self, incoming: Incoming, kind: str, path: str | None) -> str:
        """Store and record a completely written blob as an output of the run. Return the id of the blob."""
        output = Output(self._run_id, len(self.written), path)
        row = await asyncio.to_thread(self._blobs.commit_output, incoming, self._identity, kind, output)
        self.written.append(row)
        return row.id


class Writer:
    """The `BlobWriter` of one blob."""

    def __init__(self, host: Host, kind: str, incoming: Incoming, path: str | None = None) -> None:
        self._host = host
        self._kind = kind
        self._path = path
        self.incoming = incoming

    async def write(self, chunk: bytes) -> None:
        self._host.spend(len(chunk))
        await asyncio.to_thread(self.incoming.write, chunk)

    async def commit(self) -> str:
        return await self._host.store(self.incoming, self._kind, self._path)

    async def abort(self) -> None:
        await asyncio.to_thread(self.incoming.abort)


# -- Calls of mounted skills with permissions. Each call is a separate run ---------------------------------------------
# The called run has only the permissions of the called skill: the two runs do not share network or secrets.


def called_job(caller: Job, name: str, network: tuple[str, ...], function: str, args: bytes, limits: Limits) -> Job:
    """Return the job of the called skill `name`. Its blobs are the blobs of the job `caller` whose ids are in `args`.

    No other skill of the caller is mounted: its code on `sys.path` could use the permissions of the called skill.
    """
    mounts = [mount for mount in caller.skills if mount.name == name]
    return Job(
        run_id=new_run_id(),
        call=SkillCall(name, function, spread=True),
        args=args,
        skills=tuple(msgspec.structs.replace(mount, stub=False) for mount in mounts),
        blobs=tuple(blob for blob in caller.blobs if blob.blob_id.encode() in args),
        limits=limits,
        network=network,
    )


class CalledHost(RunHost):
    """The `RunHost` of a called run. It uses the blobs of the calling run."""

    def __init__(self, caller: Host, job: Job) -> None:
        self._caller = caller
        self.live = live_output(job)
        self.written: list[BlobRow] = []
        """Always empty: a blob is recorded with the calling run."""
        self.calls: SkillCalls | None = None
        """Calls skills with permissions that the called skill requires. None if there are none."""

    def printed(self, piece: bytes) -> None:
        self.live.add(piece)

    def progressed(self, progress: Progress) -> None:
        self.live.set_progress(progress)

    async def begin_blob(self, kind: str, path: str | None = None) -> Writer:
        return await self._caller.begin_blob(kind, path)

    async def read_blob(self, blob_id: str) -> bytes:
        return await self._caller.read_blob(blob_id)

    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        return await self._caller.blob_pieces(blob_id)

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        if self.calls is None:
            raise NotAllowed(f"a called skill cannot call '{skill[:128]}'")
        return await self.calls.call_skill(skill, function, args)

    async def keep(self, content: bytes, kind: str) -> str | None:
        """Return None, and store nothing.

        The code of the calling run receives the whole result, and the record of the called run has a preview of it.
        """


Called = TypeVar("Called")
"""What a called skill is: a row of its version, or the files of a folder."""


class Calls(Generic[Called]):
    """The skill calls of one run: checks each call, and runs the called function.

    Any code in the sandbox can send a call. So only skills that the run mounts as stubs can be called.
    """

    def __init__(
        self,
        stubs: Mapping[str, Called],
        limits: Limits,
        run: Callable[[Called, str, bytes, int], Awaitable[Outcome]],
    ) -> None:
        """`run` runs a function of a called skill with these args, within the given milliseconds."""
        self._stubs = stubs
        self._limits = limits
        self._run = run
        self._count = 0
        self._until: float | None = None
        """The end of the time for calls. It begins with the first call: before, the run may wait for its packages."""
        self._call_lock = asyncio.Lock()

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        """Call a function of a skill, as `RunHost.call_skill` says.

        Calls run one after another. Waiting counts towards the time limit of the calling run.
        """
        version = self._stubs.get(skill)
        if version is None:
            raise NotAllowed(f"this run mounts no skill {quoted(skill[:128])} that has permissions")
        if not function.isidentifier() or keyword.iskeyword(function):
            raise InvalidParams(f"{quoted(function[:128])} is not the name of a function")
        if len(args) > BIG_TEXT:
            await JSON.run(check_args, args)
        else:
            check_args(args)
        if self._count >= self._limits.calls:
            raise TooLarge(f"this run has called skills {self._count} times, which is its limit")
        self._count += 1
        if self._until is None:
            self._until = time.monotonic() + self._limits.timeout_ms / 1000
        async with self._call_lock:
            left_ms = max(1, int((self._until - time.monotonic()) * 1000))
            outcome = await self._run(version, function, args, left_ms)
        if outcome.failure is not None:
            raise SkillFailed(outcome.failure.message, failed_as=outcome.failure.type)
        return outcome.result or b"null"


class _Args(msgspec.Struct, forbid_unknown_fields=True):
    args: list[msgspec.Raw]
    kwargs: dict[str, msgspec.Raw]


def check_args(args: bytes) -> None:
    """Raise InvalidParams if the arguments of a call do not have the form `{"args": […], "kwargs": {…}}`."""
    try:
        msgspec.json.decode(str(args, "utf-8"), type=_Args)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        form = '{"args": [...], "kwargs": {...}}'
        raise InvalidParams(f"the arguments of a call are not JSON of the form {form}") from None
