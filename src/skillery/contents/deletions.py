"""Deletions of contents from the storage. No transaction is open during a call of the storage.

A deletion has three steps:

1. A transaction checks that no row and no upload uses the digest, and commits a tombstone: a row of `deletions`.
2. The storage deletes the file.
3. A second transaction removes the tombstone.

An upload of the same digest waits until the tombstone is removed (`skillery.contents.store`). So a deletion that was
started earlier cannot delete the file that the upload stores.

If a server dies, its tombstones stay. The same server completes these deletions at its next start, or any other server
does so after `take_over_at`. The storage then deletes the file again, which has no effect if the file is gone.
docs/design/internals.md lists the results of a crash at each step.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, union_all, update

from skillery.backends import Storage
from skillery.database import Database, in_utc, take_turns
from skillery.database.tables import deletions, objects, uploads
from skillery.errors import Busy, SkilleryError

log = logging.getLogger(__name__)

TAKE_OVER_AFTER = timedelta(minutes=5)
"""The age at which any server may take over a tombstone."""
RETRY_AFTER = timedelta(seconds=30)
"""The time that replaces TAKE_OVER_AFTER after an error of the storage: a request that timed out may still be
executed.
"""
BEGIN_WITHIN_SECONDS = 30.0
"""The age at which the holder renews a tombstone before it deletes the file.

TAKE_OVER_AFTER is ten times longer, so a call of the storage has minutes to end before another server takes over.
"""
LOOK_SECONDS = 0.05
RETRY_MS = 5_000


class TombstoneClaim(NamedTuple):
    """The tombstones that one caller has committed with the same `holder`. This caller deletes their files."""

    holder: str
    digests: Sequence[str]
    begun: float
    """The time of `_clock` before the tombstones were written."""


def claim(connection: Connection, server: str, digests: Iterable[str]) -> TombstoneClaim:
    """Add a tombstone for each digest without a row, an upload or a tombstone. Return the added tombstones."""
    # Sorted, because the same order for all callers prevents deadlocks on Postgres.
    sorted_digests = sorted(set(digests))
    for digest in sorted_digests:
        take_turn(connection, digest)
    begun, holder = _clock(), secrets.token_hex(16)
    used_digests = _used(connection, sorted_digests) if sorted_digests else set()
    unused = [digest for digest in sorted_digests if digest not in used_digests]
    if unused:
        row = {"server": server, "holder": holder, "take_over_at": _now(connection) + TAKE_OVER_AFTER}
        connection.execute(insert(deletions), [row | {"sha256": digest} for digest in unused])
    return TombstoneClaim(holder, unused, begun)


def carry_out(database: Database, storage: Storage, claimed: TombstoneClaim) -> set[str]:
    """Delete the files of the claim and remove its tombstones. Return the digests of the deleted files. Blocking.

    If the storage raises an error, the error is passed on and the tombstones of the remaining files stay. After
    RETRY_AFTER, the next sweep or upload tries again.
    """
    deleted: set[str] = set()
    remaining = list(claimed.digests)
    try:
        while remaining:
            if _clock() - claimed.begun > BEGIN_WITHIN_SECONDS:
                claimed = database.write_now(partial(_renew, claimed=claimed))
                remaining = [digest for digest in remaining if digest in claimed.digests]
                continue
            storage.delete(remaining[0])
            deleted.add(remaining.pop(0))
    finally:
        if claimed.digests:
            database.write_now(partial(_settle, claimed=claimed, failed=remaining))
    return deleted


def drop_files(database: Database, storage: Storage, digests: Iterable[str]) -> set[str]:
    """Delete the files of these digests, unless a row, an upload or a tombstone uses the digest. Blocking.

    Return the digests of the deleted files.
    """
    claimed = database.write_now(lambda connection: claim(connection, database.server, digests))
    return carry_out(database, storage, claimed)


def finish_own_deletions(database: Database, storage: Storage) -> None:
    """Complete the deletions that this server had not completed when it died. A starting server calls this. Blocking.

    Errors of the storage are logged. The tombstones then stay until a server takes them over.
    """
    if not database.server:
        return
    try:
        _take_over(database, storage, deletions.c.server == database.server)
    except SkilleryError as error:
        log.warning("deletions that the last server left open are not carried out yet: %s", error.message)


def finish_abandoned_deletions(database: Database, storage: Storage, digests: Collection[str] | None = None) -> None:
    """Complete the deletions of dead servers: only the deletions of `digests`, or all if `digests`
    is None. Blocking.
    """
    choice = deletions.c.sha256.in_(digests) if digests is not None else deletions.c.sha256.is_not(None)
    _take_over(database, storage, choice, only_abandoned=True)


def wait_until_deleted(database: Database, storage: Storage, digests: Collection[str], until: float) -> None:
    """Return when no tombstone for the digests exists. Complete abandoned deletions. Blocking.

    Raise Busy if a tombstone still exists at the monotonic time `until`.
    """
    while under_way := database.read_now(partial(find_deletions, digests=digests)):
        if time.monotonic() >= until:
            raise Busy(
                f"the content sha256:{min(under_way)} is being deleted from the storage",
                hint="Nothing was stored. Try again after retry_after_ms.",
                retry_after_ms=RETRY_MS,
            )
        finish_abandoned_deletions(database, storage, digests)
        time.sleep(LOOK_SECONDS)


def find_deletions(connection: Connection, digests: Collection[str]) -> set[str]:
    """Return the digests that have a tombstone."""
    return set(connection.scalars(select(deletions.c.sha256).where(deletions.c.sha256.in_(digests))))


def take_turn(connection: Connection, sha256: str) -> None:
    """Lock the digest until the transaction ends. No other transaction can start an upload or a deletion of it until
    then.
    """
    take_turns(connection, "content", sha256)


def _used(connection: Connection, digests: Sequence[str]) -> set[str]:
    """Return the subset of `digests` that a content, an upload or a tombstone uses."""
    # A single statement sees a single state. Between two statements, an upload could be replaced by a row, and neither
    # statement would see the digest.
    uses = [select(table.c.sha256).where(table.c.sha256.in_(digests)) for table in (objects, uploads, deletions)]
    return set(connection.scalars(union_all(*uses)))


def _take_over(
    database: Database, storage: Storage, condition: ColumnElement[bool], *, only_abandoned: bool = False
) -> None:
    """Take over the tombstones that match `condition`, and complete their deletions. With `only_abandoned`, take over
    only tombstones whose `take_over_at` has passed.
    """
    # Most of the time there is no tombstone: a read is cheaper than a transaction.
    if not database.read_now(lambda connection: _find_abandoned(connection, condition, only_abandoned)):
        return

    def work(connection: Connection) -> TombstoneClaim:
        begun, holder, now = _clock(), secrets.token_hex(16), _now(connection)
        abandoned = _find_abandoned(connection, condition, only_abandoned)
        claiming = update(deletions).where(deletions.c.sha256.in_([digest for digest, _ in abandoned]))
        # If two servers take over at the same time, the condition on the holder lets only one of them succeed.
        claiming = claiming.where(deletions.c.holder.in_({former_holder for _, former_holder in abandoned}))
        values = {"server": database.server, "holder": holder, "take_over_at": now + TAKE_OVER_AFTER}
        taken_digests = connection.scalars(claiming.values(values).returning(deletions.c.sha256))
        return TombstoneClaim(holder, sorted(taken_digests), begun)

    carry_out(database, storage, database.write_now(work))


def _find_abandoned(
    connection: Connection, condition: ColumnElement[bool], only_abandoned: bool
) -> list[tuple[str, str]]:
    rows = connection.execute(select(deletions.c.sha256, deletions.c.holder, deletions.c.take_over_at).where(condition))
    now = _now(connection)
    return [(row.sha256, row.holder) for row in rows if not only_abandoned or in_utc(row.take_over_at) <= now]


def _renew(connection: Connection, claimed: TombstoneClaim) -> TombstoneClaim:
    """Renew the tombstones of the claim that no other server has taken over. Return a claim with only these."""
    begun = _clock()
    held = update(deletions).where(deletions.c.holder == claimed.holder)
    renewed = connection.scalars(
        held.values(take_over_at=_now(connection) + TAKE_OVER_AFTER).returning(deletions.c.sha256)
    )
    return TombstoneClaim(claimed.holder, sorted(renewed), begun)


def _settle(connection: Connection, claimed: TombstoneClaim, failed: Sequence[str]) -> None:
    """Delete the rows of the claim's tombstones. Keep the rows of the `failed` digests, which may be taken over after
    RETRY_AFTER.
    """
    held = deletions.c.holder == claimed.holder
    connection.execute(delete(deletions).where(held, deletions.c.sha256.not_in(failed)))
    connection.execute(update(deletions).where(held).values(take_over_at=_now(connection) + RETRY_AFTER))


def _clock() -> float:
    """Return monotonic seconds. On Linux, they also count while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _now(connection: Connection) -> datetime:
    """Return the time of the database, because the clocks of servers may differ."""
    if connection.dialect.name == "postgresql":
        instant: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return in_utc(instant)
    return datetime.now(UTC)
