"""Contents that the server makes itself and keeps for some time: archives that callers download from the storage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, exists, insert, select

from skillery.audit import SERVER
from skillery.backends import Storage
from skillery.contents.store import Content, Incoming
from skillery.database import Database
from skillery.database.tables import blobs, skill_versions
from skillery.errors import Unavailable
from skillery.formats.ids import new_blob_id

KEPT_FOR = timedelta(days=1)
_TURNS = 16


class MadeContent(NamedTuple):
    """A content that the server makes from a version. `make` returns its pieces."""

    version_id: int
    make: Callable[[], Iterable[bytes]]


class KeptContents:
    """Stores contents as blobs of the server, which expire. Other callers cannot find these blobs."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage
        # Callers that need the same content at the same time wait for one of them to store it.
        self._turns = [threading.Lock() for _ in range(_TURNS)]

    def keep(self, sha256: str, kind: str, seconds: int, made: MadeContent) -> None:
        """Store a content unless it is stored for at least `seconds` more. Blocking.

        Raise Unavailable if its pieces have another digest than `sha256`, or if its version has been purged.
        """
        with self._turns[int(sha256[0], 16)]:
            now = datetime.now(UTC)
            if not self._database.read_now(partial(_is_kept, sha256=sha256, until=now + timedelta(seconds=seconds))):
                self._store(sha256, kind, now + KEPT_FOR + timedelta(seconds=seconds), made)

    def _store(self, sha256: str, kind: str, expires_at: datetime, made: MadeContent) -> None:
        incoming = Incoming(self._database, self._storage)
        try:
            for piece in made.make():
                incoming.write(piece)
            incoming.commit(partial(_add, sha256=sha256, kind=kind, expires_at=expires_at, version_id=made.version_id))
        except BaseException:
            incoming.abort()
            raise


def _is_kept(connection: Connection, sha256: str, until: datetime) -> bool:
    kept = exists().where(blobs.c.sha256 == sha256, blobs.c.owner == SERVER.name, blobs.c.expires_at > until)
    return bool(connection.execute(select(kept)).scalar_one())


def _add(
    connection: Connection, content: Content, sha256: str, kind: str, expires_at: datetime, version_id: int
) -> None:
    # The lock makes a purge of the version wait: it then finds the row of this content.
    found_status = select(skill_versions.c.status).where(skill_versions.c.id == version_id)
    if connection.scalar(found_status.with_for_update(read=True)) == "purged":
        raise Unavailable("the version was purged while its archive was made", hint="Use another version.")
    if content.sha256 != sha256:
        raise Unavailable("the server built the content again, and its digest differs", hint="Try again.")
    row = {"id": new_blob_id(), "kind": kind, "owner": SERVER.name, "created_at": datetime.now(UTC)}
    found = {"sha256": sha256, "size_bytes": content.size_bytes, "is_text": content.is_text, "expires_at": expires_at}
    connection.execute(insert(blobs).values(**row, **found))
