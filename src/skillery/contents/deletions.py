"""Deletions of contents from the storage. No transaction is open while the storage works.

One deletion takes three steps:

1. A transaction finds that no row and no upload names the digest, and commits a tombstone: a row of `deletions`.
2. The storage deletes the file.
3. A second transaction removes the tombstone.

An upload of that digest waits until the tombstone is gone (`skillery.contents.uploads`). So no deletion that was begun
earlier can remove the file that the upload stores.

A tombstone whose server died is taken over: by the same server when it starts again, and by any other server once
`take_over_at` has passed. The storage then deletes the file again, which changes nothing if it is gone.
docs/design/architecture.md lists what happens after a crash at each step.
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
"""Age at which any server may take over a tombstone."""
RETRY_AFTER = timedelta(seconds=30)
"""As TAKE_OVER_AFTER, if the storage reported an error: a request that timed out may still be carried out."""
BEGIN_WITHIN_SECONDS = 30.0
"""Age at which the holder renews a tombstone before it deletes the file.

TAKE_OVER_AFTER is ten times longer, so the storage has minutes to end a call before another server takes over."""
LOOK_SECONDS = 0.05
RETRY_MS = 5_000


class Claim(NamedTuple):
    """Tombstones that one caller has committed and carries out."""

    holder: str
    digests: Sequence[str]
    begun: float
    """Time of `_clock` before the tombstones were written."""


def claim(connection: Connection, server: str, digests: Iterable[str]) -> Claim:
    """Add tombstones for the digests that no row, no upload and no other tombstone names."""
    # One order for all callers prevents deadlocks on Postgres.
    wanted = sorted(set(digests))
    for digest in wanted:
        take_turn(connection, digest)
    begun, holder = _clock(), secrets.token_hex(16)
    used = _used(connection, wanted) if wanted else set()
    unused = [digest for digest in wanted if digest not in used]
    if unused:
        one = {"server": server, "holder": holder, "take_over_at": _now(connection) + TAKE_OVER_AFTER}
        connection.execute(insert(deletions), [one | {"sha256": digest} for digest in unused])
    return Claim(holder, unused, begun)


def carry_out(database: Database, storage: Storage, claimed: Claim) -> set[str]:
    """Delete the files of the claim and remove its tombstones. Return the digests of the deleted files. Blocking.

    If the storage raises, the tombstones of the files that are left stay: after RETRY_AFTER the next sweep or upload
    tries again.
    """
    deleted: set[str] = set()
    left = list(claimed.digests)
    try:
        while left:
            if _clock() - claimed.begun > BEGIN_WITHIN_SECONDS:
                claimed = database.write_now(partial(_renew, claimed=claimed))
                left = [digest for digest in left if digest in claimed.digests]
                continue
            storage.delete(left[0])
            deleted.add(left.pop(0))
    finally:
        if claimed.digests:
            database.write_now(partial(_settle, claimed=claimed, failed=left))
    return deleted


def drop_files(database: Database, storage: Storage, digests: Iterable[str]) -> set[str]:
    """Delete the files of these digests, except those that a row, an upload or a tombstone names.

    Return the digests of the deleted files. Blocking.
    """
    claimed = database.write_now(lambda connection: claim(connection, database.server, digests))
    return carry_out(database, storage, claimed)


def drop_file(database: Database, storage: Storage, sha256: str) -> bool:
    """Delete one file as `drop_files` does. Return whether the file was deleted. Blocking."""
    return sha256 in drop_files(database, storage, [sha256])


def finish_own_deletions(database: Database, storage: Storage) -> None:
    """Carry out the deletions that this server left open when it died. Call it before the server serves. Blocking.

    A storage error is logged: the tombstones then stay until they are taken over.
    """
    if not database.server:
        return
    try:
        _take_over(database, storage, deletions.c.server == database.server)
    except SkilleryError as error:
        log.warning("deletions that the last server left open are not carried out yet: %s", error.message)


def finish_abandoned_deletions(database: Database, storage: Storage, digests: Collection[str] | None = None) -> None:
    """Carry out the deletions of dead servers: all of them, or only those of the given digests. Blocking."""
    which = deletions.c.sha256.in_(digests) if digests is not None else deletions.c.sha256.is_not(None)
    _take_over(database, storage, which, only_abandoned=True)


def wait_until_deleted(database: Database, storage: Storage, digests: Collection[str], until: float) -> None:
    """Return when no tombstone names the digests. Blocking.

    Raises Busy if there is still a tombstone at the monotonic time `until`. Takes over abandoned deletions.
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
    """Return which of the digests have a tombstone."""
    return set(connection.scalars(select(deletions.c.sha256).where(deletions.c.sha256.in_(digests))))


def take_turn(connection: Connection, sha256: str) -> None:
    """Lock the digest until the transaction ends: no other transaction can start an upload or a deletion of it."""
    take_turns(connection, "content", sha256)


def _used(connection: Connection, digests: Sequence[str]) -> set[str]:
    # One statement sees one state. Between two statements an upload could become a row, and neither would see it.
    named = [select(table.c.sha256).where(table.c.sha256.in_(digests)) for table in (objects, uploads, deletions)]
    return set(connection.scalars(union_all(*named)))


def _take_over(
    database: Database, storage: Storage, which: ColumnElement[bool], *, only_abandoned: bool = False
) -> None:
    # Most of the time there is no tombstone: a read is cheaper than a transaction.
    if not database.read_now(lambda connection: _find_abandoned(connection, which, only_abandoned)):
        return

    def work(connection: Connection) -> Claim:
        begun, holder, now = _clock(), secrets.token_hex(16), _now(connection)
        found = _find_abandoned(connection, which, only_abandoned)
        claiming = update(deletions).where(deletions.c.sha256.in_([digest for digest, _ in found]))
        # The holder decides between two servers that take over at once.
        claiming = claiming.where(deletions.c.holder.in_({before for _, before in found}))
        values = {"server": database.server, "holder": holder, "take_over_at": now + TAKE_OVER_AFTER}
        taken = connection.scalars(claiming.values(values).returning(deletions.c.sha256))
        return Claim(holder, sorted(taken), begun)

    carry_out(database, storage, database.write_now(work))


def _find_abandoned(connection: Connection, which: ColumnElement[bool], only_abandoned: bool) -> list[tuple[str, str]]:
    rows = connection.execute(select(deletions.c.sha256, deletions.c.holder, deletions.c.take_over_at).where(which))
    now = _now(connection)
    return [(row.sha256, row.holder) for row in rows if not only_abandoned or in_utc(row.take_over_at) <= now]


def _renew(connection: Connection, claimed: Claim) -> Claim:
    """Renew the tombstones that no other server has taken over. Return the claim with these tombstones."""
    begun = _clock()
    held = update(deletions).where(deletions.c.holder == claimed.holder)
    renewed = connection.scalars(
        held.values(take_over_at=_now(connection) + TAKE_OVER_AFTER).returning(deletions.c.sha256)
    )
    return Claim(claimed.holder, sorted(renewed), begun)


def _settle(connection: Connection, claimed: Claim, failed: Sequence[str]) -> None:
    """Remove the tombstones of the claim. Those of the `failed` digests may be taken over after RETRY_AFTER."""
    held = deletions.c.holder == claimed.holder
    connection.execute(delete(deletions).where(held, deletions.c.sha256.not_in(failed)))
    connection.execute(update(deletions).where(held).values(take_over_at=_now(connection) + RETRY_AFTER))


def _clock() -> float:
    """Return monotonic seconds that count while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _now(connection: Connection) -> datetime:
    """Return the time of the database. Clocks of servers may differ."""
    if connection.dialect.name == "postgresql":
        moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return in_utc(moment)
    return datetime.now(UTC)
