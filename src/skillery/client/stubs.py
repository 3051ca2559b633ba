"""The methods of the clients, each made from a stub: a method that waits, a coroutine, and a call in a batch.

A stub has the signature and the docstring of a method of the server, and returns the params of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from skillery.client.batches import Pending

P = ParamSpec("P")
R = TypeVar("R")
KEY = "idempotency_key"


def params_of(names: dict[str, Any]) -> Any:
    """Return the params of a call: the local names of its stub, without `self`."""
    del names["self"]
    return names


def blocking(stub: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return the method of Client for a stub."""

    @wraps(stub)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        params: Any = stub(self, *args, **kwargs)
        answer: R = self.call(stub.__name__, params, idempotency_key=params.pop(KEY, None))
        return answer

    return method


def awaited(stub: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Return the coroutine of AsyncClient for a stub."""

    @wraps(stub)
    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        params: Any = stub(self, *args, **kwargs)
        answer: R = await self.call(stub.__name__, params, idempotency_key=params.pop(KEY, None))
        return answer

    return method


def batched(stub: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Pending[R]]:
    """Return the method of a batch for a stub. It raises TypeError for params that a batch does not support."""

    @wraps(stub)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Pending[R]:
        params: Any = stub(self, *args, **kwargs)
        if params.pop(KEY, None) is not None:
            raise TypeError("a call in a batch takes no idempotency_key: the server supports none in a batch")
        if isinstance(params.get("files"), Mapping):
            raise TypeError("a call in a batch uploads no files: pass blobs, which create_blob returns")
        pending: Pending[R] = self.call(stub.__name__, params)
        return pending

    return method
