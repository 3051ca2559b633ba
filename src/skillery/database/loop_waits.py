"""Waits for Postgres on the event loop, in functions that are not coroutines.

The core is synchronous. If a read runs in a thread, the two changes of threads cost more than the query. So a short
read runs as a `Reading`: in a greenlet, on the thread of the event loop. When the read has to wait for the socket, the
greenlet gives control back to the event loop. The event loop continues the read when the socket is ready. SQLAlchemy
uses greenlets for its asynchronous engines in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import copy_context
from typing import Any, TypeVar, cast

import psycopg
from greenlet import GreenletExit, getcurrent, greenlet
from psycopg.waiting import Ready, Wait

T = TypeVar("T")


class Reading:
    """Runs a function that uses a WaitingConnection, and blocks neither the event loop nor a thread.

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
        """Run until the function has to wait. If the caller of `result` is cancelled, the function still ends, because
        the answer of the database must be taken from the connection.
        """
        self._continue(self._work)

    def abandon(self) -> None:
        """End the function where it waits. Its caller is cancelled."""
        if self._waits is not None and not self._loop.is_closed():
            self._unwatch(*self._waits)
            self.result.cancel()
        self._greenlet.throw(GreenletExit)

    def _continue(self, sent: object) -> None:
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
    """Return the result of the function, or its error."""
    try:
        return work(), None
    except GreenletExit:  # the event loop was closed before the answer came
        raise
    except BaseException as error:  # noqa: BLE001 - the caller, who waits for the result, raises it
        return None, error


class _Waiter(greenlet):
    """The greenlet of a Reading."""

    def finished(self, steps: Generator[Wait, Ready, T], socket: int) -> T:
        """Return the result of the steps of the driver. A step yields what it waits for."""
        assert self.parent is not None
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(self.parent.switch((wanted, socket)))
        except StopIteration as end:
            return cast(T, end.value)


class WaitingConnection(psycopg.Connection[Any]):
    """A connection that waits on the event loop if a Reading uses it. Otherwise it blocks the thread, as usual."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        current = getcurrent()
        if isinstance(current, _Waiter):
            return current.finished(gen, self.pgconn.socket)
        return super().wait(gen, *args, **options)
