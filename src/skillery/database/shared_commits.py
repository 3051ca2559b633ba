"""Writes that wait at the same time and share one transaction of SQLite, and so one sync of the disk."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Connection, Engine

from skillery.context.threads import Workers, settle
from skillery.context.tracing import span
from skillery.database.drivers import errors_for_callers
from skillery.database.transactions import TransactionLost, in_savepoint, in_transaction

log = logging.getLogger(__name__)
T = TypeVar("T")
MOST_SHARING = 16


class _Sharing(NamedTuple):
    """A write that waits to be committed together with others."""

    work: Callable[[Connection], Any]
    context: Context
    done: Future[Any]


class SharedCommits:
    """The writes that wait for their commit. `writer` has the only thread that writes."""

    def __init__(self, engine: Engine, writer: Workers) -> None:
        self._engine = engine
        self._writer = writer
        self._waiting: deque[_Sharing] = deque()

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction that other waiting writes share. Return its result after the commit."""
        sharing = _Sharing(work, copy_context(), Future())
        self._waiting.append(sharing)
        self._writer.submit(self._commit)
        return cast(T, await asyncio.wrap_future(sharing.done))

    def _commit(self) -> None:
        """Commit the waiting writes together, or each alone if the shared transaction fails. Do nothing if another call
        has committed them.
        """
        waiting = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_SHARING))]
        group = [one for one in waiting if one.done.set_running_or_notify_cancel()]
        try:
            outcomes = self._in_one_transaction(group) if len(group) > 1 else None
        except Exception as error:  # noqa: BLE001 - whose it was is found out by trying each alone
            log.info("a shared transaction failed: %s", type(error).__name__)
            outcomes = None
        for place, one in enumerate(group):
            alone = partial(in_transaction, self._engine)
            settle(one.done, outcomes[place] if outcomes is not None else _outcome(alone, one))

    def _in_one_transaction(self, group: Sequence[_Sharing]) -> list[Callable[[], Any]]:
        with span("database write"), errors_for_callers(), self._engine.begin() as connection:
            return [_outcome(partial(in_savepoint, connection), one) for one in group]


def _outcome(way: Callable[[Callable[[Connection], Any]], Any], one: _Sharing) -> Callable[[], Any]:
    """Run the write of `one` with `way`. Return a function that returns its result or raises its error."""
    try:
        result = one.context.run(way, one.work)
    except TransactionLost:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        return partial(_raise, error)
    return lambda: result


def _raise(error: BaseException) -> None:
    raise error
