"""The registry as endpoints and methods use it: functions with SQL, each run in one transaction of its database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy import Connection

from skillery.backends import Storage
from skillery.database import Database

T = TypeVar("T")


class Registry:
    """Runs functions that take a connection. The functions of `skillery.registry` are such functions."""

    def __init__(self, database: Database, storage: Storage, cursor_key: bytes) -> None:
        """`cursor_key` signs the cursors of listings."""
        self._database = database
        self.storage = storage
        self.cursor_key = cursor_key

    def read(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Run a function that reads little. Raise Unavailable, and what the function raises."""
        return self._database.read(work)

    def read_page(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Run a function that may read much, in a thread of its own. Raise as `read`."""
        return asyncio.to_thread(self._database.read_now, work)

    def write(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Run a function that changes something. Everything that it changed is undone if it raises."""
        return self._database.write(work)
