"""Contents that the server makes itself and keeps for some time: archives that callers download from the storage, packs
of git repositories, and transcripts of evaluations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, exists, insert, select

from skillery.audit import SERVER
from skillery.backends import SignsDownloads, Storage
from skillery.contents.store import Content, Incoming, is_inline, open_content
from skillery.database import Database, take_turns
from skillery.database.tables import blobs, evaluations, skill_versions
from skillery.errors import ContentMissing, Unavailable
from skillery.formats.texts import new_blob_id

KEPT_FOR = timedelta(days=1)
_TURNS = 16


class MadeContent(NamedTuple):
    """A content that the server makes from the version `version_id`. `make` yields the bytes in pieces."""

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
        """Store the content `made` as a blob that expires after `seconds`, unless a blob with this content exists until
        then. Blocking.

        Raise Unavailable if the bytes have another digest than `sha256`, or if the version has been purged.
        """
        with self._turns[int(sha256[0], 16)]:
            now = datetime.now(UTC)
            if not self._database.read_now(partial(_is_kept, sha256=sha256, until=now + timedelta(seconds=seconds))):
                self._store(sha256, kind, now + KEPT_FOR + timedelta(seconds=seconds), made)

    def _store(self, sha256: str, kind: str, expires_at: datetime, content: MadeContent) -> None:
        """Make the content and store it with its blob. If an error occurs, nothing is stored."""
        incoming = Incoming(self._database, self._storage)
        try:
            for piece in content.make():
                incoming.write(piece)
            incoming.commit(
                partial(_add, sha256=sha256, kind=kind, expires_at=expires_at, version_id=content.version_id)
            )
        except BaseException:
            incoming.abort()
            raise


def _is_kept(connection: Connection, sha256: str, until: datetime) -> bool:
    is_kept = exists().where(blobs.c.sha256 == sha256, blobs.c.owner == SERVER.name, blobs.c.expires_at > until)
    return bool(connection.execute(select(is_kept)).scalar_one())


def _add(
    connection: Connection, content: Content, sha256: str, kind: str, expires_at: datetime, version_id: int
) -> None:
    """Add the row of the blob. Raise Unavailable if the version was purged, or if the digest is not `sha256`."""
    # The lock makes a purge of the version wait: it then finds the row of this content.
    found_status = select(skill_versions.c.status).where(skill_versions.c.id == version_id)
    if connection.scalar(found_status.with_for_update(read=True)) == "purged":
        raise Unavailable("the version was purged while its archive was made", hint="Use another version.")
    if content.sha256 != sha256:
        raise Unavailable("the server built the content again, and its digest differs", hint="Try again.")
    row = {"id": new_blob_id(), "kind": kind, "owner": SERVER.name, "created_at": datetime.now(UTC)}
    facts = {"sha256": sha256, "size_bytes": content.size_bytes, "is_text": content.is_text, "expires_at": expires_at}
    connection.execute(insert(blobs).values(**row, **facts))


# -- Packs of git repositories that the server makes itself and keeps for some time ------------------------------------
# A pack is a blob of the server, which expires. Other callers cannot find these blobs.


PACKS_KEPT_FOR = timedelta(hours=6)
# A pack that a request has found must not be deleted before the request has opened it.
_LEAST_LEFT = timedelta(minutes=5)
MOST_OF_ONE = 8
"""The maximum number of packs of one repository: callers see different skills, and each publication makes a new state.
"""
KIND = "application/x-skillery-git-view"


class KeptPacks:
    """Stores git packs of repositories as blobs. The key of a pack is the digest of the repository's state."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage

    def open(self, digest: str) -> tuple[BinaryIO, int] | None:
        """Return a stream of the pack for the state `digest`, and its size in bytes. Return None if no such pack is
        stored. Blocking.
        """
        pack = self._database.read_now(partial(_find, digest=digest, after=datetime.now(UTC) + _LEAST_LEFT))
        if pack is None:
            return None
        sha256, size = pack
        try:
            return self._database.read_now(partial(open_content, storage=self._storage, sha256=sha256)), size
        except ContentMissing:
            return None

    def keep(
        self, digest: str, repository: str, pieces: Iterable[bytes], is_purged: Callable[[Connection], bool]
    ) -> None:
        """Store the pack for the state `digest` of a repository, and drop old packs of this repository. Blocking.

        `is_purged` returns whether a version in the pack was purged while the pack was made. If so, raise Unavailable.
        """
        incoming = Incoming(self._database, self._storage)
        try:
            for piece in pieces:
                incoming.write(piece)
            incoming.commit(partial(_add_pack, digest=digest, repository=repository, is_purged=is_purged))
        except BaseException:
            incoming.abort()
            raise


def drop_packs(connection: Connection) -> list[str]:
    """Delete the blobs of all packs, and return the SHA-256 of their contents. A purge calls this function, because any
    pack may contain the purged version.
    """
    # A server that stores a pack at the same time waits, and then finds the purged version.
    take_turns(connection, "packs", "")
    is_pack = blobs.c.owner == SERVER.name, blobs.c.kind.startswith(KIND, autoescape=True)
    digests = sorted(set(connection.scalars(select(blobs.c.sha256).where(*is_pack))))
    connection.execute(delete(blobs).where(*is_pack))
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


def _add_pack(
    connection: Connection, content: Content, digest: str, repository: str, is_purged: Callable[[Connection], bool]
) -> None:
    """Add the blob of a pack, and delete all but the newest packs of the repository. Raise Unavailable if `is_purged`
    returns True.
    """
    take_turns(connection, "packs", "")
    if is_purged(connection):
        raise Unavailable("a version was purged while its repository was made", hint="Try again.")
    created_at = datetime.now(UTC)
    of_repository = blobs.c.owner == SERVER.name, blobs.c.path == repository, blobs.c.kind.startswith(KIND)
    newest = select(blobs.c.id).where(*of_repository).order_by(blobs.c.created_at.desc())
    old = connection.scalars(newest.offset(MOST_OF_ONE - 1)).all()
    connection.execute(delete(blobs).where(blobs.c.id.in_(old)))
    row = {
        "id": new_blob_id(),
        "kind": _kind(digest),
        "owner": SERVER.name,
        "created_at": created_at,
        "path": repository,
    }
    facts = {"sha256": content.sha256, "size_bytes": content.size_bytes, "is_text": False}
    connection.execute(insert(blobs).values(**row, **facts, expires_at=created_at + PACKS_KEPT_FOR))


# -- Transcripts of the agents of evaluations --------------------------------------------------------------------------


TRANSCRIPT = "application/x-skillery-transcript"
_IS_TRANSCRIPT = blobs.c.owner == SERVER.name, blobs.c.kind == TRANSCRIPT
MOST_TRANSCRIPT = 1024 * 1024
"""The maximum size of a transcript in bytes."""


class Transcripts:
    """Stores transcripts as blobs of the server, which expire after `days`. 0: none is stored. The `path` of a blob is
    the public id of its evaluation.
    """

    def __init__(self, database: Database, storage: Storage, days: int) -> None:
        self._database = database
        self._storage = storage
        self._days = days

    def keep(self, evaluation: str, entries: Sequence[Mapping[str, Any]]) -> str:
        """Store a transcript as lines of JSON, and return its id, or "" if none is kept. Blocking.

        Beyond MOST_TRANSCRIPT, entries are left out, and a last line has their number. Raise Unavailable if the
        evaluation was purged.
        """
        if not self._days:
            return ""
        blob_id, incoming = new_blob_id(), Incoming(self._database, self._storage)
        until = datetime.now(UTC) + timedelta(days=self._days)
        try:
            for line in _bounded_lines(entries):
                incoming.write(line + b"\n")
            incoming.commit(partial(_add_transcript, blob_id=blob_id, evaluation=evaluation, expires_at=until))
        except BaseException:
            incoming.abort()
            raise
        return blob_id

    def read(self, evaluation: str, blob_id: str) -> str | None:
        """Return a transcript of an evaluation, or None if it is not kept. Blocking."""

        def work(connection: Connection) -> BinaryIO | None:
            is_wanted = blobs.c.id == blob_id, blobs.c.path == evaluation, *is_transcript()
            sha256 = connection.scalar(select(blobs.c.sha256).where(*is_wanted))
            return open_content(connection, self._storage, sha256) if sha256 else None

        stream = self._database.read_now(work)
        if stream is None:
            return None
        with stream:
            return stream.read().decode()


def _bounded_lines(entries: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    left = MOST_TRANSCRIPT
    for number, entry in enumerate(entries):
        line = msgspec.json.encode(entry)
        left -= len(line) + 1
        if left < 0:
            yield msgspec.json.encode({"role": "note", "text": f"{len(entries) - number} more entries are not kept"})
            return
        yield line


def is_transcript() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the blobs of transcripts that have not expired."""
    return *_IS_TRANSCRIPT, blobs.c.expires_at > datetime.now(UTC)


def _add_transcript(
    connection: Connection, content: Content, blob_id: str, evaluation: str, expires_at: datetime
) -> None:
    # The lock makes a purge of the version wait: it then finds the blob.
    row = select(evaluations.c.id).where(evaluations.c.evaluation == evaluation)
    if connection.scalar(row.with_for_update(read=True)) is None:
        raise Unavailable("the version was purged while it was evaluated", hint="Use another version.")
    values = {"id": blob_id, "kind": TRANSCRIPT, "owner": SERVER.name, "path": evaluation}
    facts = {"sha256": content.sha256, "size_bytes": content.size_bytes, "is_text": content.is_text}
    times = {"created_at": datetime.now(UTC), "expires_at": expires_at}
    connection.execute(insert(blobs).values(**values, **facts, **times))


def drop_transcripts(connection: Connection, concerned: ColumnElement[bool]) -> list[str]:
    """Delete the transcripts of the evaluations that a condition selects. Return the SHA-256 of their contents."""
    ids = select(evaluations.c.evaluation).where(concerned)
    dropped = delete(blobs).where(*_IS_TRANSCRIPT, blobs.c.path.in_(ids))
    return list(connection.scalars(dropped.returning(blobs.c.sha256)))


# -- Addresses under which callers download contents directly from the storage -----------------------------------------


class SignedDownloads:
    """Returns signed addresses, with which clients download contents directly from the storage. Needs a setting and a
    storage that signs.
    """

    def __init__(self, database: Database, storage: Storage, seconds: int) -> None:
        """Store the parts. `seconds` is the time for which an address is valid; 0: the server signs no addresses."""
        self._signs = storage if seconds and isinstance(storage, SignsDownloads) else None
        self._kept = KeptContents(database, storage)
        self._seconds = seconds

    def covers(self, size_bytes: int) -> bool:
        """Return whether a content of this size is in the storage: smaller ones are in the database, and have no
        address.
        """
        return self._signs is not None and not is_inline(size_bytes)

    def address(self, sha256: str, headers: Mapping[str, str], made: MadeContent | None = None) -> str | None:
        """Return the address of a content, or None if the storage signs none. Blocking.

        `headers` has the headers `content-type` and `content-disposition` of the answer. A content that the server
        makes itself (`made`) is stored first. Raise Unavailable if the storage fails.
        """
        if self._signs is None:
            return None
        signed = self._signs.sign(sha256, self._seconds, headers)
        if signed is not None and made is not None:
            self._kept.keep(sha256, headers["content-type"], self._seconds, made)
        return signed
