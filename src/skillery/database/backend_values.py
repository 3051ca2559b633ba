"""The values that one backend keeps in the registry's database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import TypeVar, cast

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, insert, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Transaction
from skillery.database.engine import Database, take_turns
from skillery.database.tables import backend_values, registry

T = TypeVar("T")
MOST_KEY_CHARACTERS = 255
MOST_VALUE_BYTES = 1024 * 1024
_KEYS_OF_A_STATEMENT = 500


class BackendValues:
    """Implements `skillery.backends.Values` for one backend. Values of other backends are not visible."""

    def __init__(self, database: Database, backend: str) -> None:
        """`backend` is `<kind>.<name>`, for example `secrets.database`."""
        self._database = database
        self._backend = backend

    def get(self, key: str) -> bytes | None:
        return self._database.read_now(lambda connection: self._find(connection, key))

    def get_many(self, keys: Collection[str]) -> dict[str, bytes]:
        return self._database.read_now(lambda connection: self._find_many(connection, keys))

    def keys(self, prefix: str = "") -> list[str]:
        # Not LIKE: on SQLite it ignores case. The range uses the primary key, so other keys cost nothing.
        key = backend_values.c.key
        begins = [key >= prefix, key < prefix[:-1] + _next(prefix[-1])] if prefix else []
        live_keys = select(key).where(self._is_live(), *begins)
        return self._database.read_now(
            lambda connection: list(connection.scalars(live_keys.order_by(backend_values.c.key)))
        )

    def set(
        self, key: str, value: bytes, expires_at: datetime | None = None, within: Transaction | None = None
    ) -> bool:
        _check(key, value)

        def work(connection: Connection) -> bool:
            is_replaced = self._lock_and_find(connection, key) is not None
            self._write(connection, {key: value}, expires_at)
            return is_replaced

        return self._change(work, within)

    def add(self, key: str, value: bytes, expires_at: datetime | None = None) -> bytes:
        _check(key, value)

        def work(connection: Connection) -> bytes:
            stored = self._lock_and_find(connection, key)
            if stored is None:
                self._write(connection, {key: value}, expires_at)
            return value if stored is None else stored

        return self._change(work)

    def take(self, key: str, within: Transaction | None = None) -> bytes | None:
        def work(connection: Connection) -> bytes | None:
            stored = self._lock_and_find(connection, key)
            connection.execute(delete(backend_values).where(self._is(key)))
            return stored

        return self._change(work, within)

    def change_many(
        self,
        changes: Mapping[str, bytes | None],
        expected: Mapping[str, bytes | None] = {},
        expires_at: datetime | None = None,
        within: Transaction | None = None,
    ) -> bool:
        for key, value in changes.items():
            _check(key, value or b"")

        def work(connection: Connection) -> bool:
            # One lock instead of a lock for each key: Postgres has room for some thousand locks.
            take_turns(connection, "backend values", self._backend)
            stored = self._find_many(connection, expected)
            if any(stored.get(key) != value for key, value in expected.items()):
                return False
            self._write(connection, changes, expires_at)
            return True

        return self._change(work, within)

    def _change(self, work: Callable[[Connection], T], within: Transaction | None = None) -> T:
        """Run `work` in the transaction `within`, or in its own transaction if `within` is None."""
        return self._database.write_now(work) if within is None else work(cast(Connection, within))

    def _lock_and_find(self, connection: Connection, key: str) -> bytes | None:
        take_turns(connection, "backend values", self._backend, shared=True)
        take_turns(connection, "backend value", f"{self._backend} {key}")
        return self._find(connection, key)

    def _find(self, connection: Connection, key: str) -> bytes | None:
        value = connection.scalar(select(backend_values.c.value).where(self._is(key), self._is_live()))
        return None if value is None else bytes(value)

    def _find_many(self, connection: Connection, keys: Collection[str]) -> dict[str, bytes]:
        names, stored = list(keys), dict[str, bytes]()
        columns = select(backend_values.c.key, backend_values.c.value).where(self._is_live())
        for start in range(0, len(names), _KEYS_OF_A_STATEMENT):
            is_named = backend_values.c.key.in_(names[start : start + _KEYS_OF_A_STATEMENT])
            stored |= {key: bytes(value) for key, value in connection.execute(columns.where(is_named))}
        return stored

    def _write(self, connection: Connection, changes: Mapping[str, bytes | None], expires_at: datetime | None) -> None:
        """Store the values, remove those that are None, and delete all expired values of the backend."""
        if not changes:
            return
        now = datetime.now(UTC)
        expired = and_(backend_values.c.backend == self._backend, backend_values.c.expires_at <= now)
        rows = [
            {"backend": self._backend, "key": key, "value": value, "changed_at": now, "expires_at": expires_at}
            for key, value in changes.items()
            if value is not None
        ]
        if len(changes) == 1:
            connection.execute(delete(backend_values).where(or_(self._is(*changes), expired)))
        else:
            connection.execute(delete(backend_values).where(expired))
            connection.execute(_REMOVE, [{"of": self._backend, "name": key} for key in changes])
        if rows:
            connection.execute(insert(backend_values), rows)

    def _is(self, key: str) -> ColumnElement[bool]:
        """Return the SQL condition that a row has the key and belongs to the backend."""
        return and_(backend_values.c.backend == self._backend, backend_values.c.key == key)

    def _is_live(self) -> ColumnElement[bool]:
        """Return the SQL condition that a row belongs to the backend and has not expired."""
        until = backend_values.c.expires_at
        return and_(backend_values.c.backend == self._backend, or_(until.is_(None), until > datetime.now(UTC)))


_REMOVE = delete(backend_values).where(
    backend_values.c.backend == bindparam("of"), backend_values.c.key == bindparam("name")
)


def _next(character: str) -> str:
    """Return the next character in the order of UTF-8 bytes. Surrogates are no characters."""
    return chr(0xE000 if character == "\ud7ff" else ord(character) + 1)


def _check(key: str, value: bytes) -> None:
    """Raise ValueError if the key has no or too many characters, or the value has too many bytes."""
    if not 0 < len(key) <= MOST_KEY_CHARACTERS:
        raise ValueError(
            f"the key of a backend's value has {len(key)} characters; 1 to {MOST_KEY_CHARACTERS} are allowed"
        )
    if len(value) > MOST_VALUE_BYTES:
        raise ValueError(f"the value of {key!r} has {len(value)} bytes, more than {MOST_VALUE_BYTES}")


# -- Values that exist once in a registry. The first server that needs a value creates it ------------------------------


_ADD = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(registry)
    .values(key=bindparam("name"), value=bindparam("made"))
    .on_conflict_do_nothing(index_elements=["key"])
    for dialect in (sqlite, postgresql)
}


def find_value(connection: Connection, name: str) -> bytes | None:
    value = connection.scalar(select(registry.c.value).where(registry.c.key == name))
    return None if value is None else bytes(value)


def keep_value(connection: Connection, name: str, new_value: bytes) -> bytes:
    """Store `new_value` if the name has no value. Return the value that the name has afterwards: the same for every
    server.
    """
    connection.execute(_ADD[connection.dialect.name], {"name": name, "made": new_value})
    value = find_value(connection, name)
    assert value is not None, "a value of the registry is never taken away while it is made"
    return value


def forget_value(connection: Connection, name: str) -> None:
    connection.execute(delete(registry).where(registry.c.key == name))
