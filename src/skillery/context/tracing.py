"""Spans: traced steps of a request. If the request is not traced, a span costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
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


# -- Attributes of OpenTelemetry for calls of tools, and for the skills that these calls use ---------------------------
# The conventions for generative AI are in development, and those for skills are proposals. All names are in this table,
# and may change in any release of Skillery.


OPERATION = "gen_ai.operation.name"
EXECUTE_TOOL = "execute_tool"
TOOL_NAME = "gen_ai.tool.name"
SKILL_NAME = "gen_ai.skill.name"
SKILL_VERSION = "gen_ai.skill.version"
SKILL_SOURCE = "gen_ai.skill.source.uri"

OF_ONE_SKILL = frozenset({"execute_skill", "call_tool", "describe_skill", "read_skill_file"})
"""The methods that use one skill. The first skill that they resolve is this skill."""


class _ToolSpan:
    """The span of a call that uses one skill. It accepts the attributes of a skill once."""

    __slots__ = ("span",)

    def __init__(self, span: Span) -> None:
        self.span: Span | None = span


_current: ContextVar[_ToolSpan | None] = ContextVar("tool_span", default=None)


def tool_call(span: Span | None, method: str, *, is_tool: bool) -> AbstractContextManager[None]:
    """Context manager for the call of a method: add the attributes of a tool to its span, which is None without
    tracing.
    """
    return nullcontext() if span is None or not (is_tool or method in OF_ONE_SKILL) else _of_tool(span, method)


@contextmanager
def _of_tool(span: Span, method: str) -> Iterator[None]:
    span.set_attribute(OPERATION, EXECUTE_TOOL)
    span.set_attribute(TOOL_NAME, method)
    if method not in OF_ONE_SKILL:
        yield
        return
    held = _ToolSpan(span)
    token = _current.set(held)
    try:
        yield
    finally:
        _current.reset(token)
        held.span = None  # a run in the background still has this object in its context


def note_skill(name: str, version: str, uri_of: Callable[[str], str]) -> None:
    """Add the attributes of a resolved skill to the span of the current call, if the call needs them. Without tracing,
    this costs nothing.
    """
    held = _current.get()
    if held is None or held.span is None:
        return
    span, held.span = held.span, None
    span.set_attribute(SKILL_NAME, name)
    span.set_attribute(SKILL_VERSION, version)
    span.set_attribute(SKILL_SOURCE, uri_of(name))
