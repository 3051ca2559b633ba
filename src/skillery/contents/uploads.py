"""Uploads of contents into the storage.

A content is stored before the row that names it. Until then no row refers to the content, so a sweep could delete it.
An upload therefore announces its digests first (`uploading`), and a deletion (`skillery.contents.deletions`) leaves
every announced digest in place. An upload of a digest that is being deleted waits until the deletion has ended. The two
take turns for each digest, so each sees the other, however long either takes.
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
from skillery.contents.deletions import Claim, carry_out, claim, find_deletions, take_turn, wait_until_deleted
from skillery.database import Database
from skillery.database.tables import uploads
from skillery.errors import SkilleryError, Unavailable

log = logging.getLogger(__name__)

WAIT_SECONDS = 3.0
"""How long an upload waits for the deletion of its digests."""
Settle = Callable[[Connection], None]
_BEGIN = insert(uploads)
_SETTLE = delete(uploads).where(uploads.c.id == bindparam("upload"))


class Uploading:
    """Contents that no sweep deletes until `settle`, in the transaction that records them, or `give_up`. Blocking."""

    def __init__(self, database: Database, storage: Storage, digests: Iterable[str]) -> None:
        """Announce the digests. Raises Busy if one of them is being deleted for longer than WAIT_SECONDS."""
        self._database = database
        self._storage = storage
        self._id = secrets.token_hex(16)
        # One order for all callers prevents deadlocks on Postgres.
        self._digests: Sequence[str] = sorted(set(digests))
        if not self._digests:
            return
        must_wait = database.write_now(self._begin)
        if must_wait:
            self._wait_for_deletions()

    def settle(self, connection: Connection) -> None:
        """End the upload. Raises Unavailable if a sweep has ended it before: then the files may be deleted."""
        if self._digests and connection.execute(_SETTLE, {"upload": self._id}).rowcount != len(self._digests):
            raise Unavailable("storing this took too long", hint="Nothing was stored. Try again.")

    def give_up(self) -> None:
        """End the upload and delete the files that nothing else refers to.

        Errors are logged, so that the caller can raise its own. A sweep deletes those files later.
        """
        if not self._digests:
            return
        try:
            carry_out(self._database, self._storage, self._database.write_now(self._end))
        except SkilleryError as error:
            log.warning("files of an upload that failed are not deleted yet: %s", error.message)

    def _begin(self, connection: Connection) -> bool:
        """Announce the digests, so that no further deletion of them begins. Return whether one is under way."""
        for digest in self._digests:
            take_turn(connection, digest)
        now = datetime.now(UTC)
        connection.execute(_BEGIN, [{"id": self._id, "sha256": digest, "begun_at": now} for digest in self._digests])
        return bool(find_deletions(connection, self._digests))

    def _wait_for_deletions(self) -> None:
        try:
            wait_until_deleted(self._database, self._storage, self._digests, time.monotonic() + WAIT_SECONDS)
        except BaseException:
            self._database.write_now(lambda connection: connection.execute(_SETTLE, {"upload": self._id}))
            raise

    def _end(self, connection: Connection) -> Claim:
        connection.execute(_SETTLE, {"upload": self._id})
        return claim(connection, self._database.server, self._digests)


@contextmanager
def uploading(database: Database, storage: Storage, digests: Iterable[str]) -> Iterator[Settle]:
    """Keep the contents from being deleted while the block stores them.

    The block calls `settle` in the transaction that records them. If it raises, the upload is given up.
    """
    upload = Uploading(database, storage, digests)
    try:
        yield upload.settle
    except BaseException:
        upload.give_up()
        raise


def forget_uploads(connection: Connection, begun_before: datetime) -> int:
    """End the uploads of processes that have died. Return how many. A process that lives notices in `settle`."""
    return connection.execute(delete(uploads).where(uploads.c.begun_at < begun_before)).rowcount
