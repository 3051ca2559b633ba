"""The tables of contents, uploads, deletions and blobs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, String, Table, Text

from skillery.database.tables.base import Moment, metadata

objects = Table(
    "objects",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    # The content up to 64 KiB. None if the storage backend has it.
    Column("data", LargeBinary, nullable=True),
    comment="Contents by digest: files of skills and blobs alike.",
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("begun_at", Moment, nullable=False),
    comment="Contents on their way into the storage: who has a row here is about to refer to one.",
)
Index("ix_uploads_sha256", uploads.c.sha256)

deletions = Table(
    "deletions",
    metadata,
    Column("sha256", String(64), primary_key=True),
    # The server that deletes the file, also after a crash, and the random id of the call that may remove this row.
    Column("server", String(64), nullable=False),
    Column("holder", String(32), nullable=False),
    # After this time, any other server may take over the deletion.
    Column("take_over_at", Moment, nullable=False),
    comment="Tombstones: contents that are being deleted from the storage.",
)

blobs = Table(
    "blobs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(255), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String(64), ForeignKey("objects.sha256"), nullable=False),
    Column("is_text", Boolean, nullable=False),
    Column("owner", String(255), nullable=False),
    Column("run_id", String(64), ForeignKey("runs.id"), nullable=True),
    # Position among the output blobs of that run.
    Column("position", Integer, nullable=True),
    # Path or name that the run gave the blob: a path below /workspace/out, or the name of a picture.
    Column("path", Text, nullable=True),
    Column("created_at", Moment, nullable=False),
    # After this time, the blob does not exist. None: the blob never expires.
    Column("expires_at", Moment, nullable=True),
)
# Covers the sums over an identity: skillery.identity.quotas.
Index("ix_blobs_owner", blobs.c.owner, blobs.c.expires_at, blobs.c.size_bytes)
Index(
    "ix_blobs_expired",
    blobs.c.expires_at,
    postgresql_where=blobs.c.expires_at.is_not(None),
    sqlite_where=blobs.c.expires_at.is_not(None),
)
Index("ix_blobs_sha256", blobs.c.sha256)
Index(
    "ix_blobs_run",
    blobs.c.run_id,
    blobs.c.position,
    postgresql_where=blobs.c.run_id.is_not(None),
    sqlite_where=blobs.c.run_id.is_not(None),
)
