"""Contents of skill files and blobs, by digest: small ones in the database, large ones in the storage.

A content is stored before the row that refers to it. So a crash can leave an unreferenced content, but never a
reference to a missing content. `skillery.contents.store` prevents sweeps from deleting the content before the row
exists.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Storage, Upload
from skillery.contents.deletions import TombstoneClaim, carry_out, claim, find_deletions, take_turn, wait_until_deleted
from skillery.contents.storage_copies import check_copy, find_copy_id
from skillery.database import Change, Database
from skillery.database.tables import objects, uploads
from skillery.errors import ContentMissing, SkilleryError, Unavailable

# -- Uploads of contents into the storage ------------------------------------------------------------------------------
# A content is stored before the row that refers to it. Until the row exists, a sweep could delete the content.
# Therefore an upload first records its digests (`uploading`), and a deletion (`skillery.contents.deletions`) skips
# recorded digests. If a digest is already being deleted, the upload waits until the deletion has ended. A lock for
# each digest ensures that an upload and a deletion always see each other's rows.


log = logging.getLogger(__name__)

WAIT_SECONDS = 3.0
"""The longest time that an upload waits for deletions of its digests."""
Settle = Callable[[Connection], None]
_BEGIN = insert(uploads)
_SETTLE = delete(uploads).where(uploads.c.id == bindparam("upload"))


class Uploading:
    """Protects digests from sweeps until `settle` or `give_up` is called. Blocking.

    Call `settle` in the transaction that records the contents, or `give_up` if they are not recorded.
    """

    def __init__(self, database: Database, storage: Storage, digests: Iterable[str]) -> None:
        """Record the digests. Raise Busy if one of them is still being deleted after WAIT_SECONDS."""
        self._database = database
        self._storage = storage
        self._id = secrets.token_hex(16)
        # Sorted, because the same order for all callers prevents deadlocks on Postgres.
        self._digests: Sequence[str] = sorted(set(digests))
        self._copy_id: str | None = None
        if not self._digests:
            return
        must_wait = database.write_now(self._begin)
        if must_wait:
            self._wait_for_deletions()

    def settle(self, connection: Connection) -> None:
        """End the upload. Raise Unavailable if a sweep has already ended it (the files may be deleted then), or if a
        copy of the storage has begun or ended since the upload began.
        """
        if not self._digests:
            return
        check_copy(connection, self._copy_id)
        if connection.execute(_SETTLE, {"upload": self._id}).rowcount != len(self._digests):
            raise Unavailable("storing this content took too long", hint="Nothing was stored. Try again.")

    def give_up(self) -> None:
        """End the upload, and delete its files unless something else refers to them.

        Errors are logged and not raised, because the caller raises its own error. A sweep deletes remaining files
        later.
        """
        if not self._digests:
            return
        try:
            carry_out(self._database, self._storage, self._database.write_now(self._end))
        except SkilleryError as error:
            log.warning("files of an upload that failed are not deleted yet: %s", error.message)

    def _begin(self, connection: Connection) -> bool:
        """Record the digests, so that no deletion of them can start. Return whether a deletion of one of them is
        already under way.
        """
        for digest in self._digests:
            take_turn(connection, digest)
        now = datetime.now(UTC)
        connection.execute(_BEGIN, [{"id": self._id, "sha256": digest, "begun_at": now} for digest in self._digests])
        self._copy_id = find_copy_id(connection)
        return bool(find_deletions(connection, self._digests))

    def _wait_for_deletions(self) -> None:
        """Return when no deletion of the digests is under way. Raise Busy after WAIT_SECONDS, and end the upload."""
        try:
            # If nothing can be stored now, the caller gets the reason, and not the state of an earlier failure.
            self._storage.begin().abort()
            wait_until_deleted(self._database, self._storage, self._digests, time.monotonic() + WAIT_SECONDS)
        except BaseException:
            self._database.write_now(lambda connection: connection.execute(_SETTLE, {"upload": self._id}))
            raise

    def _end(self, connection: Connection) -> TombstoneClaim:
        connection.execute(_SETTLE, {"upload": self._id})
        return claim(connection, self._database.server, self._digests)


@contextmanager
def uploading(database: Database, storage: Storage, digests: Iterable[str]) -> Iterator[Settle]:
    """Context manager that yields `settle`, and protects the contents from deletion while its block stores them.

    The block must call `settle` in the transaction that records the contents. If the block raises an error, the upload
    is given up.
    """
    upload = Uploading(database, storage, digests)
    try:
        yield upload.settle
    except BaseException:
        upload.give_up()
        raise


def forget_uploads(connection: Connection, begun_before: datetime) -> int:
    """End uploads that began before `begun_before`: their processes have probably died. Return the number of digests.

    If such a process is alive, its `settle` raises Unavailable.
    """
    return connection.execute(delete(uploads).where(uploads.c.begun_at < begun_before)).rowcount


INLINE_BYTES = 64 * 1024
CHUNK_BYTES = 1024 * 1024


class Content(msgspec.Struct, frozen=True):
    """Metadata of a stored content."""

    sha256: str
    size_bytes: int
    is_text: bool
    """True if the whole content is valid UTF-8."""


class Incoming:
    """A content of any size that is being received, with constant memory. Blocking: use it in a worker thread.

    Call `write` for each chunk, then `commit` or `abort`. When `commit` returns, the content is durable and recorded.
    `check` is called with the number of received bytes, and may raise an error.
    """

    def __init__(self, database: Database, storage: Storage, check: Callable[[int], None] | None = None) -> None:
        self._database = database
        self._storage = storage
        self._check = check
        self._small = bytearray()
        self._upload: Upload | None = None
        self._hash = hashlib.sha256()
        self._size = 0
        self._decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()

    def write(self, chunk: bytes) -> None:
        """Add a chunk. The first INLINE_BYTES stay in memory; a larger content goes to the storage."""
        self._size += len(chunk)
        if self._check is not None:
            self._check(self._size)
        self._hash.update(chunk)
        self._watch_text(chunk, final=False)
        if self._upload is None and len(self._small) + len(chunk) <= INLINE_BYTES:
            self._small += chunk
            return
        if self._upload is None:
            self._upload = self._storage.begin()
            self._upload.write(bytes(self._small))
            self._small.clear()
        self._upload.write(chunk)

    def commit(self, then: Callable[[Connection, Content], None]) -> Content:
        """Store the content. `then` adds the rows that refer to it, in the transaction that records the content.

        This must be one transaction, because sweeps delete unreferenced contents at any time. If `then` raises an
        error, nothing is stored.
        """
        self._watch_text(b"", final=True)
        content = Content(self._hash.hexdigest(), self._size, self._decoder is not None)
        data = bytes(self._small) if self._upload is None else None
        with uploading(self._database, self._storage, [content.sha256] if self._upload else ()) as settle:
            if self._upload is not None:
                self._upload.commit(content.sha256)

            def work(connection: Connection) -> None:
                settle(connection)
                record(connection, [(content.sha256, content.size_bytes, data)])
                then(connection, content)

            self._database.write_now(work)
        return content

    def abort(self) -> None:
        if self._upload is not None:
            self._upload.abort()

    def _watch_text(self, chunk: bytes, *, final: bool) -> None:
        if self._decoder is None:
            return
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            self._decoder = None


_RECORD = Change(
    {
        dialect.__name__.rpartition(".")[2]: dialect.insert(objects).on_conflict_do_nothing(index_elements=["sha256"])
        for dialect in (sqlite, postgresql)
    },
    ("sha256", "size_bytes", "data"),
)


def record(connection: Connection, contents: Iterable[tuple[str, int, bytes | None]]) -> None:
    """Record contents, given as (digest, size, data or None). `data` is None for a content in the storage. Skip
    known contents.
    """
    # Sorted, because the same order for all callers prevents deadlocks on Postgres.
    ordered = sorted(contents, key=lambda content: content[0])
    rows = [{"sha256": sha256, "size_bytes": size, "data": data} for sha256, size, data in ordered]
    _RECORD.run_many(connection, rows)


def put_large(storage: Storage, sha256: str, content: bytes) -> None:
    """Store a content in the storage. When this function returns, the content is durable."""
    with new_upload(storage) as upload:
        for start in range(0, len(content), CHUNK_BYTES):
            upload.write(content[start : start + CHUNK_BYTES])
        upload.commit(sha256)


@contextmanager
def new_upload(storage: Storage) -> Iterator[Upload]:
    """Context manager: yield an upload, which the block commits. Abort the upload if the block raises."""
    upload = storage.begin()
    try:
        yield upload
    except BaseException:
        upload.abort()
        raise


def is_inline(size_bytes: int) -> bool:
    return size_bytes <= INLINE_BYTES


def inline_data(connection: Connection, digests: Iterable[str]) -> dict[str, bytes]:
    """Return the data of those contents that are in the database, by digest."""
    rows = connection.execute(
        select(objects.c.sha256, objects.c.data).where(objects.c.sha256.in_(set(digests)), objects.c.data.is_not(None))
    )
    return {row.sha256: bytes(row.data) for row in rows}


def open_content(connection: Connection, storage: Storage, sha256: str) -> BinaryIO:
    """Return a seekable stream of a content. Raise ContentMissing if it is not recorded or not in the storage."""
    row = connection.execute(select(objects.c.data).where(objects.c.sha256 == sha256)).one_or_none()
    if row is None:
        raise ContentMissing("the content is not recorded")
    return io.BytesIO(bytes(row.data)) if row.data is not None else storage.open(sha256)


def copy_to(stream: BinaryIO, path: Path, mode: int) -> None:
    """Write a stream to a new file. The file appears under `path` only when it is complete."""
    partial = path.with_name(f".{path.name}.partial")
    with suppress(FileNotFoundError):
        partial.unlink()
    with stream, partial.open("xb") as target:
        while chunk := stream.read(CHUNK_BYTES):
            target.write(chunk)
    partial.chmod(mode)
    partial.rename(path)
