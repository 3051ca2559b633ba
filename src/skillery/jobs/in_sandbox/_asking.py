"""Requests of skills to the server."""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

    from cellblock.runtime import _host
else:
    from . import _host


class SkillError(Exception):
    """Raised if a called skill has failed in its sandbox.

    `type` is the class name of its exception, or a failure type such as `MemoryLimitExceeded`.
    """

    def __init__(self, type: str, message: str) -> None:  # noqa: A002 - the name of the attribute
        super().__init__(type, message)
        self.type = type
        self.message = message

    def __str__(self) -> str:
        return self.message


_folders = {"blobs": ""}


def mount_blobs(folder: str) -> None:
    _folders["blobs"] = folder


def blobs_folder() -> str:
    """Return the folder of the input blobs of the run."""
    return _folders["blobs"]


def ask(operation: str, header: dict[str, Any], body: bytes | memoryview = b"") -> bytes:
    """Send a request to the server, and return its answer. Raise FileNotFoundError, HostError or SkillError if it
    refuses.
    """
    try:
        return _host.ask(operation, header, body)
    except _host.HostError as error:
        refusal = error
    reason = refusal.reason
    if reason.get("type") == "SkillFailed":
        raise SkillError(reason["failed_as"], reason["message"])
    raise FileNotFoundError(reason["message"]) if reason.get("type") == "BlobNotFound" else refusal
