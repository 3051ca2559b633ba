"""Uploads of contents into the storage.

A content is stored before the row that refers to it. Until the row exists, a sweep could delete the content. Therefore
an upload first records its digests (`uploading`), and a deletion (`skillery.contents.deletions`) skips recorded
digests. If a digest is already being deleted, the upload waits until the deletion has ended. A lock for each digest
ensures that an upload and a deletion always see each other's rows.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, delete, insert

from skillery.backends import Storage
from skillery.contents.deletions import TombstoneClaim, carry_out, claim, find_deletions, take_turn, wait_until_deleted
from skillery.contents.storage_copies import check_copy, find_copy_id
from skillery.database import Database
from skillery.database.tables import uploads
from skillery.errors import SkilleryError, Unavailable

log = logging.getLogger(__name__)

WAIT_SECONDS = 3.0
"""The longest time that an upload waits for deletions of its digests."""
Settle = Callable[[Connection], None]
_BEGIN = insert(uploads)
_SETTLE = delete(uploads).where(uploads.c.id == bindparam("upload"))


class Uploading:
    """Digests that no sweep deletes until `settle` or `give_up` is called. Blocking.

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
        """Record the digests, so that no further deletion of them starts. Return whether a deletion of one has
        started before.
        """
        for digest in self._digests:
            take_turn(connection, digest)
        now = datetime.now(UTC)
        connection.execute(_BEGIN, [{"id": self._id, "sha256": digest, "begun_at": now} for digest in self._digests])
        self._copy_id = find_copy_id(connection)
        return bool(find_deletions(connection, self._digests))

    def _wait_for_deletions(self) -> None:
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
    """Context manager that protects contents from deletion while its block stores them. It yields `settle`.

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
