"""Database rows of locks: of recent locks, which equal dependencies use again, and of the locks of versions."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Storage
from skillery.contents.store import open_content
from skillery.database import Statement
from skillery.database.tables import locks, skill_files, skill_versions, skills
from skillery.formats.requirements import LOCK
from skillery.formats.semver import Version

_LOCK_OF_VERSION = Statement(
    select(skill_versions.c.digest, skill_files.c.sha256)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .outerjoin(skill_files, (skill_files.c.version_id == skill_versions.c.id) & (skill_files.c.path == LOCK))
    .where(skills.c.name == bindparam("name"), skill_versions.c.precedence == bindparam("precedence"))
)


def find_lock(connection: Connection, key: str, made_after: datetime) -> bytes | None:
    found = select(locks.c.content).where(locks.c.key == key, locks.c.made_at > made_after)
    content: str | None = connection.scalar(found)
    return None if content is None else content.encode()


def keep_lock(connection: Connection, key: str, content: bytes, now: datetime) -> None:
    """Store a lock under its key. If several callers store the same key at the same time, the last lock stays."""
    new = {"content": content.decode(), "made_at": now}
    add = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(locks).values(key=key, **new)
    connection.execute(add.on_conflict_do_update(index_elements=["key"], set_=new))


def count_old_locks(connection: Connection, made_before: datetime) -> int:
    return connection.scalar(select(func.count()).select_from(locks).where(locks.c.made_at <= made_before)) or 0


def forget_locks(connection: Connection, made_before: datetime) -> int:
    return connection.execute(delete(locks).where(locks.c.made_at <= made_before)).rowcount


def lock_of_version(connection: Connection, storage: Storage, name: str, version: Version) -> tuple[str, bytes | None]:
    """Return the digest of a version and its lock, without checking who may see the version. Blocking.

    The digest is "" if the version does not exist. The lock is None if the version has no lock.
    """
    rows = _LOCK_OF_VERSION.rows(connection, name=name, precedence=version.precedence)
    if not rows:
        return "", None
    [(digest, sha256)] = rows
    if sha256 is None:
        return digest, None
    with open_content(connection, storage, sha256) as stream:
        return digest, stream.read()
