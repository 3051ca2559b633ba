"""What can go wrong between a program and its server, as exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class ClientError(Exception):
    """Base of all that this package raises on its own."""


class ConnectionFailed(ClientError):
    """Nobody answered, or the connection broke off. `sent` is False where the server cannot have heard of the call."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class StrangeAnswer(ClientError):
    """Something answered that is no Skillery server: a proxy, or another program at this address."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP."""


class AnsweredError(ClientError):
    """The server said no. There is a child for each code of the protocol; this one is for a code that is new."""

    stands_for: ClassVar[int | None] = None

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.object = dict(error)
        """The error object as it came."""
        self.code: int = error.get("code", 0)
        self.message: str = error.get("message", "")
        data = error.get("data")
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        super().__init__(f"{self.message}. {self.hint}" if self.hint else self.message)

    @property
    def type(self) -> str:
        """A stable word for what is wrong, such as `skill_not_found`; "" where there is none."""
        return str(self.data.get("type", ""))

    @property
    def hint(self) -> str | None:
        """What to do next, in a sentence."""
        return self.data.get("hint")

    @property
    def retry_after_ms(self) -> int | None:
        """When another try may succeed, where the server knows."""
        return self.data.get("retry_after_ms")


class ParseError(AnsweredError):
    stands_for = -32700


class InvalidRequest(AnsweredError):
    stands_for = -32600


class MethodNotFound(AnsweredError):
    """The server is older than this client, or the name is wrong."""

    stands_for = -32601


class InvalidParams(AnsweredError):
    stands_for = -32602


class InternalError(AnsweredError):
    """The server's own fault; `data["request_id"]` finds it in its log."""

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
    """After `retry_after_ms` it may go. The client has tried again already, as often as its Retries say."""

    stands_for = -32006


class Refused(AnsweredError):
    """A check said no; `findings` say why."""

    stands_for = -32007

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.data.get("findings", ()))


BY_CODE: dict[int | None, type[AnsweredError]] = {kind.stands_for: kind for kind in AnsweredError.__subclasses__()}


def error_of(error: Mapping[str, Any]) -> AnsweredError:
    """The exception for an error object."""
    return BY_CODE.get(error.get("code"), AnsweredError)(error)
