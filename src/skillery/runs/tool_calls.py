"""call_tool: what is asked, and how a run of a handler is answered to an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from skillery.backends import Failure, PublishedFile
from skillery.formats.inputs import Input, InputInvalid, apply_inputs
from skillery.formats.tools_json import WORK_DIR, inputs_of, parameters_of
from skillery.formats.version_spec import VersionSpec
from skillery.registry import FoundTool, SessionTool

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


def tool_args(tool: FoundTool, args: Mapping[str, Any]) -> tuple[bytes, Failure | None]:
    """The arguments as JSON; a failure where they do not fit the parameters that the tool declares. `__workDir` is the
    sandbox's to say."""
    given = {name: value for name, value in args.items() if name != WORK_DIR}
    try:
        return msgspec.json.encode(apply_inputs(_inputs(msgspec.json.encode(tool.declared)), given)), None
    except InputInvalid as error:
        return msgspec.json.encode(given), Failure("ValidationError", str(error))


@lru_cache(maxsize=256)
def _inputs(declared: bytes) -> dict[str, Input]:
    return inputs_of(parameters_of(msgspec.json.decode(declared)))


def session_files(tool: SessionTool) -> tuple[PublishedFile, ...]:
    """What a tool of a session is mounted as."""
    return (PublishedFile(tool.script, tool.content.encode()),)


def tool_answer(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run of a handler, as call_tool answers it. Failures are results too: agents go on from them."""
    error = run.get("error")
    if isinstance(error, msgspec.Raw):
        error = msgspec.json.decode(error)
    return {
        "result": {"error": error["message"] or error["type"]} if error else run["output"],
        "is_error": error is not None,
        "skill": run.get("skill"),
        "run_id": run["run_id"],
        "logs_preview": run["logs_preview"],
        "output_blobs": run["output_blobs"],
        **({"files": run["files"]} if "files" in run else {}),
    }


def stub_answer(tool: FoundTool) -> dict[str, Any]:
    """Of a tool without a script: nothing is run, and the agent is told where it reads on."""
    version = tool.version
    assert version is not None, "what is defined for a session has code"
    return {
        "result": (
            f"'{tool.name}' has nothing to run: it is described in the instructions of the skill '{version.name}'. "
            f"Load them with read_skill_file (name '{version.name}', version '{version.version}', path 'SKILL.md') "
            "and follow them."
        ),
        "is_error": False,
        "skill": {"name": version.name, "version": version.version, "digest": version.digest},
        "run_id": None,
        "logs_preview": "",
        "output_blobs": [],
    }
