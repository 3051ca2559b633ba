"""The kept files and the input files of a run: written to its workspace by its user, before any code starts."""

# ruff: noqa: PTH103, PTH108, PTH118, PTH120, PTH211 - importing pathlib costs every such run time
from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cellblock.runtime import _host, _wire

    Entry = tuple[str, str, str, int, int, str]
else:
    from . import _host, _wire

FOLDER, LINK, EXECUTABLE = "040000", "120000", "100755"
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE = 1 << 20


class Stream:
    """The contents of all files, one after the other, as bytes from the server."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.at = 0
        self._buffer = memoryview(b"")
        header, self._left = _wire.HEAD.unpack(_wire.read_exactly(descriptor, _wire.HEAD.size))
        _wire.read_exactly(descriptor, header)

    def piece(self, most: int) -> memoryview:
        """Return the next bytes, at most `most`. Raise EOFError if there are none."""
        if not self._buffer:
            self._buffer = memoryview(os.read(self._descriptor, min(PIECE, self._left)))
            self._left -= len(self._buffer)
            if not self._buffer:
                raise EOFError
        piece, self._buffer = self._buffer[:most], self._buffer[most:]
        return piece

    def write(self, descriptor: int, left: int) -> None:
        """Write the next `left` bytes to a file."""
        while left:
            piece = self.piece(left)
            left -= len(piece)
            _wire.write_all(descriptor, piece)

    def finish(self) -> None:
        """Read and discard the remaining bytes. The server reads no answer before it has sent all of them."""
        while self._buffer or self._left:
            self.piece(PIECE)


class Source:
    """The contents of all files in an open file of the server. The kernel copies them without this process."""

    def __init__(self, channel: int, offsets: list[int]) -> None:
        self._descriptor = receive_descriptor(channel)
        self._offsets = offsets
        self.at = 0

    def write(self, descriptor: int, left: int) -> None:
        """Write the content of the entry number `at` to a file. Raise EOFError if the source is too short."""
        offset = self._offsets[self.at]
        while left:
            sent = os.sendfile(descriptor, self._descriptor, offset, left)
            if not sent:
                raise EOFError
            offset += sent
            left -= sent

    def finish(self) -> None:
        """Close the source: no code of the run may see it."""
        os.close(self._descriptor)


def receive_descriptor(channel: int) -> int:
    """Read one byte and return the descriptor that was sent with it. Raise EOFError if it came without one."""
    import _socket  # `socket` costs milliseconds
    import array

    end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, channel)
    try:
        descriptors = array.array("i")
        _, extra, _, _ = end.recvmsg(1, _socket.CMSG_LEN(descriptors.itemsize), _socket.MSG_CMSG_CLOEXEC)
    finally:
        end.detach()
    for _, _, data in extra:
        descriptors.frombytes(data[: descriptors.itemsize])
    if not descriptors:
        raise EOFError
    return descriptors[0]


class NotWritten(Exception):
    """Raised if a file could not be written to the workspace. The message says which."""


def restore(job: dict[str, Any]) -> None:
    """Receive the kept files, and write them. Raise NotWritten for the first that could not be written."""
    channel = _host.channel()
    os.makedirs(job["home"], 0o700, exist_ok=True)
    os.environ["HOME"] = job["home"]
    header, listed = _wire.receive(channel)
    at = header.get("offsets", len(listed))
    source = Source(channel, json.loads(listed[at:])) if "offsets" in header else Stream(channel)
    problem = write_all(json.loads(listed[:at]), job["workspace"], source)
    source.finish()
    if problem:
        raise NotWritten(problem)


def write_all(entries: list[Entry], folder: str, source: Stream | Source) -> str:
    """Write the entries. Return the error, or ""."""
    made = {""}
    for number, (path, mode, _, size, mtime, target) in enumerate(entries):
        try:
            make_folder(folder, path if mode == FOLDER else os.path.dirname(path), made)
            place = os.path.join(folder, path)
            if mode == LINK:
                os.symlink(target, place)
            elif mode != FOLDER:
                source.at = number
                write_file(place, 0o755 if mode == EXECUTABLE else 0o644, size, mtime, source)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            return f"the kept file '{path}' could not be written to the workspace: {reason}"
    return ""


def make_folder(folder: str, path: str, made: set[str]) -> None:
    if path not in made:
        os.makedirs(os.path.join(folder, path), exist_ok=True)
        made.add(path)


def write_file(place: str, mode: int, size: int, mtime: int, source: Stream | Source) -> None:
    descriptor = os.open(place, NEW_FILE, mode)
    try:
        source.write(descriptor, size)
        os.utime(descriptor, ns=(mtime, mtime))
    finally:
        os.close(descriptor)


# -- input files ----------------------------------------------------------------------------------------------------


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
