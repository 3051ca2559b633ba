"""Integrity checks of the registry, for `skillery check`, sizes of its parts for admins, and figures for metrics."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, starmap
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Table, exists, func, select, text

from skillery.backends import Storage
from skillery.contents.storage_copies import StorageCopy, find_copy, is_marked
from skillery.contents.store import CHUNK_BYTES
from skillery.database import Database, as_stored, in_utc
from skillery.database.tables import (
    RESOLVABLE,
    audit,
    blobs,
    deletions,
    objects,
    runs,
    skill_files,
    skill_versions,
    skills,
    version_steps,
    workspace_contents,
    workspace_snapshots,
    workspaces,
)
from skillery.errors import ContentMissing, SkilleryError
from skillery.formats.bundle import digest_of_entries
from skillery.formats.paths import leads_outside
from skillery.identity.quotas import Quotas
from skillery.identity.usage import count_near
from skillery.maintenance.backups import last_backup
from skillery.maintenance.proof_checks import check_proofs
from skillery.runs.ended_runs import of_no_server

log = logging.getLogger(__name__)
ROWS_AT_ONCE = 500


class Damage(msgspec.Struct, frozen=True):
    """One fault of the registry: its kind, its subject and a sentence."""

    kind: str
    """A stable snake_case word."""
    subject: str
    """The faulty object: `name@version`, the id of a blob or run, or the SHA-256 of a content."""
    message: str


def check(database: Database, storage: Storage, *, deep: bool, dead_servers: frozenset[str]) -> Iterator[Damage]:
    """Yield the faults of the registry in one snapshot, while writers continue. Blocking.

    With `deep`, every content is compared with its digest, and every signed row is verified. `dead_servers` are ids of
    servers that have ended.
    """
    with database.snapshot() as connection:
        yield from _storage_of_another(connection, storage)
        yield from _versions(connection)
        yield from _latest(connection)
        yield from _lost_rows(connection)
        yield from _open_runs(connection, dead_servers)
        if deep:
            yield from starmap(Damage, check_proofs(connection))
        for fault in _contents(connection, storage, deep):
            # A content that was deleted after the snapshot is not a fault.
            if database.read_now(partial(is_recorded, sha256=fault.subject)):
                yield fault


def _storage_of_another(connection: Connection, storage: Storage) -> Iterator[Damage]:
    if not is_marked(connection, storage):
        yield Damage("foreign_storage", "storage", "the storage does not have the contents of this database")


def _versions(connection: Connection) -> Iterator[Damage]:
    """Yield a fault for each version without files, each purged version with files, and each version whose files do not
    match its digest.
    """
    rows = connection.execute(
        select(
            skill_versions.c.id,
            skills.c.name,
            skill_versions.c.version,
            skill_versions.c.digest,
            skill_versions.c.status,
            skill_files.c.path,
            skill_files.c.sha256,
            skill_files.c.executable,
        )
        .join(skills, skills.c.id == skill_versions.c.skill_id)
        .join(skill_files, skill_files.c.version_id == skill_versions.c.id, isouter=True)
        .order_by(skill_versions.c.id)
        .execution_options(yield_per=ROWS_AT_ONCE)
    )
    for _, group in groupby(rows, key=lambda row: row.id):
        files = list(group)
        first = files[0]
        subject = f"{first.name}@{first.version}"
        if first.status == "purged":
            if first.path is not None:
                yield Damage("purged_version_with_files", subject, f"{subject} is purged, but has files")
        elif first.path is None:
            yield Damage("version_without_files", subject, f"{subject} has no files")
        elif digest_of_entries((file.path, file.sha256, bool(file.executable)) for file in files) != first.digest:
            yield Damage("version_differs", subject, f"the files of {subject} do not match its digest {first.digest}")
        elif any(leads_outside(file.path) for file in files):
            yield Damage("version_differs", subject, f"a file of {subject} leads outside of its folder")


def _latest(connection: Connection) -> Iterator[Damage]:
    """Yield a fault for each skill whose recorded latest version is not its latest version."""
    latest_id = (
        select(skill_versions.c.id)
        .where(skill_versions.c.skill_id == skills.c.id, skill_versions.c.status.in_(RESOLVABLE))
        .order_by(skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc())
        .limit(1)
        .scalar_subquery()
    )
    mismatched = select(skills.c.name).where(skills.c.latest_version_id.is_distinct_from(latest_id))
    for (name,) in connection.execute(mismatched):
        yield Damage("latest_wrong", name, f"{name} does not resolve to its latest version")


def _lost_rows(connection: Connection) -> Iterator[Damage]:
    """Yield a fault for each row that refers to a content without a record."""
    snapshots, contents = workspace_snapshots, workspace_contents
    for column, kind, subject in (
        (blobs.c.sha256, "blob_without_content", blobs.c.id),
        (skill_files.c.sha256, "file_without_content", skill_files.c.path),
        (snapshots.c.manifest_sha256, "snapshot_without_content", snapshots.c.workspace_id),
        (contents.c.sha256, "workspace_without_content", contents.c.family_id),
    ):
        has_row = exists().where(objects.c.sha256 == column)
        for name, sha256 in connection.execute(select(subject, column).where(~has_row)):
            yield Damage(kind, str(name), f"{name} refers to the content {sha256}, which is not recorded")


def _open_runs(connection: Connection, dead: frozenset[str]) -> Iterator[Damage]:
    for (run_id,) in connection.execute(select(runs.c.id).where(of_no_server(dead))):
        yield Damage("run_left_started", run_id, f"{run_id} is recorded as started, but no server runs it")


def _contents(connection: Connection, storage: Storage, deep: bool) -> Iterator[Damage]:
    stored = select(objects.c.sha256, objects.c.size_bytes, func.length(objects.c.data).label("inline"))
    if deep:
        stored = stored.add_columns(objects.c.data)
    for row in connection.execute(stored.execution_options(yield_per=ROWS_AT_ONCE)):
        fault = _inline_fault(row, deep) if row.inline is not None else stored_fault(row, storage, deep)
        if fault is not None:
            yield fault


def _inline_fault(row: Any, deep: bool) -> Damage | None:
    if row.inline != row.size_bytes:
        return _wrong_size(row, row.inline)
    if deep and hashlib.sha256(row.data).hexdigest() != row.sha256:
        return _damaged(row)
    return None


def stored_fault(row: Any, storage: Storage, deep: bool) -> Damage | None:
    """Return the fault of a content in the storage, or None. With `deep`, read it and compare its digest."""
    try:
        with storage.open(row.sha256) as stream:
            size = stream.seek(0, 2)
            if size != row.size_bytes:
                return _wrong_size(row, size)
            stream.seek(0)
            if not deep:
                return None
            hasher = hashlib.sha256()
            while chunk := stream.read(CHUNK_BYTES):
                hasher.update(chunk)
    except ContentMissing:
        return Damage("content_missing", row.sha256, f"the content {row.sha256} is recorded, but not in the storage")
    except OSError as error:
        return Damage("content_unreadable", row.sha256, f"the content {row.sha256} cannot be read: {error.strerror}")
    return None if hasher.hexdigest() == row.sha256 else _damaged(row)


def _wrong_size(row: Any, size: int) -> Damage:
    message = f"the content {row.sha256} has {size} bytes, but was stored with {row.size_bytes}"
    return Damage("content_damaged", row.sha256, message)


def _damaged(row: Any) -> Damage:
    return Damage("content_damaged", row.sha256, f"the content {row.sha256} does not match its digest")


def is_recorded(connection: Connection, sha256: str) -> bool:
    return connection.scalar(select(objects.c.sha256).where(objects.c.sha256 == sha256)) is not None


# -- Sizes of the database and of the contents, for admins -------------------------------------------------------------


class Amount(msgspec.Struct, frozen=True):
    """A number of objects, and their bytes together."""

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
    """Return the sizes of the registry. This reads whole indexes, so call it in a separate thread."""
    is_stored_here = objects.c.data.is_not(None)
    now = as_stored(connection, datetime.now(UTC))
    database_name, used_bytes, free_bytes = _database(connection)
    return Sizes(
        database_name,
        str(connection.scalar(text("SELECT version_num FROM alembic_version"))),
        used_bytes,
        free_bytes,
        _amount(connection, objects, is_stored_here),
        _amount(connection, objects, ~is_stored_here),
        _amount(connection, blobs, (blobs.c.expires_at.is_(None)) | (blobs.c.expires_at > now)),
        _amount(connection, skill_versions),
        _amount(connection, workspaces),
        {name: _count(connection, table) for name, table in (("skills", skills), ("runs", runs), ("audit", audit))},
        _count(connection, deletions),
        find_copy(connection),
    )


class Figures(NamedTuple):
    """The numbers of a registry that its admins watch."""

    database_bytes: int
    in_review: int
    submitted_at: datetime | None
    """When the version was submitted that waits longest for its review. None if no version waits."""
    near_quotas: Mapping[str, int]
    """For each quota, the number of identities or namespaces that have used most of it."""
    backed_up_at: datetime | None
    """When the last backup was made, or the first entry of the audit trail if the settings expect a backup."""


_waits = text("status IN ('draft', 'in_review')")  # the condition of the index
_submitted_at = (
    select(func.max(version_steps.c.created_at))
    .where(version_steps.c.version_id == skill_versions.c.id, version_steps.c.status == "in_review")
    .scalar_subquery()
)
_IN_REVIEW = select(func.count(), func.min(func.coalesce(_submitted_at, skill_versions.c.created_at))).where(
    _waits, skill_versions.c.status == "in_review"
)


def read_figures(connection: Connection, quotas: Quotas, expects_backups: bool) -> Figures:
    """Return the figures. Call this in a separate thread: it reads the use of up to 100 identities."""
    in_review, submitted_at = connection.execute(_IN_REVIEW).one()
    _, database_bytes, _ = _database(connection)
    backed_up_at = last_backup(connection)
    if backed_up_at is None and expects_backups:
        since = connection.scalar(select(audit.c.at).order_by(audit.c.seq).limit(1))
        backed_up_at = datetime.fromisoformat(since) if since else datetime.now(UTC)
    return Figures(database_bytes, in_review, in_utc(submitted_at), count_near(connection, quotas), backed_up_at)


FIGURES_SECONDS = 30.0
FIRST_SECONDS = 1.0


class KeptFigures:
    """The figures of the last FIGURES_SECONDS, or older ones while the database does not answer."""

    def __init__(self, read: Callable[[], Awaitable[Figures]]) -> None:
        self._read = read
        self._reading: asyncio.Task[None] | None = None
        self._begun_at = float("-inf")
        self.now: Figures | None = None
        """None until the database has answered."""

    async def refresh(self) -> None:
        """Read the figures again in the background if they are old. Wait up to FIRST_SECONDS for the first ones."""
        is_reading = self._reading is not None and not self._reading.done()
        if not is_reading and time.monotonic() - self._begun_at >= FIGURES_SECONDS:
            self._begun_at = time.monotonic()
            self._reading = asyncio.create_task(self._update())
        if self.now is None and self._reading is not None:
            await asyncio.wait({self._reading}, timeout=FIRST_SECONDS)

    async def _update(self) -> None:
        try:
            self.now = await self._read()
        except SkilleryError as error:
            log.debug("the figures of the database: %s", error.message)


def _amount(connection: Connection, table: Table, *conditions: object) -> Amount:
    total = select(func.count(), func.coalesce(func.sum(table.c.size_bytes), 0)).select_from(table)
    count, size = connection.execute(total.where(*conditions)).one()  # type: ignore[arg-type]
    return Amount(int(count), int(size))


def _count(connection: Connection, table: Table) -> int:
    return connection.scalar(select(func.count()).select_from(table)) or 0


def _database(connection: Connection) -> tuple[str, int, int | None]:
    """Return the kind and version of the database, its bytes, and the unused bytes of its file (None on Postgres)."""
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
