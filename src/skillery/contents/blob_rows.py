"""The rows of blobs, and the structs of blobs in answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, or_, update

from skillery import audit
from skillery.backends import Identity
from skillery.database import Statement, in_utc, select_row
from skillery.database.tables import blobs
from skillery.errors import BlobNotFound, InvalidParams

# type "/" subtype, then parameters (RFC 2045 §5.1). Printable ASCII only, so that a kind fits into a header.
_KIND = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+*-]+( *;[ -~]*)?", re.ASCII)


class BlobRow(NamedTuple):
    """A row of `blobs`, with the fields of its content."""

    id: str
    kind: str
    size_bytes: int
    sha256: str
    is_text: bool
    owner: str
    expires_at: datetime | None = None
    path: str | None = None
    """The path or name that the run gave to the blob, or None."""


class Output(NamedTuple):
    """The position of a blob among the outputs of a run, and its path."""

    run_id: str
    position: int
    path: str | None = None


class NewBlob(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of `create_blob`."""

    blob_id: str
    size_bytes: int
    expires_at: datetime | None = None
    """Omitted if the blob does not expire."""


class BlobContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a blob, or a part of it."""

    content: str
    encoding: Literal["utf-8", "base64"]
    truncated: bool
    kind: str
    size_bytes: int
    expires_at: datetime | None = None
    """Omitted if the blob does not expire."""


class DeletedBlob(msgspec.Struct, frozen=True):
    """A deleted blob."""

    blob_id: str
    size_bytes: int


class OutputFile(msgspec.Struct, frozen=True):
    """A blob that a run wrote with a name: a path below /workspace/out, or the name of a picture."""

    path: str
    blob_id: str
    kind: str
    size_bytes: int


_BLOBS = select_row(BlobRow, blobs)
_BLOB = Statement(_BLOBS.where(blobs.c.id == bindparam("id")))


def find_blob(connection: Connection, *, identity: Identity, blob_id: str) -> BlobRow:
    """Return the row of a blob. Raise BlobNotFound if it has expired, or if the identity is neither its owner nor an
    admin.
    """
    if "\0" in blob_id:
        raise InvalidParams("a blob id contains no NUL character", hint="Pass a blob_id that create_blob returned.")
    rows = _BLOB.rows(connection, id=blob_id)
    # Other identities do not see the blob. An expired blob does not exist.
    blob = BlobRow(*rows[0]) if rows else None
    if blob is not None and (blob.owner == identity.name or "admin" in identity.scopes):
        expires_at = in_utc(blob.expires_at)
        if expires_at is None or expires_at > datetime.now(UTC):
            return blob._replace(is_text=bool(blob.is_text), expires_at=expires_at)
    raise BlobNotFound(f"there is no blob '{blob_id}'", hint="create_blob or POST /blobs stores one.", blob_id=blob_id)


def expire_blob(connection: Connection, identity: Identity, blob_id: str) -> BlobRow:
    """Make the blob expire now and return its row. Runs that use the blob keep it.

    Raise BlobNotFound if the identity has no such blob.
    """
    blob = find_blob(connection, identity=identity, blob_id=blob_id)
    connection.execute(update(blobs).where(blobs.c.id == blob.id).values(expires_at=datetime.now(UTC)))
    before = {"owner": blob.owner, "kind": blob.kind, "size_bytes": blob.size_bytes}
    audit.record(connection, identity, "delete_blob", blob.id, before=before)
    return blob


def leave_blobs(connection: Connection, run_ids: Sequence[str]) -> None:
    """Detach the blobs from these runs, which will be deleted. The blobs exist until they expire."""
    connection.execute(update(blobs).where(blobs.c.run_id.in_(run_ids)).values(run_id=None, position=None))


def output_blobs(connection: Connection, run_id: str) -> list[BlobRow]:
    """Return the blobs of a run that have not expired, in the order in which the run wrote them."""
    is_alive = or_(blobs.c.expires_at.is_(None), blobs.c.expires_at > datetime.now(UTC))
    outputs = _BLOBS.where(blobs.c.run_id == run_id, is_alive).order_by(blobs.c.position)
    return [BlobRow(*row) for row in connection.execute(outputs)]


def output_files(written: Sequence[BlobRow]) -> list[OutputFile] | msgspec.UnsetType:
    """Return the blobs that have a path, or UNSET if none has a path."""
    files = [OutputFile(row.path, row.id, row.kind, row.size_bytes) for row in written if row.path is not None]
    return files or msgspec.UNSET


def parse_kind(kind: str) -> str:
    """Return the kind unchanged. Raise InvalidParams if it is not a MIME type of at most 255 characters."""
    if len(kind) <= 255 and _KIND.fullmatch(kind):
        return kind
    raise InvalidParams(
        f"'kind' is not a MIME type: {kind[:80]!r}", hint="Write type/subtype, for example text/csv.", param="kind"
    )
