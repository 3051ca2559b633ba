"""A lock that one process at a time holds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skillery.client.logins.errors import UnusableLogin

RETRY_SECONDS = 0.05


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Context manager: hold the lock of the file at `path`. Wait while another process or thread holds it.

    The operating system releases the lock if the process dies. The file stays, because deleting it would let two
    processes lock two files. Raise UnusableLogin if the file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError as error:
        raise UnusableLogin(f"cannot lock '{path}': {error.strerror}") from None
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


if sys.platform == "win32":

    def _lock(descriptor: int) -> None:
        import msvcrt

        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except OSError:
                time.sleep(RETRY_SECONDS)

else:

    def _lock(descriptor: int) -> None:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)
