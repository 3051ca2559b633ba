"""The host of a run: writes and reads blobs and calls skills, as the code in the sandbox requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from skillery.backends import Identity, Job, KeptFile, Progress, RunHost
from skillery.contents.blob_rows import BlobRow, Output, parse_kind
from skillery.contents.blobs import Blobs
from skillery.contents.store import Incoming
from skillery.errors import BlobNotFound, NotAllowed, TooLarge
from skillery.formats.wording import quoted
from skillery.runs.display import displayable
from skillery.runs.live_output import LiveOutput
from skillery.workspaces.saver import Saver

PIECE_BYTES = 256 * 1024
PATH_CHARACTERS = 1000


def one_line(path: str) -> str:
    """Return the path in printable form, on one line."""
    return displayable(path[:PATH_CHARACTERS].replace("\n", "\\n").replace("\t", "\\t"))[:PATH_CHARACTERS]


def live_output(job: Job) -> LiveOutput:
    """Return the output object for a new run, still empty."""
    return LiveOutput(job.limits.log_kb * 1024)


class SkillCalls(Protocol):
    """Calls skills for the code of a run."""

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
        """None if the workspace of the run is not saved."""
        self.calls: SkillCalls | None = None
        """None if no mounted skill has permissions: the code then has no skill to call."""

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
        """Store a content from the host as a blob of the run. Return the id of the blob."""
        writer = Writer(self, kind, self._blobs.incoming())
        try:
            await asyncio.to_thread(writer.incoming.write, content)
            return await writer.commit()
        except BaseException:
            await writer.abort()
            raise

    def spend(self, size: int) -> None:
        """Count written bytes. Raise TooLarge if the run exceeds its limit for blobs."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TooLarge(f"the blobs of this run would exceed its limit of {self._limits.blobs_mb} MiB")

    async def store(self, incoming: Incoming, kind: str, path: str | None) -> str:
        """Record a completely written blob. Return its id."""
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
