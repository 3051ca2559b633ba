"""Spans: traced steps of a request. If the request is not traced, a span costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Protocol


class Span(Protocol):
    def set_attribute(self, key: str, value: str | int) -> None: ...


StartSpan = Callable[[str, Mapping[str, str | int]], AbstractContextManager[Span]]
starting: ContextVar[StartSpan | None] = ContextVar("starting", default=None)
"""Function that starts a span of the current request, or None. An endpoint sets the function if tracing is on."""
_NONE: AbstractContextManager[Span | None] = nullcontext()


def span(name: str, **attributes: str | int) -> AbstractContextManager[Span | None]:
    """Context manager: record the `with` block as a span of the current request. Yield the span, or None without
    tracing.

    `name` must be from a small fixed set. `attributes` must not contain anything that a caller sent, except method
    names and ids.
    """
    start = starting.get()
    return _NONE if start is None else start(name, attributes)
