"""Entries, and how one is chained to the one before it."""

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
"""What the first entry has for the hash of the one before it."""
LONGEST = 255

_HEAD = Statement(select(audit_head.c.seq, audit_head.c.hash).with_for_update())
_ADD = Change(insert(audit), [column.name for column in audit.c])
_MOVE_HEAD = Change(update(audit_head), ("seq", "hash"))


class Actor(Protocol):
    """Who did it: an Identity, or whoever else has a name and a kind."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


class _Local(NamedTuple):
    name: str
    kind: str = "person"


SERVER = Identity("skillery", "agent")
"""The server of its own accord. No token can have this name."""


def local_actor(user: str) -> Actor:
    """Whoever works on a home or a database with a command, as the user of that machine."""
    return _Local(f"home:{user}")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    """UTC with microseconds, `2026-11-22T09:30:00.000000Z`: the same text in both databases and in the hash."""
    identity: str | None
    """None where nobody knows who it was."""
    identity_kind: str | None
    address: str | None
    request_id: str | None
    action: str
    subject: str
    outcome: Outcome = "done"
    code: int | None = None
    error_type: str | None = None
    count: int = 1
    """How many attempts it stands for."""
    before_json: str | None = None
    after_json: str | None = None


FIELDS: tuple[str, ...] = Entry.__struct_fields__
"""In the order of the hash; `seq` and `previous` come before them."""


class Head(NamedTuple):
    """The last entry: with it noted elsewhere, all up to here can be shown to be unchanged."""

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
    """Note a change in the transaction of `connection` that makes it; one of `Database.write`.

    `action` is the method's name, `subject` what was changed (`name`, `name@version`, an id), `before` and `after` what
    of it changed. None of them ever holds a secret. May be called anywhere in a transaction: the entry is chained last,
    just before the commit, because from then on every other writer of the trail waits.
    """
    entry = entry_of(actor, action, subject, before_json=_json(before), after_json=_json(after))
    before_commit(partial(append, entries=[entry]))


def record_at_once(
    connection: Connection, actor: Actor, action: str, subject: str, *, after: Mapping[str, Any] | None = None
) -> None:
    """As `record`, in a transaction that is not one of `Database.write`, and whose last statement this is."""
    append(connection, [entry_of(actor, action, subject, after_json=_json(after))])


def entry_of(actor: Actor | None, action: str, subject: str, **more: Any) -> Entry:
    """An entry of now and of the request at hand."""
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
    """Chain entries to the last one. Until the transaction ends others wait at the head: two never follow on one."""
    found = _HEAD.rows(connection)
    if not found:
        raise Unavailable(
            "the head of the audit trail is gone, so nothing can be recorded, and nothing is changed unrecorded",
            hint="Its admin has to look into it: skillery audit verify.",
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
    """SHA-256 of a JSON array: seq, previous, and the fields of an Entry in their order; compact, in UTF-8."""
    text = json.dumps([seq, previous, *fields], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def head(connection: Connection) -> Head:
    """Raises Unavailable where it is gone."""
    found = connection.execute(select(audit_head.c.seq, audit_head.c.hash)).one_or_none()
    if found is None:
        raise Unavailable("the head of the audit trail is gone", hint="skillery audit verify says what is left.")
    return Head(found.seq, found.hash)


def _fitting(text: str) -> str:
    """As both databases take it, whatever somebody sent."""
    return text.replace("\0", "")[:LONGEST]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
