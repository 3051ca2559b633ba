"""Attributes of OpenTelemetry for calls of tools, and for the skills that these calls use.

The conventions for generative AI are in development, and those for skills are proposals. All names are in this table,
and may change in any release of Skillery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from skillery.context.tracing import Span

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


@contextmanager
def tool_call(span: Span | None, method: str, *, is_tool: bool) -> Iterator[None]:
    """Context manager for the call of a method: add the attributes of a tool to its span, which is None without
    tracing.
    """
    if span is None or not (is_tool or method in OF_ONE_SKILL):
        yield
        return
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
