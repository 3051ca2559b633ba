"""A proxy between a client and a Postgres server, which counts the round trips of each connection."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path


class CountingProxy:
    """A proxy on loopback to the socket of a Postgres server in `folder`. Close it after the client."""

    def __init__(self, folder: Path) -> None:
        self.turns = 0
        """How often a client has sent something after the server had answered it."""
        self._socket = str(folder / ".s.PGSQL.5432")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        was_answered = [True]
        with suppress(asyncio.CancelledError):  # the end of the proxy
            await asyncio.gather(
                self._pass_on(reader, to_server, was_answered, is_client=True),
                self._pass_on(from_server, writer, was_answered, is_client=False),
            )

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, was_answered: list[bool], *, is_client: bool
    ) -> None:
        while data := await source.read(256 * 1024):
            if is_client and was_answered[0]:
                self.turns += 1
            was_answered[0] = not is_client
            target.write(data)
        target.close()
