"""TLS in front of a server on loopback, for clients that use some features over https only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.certificates import HOUR, certificate


@contextmanager
def tls_in_front_of(port: int, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the https address of the server at `port`, and the file of its certificate."""
    context, file = certificate(folder, HOUR)
    loop = asyncio.new_event_loop()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        with suppress(asyncio.CancelledError, OSError):
            await asyncio.gather(_pass_on(reader, to_server), _pass_on(from_server, writer))
        to_server.close()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
        chosen.append(server.sockets[0].getsockname()[1])
        is_ready.set()
        await ended.wait()
        server.close()

    chosen: list[int] = []
    is_ready, ended = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert is_ready.wait(300), "the TLS proxy does not listen"
    try:
        yield f"https://127.0.0.1:{chosen[0]}", file
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(300)
        loop.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(256 * 1024):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
    else:
        target.close()
