"""Spans of what takes time, where somebody traces the request; nothing at all where nobody does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Protocol


class Span(Protocol):
    def set_attribute(self, key: str, value: str | int) -> None: ...


StartSpan = Callable[[str, Mapping[str, str | int]], AbstractContextManager[Span]]
starting: ContextVar[StartSpan | None] = ContextVar("starting", default=None)
"""Set by a door for the request that it is about to answer."""
_NONE: AbstractContextManager[Span | None] = nullcontext()


def span(name: str, **attributes: str | int) -> AbstractContextManager[Span | None]:
    """What is done inside is a span of the trace; None where there is no trace.

    Names are few. Attributes hold nothing that a caller sent beside names of methods and ids.
    """
    start = starting.get()
    return _NONE if start is None else start(name, attributes)
