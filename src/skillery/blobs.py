"""Blobs: opaque handles to large data. Each has a random id and a row of its own; equal contents are stored once."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, insert, select, update

from skillery.backends import Identity, Storage
from skillery.contents import Content, Incoming, open_content
from skillery.database import Database, Statement
from skillery.errors import BlobNotFound, BlobTooLarge, InvalidParams
from skillery.formats.ids import new_blob_id
from skillery.tables import blobs

Mode = Literal["sample_head", "sample_tail", "full"]
MAX_READ_BYTES = 1024 * 1024
SAMPLE_BYTES = 2000
# type "/" subtype, then parameters: RFC 2045 §5.1 over printable ASCII, so that it can stand in a header.
_KIND = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+*-]+( *;[ -~]*)?", re.ASCII)


class BlobRow(NamedTuple):
    id: str
    kind: str
    size_bytes: int
    sha256: str
    is_text: bool
    owner: str


class NewBlob(msgspec.Struct, frozen=True):
    """What `create_blob` answers."""

    blob_id: str
    size_bytes: int


First = Callable[[Connection, Content, NewBlob], NewBlob]

_BLOB = Statement(
    select(blobs.c.id, blobs.c.kind, blobs.c.size_bytes, blobs.c.sha256, blobs.c.is_text, blobs.c.owner).where(
        blobs.c.id == bindparam("id")
    )
)


_ADD = insert(blobs)


class Blobs:
    """Puts blobs into the registry and gets them out again."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage

    # -- in ------------------------------------------------------------------------------------------------------

    async def create_blob(self, identity: Identity, content: bytes, kind: str) -> NewBlob:
        """Store a content that is in memory already. Raises InvalidParams for a kind that is no MIME type."""
        parse_kind(kind)
        return await asyncio.to_thread(self._store_whole, identity, content, kind)

    async def receive(
        self, identity: Identity, chunks: AsyncIterator[bytes], kind: str, first: First | None = None
    ) -> NewBlob:
        """Store a content of any size as it comes, at constant memory. A stream that breaks off leaves nothing.

        `first` says in the transaction that would record the blob which blob it is: this one, or one from before.
        """
        parse_kind(kind)
        incoming = self.incoming()
        try:
            async for chunk in chunks:
                await asyncio.to_thread(incoming.write, chunk)
            return await asyncio.to_thread(_commit, incoming, identity, kind, first)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(incoming.abort))
            raise

    def incoming(self, max_bytes: int | None = None) -> Incoming:
        return Incoming(self._database, self._storage, max_bytes=max_bytes)

    async def store(self, identity: Identity, content: bytes, kind: str) -> BlobRow:
        """Store a content of the server's own making; the row that is answered is for the caller to record."""

        def work() -> BlobRow:
            incoming = self.incoming()
            try:
                incoming.write(content)
                return row_of(incoming.commit(), new_blob_id(), kind, identity)
            except BaseException:
                incoming.abort()
                raise

        return await asyncio.to_thread(work)

    def _store_whole(self, identity: Identity, content: bytes, kind: str) -> NewBlob:
        incoming = self.incoming()
        try:
            incoming.write(content)
            return _commit(incoming, identity, kind)
        except BaseException:
            incoming.abort()
            raise

    # -- out -----------------------------------------------------------------------------------------------------

    async def find_blob(self, identity: Identity, blob_id: str) -> BlobRow:
        """Raises BlobNotFound; ids are opaque, so that is the answer to anything that is not one."""
        return await self._database.read(partial(find_blob, identity=identity, blob_id=blob_id))

    async def read_blob(
        self, identity: Identity, blob_id: str, mode: Mode, max_bytes: int | None
    ) -> dict[str, str | int | bool]:
        """`content, encoding, truncated, kind, size_bytes`; never splits a character. Raises BlobNotFound,
        BlobTooLarge (`full` without `max_bytes` of more than 1 MiB)."""
        blob = await self.find_blob(identity, blob_id)
        if mode == "full" and max_bytes is None and blob.size_bytes > MAX_READ_BYTES:
            raise BlobTooLarge(
                f"{blob.id} has {blob.size_bytes} bytes, more than a full read answers ({MAX_READ_BYTES})",
                hint=f"Download it from /blobs/{blob.id}, or read a sample of it.",
                size_bytes=blob.size_bytes,
                limit=MAX_READ_BYTES,
                download=f"/blobs/{blob.id}",
            )
        wanted = min(max_bytes or (MAX_READ_BYTES if mode == "full" else SAMPLE_BYTES), blob.size_bytes)
        start = blob.size_bytes - wanted if mode == "sample_tail" else 0
        data = await asyncio.to_thread(self.read_range, blob, start, wanted)
        if blob.is_text:
            data = _whole_characters(data)
        return {
            "content": data.decode() if blob.is_text else base64.b64encode(data).decode(),
            "encoding": "utf-8" if blob.is_text else "base64",
            "truncated": len(data) < blob.size_bytes,
            "kind": blob.kind,
            "size_bytes": blob.size_bytes,
        }

    def read_range(self, blob: BlobRow, start: int, length: int) -> bytes:
        """Blocking: `length` bytes from `start`."""
        with self.open(blob) as stream:
            stream.seek(start)
            return stream.read(length)

    def open(self, blob: BlobRow) -> BinaryIO:
        """Blocking: a seekable stream of the content."""
        return self._database.read_now(lambda connection: open_content(connection, self._storage, blob.sha256))

    def local_path(self, blob: BlobRow) -> Path | None:
        """Blocking: the content as a file of this machine, where the storage has one."""
        return self._storage.local_path(blob.sha256)


def _commit(incoming: Incoming, identity: Identity, kind: str, first: First | None = None) -> NewBlob:
    blob_id = new_blob_id()
    answered: list[NewBlob] = []

    def record(connection: Connection, content: Content) -> None:
        made = NewBlob(blob_id, content.size_bytes)
        answered.append(first(connection, content, made) if first else made)
        if answered[-1].blob_id == blob_id:
            insert_blobs(connection, [row_of(content, blob_id, kind, identity)])

    incoming.commit(record)
    return answered[-1]


def find_blob(connection: Connection, *, identity: Identity, blob_id: str) -> BlobRow:
    if "\0" in blob_id:
        raise InvalidParams("a blob id holds no NUL", hint="Pass the blob_id that create_blob answered.")
    rows = _BLOB.rows(connection, id=blob_id)
    # A blob belongs to its identity; somebody else's is not there.
    if rows and (rows[0][5] == identity.name or "admin" in identity.scopes):
        blob_id, kind, size, sha256, is_text, owner = rows[0]
        return BlobRow(blob_id, kind, size, sha256, bool(is_text), owner)
    raise BlobNotFound(f"there is no blob '{blob_id}'", hint="create_blob or POST /blobs stores one.", blob_id=blob_id)


def leave_blobs(connection: Connection, run_ids: Sequence[str]) -> None:
    """The blobs of these runs are nobody's output any more; they stay until their own time is over."""
    connection.execute(update(blobs).where(blobs.c.run_id.in_(run_ids)).values(run_id=None, position=None))


def output_blobs(connection: Connection, run_id: str) -> list[str]:
    """The blobs that a run wrote and that are still there, in the order in which it wrote them."""
    return list(connection.scalars(select(blobs.c.id).where(blobs.c.run_id == run_id).order_by(blobs.c.position)))


def insert_blobs(connection: Connection, rows: Iterable[BlobRow], run_id: str | None = None) -> None:
    """Record blobs whose contents are stored; of a run, in the order in which it wrote them."""
    now = datetime.now(UTC)
    values = [
        row._asdict() | {"run_id": run_id, "position": place if run_id else None, "created_at": now}
        for place, row in enumerate(rows)
    ]
    if values:
        connection.execute(_ADD, values)


def parse_kind(kind: str) -> str:
    """Raises InvalidParams unless it is a MIME type of at most 255 characters."""
    if len(kind) <= 255 and _KIND.fullmatch(kind):
        return kind
    raise InvalidParams(
        f"'kind' is no MIME type: {kind[:80]!r}", hint="Write type/subtype, for example text/csv.", param="kind"
    )


def row_of(content: Content, blob_id: str, kind: str, identity: Identity) -> BlobRow:
    return BlobRow(blob_id, kind, content.size_bytes, content.sha256, content.is_text, identity.name)


def _whole_characters(data: bytes) -> bytes:
    """Without the parts of a character that a cut left at either end (RFC 3629: 10xxxxxx continues one)."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    data = data[start:]
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 == 0x80:
            continue
        needed = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return data if back >= needed else data[:-back]
    return data
