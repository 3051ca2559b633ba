"""The steps of a sweep.

Rows are deleted first and files last, in the reverse order of storing. If the process is killed between the two, a file
without a row can remain, which the next sweep deletes. A row without its file cannot remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, literal_column, not_, or_, select

from skillery.backends import ListsContents, Storage
from skillery.contents.deletions import TombstoneClaim, carry_out, claim, drop_files, finish_abandoned_deletions
from skillery.contents.store import forget_uploads
from skillery.database import Database, migrate
from skillery.database.tables import (
    blobs,
    objects,
    skill_files,
    skill_versions,
    workspace_contents,
    workspace_snapshots,
)
from skillery.environments.dependency_locks import count_old_locks, forget_locks
from skillery.environments.store import Environments
from skillery.identity.holds import number_of_holds, unheld_blobs
from skillery.identity.web_session_rows import count_ended, forget_ended
from skillery.maintenance.garbage import Sweep, Swept
from skillery.runs.cache import Cache
from skillery.runs.records import count_old_runs, cutoff_of, forget_runs
from skillery.trust.matching import forget_expired
from skillery.workspaces.snapshots import AT_ONCE as EXPIRED_AT_ONCE
from skillery.workspaces.snapshots import expired, forget_contents, remove_expired

AT_ONCE = 200
"""The maximum number of rows in one transaction. Other writers can work between the transactions."""
MOST_FOUND = 20_000
"""The maximum number of ids that one reading finds. It reads the records of all held runs, so it finds many ids."""
FILES_AT_ONCE = 50
"""The maximum number of contents in one transaction. Uploads of these contents wait while the storage deletes the
files one by one.
"""
UPLOAD = timedelta(days=1)
"""The age of an upload at which its process is considered dead."""


def old_runs(database: Database, keep_for: timedelta, keep_count: int, sweep: Sweep) -> Swept:
    """Delete ended runs that are older than `keep_for`, or not among the `keep_count` newest runs. 0 means no limit.

    The blobs of these runs expire separately.
    """
    cutoff = database.read_now(partial(_cutoff, keep_for=keep_for, keep_count=keep_count))
    if cutoff is None:
        return Swept()
    if sweep.dry_run:
        return Swept(database.read_now(partial(count_old_runs, before=cutoff)))
    return _in_batches(sweep, database, partial(forget_runs, before=cutoff, limit=AT_ONCE))


def _in_batches(
    sweep: Sweep, database: Database, work: Callable[[Connection], int | Swept], at_once: int = AT_ONCE
) -> Swept:
    """Repeat `work`, which deletes at most `at_once` items, until it finds fewer or the sweep is stopped. Return all
    deleted items.
    """
    swept = Swept()
    while not sweep.stopped():
        result = database.write_now(work)
        deleted = Swept(result) if isinstance(result, int) else result
        swept += deleted
        if deleted.count < at_once:
            break
    return swept


class _Delete(Protocol):
    def __call__(self, connection: Connection, ids: Sequence[str], holds: int) -> Swept: ...


def _delete_found(
    sweep: Sweep, database: Database, find: Callable[[Connection], Select[Any]], delete_them: _Delete, at_once: int
) -> Swept:
    """Find ids without a write transaction, and delete at most `at_once` in each. Return all deleted items.

    `delete_them` deletes nothing if there are not as many `holds` as before: then a new hold may keep some of the ids,
    and they are found again.
    """

    def read(connection: Connection) -> tuple[int, list[str]]:
        # The holds are counted first: a hold that is added before the ids are found is noticed too.
        holds = connection.execute(select(number_of_holds())).scalar_one()
        return holds, list(connection.scalars(find(connection).limit(MOST_FOUND)))

    swept = Swept()
    while not sweep.stopped():
        holds, ids = database.read_now(read)
        for at in range(0, len(ids), at_once):
            if sweep.stopped():
                return swept
            deleted = database.write_now(partial(delete_them, ids=ids[at : at + at_once], holds=holds))
            swept += deleted
            if not deleted.count:
                break
        else:
            if len(ids) < MOST_FOUND:
                break
    return swept


def _cutoff(connection: Connection, keep_for: timedelta, keep_count: int) -> datetime | None:
    oldest = datetime.now(UTC) - keep_for if keep_for else None
    cutoff_by_count = cutoff_of(connection, keep_count)
    return max((cutoff for cutoff in (oldest, cutoff_by_count) if cutoff is not None), default=None)


def expired_blobs(database: Database, grace: timedelta, sweep: Sweep) -> Swept:
    """Delete blobs that expired at least `grace` ago. During `grace`, a run that found the blob before can still
    mount it.
    """
    until = datetime.now(UTC) - grace
    if sweep.dry_run:
        return database.read_now(partial(_count_expired, until=until))
    find, delete_them = partial(_expired, until=until), partial(_delete_expired, until=until)
    return _delete_found(sweep, database, find, delete_them, AT_ONCE)


def _count_expired(connection: Connection, until: datetime) -> Swept:
    totals = select(func.count(), func.coalesce(func.sum(blobs.c.size_bytes), 0)).where(
        _has_expired(until), *unheld_blobs(connection.dialect.name)
    )
    count, size = connection.execute(totals).one()
    return Swept(int(count), int(size))


def _has_expired(until: datetime) -> ColumnElement[bool]:
    return blobs.c.expires_at <= until


def _expired(connection: Connection, until: datetime) -> Select[Any]:
    expired_ids = select(blobs.c.id).where(_has_expired(until), *unheld_blobs(connection.dialect.name))
    return expired_ids.order_by(blobs.c.expires_at)


def _delete_expired(connection: Connection, ids: Sequence[str], holds: int, until: datetime) -> Swept:
    is_due = blobs.c.id.in_(ids), _has_expired(until), number_of_holds() == holds
    deleted_sizes = connection.execute(delete(blobs).where(*is_due).returning(blobs.c.size_bytes)).scalars().all()
    return Swept(len(deleted_sizes), sum(deleted_sizes))


def old_exchanges(database: Database, sweep: Sweep) -> Swept:
    """Delete the records of exchanged tokens of CI jobs, and expired tokens that CI jobs got."""
    if sweep.dry_run:
        return Swept(database.read_now(partial(forget_expired, limit=AT_ONCE, dry_run=True)))
    return _in_batches(sweep, database, partial(forget_expired, limit=AT_ONCE))


def unused_contents(database: Database, storage: Storage, grace: timedelta, sweep: Sweep) -> Swept:
    """Delete contents that no skill file, blob or workspace refers to, from the database and the storage.

    A dry run also counts contents of blobs that expired at least `grace` ago.
    """
    if sweep.dry_run:
        return database.read_now(partial(_count_unused, until=datetime.now(UTC) - grace))
    database.write_now(partial(forget_uploads, begun_before=datetime.now(UTC) - UPLOAD))
    finish_abandoned_deletions(database, storage)
    swept, last_digest = Swept(), ""
    while not sweep.stopped():
        digests = database.read_now(partial(_find_unused, after=last_digest))
        if digests:
            # Contents of a purged version may have been in use elsewhere until now.
            deleted = database.erase_now(partial(delete_unused, server=database.server, digests=digests))
            swept += deleted.swept
            carry_out(database, storage, deleted.claimed)
        if len(digests) < FILES_AT_ONCE:
            break
        last_digest = digests[-1]
    return swept


_NO_FILE = and_(
    not_(exists().where(skill_files.c.sha256 == objects.c.sha256)),
    not_(exists().where(workspace_contents.c.sha256 == objects.c.sha256)),
    not_(exists().where(workspace_snapshots.c.manifest_sha256 == objects.c.sha256)),
)
_IS_UNUSED = and_(not_(exists().where(blobs.c.sha256 == objects.c.sha256)), _NO_FILE)


def expired_workspaces(database: Database, storage: Storage, sweep: Sweep) -> Swept:
    """Remove expired workspaces. Remove the references of the others to contents that are in none
    of their snapshots.
    """
    if sweep.dry_run:
        return Swept(database.read_now(lambda connection: len(connection.execute(expired(connection)).all())))

    def remove_them(connection: Connection, ids: Sequence[str], holds: int) -> Swept:
        return Swept(remove_expired(connection, ids, holds))

    swept = _delete_found(sweep, database, expired, remove_them, EXPIRED_AT_ONCE)
    forget_contents(database, storage, sweep.stopped)
    return swept


def ended_sessions(database: Database, sweep: Sweep) -> Swept:
    """Delete the sessions of browsers that have ended."""
    if sweep.dry_run:
        return Swept(database.read_now(count_ended))
    return _in_batches(sweep, database, partial(forget_ended, limit=AT_ONCE))


def _count_unused(connection: Connection, until: datetime) -> Swept:
    """Return the number and bytes of unused contents, including the contents of blobs that the same
    sweep would delete.
    """
    is_held = not_(and_(*unheld_blobs(connection.dialect.name)))
    stays = or_(blobs.c.expires_at.is_(None), blobs.c.expires_at > until, is_held)
    unused = and_(
        not_(exists().where(blobs.c.sha256 == objects.c.sha256, stays)),
        _NO_FILE,
    )
    count, size = connection.execute(
        select(func.count(), func.coalesce(func.sum(objects.c.size_bytes), 0)).where(unused)
    ).one()
    return Swept(int(count), int(size))


def _find_unused(connection: Connection, after: str) -> list[str]:
    unused = select(objects.c.sha256).where(objects.c.sha256 > after, _IS_UNUSED)
    return list(connection.scalars(unused.order_by(objects.c.sha256).limit(FILES_AT_ONCE)))


class DeletedContents(NamedTuple):
    """The deleted contents, and the tombstones of those with files in the storage."""

    digests: set[str]
    swept: Swept
    claimed: TombstoneClaim
    """The contents with files in the storage. The caller deletes these files."""


def delete_unused(
    connection: Connection, server: str, digests: Collection[str], *, waits: bool = False
) -> DeletedContents:
    """Delete the rows of those contents that are still unused. Add tombstones for the contents with files in the
    storage.

    The rows are locked first: so the delete statement sees every reference that was added before, and no reference can
    be added later. Rows that another transaction has locked are skipped, because that transaction may add a reference.
    With `waits`, this function waits for the other transaction instead. Raise Busy if a newer release has migrated the
    database.
    """
    migrate.refuse_newer(connection)
    candidates = select(objects.c.sha256, objects.c.size_bytes, objects.c.data.is_(None).label("has_file"))
    # Sorted, because the same order for all callers prevents deadlocks on Postgres.
    locked = candidates.where(objects.c.sha256.in_(digests)).order_by(objects.c.sha256)
    held = {row.sha256: row for row in connection.execute(locked.with_for_update(skip_locked=not waits))}
    unused = delete(objects).where(objects.c.sha256.in_(held), _IS_UNUSED).returning(objects.c.sha256)
    deleted = [held[sha256] for sha256 in connection.scalars(unused)]
    swept = Swept(len(deleted), sum(row.size_bytes for row in deleted))
    claimed = claim(connection, server, [row.sha256 for row in deleted if row.has_file])
    return DeletedContents({row.sha256 for row in deleted}, swept, claimed)


def leftovers(database: Database, storage: Storage, grace: timedelta, sweep: Sweep) -> Swept:
    """Delete files in the storage that have no row and are older than `grace`, and the parts of uploads that have not
    ended after a day.

    Such files remain if a process dies before it writes the row, or before it deletes the files of a failed upload.
    """
    swept = Swept(storage.remove_unfinished(datetime.now(UTC) - UPLOAD, sweep.dry_run))
    if not isinstance(storage, ListsContents):
        return swept
    for batch in _batches(storage.stored_before(datetime.now(UTC) - grace), FILES_AT_ONCE):
        recorded = database.read_now(partial(_known, digests=list(batch)))
        unknown = {sha256: size for sha256, size in batch.items() if sha256 not in recorded}
        deleted = unknown if sweep.dry_run or not unknown else drop_files(database, storage, unknown)
        swept += Swept(len(deleted), sum(unknown[sha256] for sha256 in deleted))
        if sweep.stopped():
            break
    return swept


def _batches(stored: Iterator[tuple[str, int]], size: int = AT_ONCE) -> Iterator[dict[str, int]]:
    while batch := dict(itertools.islice(stored, size)):
        yield batch


def _known(connection: Connection, digests: list[str]) -> set[str]:
    return set(connection.scalars(select(objects.c.sha256).where(objects.c.sha256.in_(digests))))


def cached_files(database: Database, cache: Cache, grace: timedelta, unused_for: timedelta, sweep: Sweep) -> Swept:
    """Delete files from the cache of this machine: files unused for `unused_for` (0: never), copies of deleted
    contents, and files of purged versions.

    Copies of deleted contents stay if they were used within `grace`; files of purged versions do not.
    """
    now, swept = datetime.now(UTC), Swept()
    purged = database.read_now(partial(purged_among, digests=cache.bundle_digests()))
    swept += Swept(*cache.drop_bundles(purged, dry_run=sweep.dry_run))
    for batch in _batches(cache.blobs_unused_since(now - grace)):
        recorded = database.read_now(partial(_known, digests=list(batch)))
        for sha256, size in batch.items():
            if sha256 not in recorded and (sweep.dry_run or cache.drop_blob(sha256, now - grace)):
                swept += Swept(1, size)
    if unused_for:
        count, size = cache.drop_unused(now - unused_for, dry_run=sweep.dry_run)
        swept += Swept(count, size)
    return swept


def old_locks(database: Database, reuse_for: timedelta, sweep: Sweep) -> Swept:
    """Delete stored locks of packages that are older than `reuse_for`, so that no publication reuses them.

    Versions have their own copies of their locks.
    """
    cutoff = datetime.now(UTC) - reuse_for
    if sweep.dry_run:
        return Swept(database.read_now(partial(count_old_locks, made_before=cutoff)))
    return Swept(database.write_now(partial(forget_locks, made_before=cutoff)))


def unused_environments(environments: Environments, grace: timedelta, unused_for: timedelta, sweep: Sweep) -> Swept:
    """Delete installed packages of this machine that no version needs, or that no run has used for `unused_for` (0:
    never).

    Packages that were used within `grace` stay.
    """
    now, swept = datetime.now(UTC), Swept()
    last_use = now - unused_for if unused_for else None
    for size in environments.drop_unused(now - grace, last_use, dry_run=sweep.dry_run):
        swept += Swept(1, size)
        if sweep.stopped():
            break
    return swept


def purged_among(connection: Connection, digests: Collection[str]) -> set[str]:
    """Return the digests of purged versions among `digests`."""
    if not digests:
        return set()
    purged = select(skill_versions.c.digest).where(skill_versions.c.status == literal_column("'purged'"))
    return set(connection.scalars(purged)) & set(digests)
