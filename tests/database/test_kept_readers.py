"""Reads of Postgres on the event loop: they wait for their turn and for answers, and other work goes on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import psycopg
import pytest
import uvloop
from sqlalchemy import Connection, text

from skillery.database import Database
from skillery.database.kept_readers import READERS
from skillery.errors import Unavailable
from tests.support.processes import eventually_async

Run = Callable[[Coroutine[Any, Any, Any]], Any]
OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
current: ContextVar[str] = ContextVar("current", default="none")


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a coroutine in a new event loop."""
    run: Run = request.param
    return run


@pytest.fixture
def database(new_postgres_database: Callable[[], str]) -> Iterator[Database]:
    database = Database(new_postgres_database())
    yield database
    database.close()


@pytest.fixture
def gate(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection that holds the lock for which `behind_gate` waits."""
    with psycopg.connect(
        database.url.set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True
    ) as connection:
        connection.execute("SELECT pg_advisory_lock(7)")
        yield connection


def open_gate(gate: psycopg.Connection[Any]) -> None:
    gate.execute("SELECT pg_advisory_unlock(7)")


def behind_gate(connection: Connection) -> str:
    connection.execute(text("SELECT pg_advisory_lock_shared(7), pg_advisory_unlock_shared(7)"))
    return "through"


def number(connection: Connection, wanted: int) -> int:
    return int(connection.scalar(text("SELECT CAST(:wanted AS bigint)"), {"wanted": wanted}) or 0)


def backend(connection: Connection) -> int:
    return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)


def test_a_read_that_waits_lets_other_reads_go_on(run: Run, database: Database, gate: psycopg.Connection[Any]) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(database.read(behind_gate))
        await asyncio.sleep(0)
        assert [await database.read(partial(number, wanted=one)) for one in range(5)] == list(range(5))
        assert not waiting.done()
        open_gate(gate)
        assert await waiting == "through"

    run(main())
    assert database.connections()[0] == 0


def test_more_reads_than_connections_wait_for_their_turn(
    run: Run, database: Database, gate: psycopg.Connection[Any]
) -> None:
    async def main() -> None:
        waiting = [asyncio.ensure_future(database.read(behind_gate)) for _ in range(READERS)]
        later = [asyncio.ensure_future(database.read(partial(number, wanted=one))) for one in range(20)]
        await asyncio.sleep(0)
        cancelled = later.pop()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await until_waiting(gate, READERS)
        await eventually_async(lambda: database.connections()[0] >= READERS)
        assert not any(one.done() for one in later)
        open_gate(gate)
        assert await asyncio.gather(*waiting, *later) == ["through"] * READERS + list(range(19))
        assert len({await database.read(backend) for _ in range(20)}) <= READERS

    run(main())
    assert database.connections() == (0, READERS)


def waiting_backends(gate: psycopg.Connection[Any]) -> int:
    """Return the number of connections to this database that wait for a lock."""
    found = gate.execute(f"SELECT count(*) {OTHERS} AND wait_event_type = 'Lock'").fetchone()
    assert found is not None
    return int(found[0])


async def until_waiting(gate: psycopg.Connection[Any], count: int) -> None:
    await eventually_async(lambda: waiting_backends(gate) >= count)


def test_a_cancelled_read_returns_its_connection(run: Run, database: Database, gate: psycopg.Connection[Any]) -> None:
    async def main() -> None:
        waiting = [asyncio.ensure_future(database.read(behind_gate)) for _ in range(READERS)]
        await until_waiting(gate, READERS)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        later = asyncio.ensure_future(database.read(partial(number, wanted=3)))
        await asyncio.sleep(0)
        open_gate(gate)
        assert await later == 3
        assert await asyncio.gather(*(database.read(partial(number, wanted=one)) for one in range(30))) == [*range(30)]
        # The queries of the cancelled reads end when their answers arrive, which may be later than these reads.
        await eventually_async(lambda: database.connections()[0] == 0)

    run(main())
    assert database.connections()[0] == 0


def test_each_event_loop_uses_the_same_connections(run: Run, database: Database) -> None:
    first = run(database.read(backend))
    assert run(database.read(backend)) == first


def test_an_event_loop_that_ends_during_a_read_leaves_the_others_working(
    run: Run, database: Database, gate: psycopg.Connection[Any]
) -> None:
    async def leave() -> None:
        waiting = asyncio.ensure_future(database.read(behind_gate))
        await until_waiting(gate, 1)
        waiting.cancel()

    run(leave())
    gc.collect()
    assert run(database.read(partial(number, wanted=5))) == 5


def test_a_read_sees_its_callers_context_and_changes_only_a_copy(run: Run, database: Database) -> None:
    def work(connection: Connection) -> str:
        before = current.get()
        current.set("inside")
        number(connection, 1)
        return f"{before} {current.get()}"

    async def main() -> None:
        current.set("caller")
        assert await database.read(work) == "caller inside"
        assert current.get() == "caller"

    run(main())


def test_errors_reach_the_caller_and_the_connection_stays(run: Run, database: Database) -> None:
    def wrong(connection: Connection) -> None:
        number(connection, 1)
        connection.execute(text("SELECT 1 / 0"))

    def broken(connection: Connection) -> None:
        raise KeyError(number(connection, 4))

    async def main() -> None:
        first = await database.read(backend)
        with pytest.raises(Exception, match="division by zero"):
            await database.read(wrong)
        with pytest.raises(KeyError):
            await database.read(broken)
        assert await database.read(backend) == first

    run(main())


def test_closed_connections_are_replaced_and_no_caller_notices(
    run: Run, database: Database, gate: psycopg.Connection[Any]
) -> None:
    async def main() -> None:
        open_gate(gate)
        before = set(await asyncio.gather(*(database.read(backend) for _ in range(READERS))))
        gate.execute(f"SELECT pg_terminate_backend(pid) {OTHERS}")
        after = await asyncio.gather(*(database.read(backend) for _ in range(READERS)))
        assert not before & set(after)

    run(main())


def test_a_connection_that_is_closed_twice_is_an_error_for_the_caller(run: Run, database: Database) -> None:
    def suicide(connection: Connection) -> None:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    async def main() -> None:
        with pytest.raises(Unavailable):
            await database.read(suicide)
        assert await database.read(partial(number, wanted=6)) == 6

    run(main())
    assert database.connections()[0] == 0


def test_closing_ends_the_reads_that_still_wait(run: Run, database: Database, gate: psycopg.Connection[Any]) -> None:
    def without_sqlalchemy(connection: Connection) -> None:
        raw: Any = connection.connection.driver_connection
        raw.execute("SELECT pg_advisory_lock_shared(7)")

    async def main() -> None:
        waiting = [asyncio.ensure_future(database.read(work)) for work in (behind_gate, without_sqlalchemy)]
        await until_waiting(gate, 2)
        database.close()
        await asyncio.wait(waiting)
        assert all(one.cancelled() for one in waiting)

    run(main())
    assert database.connections()[1] == 0


def test_a_large_parameter_is_sent_in_parts(run: Run, database: Database) -> None:
    def work(connection: Connection) -> int:
        return int(connection.scalar(text("SELECT length(CAST(:text AS text))"), {"text": "x" * (32 << 20)}) or 0)

    async def main() -> None:
        large, *small = await asyncio.gather(database.read(work), *(database.read(backend) for _ in range(9)))
        assert large == 32 << 20
        assert all(small)

    run(main())


def test_many_reads_from_different_depths_with_errors_in_between(run: Run, database: Database) -> None:
    """Greenlets share one C stack: a read continues at another depth of the stack than it began."""

    def deep(connection: Connection, levels: int, wanted: int) -> int:
        if levels:
            return deep(connection, levels - 1, wanted)
        try:
            raise KeyError(number(connection, wanted))
        except KeyError as error:
            gc.collect(0)
            return int(error.args[0]) + number(connection, wanted)

    async def one(levels: int, wanted: int) -> int:
        if levels:
            return await one(levels - 1, wanted)
        return await database.read(partial(deep, levels=wanted % 50, wanted=wanted))

    async def main() -> None:
        for _ in range(5):
            found = await asyncio.gather(*(one(wanted % 17, wanted) for wanted in range(40)))
            assert found == [2 * wanted for wanted in range(40)]

    run(main())
