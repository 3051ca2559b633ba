"""Entries of the audit trail, and how each is chained to the one before."""

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
    """The author of a change: an Identity, or another object with a name and a kind."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


class _Local(NamedTuple):
    name: str
    kind: str = "person"


SERVER = Identity("skillery", "agent")
"""The server itself. No token can have this name."""


def local_actor(user: str) -> Actor:
    """Return the actor for a command that works on a home or database directly: the user of the machine."""
    return _Local(f"home:{user}")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    """UTC with microseconds, `2026-11-22T09:30:00.000000Z`. Both databases and the hash have this text."""
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
"""Fields in the order of the hash. `seq` and `previous` come before them."""


class Head(NamedTuple):
    """The number and the hash of the last entry.

    If they are stored elsewhere, they later prove that no entry up to this one was changed.
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
    """Record a change in the transaction that makes it, which must be one of `Database.write`.

    `action` is the method's name. `subject` is what was changed: `name`, `name@version` or an id. `before` and
    `after` are the changed fields. They never hold a secret.

    The call may come at any point of the transaction. The entry is chained just before the commit, because every
    other writer of the trail waits from then on.
    """
    entry = entry_of(actor, action, subject, before_json=_json(before), after_json=_json(after))
    before_commit(partial(append, entries=[entry]))


def record_at_once(
    connection: Connection, actor: Actor, action: str, subject: str, *, after: Mapping[str, Any] | None = None
) -> None:
    """Record a change as the last statement of a transaction that is not one of `Database.write`."""
    append(connection, [entry_of(actor, action, subject, after_json=_json(after))])


def entry_of(actor: Actor | None, action: str, subject: str, **more: Any) -> Entry:
    """Return an entry with the current time and the current request."""
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
    """Chain entries to the last one. Other writers wait for the head until the transaction ends, so no two entries
    follow the same one.
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
    """Return the SHA-256 of a JSON array, compact and in UTF-8: seq, previous, and the fields of an Entry in their
    order.
    """
    text = json.dumps([seq, previous, *fields], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def head(connection: Connection) -> Head:
    """Return the number and the hash of the last entry. Raises Unavailable if the stored head is missing."""
    found = connection.execute(select(audit_head.c.seq, audit_head.c.hash)).one_or_none()
    if found is None:
        raise Unavailable(
            "the head of the audit trail is gone", hint="skillery audit verify shows which entries are left."
        )
    return Head(found.seq, found.hash)


def _fitting(text: str) -> str:
    """Return the text in a form that both databases accept."""
    return text.replace("\0", "")[:LONGEST]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
