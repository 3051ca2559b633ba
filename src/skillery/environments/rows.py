"""Database rows of installed environments. Each server installs its own files, and all servers see all states."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database.tables import environments, named_locks, skill_files
from skillery.formats.requirements import LOCK

State = Literal["building", "ready", "failed"]


def note_state(
    connection: Connection,
    sha256: str,
    server: str,
    state: State,
    now: datetime,
    message: str = "",
    size: int = 0,
    progress: tuple[str, int, int] = ("", 0, 0),
) -> None:
    """Record the state of a lock on a server. `progress` is the step, the finished packages and the total."""
    key = {"lock_sha256": sha256, "server": server}
    step, done, total = progress
    new = {"state": state, "message": message, "size_bytes": size, "changed_at": now}
    new |= {"step": step, "done": done, "total": total}
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    add = dialect.insert(environments).values(**key, **new)
    connection.execute(add.on_conflict_do_update(index_elements=list(key), set_=new))


def forget_state(connection: Connection, sha256: str, server: str) -> None:
    connection.execute(
        delete(environments).where(environments.c.lock_sha256 == sha256, environments.c.server == server)
    )


def forget_unfinished(connection: Connection, server: str) -> None:
    """Delete the states of builds that a killed server did not finish."""
    unfinished = environments.c.state == "building"
    connection.execute(delete(environments).where(environments.c.server == server, unfinished))


def needed_of(connection: Connection, digests: list[str]) -> set[str]:
    """Return the digests that are locks of a version or of a named environment."""
    found = select(skill_files.c.sha256).where(skill_files.c.sha256.in_(digests), skill_files.c.path == LOCK)
    of_named = select(named_locks.c.sha256).where(named_locks.c.sha256.in_(digests))
    return {*connection.scalars(found), *connection.scalars(of_named)}
