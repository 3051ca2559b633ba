"""The tables of stored files: contents, blobs, and workspaces with their snapshots."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, LargeBinary, String, Table, Text

from skillery.database.tables.base import Key, Moment, Name, metadata

# -- Contents, uploads, deletions and blobs ----------------------------------------------------------------------------


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


# -- Workspaces, their snapshots, and the contents that these refer to -------------------------------------------------


workspace_families = Table(
    "workspace_families",
    metadata,
    Column("id", Key, primary_key=True),
    # Counts the changes of its snapshots, so that a sweep notices a change during its work.
    Column("changes", BigInteger, nullable=False, server_default="0"),
    comment="Workspaces that were forked from each other share their contents.",
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("family_id", Key, ForeignKey("workspace_families.id"), nullable=False),
    Column("identity", String(255), nullable=False),
    Column("name", Name, nullable=False),
    # The workspace, snapshot or run that this one was forked from. No foreign key: it may be deleted.
    Column("parent", String(80), nullable=True),
    # The row of workspace_snapshots. No foreign key, because each of the two tables would refer to the other.
    Column("snapshot_id", Key, nullable=True),
    # Digest and sums of that snapshot.
    Column("snapshot", String(71), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("ttl_seconds", Integer, nullable=False),
    Column("expires_at", Moment, nullable=False),
    # The run that writes it now, and the server of that run. One run at a time.
    Column("run_id", String(64), nullable=True),
    Column("server", String(64), nullable=True),
)
Index("ix_workspaces_identity", workspaces.c.identity, workspaces.c.id)
Index("ix_workspaces_family", workspaces.c.family_id)
Index("ix_workspaces_expires", workspaces.c.expires_at)

workspace_snapshots = Table(
    "workspace_snapshots",
    metadata,
    Column("id", Key, primary_key=True),
    Column("workspace_id", String(64), ForeignKey("workspaces.id"), nullable=False),
    Column("digest", String(71), nullable=False),
    # The list of files, as a content.
    Column("manifest_sha256", String(64), ForeignKey("objects.sha256"), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("run_id", String(64), nullable=True),
    Column("created_at", Moment, nullable=False),
)
Index("ix_workspace_snapshots_workspace", workspace_snapshots.c.workspace_id, workspace_snapshots.c.id)
Index("ix_workspace_snapshots_digest", workspace_snapshots.c.digest)
Index("ix_workspace_snapshots_manifest", workspace_snapshots.c.manifest_sha256)

workspace_contents = Table(
    "workspace_contents",
    metadata,
    Column("family_id", Key, ForeignKey("workspace_families.id"), primary_key=True, autoincrement=False),
    Column("sha256", String(64), ForeignKey("objects.sha256"), primary_key=True),
    comment="The contents of all snapshots of a family, and those that a run is about to save.",
)
Index("ix_workspace_contents_sha256", workspace_contents.c.sha256)
