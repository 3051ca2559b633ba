"""Whether a storage is the one of this database: a mark in it, made by the first server, which the database knows too.

Without that, a server with another folder (an unmounted disk, one of its own beside a shared database) would serve
happily until somebody asks for what it has not.
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
    """Blocking. Raises StartupError where the database keeps its contents in another storage than this one, called
    `name`. A storage that takes no marks is believed."""
    if not isinstance(storage, KnowsRegistry):
        return
    known = database.read_now(find_mark)
    if known is None:
        made = storage.mark(secrets.token_hex(16)).encode()
        known = database.write_now(lambda connection: keep_value(connection, KEY_NAME, made)).decode()
    if storage.find_mark() != known:
        raise StartupError(
            f"the storage '{name}' is not the one that this database keeps its contents in: name that one in "
            f"[backends.storage.{name}], for servers of one database share it; where it is lost, "
            "skillery db adopt-storage takes this one, and skillery check says what is missing"
        )


def is_marked(connection: Connection, storage: Storage) -> bool:
    """False where it is another database's, or nobody's though this one knows a storage of its own."""
    known = find_mark(connection)
    return known is None or not isinstance(storage, KnowsRegistry) or storage.find_mark() == known


def find_mark(connection: Connection) -> str | None:
    value = find_value(connection, KEY_NAME)
    return value.decode() if value else None


def forget_mark(connection: Connection) -> None:
    """The next start takes the storage that it finds."""
    forget_value(connection, KEY_NAME)
