"""The last steps before the code of a run starts: wait until the place is ready, copy its input files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO

from skillery.backends import InputFile
from skillery.sandboxing.python_runner.wire import Channel, ChannelAbused

PIECE = 1 << 20
BYTES_PER_SECOND = 10 << 20
"""The slowest copy that set-up waits for."""


class BrokenSetup(Exception):
    """The place could not be made ready; the message is for the caller. `explained` is what the place itself said."""

    def __init__(self, message: str, *, explained: bool = False) -> None:
        super().__init__(message)
        self.explained = explained


async def wait_ready(channel: Channel) -> None:
    """Until the place at the other end is ready for code. Raises BrokenSetup."""
    try:
        message = await channel.receive()
    except ChannelAbused:  # it was killed in the middle of a word
        message = None
    if message is None:
        raise BrokenSetup("the sandbox ended while it was being set up")
    if message.op != "ready":
        raise BrokenSetup(message.message[:500] or "the sandbox could not be set up", explained=True)


def copy_seconds(files: Sequence[InputFile]) -> float:
    """Return how much longer set-up may take because of these files."""
    return sum(file.size_bytes for file in files) / BYTES_PER_SECOND


async def send_files(channel: Channel, files: Sequence[InputFile]) -> None:
    """Stream the content of each file to the runtime, which writes it to the workspace. Raise BrokenSetup if one could
    not be read or written."""
    try:
        for file in files:
            with await asyncio.to_thread(file.source.open, "rb") as stream:
                await channel.send_pieces({}, file.size_bytes, _pieces(stream, file.size_bytes))
    except (OSError, EOFError):
        channel.close()  # the runtime waits for bytes that will not come: this ends it
        message = f"the content of the input file '{file.path}' is no longer there; upload it again"
        raise BrokenSetup(message, explained=True) from None
    await wait_ready(channel)


async def _pieces(stream: BinaryIO, left: int) -> AsyncIterator[bytes]:
    """Yield exactly the announced bytes. Raise EOFError if there are fewer."""
    while left:
        piece = await asyncio.to_thread(stream.read, min(PIECE, left))
        if not piece:
            raise EOFError
        left -= len(piece)
        yield piece
