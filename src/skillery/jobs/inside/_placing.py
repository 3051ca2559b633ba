"""The input files of a run, written to its workspace by the user of the run, within the limits of the run."""

# ruff: noqa: PTH103, PTH108, PTH118, PTH120 - importing pathlib costs every such run time
from __future__ import annotations

import json
import os

from ._restoring import NEW_FILE, NotWritten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cellblock.runtime import _host, _wire
else:
    from . import _host, _wire


def place(files: list[dict[str, Any]], folder: str) -> None:
    """Receive the content of each file in order, and write it below `folder`. Raise NotWritten for the first that could
    not be written.
    """
    problem = receive_files(_host.channel(), files, folder)
    if problem:
        raise NotWritten(problem)


def receive_files(channel: int, files: list[dict[str, Any]], folder: str) -> str:
    problem = ""
    for file in files:
        # After an error, read and discard the rest: the server finishes sending before it listens.
        problem = receive_file(channel, file, folder, write=not problem) or problem
    return problem


def receive_file(channel: int, file: dict[str, Any], folder: str, *, write: bool) -> str:
    """Receive one file. Return the error as text; "" if there was none. If `write` is False, discard the content."""
    header_size, left = _wire.HEAD.unpack(_wire.read_exactly(channel, _wire.HEAD.size))
    json.loads(_wire.read_exactly(channel, header_size))
    descriptor, problem = -1, ""
    if write:
        descriptor, problem = create(file, folder)
    while left:
        piece = os.read(channel, min(_wire.PIECE, left))
        if not piece:
            raise EOFError
        left -= len(piece)
        if descriptor >= 0 and not problem:
            problem = write_piece(descriptor, piece, file)
    if descriptor >= 0:
        os.close(descriptor)
    return problem


def create(file: dict[str, Any], folder: str) -> tuple[int, str]:
    path = os.path.join(folder, file["path"])
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        remove_kept(path)
        return os.open(path, NEW_FILE, 0o755 if file["executable"] else 0o644), ""
    except OSError as error:
        return -1, describe(file, error)


def remove_kept(path: str) -> None:
    """Remove the file of a kept workspace at this path, because an input file replaces it."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def write_piece(descriptor: int, piece: bytes, file: dict[str, Any]) -> str:
    try:
        _wire.write_all(descriptor, piece)
    except OSError as error:
        return describe(file, error)
    return ""


def describe(file: dict[str, Any], error: OSError) -> str:
    reason = os.strerror(error.errno or 0)
    return f"the input file '{file['path']}' could not be copied to the workspace: {reason}"
