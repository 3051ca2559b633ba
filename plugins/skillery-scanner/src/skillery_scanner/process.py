"""A process that scans: separate from the server, with limits of time and memory.

A hostile file can exhaust the stack or the memory of the parser, or take very long. Then the process ends, and the next
scan starts a new one.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence

LENGTH = 8
MOST_ANSWER = 16 * 1024 * 1024
MOST_SCANS = 1_000
"""Scans of one process. A new process follows, so that its memory does not grow for ever."""


class ScanFailed(Exception):
    """Raised if a scan takes too long, or if the process ends."""


class ScanProcess:
    """Starts a worker when it is needed, and sends requests to the worker, one at a time."""

    def __init__(self, command: Sequence[str], *, first_seconds: float, seconds: float) -> None:
        """`first_seconds` limits the first request of a process, which includes its start."""
        self._command = command
        self._first_seconds = first_seconds
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._scans = 0
        self._is_closed = False

    def ask(self, request: bytes) -> bytes:
        """Return the answer of the worker. Raise ScanFailed if there is none in time."""
        if not self._lock.acquire(timeout=self._first_seconds):
            raise ScanFailed(f"other scans took longer than {self._first_seconds:g} s")
        try:
            answer = self._exchange(request, self._seconds if self._process is not None else self._first_seconds)
            self._scans += 1
            if self._scans >= MOST_SCANS:
                self._end()
            return answer
        finally:
            self._lock.release()

    def _exchange(self, request: bytes, limit: float) -> bytes:
        """Send a request and return the answer. Raise ScanFailed after `limit` seconds, or if the process ends."""
        deadline = time.monotonic() + limit
        try:
            process = self._running()
            _write(process, len(request).to_bytes(LENGTH, "big") + request, deadline)
            length = int.from_bytes(_read(process, LENGTH, deadline), "big")
            if length > MOST_ANSWER:
                raise ScanFailed(f"the answer of the scan has {length} bytes")
            return _read(process, length, deadline)
        except TimeoutError:
            self._end()
            raise ScanFailed(f"the scan took longer than {limit:g} s") from None
        except OSError as error:
            code = self._end()
            raise ScanFailed(f"the process of the scan ended with the code {code} ({error})") from None
        except BaseException:
            # The process may still answer this request, so the next request must not reach it.
            self._end()
            raise

    def close(self) -> None:
        """End the process, also during a scan. Later scans fail."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the worker. Start one if none is running. Raise ScanFailed after `close`."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            if self._is_closed:
                raise ScanFailed("the server is stopping")
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(), start_new_session=True
            )
            assert self._process.stdin is not None
            # A write to a process that reads nothing would otherwise block past its deadline.
            os.set_blocking(self._process.stdin.fileno(), False)
            self._scans = 0
        return self._process

    def _end(self) -> int | None:
        """Kill the process, close its pipes and return its exit code, or None if no process runs."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait()


def _environment() -> dict[str, str]:
    """Return the environment of a worker: no secrets and no tokens of the server."""
    passed_names = ("PATH", "LANG", "LC_ALL", "TMPDIR")
    return {name: os.environ[name] for name in passed_names if name in os.environ}


def _write(process: subprocess.Popen[bytes], content: bytes, deadline: float) -> None:
    assert process.stdin is not None
    file, unwritten = process.stdin.fileno(), memoryview(content)
    while unwritten:
        _wait(file, select.POLLOUT, deadline)
        unwritten = unwritten[os.write(file, unwritten[:65_536]) :]


def _read(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    """Return exactly `size` bytes of the output of the process; `OSError` if the output ends before, `TimeoutError`
    after `deadline`.
    """
    assert process.stdout is not None
    file, received = process.stdout.fileno(), bytearray()
    while len(received) < size:
        _wait(file, select.POLLIN, deadline)
        piece = os.read(file, min(65_536, size - len(received)))
        if not piece:
            raise OSError("end of its output")
        received += piece
    return bytes(received)


def _wait(file: int, event: int, deadline: float) -> None:
    # Not `select.select`: it refuses descriptors above 1023, which a busy server has.
    poll = select.poll()
    poll.register(file, event)
    seconds_left = deadline - time.monotonic()
    # `poll` rounds up to milliseconds, so it would accept an answer after the deadline.
    if seconds_left <= 0 or not poll.poll(seconds_left * 1_000):
        raise TimeoutError
