"""Packs of git repositories that the server makes itself and keeps for some time.

A pack is a blob of the server, which expires. Other callers cannot find these blobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import BinaryIO

from sqlalchemy import Connection, delete, insert, select

from skillery.audit import SERVER
from skillery.backends import Storage
from skillery.contents.store import Content, Incoming, open_content
from skillery.database import Database, take_turns
from skillery.database.tables import blobs
from skillery.errors import ContentMissing, Unavailable
from skillery.formats.ids import new_blob_id

KEPT_FOR = timedelta(hours=6)
# A pack that a request has found must not be deleted before the request has opened it.
_LEAST_LEFT = timedelta(minutes=5)
MOST_OF_ONE = 8
"""The maximum number of packs of one repository: callers see different skills, and each publication makes a new state.
"""
KIND = "application/x-skillery-git-view"


class KeptPacks:
    """Stores packs by the digest of the state that they hold."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage

    def open(self, digest: str) -> tuple[BinaryIO, int] | None:
        """Return a stream of the pack of a state and its size, or None if no pack is kept. Blocking."""
        found = self._database.read_now(partial(_find, digest=digest, after=datetime.now(UTC) + _LEAST_LEFT))
        if found is None:
            return None
        sha256, size = found
        try:
            return self._database.read_now(partial(open_content, storage=self._storage, sha256=sha256)), size
        except ContentMissing:
            return None

    def keep(
        self, digest: str, repository: str, pieces: Iterable[bytes], is_purged: Callable[[Connection], bool]
    ) -> None:
        """Store the pack of a state of a repository. Old packs of the repository are dropped. Blocking.

        `is_purged` returns whether a version of the pack was purged while the pack was made: then raise Unavailable.
        """
        incoming = Incoming(self._database, self._storage)
        try:
            for piece in pieces:
                incoming.write(piece)
            incoming.commit(partial(_add, digest=digest, repository=repository, is_purged=is_purged))
        except BaseException:
            incoming.abort()
            raise


def drop_packs(connection: Connection) -> list[str]:
    """Delete all kept packs, and return their SHA-256. A purge calls this function: any pack may hold the version."""
    # A server that stores a pack at the same time waits, and then finds the purged version.
    take_turns(connection, "packs", "")
    kept = blobs.c.owner == SERVER.name, blobs.c.kind.startswith(KIND, autoescape=True)
    digests = sorted(set(connection.scalars(select(blobs.c.sha256).where(*kept))))
    connection.execute(delete(blobs).where(*kept))
    return digests


def _find(connection: Connection, digest: str, after: datetime) -> tuple[str, int] | None:
    row = connection.execute(
        select(blobs.c.sha256, blobs.c.size_bytes)
        .where(blobs.c.owner == SERVER.name, blobs.c.expires_at > after, blobs.c.kind == _kind(digest))
        .limit(1)
    ).first()
    return (row.sha256, row.size_bytes) if row else None


def _kind(digest: str) -> str:
    return f"{KIND}; state={digest}"


def _add(
    connection: Connection, content: Content, digest: str, repository: str, is_purged: Callable[[Connection], bool]
) -> None:
    take_turns(connection, "packs", "")
    if is_purged(connection):
        raise Unavailable("a version was purged while its repository was made", hint="Try again.")
    now = datetime.now(UTC)
    of_repository = blobs.c.owner == SERVER.name, blobs.c.path == repository, blobs.c.kind.startswith(KIND)
    newest = select(blobs.c.id).where(*of_repository).order_by(blobs.c.created_at.desc())
    old = connection.scalars(newest.offset(MOST_OF_ONE - 1)).all()
    connection.execute(delete(blobs).where(blobs.c.id.in_(old)))
    row = {"id": new_blob_id(), "kind": _kind(digest), "owner": SERVER.name, "created_at": now, "path": repository}
    found = {"sha256": content.sha256, "size_bytes": content.size_bytes, "is_text": False}
    connection.execute(insert(blobs).values(**row, **found, expires_at=now + KEPT_FOR))
