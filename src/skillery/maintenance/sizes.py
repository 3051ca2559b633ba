"""Sizes of the database and of the contents, for admins."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, Table, func, select, text

from skillery.contents.storage_copies import StorageCopy, find_copy
from skillery.database import as_stored
from skillery.database.tables import audit, blobs, deletions, objects, runs, skill_versions, skills, workspaces


class Amount(msgspec.Struct, frozen=True):
    """Objects, and their bytes together."""

    count: int
    bytes: int


class Sizes(msgspec.Struct, frozen=True):
    """The sizes of a registry."""

    database: str
    """SQLite or Postgres, with its version."""
    revision: str
    """The revision of the tables."""
    database_bytes: int
    free_bytes: int | None
    """Bytes of the file of SQLite that no table uses. None with Postgres."""
    in_database: Amount
    """Contents that the database has itself."""
    in_storage: Amount
    blobs: Amount
    bundles: Amount
    """Versions of skills. Several versions can share a content."""
    workspaces: Amount
    rows: dict[str, int]
    """The number of skills, runs and entries of the audit trail."""
    deletions: int
    """Contents that are being deleted from the storage."""
    copy: StorageCopy | None
    """The copy of the contents to another storage, while it is under way."""


def measure(connection: Connection) -> Sizes:
    """Return the sizes. Reads whole indexes, so callers use a separate thread."""
    is_stored_here = objects.c.data.is_not(None)
    now = as_stored(connection, datetime.now(UTC))
    named, used, free = _database(connection)
    return Sizes(
        named,
        str(connection.scalar(text("SELECT version_num FROM alembic_version"))),
        used,
        free,
        _amount(connection, objects, is_stored_here),
        _amount(connection, objects, ~is_stored_here),
        _amount(connection, blobs, (blobs.c.expires_at.is_(None)) | (blobs.c.expires_at > now)),
        _amount(connection, skill_versions),
        _amount(connection, workspaces),
        {name: _count(connection, table) for name, table in (("skills", skills), ("runs", runs), ("audit", audit))},
        _count(connection, deletions),
        find_copy(connection),
    )


def _amount(connection: Connection, table: Table, *which: object) -> Amount:
    total = select(func.count(), func.coalesce(func.sum(table.c.size_bytes), 0)).select_from(table)
    count, size = connection.execute(total.where(*which)).one()  # type: ignore[arg-type]
    return Amount(int(count), int(size))


def _count(connection: Connection, table: Table) -> int:
    return connection.scalar(select(func.count()).select_from(table)) or 0


def _database(connection: Connection) -> tuple[str, int, int | None]:
    """Return the kind of the database with its version, its bytes, and the unused bytes of its file."""
    if connection.dialect.name == "postgresql":
        size = connection.scalar(select(func.pg_database_size(func.current_database())))
        version = connection.scalar(select(func.current_setting("server_version")))
        return f"Postgres {str(version).partition(' ')[0]}", int(size or 0), None
    pages, size, free = (
        int(connection.scalar(text(f"SELECT {name} FROM pragma_{name}")) or 0)  # noqa: S608 - fixed names
        for name in ("page_count", "page_size", "freelist_count")
    )
    version = connection.scalar(select(func.sqlite_version()))
    return f"SQLite {version}", pages * size, free * size
