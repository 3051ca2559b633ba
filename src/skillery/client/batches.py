"""Several calls in one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from skillery.client.errors import ClientError, error_of
from skillery.client.generated.batch_methods import BatchMethods
from skillery.client.wire import MOST_CALLS, Call

T = TypeVar("T")
_NOTHING = object()


class Pending(Generic[T]):
    """What a call in a batch will have come to."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._result: Any = _NOTHING
        self._error: ClientError | None = None

    def result(self) -> T:
        """Raises the error of this call, and RuntimeError before the batch was sent."""
        if self._error is not None:
            raise self._error
        if self._result is _NOTHING:
            raise RuntimeError(
                f"{self.call.method} has no result yet: the batch is sent at the end of its `with` block"
            )
        return cast(T, self._result)

    def settle(self, reply: Mapping[str, Any]) -> None:
        if "error" in reply:
            self._error = error_of(reply["error"])
        else:
            self._result = reply["result"]


class Collected(BatchMethods):
    """Calls in the order in which they will be made. Every method is here as it is in the client, and answers what will
    hold its result."""

    def __init__(self) -> None:
        self._pending: list[Pending[Any]] = []

    def call(self, method: str, params: Mapping[str, Any] | None = None) -> Pending[Any]:
        """Any method by its name."""
        # Without keys: the server takes none for a batch.
        pending = Pending[Any](Call(method, params or {}))
        self._pending.append(pending)
        return pending

    def _portions(self) -> list[Sequence[Pending[Any]]]:
        """As many in each as the server takes at once."""
        return [self._pending[at : at + MOST_CALLS] for at in range(0, len(self._pending), MOST_CALLS)]
