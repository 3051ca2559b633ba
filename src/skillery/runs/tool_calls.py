"""call_tool: what is asked, and how a run of a handler is answered to an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skillery.backends import PublishedFile
from skillery.formats.tools_json import WORK_DIR
from skillery.formats.version_spec import VersionSpec
from skillery.registry import FoundTool, SessionTool
from skillery.runs.files import RunFile
from skillery.runs.results import ExactSkill, Run, ToolResult, if_set

SESSION_SKILL = "session-tools"
"""Under this name a tool that lives in a session is mounted: no skill offers it."""


class ToolRequest(msgspec.Struct, frozen=True):
    name: str
    args: Mapping[str, Any]
    skill: tuple[str, VersionSpec] | None = None
    """None: whichever the bare name means."""
    session: str = ""
    input_blobs: Sequence[str] = ()
    timeout_ms: int | None = None
    environment: str | None = None
    """As of a SkillRequest."""
    files: Sequence[RunFile] = ()


def tool_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without `__workDir`, which only the sandbox sets."""
    return {name: value for name, value in args.items() if name != WORK_DIR}


def session_files(tool: SessionTool) -> tuple[PublishedFile, ...]:
    """What a tool of a session is mounted as."""
    return (PublishedFile(tool.script, tool.content.encode()),)


def tool_result(run: Run) -> ToolResult:
    """Return the run of a handler as call_tool answers it. Failures are results too: agents go on from them."""
    error = if_set(run.error)
    return ToolResult(
        result={"error": error.message or error.type} if error else run.output,
        is_error=error is not None,
        skill=if_set(run.skill),
        run_id=run.run_id,
        logs_preview=run.logs_preview,
        output_blobs=run.output_blobs,
        files=run.files,
        environment=run.environment,
    )


def stub_result(tool: FoundTool) -> ToolResult:
    """Of a tool without a script: nothing is run, and the agent is told where it reads on."""
    version = tool.version
    assert version is not None, "what is defined for a session has code"
    return ToolResult(
        result=(
            f"'{tool.name}' has nothing to run: it is described in the instructions of the skill '{version.name}'. "
            f"Load them with read_skill_file (name '{version.name}', version '{version.version}', path 'SKILL.md') "
            "and follow them."
        ),
        is_error=False,
        skill=ExactSkill(version.name, version.version, version.digest),
        run_id=None,
        logs_preview="",
        output_blobs=[],
    )
