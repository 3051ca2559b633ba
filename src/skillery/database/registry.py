"""The registry: endpoints and methods pass functions that take a connection. A function that writes
is one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Select, select

from skillery.backends import Storage
from skillery.context.threads import COMPARISONS
from skillery.database import Database
from skillery.database.tables import skills

T = TypeVar("T")


class Registry:
    """Runs functions that take a connection, for example the functions in `skillery.versions`."""

    def __init__(self, database: Database, storage: Storage, cursor_key: bytes) -> None:
        """`cursor_key` signs the cursors of listings."""
        self._database = database
        self.storage = storage
        self.cursor_key = cursor_key

    def read(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Return the result of `work`, which reads a few rows. Raise Unavailable if the database fails.

        Errors of `work` are raised unchanged.
        """
        return self._database.read(work)

    def read_page(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Return the result of `work`, which may read many rows, in a separate thread. Raise the errors of `read`."""
        return asyncio.to_thread(self._database.read_now, work)

    def read_and_compare(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Return the result of `work`, which compares texts of other authors, in the threads for comparisons."""
        return COMPARISONS.run(self._database.read_now, work)

    def write(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Return the result of `work`, which changes rows. If `work` raises an error, the
        transaction is rolled back.
        """
        return self._database.write(work)


def locking_skills(condition: ColumnElement[bool]) -> Select[tuple[int]]:
    """Return a query that locks the rows of skills until the transaction ends. Its rows have the ids of the skills.

    Other writers that lock these skills wait. Rows that refer to a skill can still be inserted: a lock that stops them
    too would be a deadlock with a writer of such a row that has another lock.
    """
    # Sorted, because the same order for all callers prevents deadlocks on Postgres.
    return select(skills.c.id).where(condition).order_by(skills.c.id).with_for_update(key_share=True)


def lock_skill_row(connection: Connection, name: str) -> None:
    """Lock the row of a skill until the transaction ends. Do nothing if there is no such skill."""
    connection.execute(locking_skills(skills.c.name == name))
