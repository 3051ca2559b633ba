"""The audit trail: an append-only list of every change and every refused attempt. Each entry contains the hash of the
previous one.

`record` runs in the transaction that makes a change, so there is an entry if and only if there is a change. `Refusals`
writes refused attempts. docs/operate/audit.md describes the entries, and what the hashes prove.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from sqlalchemy import Connection, bindparam, insert, literal_column, null, select, update

from skillery.backends import Identity
from skillery.context.request import current
from skillery.database import Change, Database, Statement, before_commit
from skillery.database.tables import audit, audit_head, events, webhooks
from skillery.errors import Unavailable

Outcome = Literal["done", "refused"]
NOTHING_BEFORE = "0" * 64
"""`previous` of the first entry, which has no previous entry."""
LONGEST = 255

_HEAD = Statement(select(audit_head.c.seq, audit_head.c.hash).with_for_update())
_ADD = Change(insert(audit), [column.name for column in audit.c])
_MOVE_HEAD = Change(update(audit_head), ("seq", "hash"))
_EVENT = "audit"
# Only a webhook that names this type gets it. Other registries do not write each entry twice.
_ADD_EVENT = Change(
    insert(events).from_select(
        ("id", "type", "skill", "created_at", "data_json"),
        select(
            bindparam("event_id", type_=events.c.id.type),
            literal_column(f"'{_EVENT}'"),
            null(),
            bindparam("created", type_=events.c.created_at.type),
            bindparam("data", type_=events.c.data_json.type),
        ).where(
            select(webhooks.c.id)
            .where(webhooks.c.events_json.like(literal_column(f"'%\"{_EVENT}\"%'")), webhooks.c.gone_at.is_(None))
            .exists()
        ),
    )
)


class Actor(Protocol):
    """The author of a change: an Identity, or another object with `name` and `kind`."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


class _Local(NamedTuple):
    """The actor of a command that a user of the operating system has started."""

    name: str
    kind: str = "person"


SERVER = Identity("skillery", "agent")
"""The author of changes that the server itself makes. No token can have this name."""


def local_actor(user: str) -> Actor:
    """Return the author of changes for a command that works on a home or database directly. `user` is the operating
    system's user.
    """
    return _Local(f"home:{user}")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the audit trail, before it gets its number and its hash."""

    at: str
    """Time in UTC with microseconds: `2026-11-22T09:30:00.000000Z`. The hash and both databases use this text."""
    identity: str | None
    """Name of the identity. None if the caller is not authenticated."""
    identity_kind: str | None
    address: str | None
    request_id: str | None
    action: str
    subject: str
    outcome: Outcome = "done"
    code: int | None = None
    error_type: str | None = None
    count: int = 1
    """Number of attempts that this entry stands for."""
    before_json: str | None = None
    after_json: str | None = None


FIELDS: tuple[str, ...] = AuditEntry.__struct_fields__
"""The fields of an entry in the order in which `hash_of` takes them, after `seq` and `previous`."""


class Head(NamedTuple):
    """The number and the hash of the last entry.

    A copy that is stored in another place can later prove that no entry up to this one was changed.
    """

    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Return the head that `skillery audit head` has printed as `SEQ:HASH`. Raise ValueError for other text."""
        seq, _, digest = text.strip().partition(":")
        if not (seq.isdecimal() and len(seq) < 19 and len(digest) == 64):
            raise ValueError("this is not SEQ:HASH, as printed by `skillery audit head`")
        return cls(int(seq), digest.lower())


def record(
    connection: Connection,
    actor: Actor,
    action: str,
    subject: str,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Record a change. Call this function in the transaction of `Database.write` that makes the change.

    `action` is the name of the method. `subject` is the changed thing: `name`, `name@version` or an id. `before` and
    `after` are the changed fields, without secrets.

    The entry is written just before the commit, because from then on every other writer waits. Therefore the call may
    be at any point of the transaction.
    """
    entry = entry_of(actor, action, subject, before_json=_json(before), after_json=_json(after))
    before_commit(partial(append, entries=[entry]))


def record_at_once(
    connection: Connection, actor: Actor, action: str, subject: str, *, after: Mapping[str, Any] | None = None
) -> None:
    """Record a change in a transaction that is not one of `Database.write`. The call must be the last statement of
    the transaction.
    """
    append(connection, [entry_of(actor, action, subject, after_json=_json(after))])


def entry_of(actor: Actor | None, action: str, subject: str, **more: Any) -> AuditEntry:
    """Return an entry with the present time, and the id and address of the current request. `actor` is None for an
    unknown caller.
    """
    request = current.get()
    return AuditEntry(
        at=now(),
        identity=None if actor is None else _fitting(actor.name),
        identity_kind=None if actor is None else actor.kind,
        address=(_fitting(request.address) or None) if request else None,
        request_id=_fitting(request.id) if request else None,
        action=action,
        subject=_fitting(subject),
        **more,
    )


def append(connection: Connection, entries: Sequence[AuditEntry]) -> None:
    """Write entries after the last entry of the trail, in the given order. Raise Unavailable if the stored head is
    missing.

    Other writers wait until this transaction ends, so no two entries have the same previous entry. Each entry becomes
    an event, if there is a webhook for this type.
    """
    heads = _HEAD.rows(connection)
    if not heads:
        raise Unavailable(
            "the head of the audit trail is missing, so nothing can be recorded; the change was not made",
            hint="An admin of this server must run skillery audit verify.",
        )
    [(seq, previous)] = heads
    rows, sent = [], []
    for entry in entries:
        seq += 1
        digest = hash_of(seq, previous, msgspec.structs.astuple(entry))
        rows.append({"seq": seq, "previous": previous, "hash": digest, **msgspec.structs.asdict(entry)})
        at = datetime.fromisoformat(entry.at)
        sent.append({"event_id": f"evt_{secrets.token_hex(12)}", "created": at, "data": _data(rows[-1])})
        previous = digest
    _ADD.run_many(connection, rows)
    _ADD_EVENT.run_many(connection, sent)
    _MOVE_HEAD.run_later(connection, seq=seq, hash=previous)


def _data(row: Mapping[str, Any]) -> str:
    """Return the members of the event about an entry: the fields that `list_audit` returns, as JSON."""
    identity = None if row["identity"] is None else {"name": row["identity"], "kind": row["identity_kind"]}
    states = {name: msgspec.Raw((row[f"{name}_json"] or "null").encode()) for name in ("before", "after")}
    plain = ("seq", "at", "address", "request_id", "action", "subject", "outcome", "code", "count", "hash")
    fields = {name: row[name] for name in plain} | {"identity": identity, "type": row["error_type"], **states}
    return msgspec.json.encode(fields).decode()


def take_turn(connection: Connection) -> None:
    """Lock the trail, so that its other writers wait until this transaction ends. Call this at the end of a
    transaction.
    """
    _HEAD.run_later(connection)


def hash_of(seq: int, previous: str, fields: Sequence[Any]) -> str:
    """Return the hash of an entry: the SHA-256 of a compact JSON array in UTF-8 with seq, previous and the fields in
    order.
    """
    text = json.dumps([seq, previous, *fields], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def head(connection: Connection) -> Head:
    """Return the number and the hash of the last entry. Raise Unavailable if the stored head is missing."""
    row = connection.execute(select(audit_head.c.seq, audit_head.c.hash)).one_or_none()
    if row is None:
        raise Unavailable(
            "the head of the audit trail is gone", hint="skillery audit verify shows the remaining entries."
        )
    return Head(row.seq, row.hash)


def _fitting(text: str) -> str:
    """Return the text in a form that both databases accept: without NUL, at most LONGEST characters."""
    return text.replace("\0", "")[:LONGEST]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


# -- Verification of the audit trail: read all entries in order, page by page, and check their hashes ------------------


_PAGE = 1000
_ROWS = Statement(
    select(audit.c.seq, audit.c.previous, audit.c.hash, *(audit.c[name] for name in FIELDS))
    .where(audit.c.seq > bindparam("after"))
    .order_by(audit.c.seq)
    .limit(literal_column(str(_PAGE)))
)
_NEWEST = Statement(select(audit_head.c.seq, audit_head.c.hash))
_NONE = Head(0, NOTHING_BEFORE)


class ChainFault(NamedTuple):
    """The number of the first entry that is wrong or missing, and the reason."""

    seq: int
    reason: str


class Verified(NamedTuple):
    """The last entry that is sound, and the fault that follows it, if any."""

    head: Head
    """The last entry before the fault, or the last entry of the trail."""
    fault: ChainFault | None


def verify(database: Database, *noted: Head | None) -> Verified:
    """Verify the whole trail with constant memory. Other transactions may write at the same time. Blocking.

    `noted` are heads that were stored in another place: the entries with these numbers must have these hashes.
    """
    start = database.read_now(_head)
    heads = [(start, "the head"), *((head, "the head noted") for head in noted)]
    expected = {head.seq: (head.hash, title) for head, title in heads if head}
    last = _NONE
    for row in _rows(database):
        seq, _, digest, *_ = row
        reason = _reason(row, last) or _differs(seq, digest, expected)
        if reason:
            return Verified(last, ChainFault(min(seq, last.seq + 1), reason))
        last = Head(seq, digest)
    return Verified(last, _fault_at_end(last, start, database.read_now(_head), heads))


def _rows(database: Database) -> Iterator[Any]:
    """Yield the rows of all entries by their number, page by page."""
    last_seq = -(2**63)  # an entry with a number below 1 is a forgery, and must be found too
    while page := database.read_now(partial(_ROWS.rows, after=last_seq)):
        yield from page
        last_seq = page[-1][0]


def _head(connection: Connection) -> Head | None:
    rows = _NEWEST.rows(connection)
    return Head(*rows[0]) if rows else None


def _reason(row: Any, last: Head) -> str | None:
    """Return why the row cannot follow the entry `last`, or None if it can."""
    seq, previous, digest, *fields = row
    if seq <= last.seq:
        return f"there is an entry {seq}, which no trail has"
    if seq > last.seq + 1:
        missing = f"entry {last.seq + 1} is" if seq == last.seq + 2 else f"entries {last.seq + 1} to {seq - 1} are"
        return f"{missing} missing"
    if previous != last.hash:
        return f"entry {seq} does not follow on entry {last.seq}: another one stood before it"
    try:
        is_good = digest == hash_of(seq, previous, fields)
    except (TypeError, ValueError):
        is_good = False  # the row has a type that no entry can have
    return None if is_good else f"entry {seq} was altered: its hash is not that of what stands in it"


def _differs(seq: int, digest: str, expected: dict[int, tuple[str, str]]) -> str | None:
    """Return the fault if an entry has another hash than `expected`, else None. `expected` has the hash and a title by
    number.
    """
    expected_digest, title = expected.get(seq, (digest, ""))
    if digest == expected_digest:
        return None
    return f"entry {seq} is not the one that {title} names: the trail was rewritten"


def _fault_at_end(
    last: Head, start: Head | None, end: Head | None, heads: Sequence[tuple[Head | None, str]]
) -> ChainFault | None:
    """Return the fault if the heads do not match the last entry, else None. `start` and `end` are the heads before and
    after the entries were read; `heads` are all known heads with their titles.
    """
    next_seq = last.seq + 1
    if start is None or end is None:
        return ChainFault(next_seq, "the head of the trail is gone")
    for head, title in heads:
        if head is not None and head.seq > last.seq:
            return ChainFault(
                next_seq, f"the trail ends with entry {last.seq}, and {title} is entry {head.seq}: its end is missing"
            )
    if last.seq > end.seq or (last.seq == end.seq and last.hash != end.hash):
        return ChainFault(last.seq, f"the head names entry {end.seq}, and the trail goes on to entry {last.seq}")
    return None
