"""Requests of the code to the server. All threads and forked children of the code share one channel."""

from __future__ import annotations

import fcntl
import os

from . import _wire

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any


class HostError(OSError):
    """Raised if the server refuses a request of the code."""

    reason: dict[str, Any] = {}
    """The answer of the server."""


LARGEST_PROGRESS = 1e300
_connection: dict[str, Any] = {}


def connect(descriptor: int, workspace: str) -> None:
    _connection.update(descriptor=descriptor, workspace=workspace)


def channel() -> int:
    """Return the descriptor of the channel, for a guest that receives files before any code of the run."""
    return int(_connection["descriptor"])


def with_disk(header: dict[str, Any]) -> dict[str, Any]:
    """Return the header with the size of the files in the workspace, if this can be measured."""
    try:
        room = os.statvfs(_connection["workspace"])
        return {**header, "disk": (room.f_blocks - room.f_bfree) * room.f_frsize}
    except:  # noqa: E722 - the code may have broken builtins, and must not lose its result
        return header


class _Alone:
    """Context manager that gives one thread of one process exclusive use of the channel.

    Each use opens the workspace and locks it, so the lock excludes threads as well as processes. The kernel releases
    the lock if its holder dies.
    """

    def __enter__(self) -> int:
        self._folder = os.open(_connection["workspace"], os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        return int(_connection["descriptor"])

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)


alone = _Alone


def tell(header: dict[str, Any], body: bytes | memoryview = b"") -> None:
    with _Alone() as descriptor:
        _wire.send(descriptor, header, body)


OWN_MESSAGES = ("ready", "broken", "result", "failure", "summary", "progress")


def ask(operation: str, header: dict[str, Any] | None = None, body: bytes | memoryview = b"") -> bytes:
    """Send a request to the server, and return its answer. Raise HostError if it refuses."""
    if operation in OWN_MESSAGES:
        raise ValueError(f"an operation cannot have the name {operation}")
    with _Alone() as descriptor:
        if _connection.get("torn"):
            raise HostError("a question to the host was interrupted; what comes now could be the answer to that one")
        try:
            _wire.send(descriptor, {**(header or {}), "op": operation}, body)
            answer, content = _wire.receive(descriptor)
        except BaseException:  # a signal handler may raise during the exchange
            _connection["torn"] = True
            raise
    error = answer.get("error")
    if error is None:
        return content
    refusal = HostError(error["message"])
    refusal.reason = error
    raise refusal


def summary(text: str) -> None:
    """Set the `summary` of the run, one sentence. If code calls this several times, the last call counts."""
    if not isinstance(text, str):
        raise TypeError(f"a summary is a str, not {type(text).__name__}")
    tell({"op": "summary", "text": text[:2000].encode("utf-8", "replace").decode()})


def progress(done: float, total: float | None = None, text: str = "") -> None:
    """Report progress to callers that follow the run, for example `progress(3, 10, "reading")`.

    The last call counts. `total` is None if it is unknown.
    """
    for number in (done, 0 if total is None else total):
        if not (isinstance(number, int | float) and abs(number) < LARGEST_PROGRESS):
            raise TypeError(f"progress is counted in finite numbers, not in {number!r}")
    if not isinstance(text, str):
        raise TypeError(f"the text of a progress is a str, not {type(text).__name__}")
    shown = text[:500].encode("utf-8", "replace").decode()
    tell({"op": "progress", "done": done, "total": total, "text": shown})
