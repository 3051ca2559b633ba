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

PAST, FUTURE = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(days=1)


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
        values.change_many({"key": b"2", "other": b"3"}, {"key": b"value"}, within=connection)
        raise RuntimeError("taken back")

    with pytest.raises(RuntimeError):
        database.write_now(work)
    assert values.keys() == []


def test_many_values_are_changed_and_read_together(values: Values, database: Database) -> None:
    """More keys than Postgres has locks for, and than one statement names."""
    keys = [f"many/{number}" for number in range(3000)]
    BackendValues(database, "authenticator.other").set("many/0", b"other")
    values.set("many/0", b"old")
    values.set("expired", b"x", PAST)

    assert values.change_many({key: key.encode() for key in keys}, {"many/0": b"old", "many/1": None, "expired": None})
    assert values.get_many([*keys, "absent"]) == {key: key.encode() for key in keys}
    assert values.change_many({**dict.fromkeys(keys[1:]), "absent": None, "new": b"n"})

    assert values.keys() == ["many/0", "new"]
    assert values.get_many([]) == {}
    assert values.change_many({}) is True
    values.change_many({"new": b"n", "newer": b"n"}, expires_at=PAST)
    assert values.keys() == ["many/0"]
    assert BackendValues(database, "authenticator.other").get("many/0") == b"other"


@pytest.mark.parametrize("expected", [{"a": b"2"}, {"a": None}, {"a": b"1", "b": b""}, {"expired": b"x"}])
def test_a_change_of_many_values_needs_all_expected_values(values: Values, expected: dict[str, bytes | None]) -> None:
    values.set("expired", b"x", PAST)
    values.set("a", b"1")

    assert values.change_many({"a": None, "b": b"new"}, expected) is False
    assert values.get_many(["a", "b"]) == {"a": b"1"}


@pytest.mark.postgres
def test_concurrent_changes_of_many_values_lose_no_update(values: Values) -> None:
    """Each thread adds 1 to both values, next to changes of single values."""

    def count(number: int) -> None:
        values.set(f"single/{number}", b"")
        is_counted = False
        while not is_counted:
            stored = values.get_many(["left", "right"])
            new = b"%d" % (int(stored.get("left", b"0")) + 1)
            expected = {"left": stored.get("left"), "right": stored.get("right")}
            is_counted = values.change_many({"right": new, "left": new, f"single/{number}": None}, expected)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(count, range(24)))

    assert values.get_many(values.keys()) == {"left": b"24", "right": b"24"}


@pytest.mark.postgres
def test_a_value_is_added_or_changed_with_others_and_never_both(values: Values) -> None:
    for number in range(20):
        key = f"key/{number}"
        with ThreadPoolExecutor(2) as threads:
            added = threads.submit(values.add, key, b"single")
            changed = threads.submit(values.change_many, {key: b"many", "other": b"x"}, {key: None})
        assert changed.result() is (added.result() == b"many")


@pytest.mark.postgres
def test_concurrent_adds_and_takes_have_a_single_winner(values: Values) -> None:
    with ThreadPoolExecutor(8) as threads:
        added = list(threads.map(lambda number: values.add("key", b"%d" % number), range(8)))
        taken = list(threads.map(lambda _: values.take("key"), range(8)))

    assert len(set(added)) == 1
    assert [one for one in taken if one is not None] == [added[0]]


@pytest.mark.parametrize("number", [0, MOST_KEY_CHARACTERS + 1])
def test_a_key_and_a_value_have_bounds(values: Values, number: int) -> None:
    changes: list[Callable[[str, bytes], object]] = [
        values.set,
        values.add,
        lambda key, value: values.change_many({"first": b"", key: value}),
    ]
    for change in changes:
        with pytest.raises(ValueError, match="characters"):
            change("k" * number, b"x")
        with pytest.raises(ValueError, match="bytes"):
            change("k", b"x" * (MOST_VALUE_BYTES + 1))
    assert values.keys() == []
