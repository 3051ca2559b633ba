"""Contents on their way into the storage, and the only way out of it.

A content goes in before the row that names it, so that for a moment nothing refers to it and a sweep could take it for
rubbish. Whoever brings one says so first (`uploading`), and a file is only deleted in a transaction that finds neither
a row nor an upload of its digest (`drop_file`). The two take turns for each digest, so what comes first is seen by the
other: this holds however long either takes, and no clock plays a part in it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, delete, exists, insert, or_, select

from skillery.backends import Storage
from skillery.database import Database, take_turns
from skillery.database.tables import objects, uploads
from skillery.errors import SkilleryError, Unavailable

log = logging.getLogger(__name__)

Settle = Callable[[Connection], None]
_BEGIN = insert(uploads)
_SETTLE = delete(uploads).where(uploads.c.id == bindparam("upload"))
# In one statement, for one look at both: between two, an upload could turn into a row and be seen as neither.
_IS_USED = select(
    or_(
        exists().where(objects.c.sha256 == bindparam("sha256")),
        exists().where(uploads.c.sha256 == bindparam("sha256")),
    )
)


class Uploading:
    """Contents that nothing deletes until `settle`, in the transaction that records them, or `give_up`. Blocking."""

    def __init__(self, database: Database, storage: Storage, digests: Iterable[str]) -> None:
        self._database = database
        self._storage = storage
        self._id = secrets.token_hex(16)
        # In one order for everybody, so that nobody waits for one who waits for him.
        self._digests: Sequence[str] = sorted(set(digests))
        if self._digests:
            database.write_now(self._begin)

    def settle(self, connection: Connection) -> None:
        """Raises Unavailable where a sweep has given this upload up: then the files may be gone."""
        if self._digests and connection.execute(_SETTLE, {"upload": self._id}).rowcount != len(self._digests):
            raise Unavailable("storing this took too long", hint="Nothing was stored. Try again.")

    def give_up(self) -> None:
        """What came in and is of no use to anybody goes again. Where that fails, a sweep does it a day later: what the
        caller has to know is why this is given up."""
        if not self._digests:
            return
        try:
            self._database.write_now(lambda connection: connection.execute(_SETTLE, {"upload": self._id}))
            for digest in self._digests:
                drop_file(self._database, self._storage, digest)
        except SkilleryError as error:
            log.warning("what an upload left behind is still there: %s", error.message)

    def _begin(self, connection: Connection) -> None:
        for digest in self._digests:
            _take_turns(connection, digest)
        now = datetime.now(UTC)
        connection.execute(_BEGIN, [{"id": self._id, "sha256": digest, "begun_at": now} for digest in self._digests])


@contextmanager
def uploading(database: Database, storage: Storage, digests: Iterable[str]) -> Iterator[Settle]:
    """While this is open the contents may be put into the storage; `settle` is called in the transaction that records
    them. An exception gives them up."""
    upload = Uploading(database, storage, digests)
    try:
        yield upload.settle
    except BaseException:
        upload.give_up()
        raise


def drop_file(database: Database, storage: Storage, sha256: str) -> bool:
    """Delete a content from the storage unless somebody has a row for it, or is about to. Blocking.

    The transaction is open meanwhile: that is what keeps others from beginning to bring the same content.
    """

    def work(connection: Connection) -> bool:
        _take_turns(connection, sha256)
        if connection.scalar(_IS_USED, {"sha256": sha256}):
            return False
        storage.delete(sha256)
        return True

    return database.write_now(work)


def forget_uploads(connection: Connection, begun_before: datetime) -> int:
    """Of those whose process has died; one that lives notices in `settle`. Their number."""
    return connection.execute(delete(uploads).where(uploads.c.begun_at < begun_before)).rowcount


def _take_turns(connection: Connection, sha256: str) -> None:
    take_turns(connection, "content", sha256)
