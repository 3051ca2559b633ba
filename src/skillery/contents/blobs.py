"""Blobs: large data with opaque ids. Each blob has a random id and a row. Equal contents are stored only once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, insert

from skillery.backends import Identity, Storage
from skillery.contents.blob_rows import (
    BlobContent,
    BlobRow,
    DeletedBlob,
    NewBlob,
    Output,
    expire_blob,
    find_blob,
    parse_kind,
)
from skillery.contents.store import Content, Incoming, open_content
from skillery.context.budget import expect_result
from skillery.database import Database
from skillery.database.tables import blobs
from skillery.errors import BlobTooLarge
from skillery.formats.texts import decode_content, new_blob_id
from skillery.identity.quotas import Quotas, admit_blob, blob_too_large, most_blob_bytes
from skillery.method import HIDDEN, Method, Params, about, or_none
from skillery.settings.groups import BlobLifetimes

Mode = Literal["sample_head", "sample_tail", "full"]
MAX_READ_BYTES = 1024 * 1024
SAMPLE_BYTES = 2000
MOST_TTL = 315_360_000
"""Longest lifetime of a blob: ten years, in seconds."""
Ttl = Annotated[int, Meta(ge=1, le=MOST_TTL)]


First = Callable[[Connection, Content, NewBlob], NewBlob]
"""Function that returns the blob of an upload: the new one, or that of the first upload if this one is a repetition."""
_ADD = insert(blobs)


class Blobs:
    """Stores, finds and reads blobs."""

    def __init__(self, database: Database, storage: Storage, lifetimes: BlobLifetimes, quotas: Quotas) -> None:
        self._database = database
        self._storage = storage
        # None: a blob does not expire.
        self._input_life = timedelta(hours=lifetimes.input_hours) or None
        self._output_life = timedelta(hours=lifetimes.output_hours) or None
        self._quotas = quotas

    # -- storing -------------------------------------------------------------------------------------------------

    async def create_blob(self, identity: Identity, content: bytes, kind: str, ttl: timedelta | None = None) -> NewBlob:
        """Store a content that is in memory. `ttl`, if given, replaces the default lifetime.

        Raise InvalidParams if `kind` is not a MIME type, and QuotaExceeded if the blob exceeds a quota of the identity.
        """
        parse_kind(kind)
        return await asyncio.to_thread(self._store_whole, identity, content, kind, ttl)

    async def receive(
        self,
        identity: Identity,
        chunks: AsyncIterator[bytes],
        kind: str,
        ttl: timedelta | None = None,
        first: First | None = None,
        *,
        is_again: bool = False,
    ) -> NewBlob:
        """Store a streamed content of any size, with constant memory.

        If the stream ends with an error, nothing is stored. If the content exceeds a quota, the rest is not read and
        QuotaExceeded is raised. Raise InvalidParams if `kind` is not a MIME type.

        `first` and `is_again` are for repeated uploads. `first` is called in the transaction that records the blob, and
        returns the new blob or the blob of the first upload. `is_again` means that an earlier upload exists, so that no
        further space is needed.
        """
        parse_kind(kind)
        incoming = self.incoming(await self._database.read(partial(self._check_size, identity, is_again)))
        try:
            async for chunk in chunks:
                await asyncio.to_thread(incoming.write, chunk)
            return await asyncio.to_thread(self._commit_input, incoming, identity, kind, ttl, first)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(incoming.abort))
            raise

    def incoming(self, check: Callable[[int], None] | None = None) -> Incoming:
        return Incoming(self._database, self._storage, check)

    def commit_output(self, incoming: Incoming, identity: Identity, kind: str, output: Output) -> BlobRow:
        """Store an output of a run. The run must have its row already. Blocking.

        Raise QuotaExceeded if the blob exceeds a quota of the identity.
        """
        return self._commit(incoming, identity, kind, self._output_life, output)

    async def keep_log(self, identity: Identity, content: bytes, kind: str) -> BlobRow:
        """Store the log of a run. The blob is not an output of the run.

        Raise QuotaExceeded if the blob exceeds a quota of the identity.
        """

        def work() -> BlobRow:
            incoming = self.incoming()
            try:
                incoming.write(content)
                return self._commit(incoming, identity, kind, self._output_life)
            except BaseException:
                incoming.abort()
                raise

        return await asyncio.to_thread(work)

    def _check_size(self, identity: Identity, is_again: bool, connection: Connection) -> Callable[[int], None]:
        """Return a check of received bytes: it raises QuotaExceeded when they exceed the quota of the identity."""
        limit = self._quotas.of(identity.name).blob_bytes
        # A repeated upload takes no further space and is not larger than the first one.
        most = (limit or None) if is_again else most_blob_bytes(connection, self._quotas, identity.name)

        def check(size_bytes: int) -> None:
            if most is not None and size_bytes > most:
                raise blob_too_large(identity.name, size_bytes, most, limit)

        return check

    def _store_whole(self, identity: Identity, content: bytes, kind: str, ttl: timedelta | None) -> NewBlob:
        incoming = self.incoming()
        try:
            incoming.write(content)
            return self._commit_input(incoming, identity, kind, ttl)
        except BaseException:
            incoming.abort()
            raise

    def _commit_input(
        self, incoming: Incoming, identity: Identity, kind: str, ttl: timedelta | None, first: First | None = None
    ) -> NewBlob:
        """Store an input and return its blob, or the blob that `first` returns for an earlier upload."""
        answered: list[NewBlob] = []

        def is_new(connection: Connection, content: Content, row: BlobRow) -> bool:
            new_blob = NewBlob(row.id, row.size_bytes, row.expires_at)
            answered.append(first(connection, content, new_blob) if first else new_blob)
            return answered[-1].blob_id == row.id

        self._commit(incoming, identity, kind, ttl or self._input_life, is_new=is_new)
        return answered[-1]

    def _commit(
        self,
        incoming: Incoming,
        identity: Identity,
        kind: str,
        lifetime: timedelta | None,
        output: Output | None = None,
        is_new: Callable[[Connection, Content, BlobRow], bool] = lambda *_: True,
    ) -> BlobRow:
        """Store the content, and add the row of its blob unless `is_new` returns False. Return the row. `lifetime`
        None: no end.
        """
        blob_id, now = new_blob_id(), datetime.now(UTC)
        expires_at = now + lifetime if lifetime else None

        def row_of(content: Content) -> BlobRow:
            path = output.path if output else None
            size, sha256, is_text = content.size_bytes, content.sha256, content.is_text
            return BlobRow(blob_id, kind, size, sha256, is_text, identity.name, expires_at, path)

        def add(connection: Connection, content: Content) -> None:
            row = row_of(content)
            if not is_new(connection, content, row):
                return
            admit_blob(connection, self._quotas, identity.name, content.size_bytes)
            run_id, position = (output.run_id, output.position) if output else (None, None)
            connection.execute(_ADD, row._asdict() | {"run_id": run_id, "position": position, "created_at": now})

        return row_of(incoming.commit(add))

    async def delete_blob(self, identity: Identity, blob_id: str) -> BlobRow:
        """Make the blob expire now and return its row. A sweep removes the content later.

        Raise BlobNotFound if the identity has no such blob.
        """
        return await self._database.write(partial(expire_blob, identity=identity, blob_id=blob_id))

    # -- reading -------------------------------------------------------------------------------------------------

    async def find_blob(self, identity: Identity, blob_id: str) -> BlobRow:
        """Return the row of a blob. Raise BlobNotFound if the identity has no such blob. Ids are opaque: their form
        is not checked.
        """
        return await self._database.read(partial(find_blob, identity=identity, blob_id=blob_id))

    async def read_blob(self, identity: Identity, blob_id: str, mode: Mode, max_bytes: int | None) -> BlobContent:
        """Return the content of a blob, or the part that `mode` and `max_bytes` select. Characters are never split.

        The memory budget counts the bytes before they are read. Raise BlobNotFound if the identity has no such blob.
        Raise BlobTooLarge if the mode is `full`, `max_bytes` is None and the blob is larger than 1 MiB.
        """
        blob = await self.find_blob(identity, blob_id)
        if mode == "full" and max_bytes is None and blob.size_bytes > MAX_READ_BYTES:
            raise BlobTooLarge(
                f"{blob.id} has {blob.size_bytes} bytes, more than a full read returns ({MAX_READ_BYTES})",
                hint=f"Download it from /blobs/{blob.id}, or read a sample of it.",
                size_bytes=blob.size_bytes,
                limit=MAX_READ_BYTES,
                download=f"/blobs/{blob.id}",
            )
        length = min(max_bytes or (MAX_READ_BYTES if mode == "full" else SAMPLE_BYTES), blob.size_bytes)
        expect_result(length)
        start = blob.size_bytes - length if mode == "sample_tail" else 0
        data = await asyncio.to_thread(self.read_range, blob, start, length)
        if blob.is_text:
            data = _whole_characters(data)
        return BlobContent(
            content=data.decode() if blob.is_text else base64.b64encode(data).decode(),
            encoding="utf-8" if blob.is_text else "base64",
            truncated=len(data) < blob.size_bytes,
            kind=blob.kind,
            size_bytes=blob.size_bytes,
            expires_at=blob.expires_at,
        )

    def read_range(self, blob: BlobRow, start: int, length: int) -> bytes:
        """Return at most `length` bytes from the offset `start`. Blocking."""
        with self.open(blob) as stream:
            stream.seek(start)
            return stream.read(length)

    def open(self, blob: BlobRow) -> BinaryIO:
        """Return a seekable stream of the content. Blocking."""
        return self._database.read_now(lambda connection: open_content(connection, self._storage, blob.sha256))

    def local_path(self, blob: BlobRow) -> Path | None:
        """Return the content as a file on this machine, or None if the storage has no such file. Blocking."""
        return self._storage.local_path(blob.sha256)


def _whole_characters(data: bytes) -> bytes:
    """Remove the incomplete UTF-8 characters at the start and the end of the data (RFC 3629: a byte 10xxxxxx continues
    a character).
    """
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    data = data[start:]
    for distance in range(1, min(4, len(data)) + 1):
        byte = data[-distance]
        if byte & 0xC0 == 0x80:
            continue
        character_bytes = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return data if distance >= character_bytes else data[:-distance]
    return data


# -- create_blob -------------------------------------------------------------------------------------------------------


class CreateBlob(Params, frozen=True, kw_only=True):
    """Store large content as a blob and return its ID."""

    content: Annotated[str, about("Content to store")]
    kind: Annotated[str, about("MIME type (e.g., 'text/plain', 'application/json')")]
    encoding: Annotated[Literal["utf-8", "base64"], HIDDEN] = "utf-8"
    ttl: Annotated[Ttl | msgspec.UnsetType, HIDDEN] = msgspec.UNSET


async def create_blob(blobs: Blobs, identity: Identity, params: CreateBlob) -> NewBlob:
    content = await asyncio.to_thread(decode_content, params.content, params.encoding, "content")
    ttl = or_none(params.ttl)
    return await blobs.create_blob(identity, content, params.kind, timedelta(seconds=ttl) if ttl else None)


# -- read_blob ---------------------------------------------------------------------------------------------------------


class ReadBlob(Params, frozen=True, kw_only=True):
    """Retrieve a preview of blob content. Full reads discouraged for large blobs."""

    blob_id: Annotated[str, about("Blob identifier")]
    mode: Annotated[
        Literal["sample_head", "sample_tail", "full"], about("How to sample the blob", default="sample_head")
    ] = "sample_head"
    max_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)] | msgspec.UnsetType,
        about("Maximum bytes to return", default=2000),
    ] = msgspec.UNSET


async def read_blob(blobs: Blobs, identity: Identity, params: ReadBlob) -> BlobContent:
    return await blobs.read_blob(identity, params.blob_id, params.mode, or_none(params.max_bytes))


# -- delete_blob -------------------------------------------------------------------------------------------------------


class DeleteBlob(Params, frozen=True, kw_only=True):
    """Delete a blob of the caller. Admins may delete any blob."""

    blob_id: Annotated[str, about("Blob identifier")]


async def delete_blob(blobs: Blobs, identity: Identity, params: DeleteBlob) -> DeletedBlob:
    deleted = await blobs.delete_blob(identity, params.blob_id)
    return DeletedBlob(deleted.id, deleted.size_bytes)


METHODS = (
    Method(create_blob, "run", audits="", once=True),
    Method(read_blob, "read", audits=""),
    Method(delete_blob, "run", audits="blob_id"),
)
