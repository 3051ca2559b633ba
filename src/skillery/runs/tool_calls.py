"""call_tool: what is asked, and how a run of a handler is answered to an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skillery.backends import PublishedFile
from skillery.formats.tools_json import WORK_DIR
from skillery.registry import SessionTool

SESSION_SKILL = "session-tools"
"""Under this name a tool that lives in a session is mounted: no skill offers it."""


def tool_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without `__workDir`, which only the sandbox sets."""
    return {name: value for name, value in args.items() if name != WORK_DIR}


def session_files(tool: SessionTool) -> tuple[PublishedFile, ...]:
    """What a tool of a session is mounted as."""
    return (PublishedFile(tool.script, tool.content.encode()),)
