"""call_tool: the args and the files of a handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skillery.backends import PublishedFile
from skillery.formats.tools import WORK_DIR

if TYPE_CHECKING:
    from skillery.registry import SessionTool

SESSION_SKILL = "session-tools"
"""The skill name under which the tool of a session is mounted."""


def tool_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without `__workDir`: only the sandbox sets this argument."""
    return {name: value for name, value in args.items() if name != WORK_DIR}


def session_files(tool: SessionTool) -> tuple[PublishedFile, ...]:
    """Return the files of a tool of a session."""
    return (PublishedFile(tool.script, tool.content.encode()),)
