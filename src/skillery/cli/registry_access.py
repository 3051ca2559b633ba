"""Access to the registry for a command that runs for a long time: the command holds the home only during requests and
for a few seconds afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skillery.cli.connection import connect
from skillery.cli.options import Target
from skillery.client import AsyncClient, ConnectionFailed
from skillery.errors import StartupError

LINGER_SECONDS = 5.0
"""Seconds without a request after which the home is released.

Opening a home takes most of a second, so the home is not released at once. Other commands wait longer than this for the
home (`connection.WAIT_SECONDS`).
"""


class RegistryAccess:
    """Gives clients of the target. If the target is a home without a server, this process holds the home during
    requests, and for LINGER_SECONDS after the last one.

    Call `close` at the end.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._requests = 0
        self._release_timer: asyncio.TimerHandle | None = None
        self._holder: asyncio.Task[None] | None = None
        self._client: asyncio.Future[AsyncClient] | None = None
        self._release = asyncio.Event()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """Context manager: yield a client. Raise StartupError if the home cannot be opened.

        After StartupError or ConnectionFailed in the `with` block, the next call connects again, because the server may
        have ended.
        """
        self._requests += 1
        if self._release_timer is not None:
            self._release_timer.cancel()
        try:
            if self._client is None:
                self._open()
            assert self._client is not None
            yield await asyncio.shield(self._client)
        except (StartupError, ConnectionFailed):
            # The server may have ended: the next request connects again.
            self._release_client()
            raise
        finally:
            self._requests -= 1
            if not self._requests:
                self._release_timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._release_client)

    async def close(self) -> None:
        self._release_client()
        if self._holder is not None:
            await asyncio.wait({self._holder})

    def _open(self) -> None:
        client, self._release = asyncio.get_running_loop().create_future(), asyncio.Event()
        self._client = client
        self._holder = asyncio.create_task(self._hold(client, self._release, self._holder))

    def _release_client(self) -> None:
        self._client = None
        self._release.set()

    async def _hold(
        self, client: asyncio.Future[AsyncClient], release: asyncio.Event, before: asyncio.Task[None] | None
    ) -> None:
        """Open a client, and close it when `release` is set. One task does both, because async context managers
        require this.
        """
        if before is not None:
            await asyncio.wait({before})
        try:
            async with connect(self._target, sandbox=True) as found:
                client.set_result(found)
                await release.wait()
        except Exception as error:
            if client.done():
                raise
            client.set_exception(error)
            if self._client is client:
                self._client = None
