"""The record of a copy of all contents from one storage to another, in the database.

While the record exists, every server stores new contents in both storages (`skillery.contents.mirrors`). Servers do not
have to notice the record in time: an upload reads the record when it begins, and again in the transaction that records
the content (`check_copy`). If the record has changed in between, the upload fails. So no recorded content can be
missing in both the second storage and the list of contents that are still to copy.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Literal

import msgspec
from sqlalchemy import Connection, delete, insert

from skillery.backends import Storage
from skillery.backends.storage import NO_MARKS
from skillery.database import Database, take_turns
from skillery.database.backend_values import find_value, forget_value, keep_value
from skillery.database.tables import registry
from skillery.errors import StartupError, Unavailable

# -- Storage marks: the same random text in the storage and in the database shows that the two belong together ---------
# A server with another storage (a disk that is not mounted, a local folder for a shared database) must not start: it
# would fail as soon as a caller requests a content that is not there.


KEY_NAME = "storage mark"


def mark_storage(database: Database, storage: Storage, name: str) -> None:
    """Compare the mark in the database with the mark of the storage `name`. Blocking.

    If the database has no mark, it gets the mark of the storage, or both get a new one. A storage without support for
    marks is accepted. Raise StartupError if the marks differ: the storage belongs to another database.
    """
    if storage.find_mark() == NO_MARKS:
        return
    database_mark = database.read_now(find_mark)
    if database_mark is None:
        storage_mark = storage.mark(secrets.token_hex(16))
        if not storage_mark:
            raise StartupError(
                f"the mark of the storage '{name}' is empty: remove it, and the next start stores a new one"
            )
        database_mark = database.write_now(
            lambda connection: keep_value(connection, KEY_NAME, storage_mark.encode())
        ).decode()
    if storage.find_mark() != database_mark:
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
    """Delete the mark in the database: the next server that starts accepts the storage of its settings."""
    forget_value(connection, KEY_NAME)


KEY = "storage copy"
FORMER_MARKS = "former storage marks"


class StorageCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a copy. `source` and `target` are names of storages, as in the setting `storage`."""

    id: str
    source: str
    target: str
    target_mark: str | None
    """The mark of the target, which becomes the mark of the database at the end. None if the target has no marks."""
    started_at: datetime
    is_target_marked: bool = False
    """Whether the target has the mark. From then on, the copy has no other target."""
    state: Literal["copying", "copied"] = "copying"
    cursor: str = ""
    """All contents with a digest up to this one are in the target."""
    contents: int = 0
    """Contents that were copied or found in the target so far."""
    bytes: int = 0

    def other(self, name: str) -> str:
        """Return the name of the storage that is not `name`."""
        return self.source if name == self.target else self.target


def find_copy(connection: Connection) -> StorageCopy | None:
    value = find_value(connection, KEY)
    return msgspec.json.decode(value, type=StorageCopy) if value is not None else None


def check_storage(database: Database, storage: Storage, name: str) -> None:
    """Mark the storage `name` of a starting server, and check that it belongs to the database. Blocking.

    While a copy is under way, both storages belong to the database, but the target only when it is complete. Raise
    StartupError if the storage does not belong to the database.
    """
    copy = database.read_now(find_copy)
    if copy is None or name == copy.source:
        mark_storage(database, storage, name)
        return
    if name != copy.target:
        raise StartupError(
            f"setting 'storage' is '{name}', but the contents are being copied from '{copy.source}' to "
            f"'{copy.target}': name one of these, and see skillery storage status"
        )
    if copy.state == "copying":
        raise StartupError(
            f"the storage '{name}' is not complete yet: start with storage = \"{copy.source}\" until skillery storage "
            f"status shows 'copied'. If the copy was interrupted, skillery storage copy --to {name} continues it"
        )
    if storage.find_mark() not in {NO_MARKS, copy.target_mark}:
        raise StartupError(
            f"the storage '{name}' is not the target of the finished copy: check [backends.storage.{name}]"
        )


def find_copy_id(connection: Connection) -> str | None:
    copy = find_copy(connection)
    return copy.id if copy is not None else None


def check_copy(connection: Connection, copy_id: str | None) -> None:
    """Raise Unavailable unless `copy_id` is the id of the present copy (None: no copy is under way).

    Until the transaction ends, no copy can begin or end.
    """
    take_turns(connection, KEY, "", shared=True)
    if find_copy_id(connection) != copy_id:
        raise Unavailable(
            "a copy of the storage began or ended while this content was stored", hint="Nothing was stored. Try again."
        )


def begin_copy(connection: Connection, copy: StorageCopy) -> StorageCopy:
    """Store the record of the copy and return it, or return the record of a present copy. Uploads that began before the
    record fail from now on.
    """
    take_turns(connection, KEY, "")
    recorded = find_copy(connection)
    if recorded is None:
        _put(connection, KEY, msgspec.json.encode(copy))
    return recorded or copy


def save_copy(connection: Connection, copy: StorageCopy) -> bool:
    """Store the progress of the copy. Return False if the record no longer exists.

    The state `copied` of the record stays, even if `copy` has an earlier state: servers may use the target already.
    """
    take_turns(connection, KEY, "")
    recorded = find_copy(connection)
    if recorded is None or recorded.id != copy.id:
        return False
    if recorded.state == "copied":
        copy = msgspec.structs.replace(copy, state="copied")
    _put(connection, KEY, msgspec.json.encode(copy))
    return True


def end_copy(connection: Connection, copy: StorageCopy, keep: str) -> None:
    """Delete the record of the copy. From now on, the database uses the contents and the mark of the storage `keep`."""
    take_turns(connection, KEY, "")
    forget_value(connection, KEY)
    database_mark = find_mark(connection)
    if keep == copy.target:
        kept_mark, former_mark = copy.target_mark, database_mark
    else:
        kept_mark, former_mark = database_mark, copy.target_mark
    former = former_marks(connection)
    if former_mark is not None:
        former |= {former_mark}
    _put(connection, FORMER_MARKS, msgspec.json.encode(sorted(former - {kept_mark})))
    forget_mark(connection)
    if kept_mark is not None:
        _put(connection, KEY_NAME, kept_mark.encode())


def forget_copies(connection: Connection) -> None:
    """Delete the record of a copy and the marks of former storages, because the database gets another storage."""
    for key in (KEY, FORMER_MARKS):
        forget_value(connection, key)


def former_marks(connection: Connection) -> frozenset[str]:
    """Return the marks of storages that this database used before."""
    value = find_value(connection, FORMER_MARKS)
    return msgspec.json.decode(value, type=frozenset[str]) if value is not None else frozenset()


def is_marked(connection: Connection, storage: Storage) -> bool:
    """Return whether the storage has the mark of the database, or the mark of the target of the present copy.

    Return True if the database has no mark, or if the storage does not support marks.
    """
    database_mark, copy = find_mark(connection), find_copy(connection)
    return database_mark is None or storage.find_mark() in {
        NO_MARKS,
        database_mark,
        copy.target_mark if copy is not None else database_mark,
    }


def _put(connection: Connection, key: str, value: bytes) -> None:
    connection.execute(delete(registry).where(registry.c.key == key))
    connection.execute(insert(registry).values(key=key, value=value))
