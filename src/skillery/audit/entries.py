"""The entries of the audit trail. Each entry has the hash of the entry before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from sqlalchemy import Connection, insert, select, update

from skillery.backends import Identity
from skillery.context.request import current
from skillery.database import Change, Statement, before_commit
from skillery.database.tables import audit, audit_head
from skillery.errors import Unavailable

Outcome = Literal["done", "refused"]
NOTHING_BEFORE = "0" * 64
"""The `previous` hash of the first entry."""
LONGEST = 255

_HEAD = Statement(select(audit_head.c.seq, audit_head.c.hash).with_for_update())
_ADD = Change(insert(audit), [column.name for column in audit.c])
_MOVE_HEAD = Change(update(audit_head), ("seq", "hash"))


class Actor(Protocol):
    """The caller who made a change: an Identity, or another object with a name and a kind."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


class _Local(NamedTuple):
    name: str
    kind: str = "person"


SERVER = Identity("skillery", "agent")
"""The identity of the server itself. No token can have this name."""


def local_actor(user: str) -> Actor:
    """Return the actor of a command that works directly on a home or a database: the user of the machine."""
    return _Local(f"home:{user}")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    """Time in UTC with microseconds, `2026-11-22T09:30:00.000000Z`. The databases and the hash use this text."""
    identity: str | None
    """None if the caller is unknown."""
    identity_kind: str | None
    address: str | None
    request_id: str | None
    action: str
    subject: str
    outcome: Outcome = "done"
    code: int | None = None
    error_type: str | None = None
    count: int = 1
    """Number of attempts that the entry stands for."""
    before_json: str | None = None
    after_json: str | None = None


FIELDS: tuple[str, ...] = Entry.__struct_fields__
"""The fields of an entry in the order in which they are hashed. `seq` and `previous` are hashed before them."""


class Head(NamedTuple):
    """The number and the hash of the last entry.

    An admin who keeps a copy elsewhere can later prove that no entry up to this number was changed.
    """

    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


def record(
    connection: Connection,
    actor: Actor,
    action: str,
    subject: str,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Record a change. The transaction must be one of `Database.write`, and must be the one that makes the change.

    `action` is the name of the method. `subject` is the changed thing: `name`, `name@version` or an id. `before` and
    `after` have the changed fields, and never a secret.

    A transaction may call `record` at any time. The entry is chained just before the commit, because all other writers
    of
    the trail wait from that moment to the commit.
    """
    entry = entry_of(actor, action, subject, before_json=_json(before), after_json=_json(after))
    before_commit(partial(append, entries=[entry]))


def record_at_once(
    connection: Connection, actor: Actor, action: str, subject: str, *, after: Mapping[str, Any] | None = None
) -> None:
    """Record a change. This must be the last statement of a transaction that `Database.write` did not start."""
    append(connection, [entry_of(actor, action, subject, after_json=_json(after))])


def entry_of(actor: Actor | None, action: str, subject: str, **more: Any) -> Entry:
    """Return an entry with the current time and the id of the current request."""
    request = current.get()
    return Entry(
        at=now(),
        identity=None if actor is None else _fitting(actor.name),
        identity_kind=None if actor is None else actor.kind,
        address=(_fitting(request.address) or None) if request else None,
        request_id=_fitting(request.id) if request else None,
        action=action,
        subject=_fitting(subject),
        **more,
    )


def append(connection: Connection, entries: Sequence[Entry]) -> None:
    """Append entries to the trail, chained to the last entry.

    The transaction locks the head of the trail until it ends, so no two entries have the same predecessor.
    """
    found = _HEAD.rows(connection)
    if not found:
        raise Unavailable(
            "the head of the audit trail is missing, so no change can be recorded, and none was made",
            hint="An admin of this server must run skillery audit verify.",
        )
    [(seq, previous)] = found
    rows = []
    for entry in entries:
        seq += 1
        digest = hash_of(seq, previous, msgspec.structs.astuple(entry))
        rows.append({"seq": seq, "previous": previous, "hash": digest, **msgspec.structs.asdict(entry)})
        previous = digest
    _ADD.run_many(connection, rows)
    _MOVE_HEAD.run(connection, seq=seq, hash=previous)


def hash_of(seq: int, previous: str, fields: Sequence[Any]) -> str:
    """Return the SHA-256 of a compact JSON array in UTF-8: `seq`, `previous`, and the fields of an entry in their
    order.
    """
    text = json.dumps([seq, previous, *fields], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def head(connection: Connection) -> Head:
    """Return the number and the hash of the last entry. Raise Unavailable if the row with the head is missing."""
    found = connection.execute(select(audit_head.c.seq, audit_head.c.hash)).one_or_none()
    if found is None:
        raise Unavailable(
            "the head of the audit trail is gone", hint="skillery audit verify shows which entries are left."
        )
    return Head(found.seq, found.hash)


def _fitting(text: str) -> str:
    """Return the text without characters that one of the databases does not accept."""
    return text.replace("\0", "")[:LONGEST]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
