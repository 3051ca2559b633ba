"""Exceptions of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class ClientError(Exception):
    """Base class of the errors that a call of the client raises."""


class ConnectionFailed(ClientError):
    """Raised when the connection fails. `sent` is False if the server cannot have received the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class DeadlineExceeded(ConnectionFailed):
    """Raised if a call is not answered before the `deadline` of the client. The server may have executed the call."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=True)


class StrangeAnswer(ClientError):
    """Raised if the response is malformed or not from a Skillery server, for example from a proxy."""

    def __init__(self, message: str, *, status: int, server: str = "") -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status."""
        self.server = server
        """The address of the responder, without a path."""


class AnsweredError(ClientError):
    """Raised if the server answers with an error. Each known code has a subclass. Other codes raise this class."""

    stands_for: ClassVar[int | None] = None
    """The JSON-RPC code of the errors that raise this class. None stands for all other codes."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.object = dict(error)
        """The error object as received."""
        self.code: int = error.get("code", 0)
        self.message: str = error.get("message", "")
        data = error.get("data")
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        super().__init__(f"{self.message.removesuffix('.')}. {self.hint}" if self.hint else self.message)

    @property
    def type(self) -> str:
        """The stable name of the error, such as `skill_not_found`, or "" if the error has none."""
        return str(self.data.get("type", ""))

    @property
    def hint(self) -> str | None:
        """A sentence about the remedy, or None."""
        return self.data.get("hint")

    @property
    def retry_after_ms(self) -> int | None:
        """Milliseconds after which a retry may succeed, or None if the server does not state them."""
        return self.data.get("retry_after_ms")


class ParseError(AnsweredError):
    stands_for = -32700


class InvalidRequest(AnsweredError):
    stands_for = -32600


class MethodNotFound(AnsweredError):
    """Raised when the server does not know the method: its name is wrong, or the server is older than this client."""

    stands_for = -32601


class InvalidParams(AnsweredError):
    stands_for = -32602


class InternalError(AnsweredError):
    """Raised when the server failed. An admin finds the error in the server's log by `data["request_id"]`."""

    stands_for = -32603


class NotAuthenticated(AnsweredError):
    stands_for = -32001


class NotAllowed(AnsweredError):
    stands_for = -32002


class NotFound(AnsweredError):
    stands_for = -32003


class Conflict(AnsweredError):
    stands_for = -32004


class TooLarge(AnsweredError):
    stands_for = -32005


class Busy(AnsweredError):
    """Raised when the server is busy. A retry may succeed after `retry_after_ms`.

    Calls of methods are first repeated as `Retries` allows.
    """

    stands_for = -32006


class Refused(AnsweredError):
    """Raised when a policy of the server refuses the request. `findings` contains the reasons."""

    stands_for = -32007

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The findings of the checks that refused the request."""
        return list(self.data.get("findings", ()))


BY_CODE: dict[int | None, type[AnsweredError]] = {kind.stands_for: kind for kind in AnsweredError.__subclasses__()}


def error_of(error: Mapping[str, Any]) -> AnsweredError:
    """Return the exception for an error object of the server."""
    return BY_CODE.get(error.get("code"), AnsweredError)(error)
