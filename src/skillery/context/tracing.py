"""Spans of a trace for work that takes time. Without tracing they cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Protocol


class Span(Protocol):
    def set_attribute(self, key: str, value: str | int) -> None: ...


StartSpan = Callable[[str, Mapping[str, str | int]], AbstractContextManager[Span]]
starting: ContextVar[StartSpan | None] = ContextVar("starting", default=None)
"""Set by an endpoint for the request that it answers."""
_NONE: AbstractContextManager[Span | None] = nullcontext()


def span(name: str, **attributes: str | int) -> AbstractContextManager[Span | None]:
    """Record the block as a span of the trace. Yields None if the request is not traced.

    There are few names. Attributes hold nothing that a caller sent, apart from method names and ids.
    """
    start = starting.get()
    return _NONE if start is None else start(name, attributes)
