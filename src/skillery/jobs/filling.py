"""The files of a run, which are sent to the sandbox before the code starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO

import msgspec

from cellblock.host.channel import BrokenSetup, Channel
from skillery.backends import InputFile, Job, KeptFile, Workspace
from skillery.errors import SkilleryError

PIECE = 1 << 20
BYTES_PER_SECOND = 10 << 20
FILES_PER_SECOND = 2_000
"""Lowest speeds of copying for which the set-up waits."""


def copy_seconds(files: Sequence[InputFile | KeptFile]) -> float:
    """Return the additional seconds that set-up may take because of these files."""
    return sum(file.size_bytes for file in files) / BYTES_PER_SECOND + len(files) / FILES_PER_SECOND


def filling_seconds(job: Job) -> float:
    """Return the additional seconds that set-up may take because of the files and the workspace of a job."""
    return copy_seconds([*job.files, *(job.workspace.files if job.workspace is not None else ())])


async def send_workspace(channel: Channel, workspace: Workspace) -> None:
    """Send the kept files to the guest, which writes them. Raise BrokenSetup if a file cannot be read."""
    files_json = msgspec.json.encode(workspace.files)
    if workspace.opened is not None:
        header = {"offsets": len(files_json)}
        await channel.send(header, files_json + msgspec.json.encode(workspace.opened.offsets))
        await channel.send_descriptor(workspace.opened.descriptor)
    else:
        await channel.send({}, files_json)
        await _stream_contents(channel, workspace)


async def _stream_contents(channel: Channel, workspace: Workspace) -> None:
    size = sum(file.size_bytes for file in workspace.files if file.is_file)
    try:
        await channel.send_pieces({}, size, workspace.contents())
    except (SkilleryError, OSError, EOFError):
        channel.close()  # end the runtime, which waits for the missing bytes
        raise BrokenSetup("a kept file of the workspace could not be read", explained=True) from None


async def send_files(channel: Channel, files: Sequence[InputFile]) -> None:
    """Send the content of each file to the guest, which writes it. Raise BrokenSetup if a file cannot be read."""
    try:
        for file in files:
            with await asyncio.to_thread(file.source.open, "rb") as stream:
                await channel.send_pieces({}, file.size_bytes, _pieces(stream, file.size_bytes))
    except (OSError, EOFError):
        channel.close()  # end the runtime, which waits for the missing bytes
        message = f"the content of the input file '{file.path}' is no longer there; upload it again"
        raise BrokenSetup(message, explained=True) from None


async def _pieces(stream: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """Yield exactly `size` bytes of the stream. Raise EOFError if the stream has fewer."""
    while size:
        piece = await asyncio.to_thread(stream.read, min(PIECE, size))
        if not piece:
            raise EOFError
        size -= len(piece)
        yield piece
