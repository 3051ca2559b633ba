"""Verification of the audit trail: read all entries in order, page by page, and check their hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, literal_column, select

from skillery.audit.entries import FIELDS, NOTHING_BEFORE, Head, hash_of
from skillery.database import Database, Statement
from skillery.database.tables import audit, audit_head

_PAGE = 1000
_ROWS = Statement(
    select(audit.c.seq, audit.c.previous, audit.c.hash, *(audit.c[name] for name in FIELDS))
    .where(audit.c.seq > bindparam("after"))
    .order_by(audit.c.seq)
    .limit(literal_column(str(_PAGE)))
)
_HEAD = Statement(select(audit_head.c.seq, audit_head.c.hash))
_NONE = Head(0, NOTHING_BEFORE)


class ChainFault(NamedTuple):
    """The number of the first entry that is wrong or missing, and the reason."""

    seq: int
    reason: str


class Verified(NamedTuple):
    head: Head
    """The last entry before the fault, or the last entry of the trail."""
    fault: ChainFault | None


def verify(database: Database, noted: Head | None = None) -> Verified:
    """Verify the whole trail with constant memory. Other transactions may write at the same time. Blocking.

    `noted` is a head that was stored in another place: the entry with this number must have this hash.
    """
    start = database.read_now(_head)
    known = {one.seq: (one.hash, what) for one, what in ((start, "the head"), (noted, "the head noted")) if one}
    last = _NONE
    for row in _rows(database):
        reason = _reason(row, last) or _differs(row, known)
        if reason:
            return Verified(last, ChainFault(last.seq + 1 if row[0] > last.seq + 1 else row[0], reason))
        last = Head(row[0], row[2])
    return Verified(last, _fault_at_end(last, start, database.read_now(_head), noted))


def _rows(database: Database) -> Iterator[Any]:
    after = -(2**63)  # an entry with a number below 1 is a forgery, and must be found too
    while page := database.read_now(lambda connection: _ROWS.rows(connection, after=after)):  # noqa: B023 - called at once
        yield from page
        after = page[-1][0]


def _head(connection: Connection) -> Head | None:
    found = _HEAD.rows(connection)
    return Head(*found[0]) if found else None


def _reason(row: Any, last: Head) -> str | None:
    seq, previous, digest, *fields = row
    if seq <= last.seq:
        return f"there is an entry {seq}, which no trail has"
    if seq > last.seq + 1:
        gone = f"entry {last.seq + 1} is" if seq == last.seq + 2 else f"entries {last.seq + 1} to {seq - 1} are"
        return f"{gone} missing"
    if previous != last.hash:
        return f"entry {seq} does not follow on entry {last.seq}: another one stood before it"
    try:
        is_good = digest == hash_of(seq, previous, fields)
    except (TypeError, ValueError):
        is_good = False  # the row has a type that no entry can have
    return None if is_good else f"entry {seq} was altered: its hash is not that of what stands in it"


def _differs(row: Any, known: dict[int, tuple[str, str]]) -> str | None:
    digest, what = known.get(row[0], (row[2], ""))
    return None if digest == row[2] else f"entry {row[0]} is not the one that {what} names: the trail was rewritten"


def _fault_at_end(last: Head, start: Head | None, end: Head | None, noted: Head | None) -> ChainFault | None:
    after = last.seq + 1
    if start is None or end is None:
        return ChainFault(after, "the head of the trail is gone")
    for one, what in ((start, "the head"), (noted, "the head noted")):
        if one is not None and one.seq > last.seq:
            return ChainFault(
                after, f"the trail ends with entry {last.seq}, and {what} is entry {one.seq}: its end is missing"
            )
    if last.seq > end.seq or (last.seq == end.seq and last.hash != end.hash):
        return ChainFault(last.seq, f"the head names entry {end.seq}, and the trail goes on to entry {last.seq}")
    return None
