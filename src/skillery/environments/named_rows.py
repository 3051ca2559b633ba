"""Database rows of named environments and their rebuilds. All servers of a database share them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Select, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database import in_utc
from skillery.database.tables import environment_rebuilds, named_locks

MOST_KEPT = 10
"""The maximum number of locks of one name. Servers with another Python version, and earlier settings, have separate
locks.
"""
_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}
LONGEST_REBUILD = timedelta(hours=3)
"""Duration after which an unfinished rebuild counts as lost."""


class NamedLock(NamedTuple):
    content: bytes
    sha256: str
    made_at: datetime | None


_LOCK: Select[tuple[str, str, datetime]] = select(named_locks.c.content, named_locks.c.sha256, named_locks.c.made_at)


def find_named_lock(connection: Connection, name: str, key: str) -> NamedLock | None:
    found = _LOCK.where(named_locks.c.name == name, named_locks.c.key == key)
    row = connection.execute(found).one_or_none()
    return None if row is None else NamedLock(row.content.encode(), row.sha256, in_utc(row.made_at))


def add_named_lock(connection: Connection, name: str, key: str, content: bytes, sha256: str, now: datetime) -> None:
    """Store a lock. If several servers store a lock at the same time, the first lock stays."""
    add = _DIALECTS[connection.dialect.name].insert(named_locks)
    new = add.values(name=name, key=key, content=content.decode(), sha256=sha256, made_at=now)
    connection.execute(new.on_conflict_do_nothing())
    _forget_oldest(connection, name)


def replace_named_lock(connection: Connection, name: str, key: str, content: bytes, sha256: str, now: datetime) -> None:
    values = {"content": content.decode(), "sha256": sha256, "made_at": now}
    add = _DIALECTS[connection.dialect.name].insert(named_locks).values(name=name, key=key, **values)
    connection.execute(add.on_conflict_do_update(index_elements=["name", "key"], set_=values))


def names_of_lock(connection: Connection, sha256s: Iterable[str]) -> dict[str, str]:
    """Return the names of named environments by the SHA-256 of their locks. Other hashes are omitted."""
    found = select(named_locks.c.sha256, named_locks.c.name).where(named_locks.c.sha256.in_(list(sha256s)))
    return {row.sha256: row.name for row in connection.execute(found)}


def content_of_lock(connection: Connection, sha256: str) -> bytes | None:
    found = select(named_locks.c.content).where(named_locks.c.sha256 == sha256).limit(1)
    content: str | None = connection.scalar(found)
    return None if content is None else content.encode()


def _forget_oldest(connection: Connection, name: str) -> None:
    of_name = select(named_locks.c.key).where(named_locks.c.name == name)
    keys = connection.scalars(of_name.order_by(named_locks.c.made_at.desc()).offset(MOST_KEPT).limit(MOST_KEPT)).all()
    if keys:
        connection.execute(delete(named_locks).where(named_locks.c.name == name, named_locks.c.key.in_(keys)))


# -- rebuilds -----------------------------------------------------------------------------------------------------


class Rebuild(NamedTuple):
    state: Literal["running", "done", "failed"]
    message: str
    by: str
    began_at: datetime | None
    ended_at: datetime | None


def begin_rebuild(connection: Connection, subject: str, server: str, identity: str, now: datetime) -> bool:
    """Record the start of a rebuild. Return False if a rebuild of the subject is running."""
    values: dict[str, Any] = {"state": "running", "message": "", "server": server, "identity": identity}
    values |= {"began_at": now, "ended_at": None}
    add = _DIALECTS[connection.dialect.name].insert(environment_rebuilds).values(subject=subject, **values)
    is_over = or_(environment_rebuilds.c.state != "running", environment_rebuilds.c.began_at < now - LONGEST_REBUILD)
    begun = add.on_conflict_do_update(index_elements=["subject"], set_=values, where=is_over)
    return connection.scalar(begun.returning(environment_rebuilds.c.subject)) is not None


def end_rebuild(connection: Connection, subject: str, message: str, now: datetime) -> None:
    """Record the end of a rebuild. `message` is the reason of its failure; "" if it succeeded."""
    ended = update(environment_rebuilds).where(environment_rebuilds.c.subject == subject)
    connection.execute(ended.values(state="failed" if message else "done", message=message, ended_at=now))


def end_left_over(connection: Connection, server: str, now: datetime) -> None:
    """Record that the unfinished rebuilds of a stopped server have failed."""
    own = (environment_rebuilds.c.server == server) & (environment_rebuilds.c.state == "running")
    values = {"state": "failed", "message": "the server was stopped during the rebuild", "ended_at": now}
    connection.execute(update(environment_rebuilds).where(own).values(**values))


def find_rebuilds(connection: Connection, subjects: Iterable[str]) -> dict[str, Rebuild]:
    table = environment_rebuilds
    found = select(table).where(table.c.subject.in_(list(subjects)))
    return {
        row.subject: Rebuild(row.state, row.message, row.identity, in_utc(row.began_at), in_utc(row.ended_at))
        for row in connection.execute(found)
    }
