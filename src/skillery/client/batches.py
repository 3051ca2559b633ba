"""Batches: several calls in one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from skillery.client.errors import ClientError, error_of
from skillery.client.generated import BatchMethods
from skillery.client.wire import MAX_BATCH_CALLS, Call

T = TypeVar("T")
_UNSET = object()


class Pending(Generic[T]):
    """The result of a call in a batch, which is known once the batch was sent."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._result: Any = _UNSET
        self._error: ClientError | None = None

    def result(self) -> T:
        """Return the result of the call. Raise the error of the call if it failed.

        Raise RuntimeError if the batch was not sent yet.
        """
        if self._error is not None:
            raise self._error
        if self._result is _UNSET:
            raise RuntimeError(
                f"{self.call.method} has no result yet: the batch is sent at the end of its `with` block"
            )
        return cast(T, self._result)

    def settle(self, reply: Mapping[str, Any]) -> None:
        """Store the result or the error in the reply of the server."""
        if "error" in reply:
            self._error = error_of(reply["error"])
        else:
            self._result = reply["result"]


class Collected(BatchMethods):
    """Collects the calls of a batch in order. It has all methods of the server, which return a Pending."""

    def __init__(self) -> None:
        self._pending: list[Pending[Any]] = []

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> Pending[Any]:
        """Add a call of a method by its name, and return its pending result."""
        # The server does not support idempotency keys in a batch.
        pending = Pending[Any](Call(method, params or {}))
        self._pending.append(pending)
        return pending

    def _portions(self) -> list[Sequence[Pending[Any]]]:
        """Return the calls in groups of at most MAX_BATCH_CALLS, in order."""
        return [self._pending[at : at + MAX_BATCH_CALLS] for at in range(0, len(self._pending), MAX_BATCH_CALLS)]
