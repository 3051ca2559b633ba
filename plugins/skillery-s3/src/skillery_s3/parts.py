"""The parts of a download. A large content is received ahead, so that receiving and checking overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Full, Queue
from typing import NamedTuple

import obstore
from obstore.exceptions import BaseError

from skillery_s3.bucket import Bucket
from skillery_s3.failures import reason_of
from skillery_s3.settings import MIB

FIRST_BYTES = 256 * 1024
"""The size of the first part. A caller often needs no more."""
NEXT_BYTES = 512 * 1024
AGAIN_BYTES = 4 * MIB
"""The size of a part that is requested again because an answer broke."""
REQUEST_BYTES = 64 * MIB
"""The size of one request of a large content. The time limit of a request includes its whole answer."""
PIECE_BYTES = 2 * MIB
AHEAD = 6
"""Pieces that are received before they are read."""
MOST_FAST = 8
"""The number of downloads that receive ahead. Together they take about 128 MiB of memory."""
_THREADS = ThreadPoolExecutor(MOST_FAST, "s3-download")
_FAST = threading.BoundedSemaphore(MOST_FAST)
_WAIT_SECONDS = 0.5
_END = None


class Part(NamedTuple):
    """A part of an object: its bytes, and the size of the whole object."""

    content: memoryview
    size: int
    """The size of the whole object."""


def receive(bucket: Bucket, key: str, start: int, stop: int) -> Part:
    """Return the bytes of an object from `start` to `stop` (exclusive), or to its end. `start` 0 is valid for an empty
    object too.

    The client requests the rest again if an answer breaks. Raise the errors of obstore.
    """
    try:
        answer = obstore.get(bucket.store, key, options={"range": (start, stop)})
        content, size = memoryview(answer.bytes()), answer.meta["size"]
    except BaseError as error:
        if start or reason_of(error).code != "InvalidRange":  # the service's answer for an empty object
            raise
        content, size = memoryview(b""), obstore.head(bucket.store, key)["size"]
    if len(content) != min(stop, size) - start:
        raise BaseError("the answer has another size than was asked for")
    return Part(content, size)


def pieces(bucket: Bucket, key: str, start: int, stop: int) -> Iterator[memoryview]:
    """Yield the bytes from `start` to `stop` (exclusive) in pieces. Raise the errors of obstore.

    If an answer breaks, the next bytes are requested again, in a smaller part.
    """
    while start < stop:
        try:
            for piece in _streamed(bucket, key, start, min(stop, start + REQUEST_BYTES)):
                start += len(piece)
                yield piece
        except BaseError:
            retried = receive(bucket, key, start, min(stop, start + AGAIN_BYTES)).content
            start += len(retried)
            yield retried


def _streamed(bucket: Bucket, key: str, start: int, stop: int) -> Iterator[memoryview]:
    """Yield the bytes from one answer. Raise BaseError if the answer has fewer or more bytes."""
    answer = obstore.get(bucket.store, key, options={"range": (start, stop)})
    missing_bytes = stop - start
    for chunk in answer.stream(min_chunk_size=PIECE_BYTES):
        piece = memoryview(chunk)
        missing_bytes -= len(piece)
        if missing_bytes < 0:
            break
        yield piece
    if missing_bytes:
        raise BaseError("the answer has another size than was asked for")


class Parts:
    """Receives an object from `position` to its end. Call `close` at the end."""

    def __init__(self, bucket: Bucket, key: str, position: int, size: int) -> None:
        self._bucket, self._key, self._size = bucket, key, size
        self._position = position
        self._received = 0
        self._ahead: _Ahead | None = None

    def next(self) -> memoryview:
        """Return the next bytes. Raise the errors of obstore."""
        self._received += 1
        # The first parts are small. The caller of a large content soon asks for more.
        if self._ahead is None and self._received > 2 and _FAST.acquire(blocking=False):
            self._ahead = _Ahead(pieces(self._bucket, self._key, self._position, self._size))
        if self._ahead is not None:
            return self._ahead.next()
        stop = min(self._size, self._position + NEXT_BYTES)
        content = receive(self._bucket, self._key, self._position, stop).content
        self._position = stop
        return content

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None


class _Ahead:
    """Receives pieces in a thread, at most AHEAD pieces before they are read. `close` frees the thread for another
    download.
    """

    def __init__(self, source: Iterator[memoryview]) -> None:
        self._queue: Queue[memoryview | BaseException | None] = Queue(AHEAD)
        self._is_closed = threading.Event()
        _THREADS.submit(self._receive, source)

    def next(self) -> memoryview:
        entry = self._queue.get()
        if isinstance(entry, BaseException):
            raise entry
        return memoryview(b"") if entry is None else entry

    def close(self) -> None:
        self._is_closed.set()

    def _receive(self, source: Iterator[memoryview]) -> None:
        try:
            for piece in source:
                if not self._put(piece):
                    return
            self._put(_END)
        except BaseException as error:  # noqa: BLE001 - the reader raises it
            self._put(error)
        finally:
            _FAST.release()

    def _put(self, entry: memoryview | BaseException | None) -> bool:
        """Add an entry when there is room. Return False if the download was closed."""
        while not self._is_closed.is_set():
            try:
                self._queue.put(entry, timeout=_WAIT_SECONDS)
            except Full:
                continue
            return True
        return False
