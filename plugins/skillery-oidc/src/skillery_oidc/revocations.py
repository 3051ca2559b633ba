"""The list of revoked identities: those in the settings, and those in the values of the database."""

from __future__ import annotations

import asyncio
import time

from skillery.backends import Transaction, Values
from skillery.errors import InvalidParams, NotAuthenticated, Unavailable
from skillery_oidc.rules import is_name

REMEMBERED_SECONDS = 1.0
"""The list in the database is read at most once in this time. So a revocation takes effect within a second."""
PREFIX = "revoked/"


class Revocations:
    """The revoked identities. The list in the database is read again after REMEMBERED_SECONDS."""

    def __init__(self, fixed: tuple[str, ...], values: Values | None) -> None:
        self._fixed = frozenset(fixed)
        self._values = values
        self._names = self._fixed
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def check(self, name: str) -> None:
        """Raise NotAuthenticated if the identity is revoked, Unavailable if the list cannot be read."""
        if time.monotonic() - self._read_at >= REMEMBERED_SECONDS and self._values is not None:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read(self._values))
                self._reading.add_done_callback(self._forget_reading)
            await asyncio.shield(self._reading)
        if name in self._names:
            raise NotAuthenticated(f"the identity '{name}' is revoked on this server", hint="Ask an admin.")

    async def _read(self, values: Values) -> None:
        keys = await asyncio.to_thread(values.keys, PREFIX)
        self._names = self._fixed | {key.removeprefix(PREFIX) for key in keys}
        self._read_at = time.monotonic()

    def _forget_reading(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()

    def add(self, name: str, within: Transaction) -> bool:
        if not is_name(name):
            raise InvalidParams(f"{name[:60]!r} is not a valid name of an identity", param="name")
        return not self._stored.set(PREFIX + name, b"", within=within)

    def remove(self, name: str, within: Transaction) -> bool:
        if name in self._fixed:
            raise InvalidParams(f"the setting 'revoked' lists '{name}': remove it there", param="name")
        return self._stored.take(PREFIX + name, within=within) is not None

    def names(self) -> list[str]:
        return sorted(self._fixed | {key.removeprefix(PREFIX) for key in self._stored.keys(PREFIX)})

    @property
    def _stored(self) -> Values:
        if self._values is None:
            raise Unavailable("the list of revoked identities needs a database, and this process has none")
        return self._values
