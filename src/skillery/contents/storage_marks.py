"""Storage marks: the same random text in the storage and in the database shows that the two belong together.

A server with another storage (a disk that is not mounted, a local folder for a shared database) must not start: it
would fail as soon as a caller requests a content that is not there.
"""

from __future__ import annotations

import secrets

from sqlalchemy import Connection

from skillery.backends import KnowsRegistry, Storage
from skillery.database import Database
from skillery.database.shared_values import find_value, forget_value, keep_value
from skillery.errors import StartupError

KEY_NAME = "storage mark"


def mark_storage(database: Database, storage: Storage, name: str) -> None:
    """Compare the marks of database and storage. If the database has no mark, it gets the mark of the storage, or both
    get a new one. Blocking.

    `name` is the name of the storage backend. A storage that does not support marks is accepted. Raise StartupError if
    the marks differ: the database belongs to another storage.
    """
    if not isinstance(storage, KnowsRegistry):
        return
    known = database.read_now(find_mark)
    if known is None:
        made = storage.mark(secrets.token_hex(16)).encode()
        known = database.write_now(lambda connection: keep_value(connection, KEY_NAME, made)).decode()
    if storage.find_mark() != known:
        raise StartupError(
            f"the storage '{name}' does not have the contents of this database: set the right storage in "
            f"[backends.storage.{name}] (servers of one database share it). If you want to move the contents to "
            f"'{name}', set the previous storage in the settings and run skillery storage copy --to {name}. "
            "If the previous storage is lost, skillery db adopt-storage accepts this one, and skillery check lists "
            "what is missing"
        )


def find_mark(connection: Connection) -> str | None:
    value = find_value(connection, KEY_NAME)
    return value.decode() if value else None


def forget_mark(connection: Connection) -> None:
    """Delete the mark in the database: the next server that starts accepts its configured storage."""
    forget_value(connection, KEY_NAME)
