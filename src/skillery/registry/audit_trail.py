"""list_audit: pages of the audit trail, newest entry first with keyset cursors, or oldest first after an entry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from skillery.audit import Head, Verified, verify
from skillery.backends import Identity
from skillery.database import Database
from skillery.database.backend_values import find_value, forget_value, keep_value
from skillery.database.registry import Registry
from skillery.database.tables import audit
from skillery.errors import InvalidParams
from skillery.formats.timestamps import instant_text, parse_timestamp
from skillery.identity.access import Who
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.registry.cursors import NextCursor, fitting_items, make_cursor, read_cursor


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of list_audit. An empty filter matches all entries."""

    identity: str = ""
    action: str = ""
    subject: str = ""
    """The exact subject. The name of a skill matches the subjects of its versions (`name@version`) too."""
    outcome: Literal["done", "refused", ""] = ""
    since: str = ""
    until: str = ""
    """The end, exclusive. Like `since`, the text of a timestamp or of an age ("7d").

    A cursor is bound to the text, because an age stands for a different time on each page.
    """


def parse_filter(
    identity: str, action: str, subject: str, outcome: Literal["done", "refused", ""], since: str, until: str
) -> AuditFilter:
    """Return the filter. Raise InvalidParams if a text contains a NUL, or if `since` or `until` is not a time."""
    for param, value in (("identity", identity), ("action", action), ("subject", subject)):
        if "\0" in value:
            raise InvalidParams(f"'{param}' contains a NUL character", hint="Remove the NUL character.", param=param)
    for param, value in (("since", since), ("until", until)):
        if value:
            parse_timestamp(value, param, datetime.now(UTC))
    return AuditFilter(identity=identity, action=action, subject=subject, outcome=outcome, since=since, until=until)


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the audit trail, as `list_audit` returns it."""

    seq: int
    at: str
    identity: Who | None
    address: str | None
    request_id: str | None
    action: str
    subject: str
    outcome: Literal["done", "refused"]
    code: int | None
    type: str | None
    count: int
    before: msgspec.Raw
    after: msgspec.Raw
    hash: str


class AuditPage(msgspec.Struct, frozen=True):
    """A page of the audit trail, newest first. With `after`, the oldest entry is first, and `next_cursor` is null."""

    entries: Sequence[AuditEntry]
    next_cursor: NextCursor


def read_audit(connection: Connection, key: bytes, filters: AuditFilter, *, limit: int, cursor: str) -> AuditPage:
    """Return a page of the audit trail, newest entry first.

    `key` signs the cursors. Raise InvalidCursor if the cursor belongs to other filters.
    """
    bound_to = ("list_audit", msgspec.json.encode(filters).decode())
    conditions = _conditions(filters)
    if cursor:
        conditions.append(audit.c.seq < int(read_cursor(key, bound_to, cursor, 1)[0]))
    newest_first = select(audit).where(*conditions).order_by(audit.c.seq.desc()).limit(limit + 1)
    rows = connection.execute(newest_first).all()
    page = fitting_items([_entry(row) for row in rows[:limit]])
    next_cursor = make_cursor(key, bound_to, (str(page[-1].seq),)) if len(rows) > len(page) else None
    return AuditPage(page, next_cursor)


def read_audit_after(connection: Connection, filters: AuditFilter, *, after: int, limit: int) -> AuditPage:
    """Return the entries behind the entry with the number `after`, oldest first.

    Numbers have the order of the commits: a transaction holds the head of the trail from its entry to its commit. So
    the reader of a page never misses an entry that appears later with a smaller number.
    """
    oldest_first = select(audit).where(audit.c.seq > after, *_conditions(filters)).order_by(audit.c.seq).limit(limit)
    return AuditPage(fitting_items([_entry(row) for row in connection.execute(oldest_first)]), None)


def list_actions(connection: Connection) -> list[str]:
    """Return the actions that entries have, by name."""
    # Each step looks up the next action in the index. DISTINCT would read the whole trail.
    actions = select(func.min(audit.c.action).label("action")).cte("actions", recursive=True)
    following = select(func.min(audit.c.action)).where(audit.c.action > actions.c.action).scalar_subquery()
    actions = actions.union_all(select(following).where(actions.c.action.is_not(None)))
    return list(connection.scalars(select(actions.c.action).where(actions.c.action.is_not(None))))


def _conditions(filters: AuditFilter) -> list[ColumnElement[bool]]:
    """Return the SQL conditions for the entries that match a filter."""
    equalities = (
        (audit.c.identity, filters.identity),
        (audit.c.action, filters.action),
        (audit.c.outcome, filters.outcome),
    )
    conditions: list[ColumnElement[bool]] = [column == value for column, value in equalities if value]
    if filters.subject:
        # "A" follows "@" in the order of bytes.
        versions = and_(audit.c.subject >= f"{filters.subject}@", audit.c.subject < f"{filters.subject}A")
        conditions.append(or_(audit.c.subject == filters.subject, versions))
    now = datetime.now(UTC)
    if filters.since:
        conditions.append(audit.c.at >= instant_text(parse_timestamp(filters.since, "since", now)))
    if filters.until:
        conditions.append(audit.c.at < instant_text(parse_timestamp(filters.until, "until", now)))
    return conditions


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(
        seq=row.seq,
        at=row.at,
        identity=None if row.identity is None else Who(row.identity, row.identity_kind),
        address=row.address,
        request_id=row.request_id,
        action=row.action,
        subject=row.subject,
        outcome=row.outcome,
        code=row.code,
        type=row.error_type,
        count=row.count,
        before=_raw(row.before_json),
        after=_raw(row.after_json),
        hash=row.hash,
    )


def _raw(text: str | None) -> msgspec.Raw:
    return msgspec.Raw(b"null" if text is None else text.encode())


# -- list_audit --------------------------------------------------------------------------------------------------------


class ListAudit(Params, frozen=True, kw_only=True):
    """List changes and refused attempts, newest first, or oldest first with `after`."""

    identity: Annotated[str, about("Only entries of this identity")] = ""
    action: Annotated[str, about("Only this action, usually the name of a method")] = ""
    subject: Annotated[str, about("Only this subject: a skill (with all its versions), name@version, or an id")] = ""
    outcome: Annotated[Literal["done", "refused", ""], about("Only changes, or only refused attempts")] = ""
    since: Annotated[str, about("Only entries from this time on (e.g., '2026-11-22T09:30:00Z')")] = ""
    until: Annotated[str, about("Only entries before this time")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""
    after: Annotated[
        Annotated[int, Meta(ge=0, lt=1 << 62)] | msgspec.UnsetType,
        about("Only entries behind the entry with this number, oldest first; 0 begins with the first entry"),
    ] = msgspec.UNSET


async def list_audit(registry: Registry, _: Identity, params: ListAudit) -> AuditPage:
    filters = parse_filter(params.identity, params.action, params.subject, params.outcome, params.since, params.until)
    if params.after is not msgspec.UNSET:
        if params.cursor:
            raise InvalidParams(
                "'after' and 'cursor' are two orders",
                hint="After a page, pass the last seq as 'after'.",
                param="cursor",
            )
        return await registry.read_page(
            partial(read_audit_after, filters=filters, after=params.after, limit=params.limit)
        )
    work = partial(read_audit, key=registry.cursor_key, filters=filters, limit=params.limit, cursor=params.cursor)
    # Slow: with a filter, one page may read many entries.
    return await registry.read_page(work)


METHODS = (Method(list_audit, "audit", audits=""),)


# -- The last verification of the chain --------------------------------------------------------------------------------


_VERIFIED = "audit verified"


class LastVerified(msgspec.Struct, frozen=True):
    """The last verification of the whole trail by this registry."""

    at: datetime
    seq: int
    """The number of the last sound entry."""
    is_intact: bool


def verify_and_note(database: Database, noted: Head | None) -> Verified:
    """Verify the whole trail as `audit.verify` does, and store the result. Blocking.

    A fault by a head of the caller is not stored: the head may be mistyped.
    """
    verified = verify(database, noted)
    if noted is None or verified.fault is None:
        last = LastVerified(datetime.now(UTC), verified.head.seq, verified.fault is None)
        database.write_now(partial(_note, noted=msgspec.json.encode(last)))
    return verified


def _note(connection: Connection, noted: bytes) -> None:
    forget_value(connection, _VERIFIED)
    keep_value(connection, _VERIFIED, noted)


def last_verified(connection: Connection) -> LastVerified | None:
    """Return the last verification, or None if the trail was never verified."""
    stored = find_value(connection, _VERIFIED)
    return None if stored is None else msgspec.json.decode(stored, type=LastVerified)
