"""Spans of a trace for slow steps. Without tracing, spans cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Protocol


class Span(Protocol):
    def set_attribute(self, key: str, value: str | int) -> None: ...


StartSpan = Callable[[str, Mapping[str, str | int]], AbstractContextManager[Span]]
starting: ContextVar[StartSpan | None] = ContextVar("starting", default=None)
"""The function that starts a span. Endpoints set it for requests that are traced."""
_NONE: AbstractContextManager[Span | None] = nullcontext()


def span(name: str, **attributes: str | int) -> AbstractContextManager[Span | None]:
    """Context manager that records its block as a span of the trace. It yields None if the request is not traced.

    Span names form a fixed set. Attributes contain method names and ids, and no other text from a caller.
    """
    start = starting.get()
    return _NONE if start is None else start(name, attributes)
