"""The sources of a run's log: the active run of this server, the stored log of an ended run, or the rows of another
server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, Connection, Row, delete, insert, literal_column, select, update

from skillery.backends import Progress
from skillery.contents.blob_rows import BlobRow
from skillery.contents.blobs import Blobs
from skillery.context.queue import PackageWait
from skillery.database import in_utc
from skillery.database.tables import run_log_pieces as pieces
from skillery.database.tables import runs
from skillery.runs.active_run import ActiveRun
from skillery.runs.live_output import LiveOutput, LogPart, Shown, line_for_dropped, log_part
from skillery.runs.results import Status

# -- The database rows that carry the log of a run from the server that executes it to the servers that follow it ------


FOLLOWED = timedelta(seconds=30)
"""Time for which a mark of `mark_followed` is valid. Clocks of servers may differ by half of this time."""
KEPT = timedelta(seconds=60)
"""The time for which log pieces are kept after the end of their run, for followers that have not read them yet."""
PIECE_BYTES = 64 * 1024
_STARTED: ColumnElement[str] = literal_column("'started'")


class Piece(NamedTuple):
    """A piece of a run's log, from its database row. `start` is the offset of `content` in the log."""

    run_id: str
    start: int
    content: bytes


class FollowedRun(NamedTuple):
    """The state of a followed run, from its database row."""

    run_id: str
    status: Status
    is_queued: bool
    progress_json: str | None
    finished_at: datetime | None


def mark_followed(connection: Connection, run_ids: Sequence[str]) -> None:
    """Mark runs as followed for the next 30 s. Their servers then write the logs to the database."""
    until = datetime.now(UTC) + FOLLOWED
    connection.execute(update(runs).where(runs.c.id.in_(run_ids)).values(followed_until=until))


def followed_on(connection: Connection, server: str) -> set[str]:
    """Return the ids of the active runs of a server that have a valid mark of `mark_followed`."""
    statement = select(runs.c.id).where(
        runs.c.server == server,
        runs.c.status == _STARTED,
        runs.c.followed_until.is_not(None),
        runs.c.followed_until > datetime.now(UTC),
    )
    return set(connection.scalars(statement))


def shown_json(shown: Shown | None) -> str | None:
    """Return the progress as JSON for the row of the run, or None if there is no progress."""
    return msgspec.json.encode(shown).decode() if shown is not None else None


def write_pieces(
    connection: Connection,
    *,
    run_id: str,
    parts: Sequence[tuple[int, bytes]],
    progress: str | UnsetType | None,
    gap: tuple[int, int],
) -> None:
    """Insert `parts` of a log, each with its offset. Delete the pieces that begin in the gap of the log.

    `gap` is the range of dropped bytes: its first offset and the offset after it. `progress` is JSON text, None to
    remove the stored progress, or UNSET to leave it.
    """
    now = datetime.now(UTC)
    rows = [
        {
            "run_id": run_id,
            "start": start + piece_start,
            "content": content[piece_start : piece_start + PIECE_BYTES],
            "written_at": now,
        }
        for start, content in parts
        for piece_start in range(0, len(content), PIECE_BYTES)
    ]
    if rows:
        connection.execute(insert(pieces), rows)
    gap_start, gap_end = gap
    if gap_end > gap_start:
        inside = (pieces.c.run_id == run_id, pieces.c.start >= gap_start, pieces.c.start < gap_end)
        connection.execute(delete(pieces).where(*inside))
    if progress is not UNSET:
        connection.execute(update(runs).where(runs.c.id == run_id).values(progress_json=progress))


def read_pieces(
    connection: Connection, offsets: Sequence[tuple[str, int]]
) -> tuple[dict[str, FollowedRun], list[Piece]]:
    """Return the states of runs by id, and the pieces of their logs from the given offsets on, in order.

    `offsets` are pairs of run id and offset. The state is read before the pieces: if the state says that the run has
    ended, the pieces are complete.
    """
    columns = (runs.c.id, runs.c.status, runs.c.queued, runs.c.progress_json, runs.c.finished_at)
    rows = connection.execute(select(*columns).where(runs.c.id.in_([run_id for run_id, _ in offsets])))
    states = {
        row.id: FollowedRun(row.id, row.status, row.queued, row.progress_json, in_utc(row.finished_at)) for row in rows
    }
    newer: list[Piece] = []
    for run_id, offset in offsets:
        unread = select(pieces.c.start, pieces.c.content).where(pieces.c.run_id == run_id, pieces.c.start >= offset)
        newer += [
            Piece(run_id, start, bytes(content)) for start, content in connection.execute(unread.order_by("start"))
        ]
    return states, newer


def forget_pieces(connection: Connection, *, limit: int) -> int:
    """Delete the log pieces of at most `limit` runs that ended at least KEPT ago. Return the number of these runs."""
    before = datetime.now(UTC) - KEPT
    is_open = select(runs.c.id).where(runs.c.status == _STARTED, runs.c.id == pieces.c.run_id).exists()
    recently = select(runs.c.id).where(runs.c.finished_at >= before, runs.c.id == pieces.c.run_id).exists()
    old_run_ids = (
        select(pieces.c.run_id).where(pieces.c.written_at < before, ~is_open, ~recently).distinct().limit(limit)
    )
    ended = list(connection.scalars(old_run_ids))
    if ended:
        connection.execute(delete(pieces).where(pieces.c.run_id.in_(ended)))
    return len(ended)


# -- The stored log of a run that has ended, read from any offset ------------------------------------------------------


class StoredLog:
    """The log that was stored when its run ended. It has the same offsets as the live log."""

    has_ended = True

    def __init__(self, row: Row[Any], blob: BlobRow | None, blobs: Blobs) -> None:
        """`row` is the row of the run. `blob` contains the log, or is None if the preview in the row is the whole
        log.
        """
        self._preview: bytes = row.logs_preview.encode()
        self._blob = blob
        self._blobs = blobs
        self._dropped = row.log_dropped_bytes or 0
        self._head = row.log_head_bytes or 0
        self._line = len(line_for_dropped(self._dropped)) if self._dropped else 0
        stored = blob.size_bytes if blob is not None else len(self._preview)
        self.end = stored - self._line + self._dropped

    def read(self, after: int, size: int) -> LogPart:
        """Return at most `size` bytes of the log from the offset `after`, or from the next kept byte. Blocking."""
        # The stored bytes are the head, a line for the dropped bytes, and the tail. `shift` converts an offset of the
        # log to a position in them.
        start, end, shift = min(after, self.end), self.end, 0
        if self._dropped and after < self._head:
            end = self._head
        elif self._dropped:
            start = min(max(after, self._head + self._dropped), self.end)
            shift = self._line - self._dropped
        content = self._bytes(start + shift, min(size, end - start))
        return log_part(start, content, may_continue=start + len(content) < end)

    def _bytes(self, start: int, size: int) -> bytes:
        if self._blob is None:
            return self._preview[start : start + size]
        return self._blobs.read_range(self._blob, start, size)


class LogSource(Protocol):
    """Read access to the log and the state of one run, which this server or another one executes or has executed."""

    @property
    def end(self) -> int:
        """The offset after the last byte of the log."""
        ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def status(self) -> Status:
        """The status of the run. Some sources know only `completed` and `failed` of an ended run."""
        ...

    @property
    def progress(self) -> Progress | None: ...

    @property
    def packages(self) -> PackageWait | None:
        """The packages that the run waits for, or None if it does not wait for packages."""
        ...

    async def read(self, after: int, size: int) -> LogPart:
        """Return at most `size` bytes of the log from the offset `after`, or from the next kept byte."""
        ...

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change of the log or the progress, or at the end of the run."""
        ...

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done at the end of the run."""
        ...


class LiveSource:
    """The log of a run in the memory of this server. It stays readable after the run has ended."""

    def __init__(self, live: LiveOutput) -> None:
        self.live = live

    @property
    def end(self) -> int:
        return self.live.end

    @property
    def has_ended(self) -> bool:
        return self.live.has_ended

    @property
    def progress(self) -> Progress | None:
        return self.live.progress

    @property
    def packages(self) -> PackageWait | None:
        return self.live.packages

    async def read(self, after: int, size: int) -> LogPart:
        return self.live.read(after, size)

    def changed(self) -> asyncio.Future[None]:
        return self.live.changed()

    def ended(self) -> asyncio.Future[None]:
        return self.live.ended()


class LocalRun(LiveSource):
    """The log of a run that this server executes."""

    def __init__(self, run: ActiveRun) -> None:
        super().__init__(run.live)
        self._run = run

    @property
    def status(self) -> Status:
        if self.live.status is not None:
            return self.live.status
        return "queued" if self._run.is_waiting else "started"


class EndedRun:
    """The stored log of a run that has ended."""

    has_ended = True
    progress = packages = None

    def __init__(self, status: Status, stored: StoredLog) -> None:
        self.status = status
        self._stored = stored

    @property
    def end(self) -> int:
        return self._stored.end

    async def read(self, after: int, size: int) -> LogPart:
        return await asyncio.to_thread(self._stored.read, after, size)

    def changed(self) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    ended = changed
