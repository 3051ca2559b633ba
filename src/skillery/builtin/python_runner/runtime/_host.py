"""The conversation with the host, shared by all threads and forked children of the code."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import _wire


class HostError(OSError):
    """The host refused what the code asked of it."""


_connection: dict[str, Any] = {}


def connect(descriptor: int, lock_folder: str, blobs_folder: str) -> None:
    _connection.update(descriptor=descriptor, lock_folder=lock_folder, blobs_folder=blobs_folder)


def blobs_folder() -> str:
    return str(_connection["blobs_folder"])


@contextmanager
def _alone() -> Iterator[int]:
    # A lock on a freshly opened descriptor holds between threads and between processes alike, and the kernel lets
    # go of it when its holder dies. No descriptor stays open for it.
    folder = os.open(_connection["lock_folder"], os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield _connection["descriptor"]
    finally:
        os.close(folder)


def tell(header: dict[str, Any], body: bytes | memoryview = b"") -> None:
    with _alone() as descriptor:
        _wire.send(descriptor, header, body)


def ask(header: dict[str, Any], body: bytes | memoryview = b"") -> tuple[dict[str, Any], bytes]:
    """The host's answer. Raises FileNotFoundError or HostError where it says no."""
    with _alone() as descriptor:
        _wire.send(descriptor, header, body)
        answer, content = _wire.receive(descriptor)
    error = answer.get("error")
    if error is None:
        return answer, content
    raise (FileNotFoundError if error["type"] == "BlobNotFound" else HostError)(error["message"])


def summary(text: str) -> None:
    """One sentence about the run, shown as its `summary`; the last one counts."""
    if not isinstance(text, str):
        raise TypeError(f"a summary is a str, not {type(text).__name__}")
    tell({"op": "summary", "text": text[:2000]})
