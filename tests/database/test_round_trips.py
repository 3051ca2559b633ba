"""Round trips to Postgres: frequent calls need few, because each costs the time of the network."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, exc, insert, literal_column, make_url, select, text, update

from skillery.backends import Identity
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.database import Change, Database, Statement
from skillery.database.tables import registry as registry_values
from skillery.errors import Unavailable
from skillery.formats.bundle import Bundle, BundleFile
from skillery.formats.version_spec import Latest
from skillery.identity.quotas import UNLIMITED
from skillery.skills.descriptions import read_description
from skillery.skills.listings import read_skills
from skillery.versions.new_versions import insert_version, state_of
from tests.support.bundles import make_bundle
from tests.support.counting_proxy import CountingProxy

KEY_NAMES = ("first", "twice", "a", "b", "c", "d")
ANN = Identity("ann", "person", frozenset({"publish", "read"}))
CALLS = 60
"""Some calls take more: the first of a connection, and those for which the driver prepares a statement."""
ADD = Change(insert(registry_values), ("key", "value"))
KEYS = Statement(
    select(registry_values.c.key).where(registry_values.c.key.in_([literal_column(f"'{k}'") for k in KEY_NAMES]))
)


@pytest.fixture
def counted(migrated_postgres_database: Callable[[], str]) -> Iterator[tuple[Database, CountingProxy]]:
    """Yield a database behind a proxy that counts."""
    url = make_url(migrated_postgres_database())
    proxy = CountingProxy(Path(str(url.query["host"])))
    through = url.set(host="127.0.0.1", port=proxy.port, query={})
    database = Database(through.render_as_string(hide_password=False))
    yield database, proxy
    database.close()
    proxy.close()


async def test_a_connection_that_is_lost_during_a_transaction_is_unavailable(
    counted: tuple[Database, CountingProxy],
) -> None:
    database, _ = counted

    def end_itself(connection: Connection) -> None:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    def fails_later(connection: Connection) -> None:
        ADD.run_later(connection, key="first", value="1")
        end_itself(connection)

    for work in (end_itself, fails_later):
        with pytest.raises(Unavailable):
            await database.write(work)
    assert await database.write(lambda connection: ADD.run(connection, key="first", value="1")) == 1


async def test_listing_and_description_each_take_a_single_round_trip(
    counted: tuple[Database, CountingProxy], tmp_path: Path
) -> None:
    database, proxy = counted
    storage = DirectoryStorage(tmp_path)
    await database.write(partial(publish_in, bundle=bundle(0)))
    listing = partial(read_skills, identity=ANN, key=b"k" * 32, namespace="", detail="names", limit=50, cursor="")
    described = partial(
        read_description, identity=ANN, storage=storage, name="turns.skill0", spec=Latest(), detail="summary"
    )

    assert await round_trips(proxy, lambda _: database.read(listing)) == 1
    assert await round_trips(proxy, lambda _: database.read(described)) == 1


async def test_a_publication_takes_seven_round_trips(counted: tuple[Database, CountingProxy]) -> None:
    database, proxy = counted

    async def publish(number: int) -> None:
        made = bundle(number)
        taken, _ = await database.read(partial(state_of, bundle=made, identity=ANN))
        assert taken is None
        await database.write_together(partial(publish_in, bundle=made))

    assert await round_trips(proxy, publish) == 7


async def test_an_error_of_a_later_statement_rolls_back_the_transaction(database: Database) -> None:
    def fail(connection: Connection) -> None:
        ADD.run_later(connection, key="first", value=b"1")
        ADD.run_later(connection, key="twice", value=b"2")
        ADD.run_later(connection, key="twice", value=b"3")

    with pytest.raises((exc.IntegrityError, database.engine.dialect.loaded_dbapi.IntegrityError)):
        await database.write(fail)

    assert await stored(database) == set()


async def test_later_statements_are_sent_in_order_before_the_next_statement(database: Database) -> None:
    def work(connection: Connection) -> list[set[str]]:
        ADD.run_later(connection, key="a", value=b"1")
        first = keys(connection)
        ADD.run_many(connection, [{"key": "b", "value": b"2"}, {"key": "c", "value": b"3"}])
        connection.execute(update(registry_values).where(registry_values.c.key == "c").values(key="d"))
        return [first, keys(connection)]

    assert await database.write(work) == [{"a"}, {"a", "b", "d"}]
    assert await stored(database) == {"a", "b", "d"}


async def test_reads_continue_when_the_database_has_closed_their_connections(
    migrated_postgres_database: Callable[[], str],
) -> None:
    url = migrated_postgres_database()
    database = Database(url)
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid != %s"
    try:
        await asyncio.gather(*(stored(database) for _ in range(20)))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(others, [connection.info.backend_pid])

        assert await asyncio.gather(*(stored(database) for _ in range(20))) == [set()] * 20
    finally:
        database.close()


async def stored(database: Database) -> set[str]:
    return await database.read(keys)


def keys(connection: Connection) -> set[str]:
    return {row[0] for row in KEYS.rows(connection)}


async def round_trips(proxy: CountingProxy, call: Callable[[int], Awaitable[object]]) -> int:
    """Return the round trips that most of many calls take."""
    turns = []
    for number in range(CALLS):
        before = proxy.turns
        await call(number + 10)
        turns.append(proxy.turns - before)
    return statistics.mode(turns)


def bundle(number: int) -> Bundle:
    manifest = {"name": f"turns.skill{number}", "version": "1.0.0", "description": "Counts.", "kind": "instruction"}
    return make_bundle(manifest, f"# Skill {number}\n", [BundleFile("note.md", b"A note.")])


def publish_in(connection: Connection, bundle: Bundle) -> None:
    inline = {file.sha256: file.content for file in bundle.files}
    insert_version(connection, bundle, ANN, inline, quotas=UNLIMITED)
