"""Uploads and downloads of blobs: open files, positions in a download, and local paths."""

from __future__ import annotations

import io
import mimetypes
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypeGuard

import httpx

from skillery.client.wire import strange_answer

_PART = re.compile(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18})")
CHUNK_BYTES = 256 * 1024
DEFAULT_KIND = "application/octet-stream"
Source: TypeAlias = "bytes | os.PathLike[str] | BinaryIO"
Sink: TypeAlias = "os.PathLike[str] | BinaryIO"
Progress: TypeAlias = "Callable[[int, int | None], None]"
"""A function that gets the number of transferred bytes, and the number of all bytes or None if it is unknown."""


class Upload:
    """An open file that is uploaded from its present position. If the file is seekable, `rewind` returns to that
    position.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._start = file.tell() if file.seekable() else None
        self.size = None if self._start is None else _size_from(file, self._start)
        self.rewind()

    @property
    def can_rewind(self) -> bool:
        return self._start is not None

    def rewind(self) -> None:
        if self._start is not None:
            self.file.seek(self._start)

    def headers(self, kind: str, key: str | None) -> dict[str, str]:
        length = {} if self.size is None else {"content-length": str(self.size)}
        return {"content-type": kind, **length, **({} if key is None else {"idempotency-key": key})}

    def next_bytes(self, sent: int) -> int:
        """Return the number of bytes to read next, after `sent` bytes were sent.

        Bytes that are appended to the file during the upload are not sent, because the Content-Length is fixed.
        """
        return CHUNK_BYTES if self.size is None else min(CHUNK_BYTES, self.size - sent)


def _size_from(file: BinaryIO, start: int) -> int | None:
    """Return the number of bytes from `start` to the end of the file, or None if it is 0 or unknown.

    The size 0 may be wrong: files in /proc have content, but report the size 0 or cannot be measured.
    """
    try:
        return file.seek(0, io.SEEK_END) - start or None
    except OSError:
        return None


def is_source(content: object) -> TypeGuard[Source]:
    """Return whether the content is bytes, a path or an open file, and no iterator over pieces."""
    return isinstance(content, (bytes, bytearray, memoryview, str, os.PathLike)) or hasattr(content, "read")


@contextmanager
def open_upload(content: Source) -> Iterator[Upload]:
    """Open the content for an upload. Raise TypeError for a str, which could be a path or a text."""
    if isinstance(content, str):
        raise TypeError("content is a str: pass bytes, or a pathlib.Path for a file")
    if isinstance(content, (bytes, bytearray, memoryview)):
        yield Upload(io.BytesIO(content))
    elif isinstance(content, os.PathLike):
        with Path(content).open("rb") as file:
            yield Upload(file)
    else:
        yield Upload(content)


def kind_of(content: Source) -> str:
    """Return the media type for the file name of a path or an open file, or DEFAULT_KIND for an unknown name."""
    name = content if isinstance(content, os.PathLike) else getattr(content, "name", "")
    guessed = mimetypes.guess_type(os.fspath(name))[0] if isinstance(name, (str, os.PathLike)) else None
    return guessed or DEFAULT_KIND


@contextmanager
def atomic_file(target: Sink) -> Iterator[BinaryIO]:
    """Yield a file to write to. If `target` is a path, the file there is replaced at the end of the `with` block.

    After an exception, the file at the path is not changed.
    """
    if not isinstance(target, os.PathLike):
        yield target
        return
    path = Path(target)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Position:
    """The position in a download. `begin` checks that each response has the same blob, from this position on."""

    def __init__(self, start: int, stop: int | None) -> None:
        self.start, self.at, self.stop = start, start, stop
        self.kind = DEFAULT_KIND
        """The media type of the blob, which `begin` sets."""
        self._etag: str | None = None

    @property
    def is_done(self) -> bool:
        return self.stop is not None and self.at >= self.stop

    @property
    def total(self) -> int | None:
        return None if self.stop is None else self.stop - self.start

    def headers(self) -> dict[str, str]:
        """Return the headers of the request for the rest of the blob.

        They disable compression, which would change lengths and ranges.
        """
        plain = {"accept-encoding": "identity"}
        if not self.at and self.stop is None:
            return plain
        return plain | {"range": f"bytes={self.at}-{'' if self.stop is None else self.stop - 1}"}

    def begin(self, response: httpx.Response) -> None:
        """Start to read a response.

        Raise StrangeAnswer if the response has another range than requested, or if the blob has changed.
        """
        etag, (begins, size) = response.headers.get("etag"), _range_of(response)
        if begins != self.at or (self._etag is not None and etag != self._etag):
            raise strange_answer(response, "with another range than requested")
        self._etag = etag
        self.kind = response.headers.get("content-type", DEFAULT_KIND)
        if size is not None:
            self.stop = size if self.stop is None else min(self.stop, size)


def _range_of(response: httpx.Response) -> tuple[int | None, int | None]:
    """Return the position of the first byte in a response, and the size of the whole blob.

    A value is None if the response does not state it.
    """
    if response.status_code == 206:
        part = _PART.fullmatch(response.headers.get("content-range", ""))
        return (int(part[1]), int(part[2])) if part else (None, None)
    length = response.headers.get("content-length", "")
    return 0, int(length) if length.isdecimal() else None


# -- Local paths for the files of a run --------------------------------------------------------------------------------


FORBIDDEN = ("", ".", "..")
SPECIAL = {"\\", ":"} if os.name == "nt" else set()


def is_plain(path: str) -> bool:
    """Return whether a path in the result of a run stays inside a folder.

    The code of the run has chosen the path, so it may be hostile.
    """
    return not any(part in FORBIDDEN or not part.isprintable() or SPECIAL & set(part) for part in path.split("/"))


def places_below(folder: os.PathLike[str], paths: Iterable[str]) -> list[Path]:
    """Return a local path below `folder` for each path. If a path occurs twice, the second local path gets a number.

    A run may return a file and a picture with one path. Raise ValueError if a path leads outside the folder.
    """
    places: list[Path] = []
    for path in paths:
        if not is_plain(path):
            raise ValueError(
                f"the run has a file {path!r}, which leads outside the folder: download its blob by its id"
            )
        first = place = Path(folder).joinpath(*path.split("/"))
        number = 1
        while place in places:
            number += 1
            place = first.with_name(f"{first.stem}-{number}{first.suffix}")
        places.append(place)
    return places
