"""Connections of Postgres that stay open for reads.

A connection from the pool of SQLAlchemy is tested, configured and reset for each use, which takes longer than most
reads. A kept connection commits automatically, so a read of one statement is one round trip. The read runs on the
thread of the event loop, and does not block it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

import psycopg
from greenlet import GreenletExit, getcurrent, greenlet
from psycopg.waiting import Ready, Wait
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from skillery.context.request import span
from skillery.context.threads import Workers
from skillery.database.drivers import CONNECT, ErrorsForCallers

# -- Waits for Postgres on the event loop, in functions that are not coroutines ----------------------------------------
# The core is synchronous. If a read runs in a thread, the two changes of threads cost more than the query. So a short
# read runs as a `Reading`: in a greenlet, on the thread of the event loop. When the read has to wait for the socket,
# the greenlet gives control back to the event loop. The event loop continues the read when the socket is ready.
# SQLAlchemy uses greenlets for its asynchronous engines in the same way.


T = TypeVar("T")


class Reading:
    """Runs a function that uses a WaitingConnection, in a greenlet: neither the event loop nor a thread is blocked.

    The greenlet itself must not call the event loop. Greenlets share one C stack, and while a greenlet runs, a part of
    the event loop's stack is stored elsewhere. Functions of uvloop change lists in this part, and would overwrite the
    memory of the greenlet.
    """

    def __init__(self, work: Callable[[], object], end: Callable[[Reading], None]) -> None:
        """`end` is called when `work` has returned or raised an error, before the waiting caller continues."""
        self._work = work
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._greenlet = _Waiter(_outcome)
        self._greenlet.gr_context = copy_context()
        self._waits: tuple[Wait, int] | None = None
        self.result: asyncio.Future[Any] = self._loop.create_future()

    def start(self) -> None:
        """Run the function until it waits for the database. If the caller of `result` is cancelled, the function still
        ends, because the answer of the database must be read from the connection.
        """
        self._continue(self._work)

    def abandon(self) -> None:
        """Raise GreenletExit in the function, at the query where it waits, because its caller was cancelled."""
        if self._waits is not None and not self._loop.is_closed():
            self._unwatch(*self._waits)
            self.result.cancel()
        self._greenlet.throw(GreenletExit)

    def _continue(self, sent: object) -> None:
        """Resume the greenlet with `sent`. If the function waits again, watch its socket; if it has ended, settle
        `result`.
        """
        received = self._greenlet.switch(sent)
        if not self._greenlet.dead:
            self._watch(*received)
            return
        self._end(self)
        if not self.result.done():  # it is done if the caller was cancelled
            result, error = received
            self.result.set_result(result) if error is None else self.result.set_exception(error)

    def _watch(self, wanted: Wait, socket: int) -> None:
        self._waits = wanted, socket
        if wanted & Wait.R:
            self._loop.add_reader(socket, self._on_ready, Ready.R)
        if wanted & Wait.W:
            self._loop.add_writer(socket, self._on_ready, Ready.W)

    def _unwatch(self, wanted: Wait, socket: int) -> None:
        if wanted & Wait.R:
            self._loop.remove_reader(socket)
        if wanted & Wait.W:
            self._loop.remove_writer(socket)

    def _on_ready(self, ready: Ready) -> None:
        if self._waits is not None:
            self._unwatch(*self._waits)
            self._waits = None
            self._continue(ready)


def _outcome(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return (result, None) if `work` returns, or (None, error) if it raises an error."""
    try:
        return work(), None
    except GreenletExit:  # the event loop was closed before the answer came
        raise
    except BaseException as error:  # noqa: BLE001 - the caller, who waits for the result, raises it
        return None, error


class _Waiter(greenlet):
    """The greenlet of a Reading."""

    def finished(self, steps: Generator[Wait, Ready, T], socket: int) -> T:
        """Return the result of a generator of psycopg. The generator yields the event of `socket` that it waits for."""
        assert self.parent is not None
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(self.parent.switch((wanted, socket)))
        except StopIteration as end:
            return cast(T, end.value)


class WaitingConnection(psycopg.Connection[Any]):
    """A psycopg connection. Inside a Reading, it waits for the database on the event loop; elsewhere it blocks the
    thread.
    """

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        current = getcurrent()
        if isinstance(current, _Waiter):
            return current.finished(gen, self.pgconn.socket)
        return super().wait(gen, *args, **options)


READERS = 6
"""The number of connections. More connections did not make reads faster (measured with 8 callers on 2 processors)."""


class KeptReaders:
    """Runs reads on connections that stay open. A connection runs one read at a time; further reads wait in a queue."""

    def __init__(self, url: URL) -> None:
        self._engine = _engine(url)
        self._opening = Workers("database-connect", READERS)
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._readings: set[Reading] = set()
        self._busy = 0

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`. Raise Unavailable if the database cannot be reached.

        If the database has closed the kept connection, for example because it was restarted, `work` runs again on a new
        connection.
        """
        connection = await self._taken()
        try:
            return await self._started(connection, work)
        except Exception:
            if connection in self._open:
                raise  # the connection works, so this is an error of `work`
        for other in list(self._idle):  # the database has probably closed them too
            self._idle.remove(other)
            self._drop(other)
        return await self._started(await self._taken(), work)

    def connections(self) -> tuple[int, int]:
        """Return the number of connections in use, and the number of idle connections."""
        return self._busy, len(self._idle)

    def close(self) -> None:
        self._opening.close()
        for reading in list(self._readings):
            reading.abandon()
        for connection in list(self._open):
            self._drop(connection)
        self._idle.clear()
        self._engine.dispose()

    async def _taken(self) -> Connection:
        """Return an idle connection, which the caller gives back. If all connections are in use, open another one."""
        await self._turn()
        try:
            while not self._idle:  # another read may be faster, and take the one that was opened for this read
                await self._opening.run(self._connect)
            return self._idle.pop()
        except BaseException:  # also a cancelled caller: otherwise no other read would get this turn
            self._pass_on()
            raise

    async def _turn(self) -> None:
        """Wait until fewer than READERS reads use a connection."""
        if self._busy < READERS:
            self._busy += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came together with the end of the caller
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Let the next waiting read continue, or free a place if no read waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy -= 1

    def _started(self, connection: Connection, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        """Start a read, and return its result as a future."""
        reading = Reading(partial(self._on, connection, work), self._ended)
        self._readings.add(reading)
        reading.start()
        return reading.result

    def _ended(self, reading: Reading) -> None:
        self._readings.discard(reading)
        self._pass_on()

    def _on(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`. Then give the connection back, except after a cancelled query."""
        try:
            with span("database read"), ErrorsForCallers():
                result = work(connection)
        except GreenletExit:
            raise  # the read was abandoned during a query, so no other read can use the connection
        except BaseException:  # the caller gets each error, and the connection must not be lost
            self._give_back(connection)
            raise
        self._give_back(connection)
        return result

    def _give_back(self, connection: Connection) -> None:
        """Roll back the connection's transaction and keep the connection for the next reader; drop it if it is lost."""
        if not _is_lost(connection) and connection.in_transaction():
            # SQLAlchemy has begun a transaction that the database does not know.
            connection.rollback()
        if _is_lost(connection):
            self._drop(connection)
        else:
            self._idle.append(connection)

    def _connect(self) -> None:
        with ErrorsForCallers():
            connection: Connection = self._engine.connect()
        self._open.add(connection)
        self._idle.append(connection)

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        connection.close()


def _engine(url: URL) -> Engine:
    """Return an engine without a pool. Its connections are WaitingConnections, which commit automatically."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=CONNECT)

    @event.listens_for(engine, "do_connect")
    def _connect(_: object, __: object, arguments: Sequence[Any], options: dict[str, Any]) -> WaitingConnection:
        return WaitingConnection.connect(*arguments, **options)

    @event.listens_for(engine, "connect")
    def _prepare(connection: WaitingConnection, _: object) -> None:
        # Otherwise Postgres plans each listing again, which takes as long as reading its rows: its estimate for any
        # position is higher than that for the first page.
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.commit()

    return engine


def _is_lost(connection: Connection) -> bool:
    if connection.closed or connection.invalidated:
        return True
    raw = connection.connection.driver_connection
    return raw is None or bool(raw.closed)
