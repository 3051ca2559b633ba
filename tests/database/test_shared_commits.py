"""Writes that share a transaction: each is stored completely or not at all, and the audit trail is chained as usual."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from skillery import audit
from skillery.backends import Identity
from skillery.database import Database, migrate
from skillery.database.tables import registry
from skillery.errors import Conflict, Unavailable

ANN = Identity("ann", "person", frozenset({"publish"}))


def put(connection: Connection, key: str, then: BaseException | None = None) -> str:
    connection.execute(insert(registry).values(key=key, value=b"x"))
    audit.record(connection, ANN, "put", key)
    if then is not None:
        raise then
    return key


def keys(connection: Connection) -> set[str]:
    return set(connection.scalars(select(registry.c.key)))


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """Yield an SQLite database, where writes share transactions."""
    database = Database(f"sqlite:///{tmp_path / 'y.db'}")
    migrate.upgrade(database)
    yield database
    database.close()


async def together(database: Database, *works: Any) -> list[Any]:
    """Submit all writes while the writer is busy, so that they share one transaction. Return their results."""
    free = threading.Event()
    held = asyncio.ensure_future(database.write(lambda _: free.wait(300)))
    await asyncio.sleep(0.05)
    waiting = [asyncio.ensure_future(database.write_together(work)) for work in works]
    await asyncio.sleep(0.05)
    free.set()
    await held
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_an_exception_rolls_back_only_its_write(database: Database) -> None:
    works = [partial(put, key=f"k{number}", then=Conflict("no") if number % 3 == 1 else None) for number in range(20)]

    answers = await together(database, *works)
    assert [number for number, answer in enumerate(answers) if isinstance(answer, Conflict)] == [
        1,
        4,
        7,
        10,
        13,
        16,
        19,
    ]
    good = {answer for answer in answers if isinstance(answer, str)}
    assert await database.read(keys) >= good
    assert len(await database.read(keys) & {f"k{number}" for number in range(20)}) == len(good) == 13
    assert audit.verify(database).fault is None


async def test_errors_of_the_database_are_reported_as_usual(sqlite: Database) -> None:
    answers = await together(sqlite, partial(put, key="a"), partial(put, key="b"), _of_no_table)

    assert answers[:2] == ["a", "b"]
    assert isinstance(answers[2], Unavailable)


async def test_where_all_of_it_is_lost_each_is_done_alone(sqlite: Database) -> None:
    def rolls_back(connection: Connection) -> str:
        connection.exec_driver_sql("ROLLBACK")
        raise Conflict("after that")

    answers = await together(sqlite, partial(put, key="a"), rolls_back, partial(put, key="b"))
    assert answers[0] == "a"
    assert isinstance(answers[1], Exception)
    assert answers[2] == "b"
    assert await sqlite.read(keys) >= {"a", "b"}


async def test_a_write_cancelled_before_its_turn_changes_nothing(sqlite: Database) -> None:
    free = threading.Event()
    held = asyncio.ensure_future(sqlite.write(lambda _: free.wait(300)))
    await asyncio.sleep(0.05)
    gone, stays = (asyncio.ensure_future(sqlite.write_together(partial(put, key=key))) for key in ("gone", "stays"))
    await asyncio.sleep(0.05)
    gone.cancel()
    await asyncio.sleep(0)
    free.set()
    await held
    assert await stays == "stays"
    assert await sqlite.read(keys) & {"gone", "stays"} == {"stays"}


def _of_no_table(connection: Connection) -> None:
    try:
        connection.exec_driver_sql("SELECT nothing FROM nowhere")
    except sqlite3.Error:
        raise AssertionError("the error of the driver is not wrapped by SQLAlchemy") from None
