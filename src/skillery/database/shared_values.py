"""Values that exist once in a registry. The first server that needs a value creates it."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.database.tables import registry

_ADD = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(registry)
    .values(key=bindparam("name"), value=bindparam("made"))
    .on_conflict_do_nothing(index_elements=["key"])
    for dialect in (sqlite, postgresql)
}


def find_value(connection: Connection, name: str) -> bytes | None:
    value = connection.scalar(select(registry.c.value).where(registry.c.key == name))
    return None if value is None else bytes(value)


def keep_value(connection: Connection, name: str, made: bytes) -> bytes:
    """Store `made` if the name has no value. Return the value of the name, which is the same for every server."""
    connection.execute(_ADD[connection.dialect.name], {"name": name, "made": made})
    found = find_value(connection, name)
    assert found is not None, "a value of the registry is never taken away while it is made"
    return found


def forget_value(connection: Connection, name: str) -> None:
    connection.execute(delete(registry).where(registry.c.key == name))
