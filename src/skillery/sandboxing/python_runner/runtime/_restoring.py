"""The kept files of a run: written to its workspace by the user of the run, before any code starts."""

# ruff: noqa: PTH103, PTH118, PTH120, PTH211 - importing pathlib costs every such run time
from __future__ import annotations

import json
import os

from . import _wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Entry = tuple[str, str, str, int, int, str]

FOLDER, LINK, EXECUTABLE = "040000", "120000", "100755"
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE = 1 << 20


class Stream:
    """The contents of all files, one after the other."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = memoryview(b"")
        header, self._left = _wire.HEAD.unpack(_wire.read_exactly(descriptor, _wire.HEAD.size))
        _wire.read_exactly(descriptor, header)

    def piece(self, most: int) -> memoryview:
        """Return the next bytes, at most `most`. Raise EOFError."""
        if not self._buffer:
            self._buffer = memoryview(os.read(self._descriptor, min(PIECE, self._left)))
            self._left -= len(self._buffer)
            if not self._buffer:
                raise EOFError
        piece, self._buffer = self._buffer[:most], self._buffer[most:]
        return piece

    def skip(self) -> None:
        """Discard the rest: the server finishes sending before it listens."""
        while self._buffer or self._left:
            self.piece(PIECE)


def restore(channel: int, job: dict[str, Any]) -> None:
    """Receive the kept files, write them, and tell the server.

    If a file could not be written, end the process: no code of the run has started.
    """
    os.makedirs(job["home"], 0o700, exist_ok=True)
    os.environ["HOME"] = job["home"]
    try:
        _, listed = _wire.receive(channel)
        stream = Stream(channel)
        problem = write_all(json.loads(listed), job["lock_folder"], stream)
        stream.skip()
    except EOFError:
        os._exit(1)  # the server has closed the channel
    _wire.send(channel, {"op": "broken", "message": problem} if problem else {"op": "ready"})
    if problem:
        os._exit(1)


def write_all(entries: list[Entry], folder: str, stream: Stream) -> str:
    """Write the entries. Return the error, or ""."""
    made = {""}
    for path, mode, _, size, mtime, target in entries:
        try:
            make_folder(folder, path if mode == FOLDER else os.path.dirname(path), made)
            place = os.path.join(folder, path)
            if mode == LINK:
                os.symlink(target, place)
            elif mode != FOLDER:
                write_file(place, 0o755 if mode == EXECUTABLE else 0o644, size, mtime, stream)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            return f"the kept file '{path}' could not be written to the workspace: {reason}"
    return ""


def make_folder(folder: str, path: str, made: set[str]) -> None:
    if path not in made:
        os.makedirs(os.path.join(folder, path), exist_ok=True)
        made.add(path)


def write_file(place: str, mode: int, left: int, mtime: int, stream: Stream) -> None:
    descriptor = os.open(place, NEW_FILE, mode)
    try:
        while left:
            piece = stream.piece(left)
            left -= len(piece)
            _wire.write_all(descriptor, piece)
        os.utime(descriptor, ns=(mtime, mtime))
    finally:
        os.close(descriptor)
