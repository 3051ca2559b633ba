"""Storage marks: a random text in the storage and in the database shows that the two belong together.

A server with another folder (a disk that is not mounted, a local folder next to a shared database) must not start: it
would serve until a caller asks for a content that this folder does not have.
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
    """Compare the marks, or make them if there are none. Raises StartupError if the database belongs to another
    storage.

    `name` is the name of the storage backend. A storage that takes no marks is accepted. Blocking.
    """
    if not isinstance(storage, KnowsRegistry):
        return
    known = database.read_now(find_mark)
    if known is None:
        made = storage.mark(secrets.token_hex(16)).encode()
        known = database.write_now(lambda connection: keep_value(connection, KEY_NAME, made)).decode()
    if storage.find_mark() != known:
        raise StartupError(
            f"the storage '{name}' is not the one that this database keeps its contents in: set the right one in "
            f"[backends.storage.{name}] (servers of one database share it). If it is lost, "
            "skillery db adopt-storage accepts this one, and skillery check lists what is missing"
        )


def is_marked(connection: Connection, storage: Storage) -> bool:
    """Return whether the storage has the mark that the database knows. Without a known mark, return True."""
    known = find_mark(connection)
    return known is None or not isinstance(storage, KnowsRegistry) or storage.find_mark() == known


def find_mark(connection: Connection) -> str | None:
    value = find_value(connection, KEY_NAME)
    return value.decode() if value else None


def forget_mark(connection: Connection) -> None:
    """Make the next start accept the storage that it finds."""
    forget_value(connection, KEY_NAME)
