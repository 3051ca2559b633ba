"""Stored values of backends, on both databases: values are separate, expire, and one of several concurrent writers
wins.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from skillery.backends import Values
from skillery.database import Database
from skillery.database.backend_values import MOST_KEY_CHARACTERS, MOST_VALUE_BYTES, BackendValues
from skillery.database.tables import backend_values

PAST, FUTURE = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def values(database: Database) -> Values:
    return BackendValues(database, "authenticator.mine")


def test_a_value_is_set_read_listed_and_taken(values: Values, database: Database) -> None:
    assert values.set("b/1", b"one") is False
    assert values.set("b/1", b"two") is True
    values.set("B/2", b"x", FUTURE)
    values.set("a%", b"y")

    assert values.get("b/1") == b"two"
    assert values.keys() == ["B/2", "a%", "b/1"]
    assert values.keys("b/") == ["b/1"]
    assert values.keys("%") == []
    assert BackendValues(database, "authenticator.other").keys() == []
    assert values.take("b/1") == b"two"
    assert values.take("b/1") is None
    assert values.get("b/1") is None


def test_an_expired_value_does_not_exist_and_the_next_change_removes_it(values: Values, database: Database) -> None:
    values.set("old", b"x", PAST)

    assert (values.get("old"), values.keys(), values.take("old")) == (None, [], None)
    values.set("old", b"x", PAST)
    assert values.add("old", b"new") == b"new"
    values.set("older", b"x", PAST)
    values.set("other", b"x")
    rows = database.read_now(lambda connection: connection.scalar(select(func.count()).select_from(backend_values)))
    assert rows == 2


def test_a_value_set_within_a_failed_transaction_is_rolled_back(values: Values, database: Database) -> None:
    def work(connection: object) -> None:
        values.set("key", b"value", within=connection)
        raise RuntimeError("taken back")

    with pytest.raises(RuntimeError):
        database.write_now(work)
    assert values.get("key") is None


@pytest.mark.postgres
def test_concurrent_adds_and_takes_have_a_single_winner(values: Values) -> None:
    with ThreadPoolExecutor(8) as threads:
        added = list(threads.map(lambda number: values.add("key", b"%d" % number), range(8)))
        taken = list(threads.map(lambda _: values.take("key"), range(8)))

    assert len(set(added)) == 1
    assert [one for one in taken if one is not None] == [added[0]]


@pytest.mark.parametrize("number", [0, MOST_KEY_CHARACTERS + 1])
def test_a_key_and_a_value_have_bounds(values: Values, number: int) -> None:
    changes: list[Callable[[str, bytes], object]] = [values.set, values.add]
    for change in changes:
        with pytest.raises(ValueError, match="characters"):
            change("k" * number, b"x")
        with pytest.raises(ValueError, match="bytes"):
            change("k", b"x" * (MOST_VALUE_BYTES + 1))
