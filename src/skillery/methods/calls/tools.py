"""Methods that list, call, define and remove tools of skills and sessions."""

from __future__ import annotations

from functools import partial

import msgspec

from skillery import registry
from skillery.backends import Identity
from skillery.errors import InvalidParams
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.version_spec import parse_reference, parse_version_spec
from skillery.method import Json, or_none
from skillery.methods import tool_params as params
from skillery.methods.calls.values import run_files
from skillery.methods.core import Core
from skillery.publishing import DefinedTool, Definition
from skillery.registry import ToolPage
from skillery.runs import ToolRequest, parse_outputs
from skillery.runs.results import ToolResult


async def list_tools(core: Core, identity: Identity, asked: params.ListTools) -> Json[ToolPage]:
    work = partial(
        registry.read_tools,
        identity=identity,
        key=core.registry.cursor_key,
        skill=parse_reference(asked.skill) if asked.skill else None,
        session=_session(asked.session),
        limit=asked.limit,
        cursor=asked.cursor,
    )
    return Json(await core.registry.read(work))


async def call_tool(core: Core, identity: Identity, asked: params.CallTool) -> ToolResult:
    of_skill, _, in_reference = asked.skill.partition("@")
    skill, name = _address(asked.name, of_skill)
    version = asked.version or in_reference
    if asked.version and in_reference and asked.version != in_reference:
        raise InvalidParams(
            f"'skill' asks for the version '{in_reference[:80]}', and 'version' is '{asked.version[:80]}'",
            hint="Name one version.",
            param="version",
        )
    if skill is None and asked.version:
        raise InvalidParams(
            f"'version' is {asked.version[:80]!r}, and no skill is named",
            hint="Name the skill of this version: in 'skill', or with 'skill/tool' in 'name'.",
            param="version",
        )
    request = ToolRequest(
        name=name,
        args=asked.args,
        skill=(skill, parse_version_spec(version)) if skill else None,
        session=_session(asked.session),
        input_blobs=asked.input_blobs,
        timeout_ms=or_none(asked.timeout_ms),
        environment=or_none(asked.environment),
        files=run_files(asked.files),
        outputs=parse_outputs(asked.outputs),
        workspace=asked.workspace,
        workspace_mode=asked.workspace_mode,
        background=asked.background,
    )
    return await core.runner.call_tool(identity, request)


async def define_tool(core: Core, identity: Identity, asked: params.DefineTool) -> DefinedTool:
    definition = Definition(
        name=asked.name,
        description=asked.description,
        parameters=asked.parameters,
        code=_text(asked.code, "code"),
        is_persistent=_is_true(asked.persistent),
        language=None if asked.language is msgspec.UNSET else asked.language,
        session=_session(asked.session),
        namespace=None if asked.namespace is msgspec.UNSET else parse_namespace(asked.namespace),
    )
    return await core.tools.define_tool(identity, definition)


async def remove_tool(core: Core, identity: Identity, asked: params.RemoveTool) -> DefinedTool:
    skill, name = _address(asked.name, "")
    return await core.tools.remove_tool(identity, name, skill, _session(asked.session))


def _address(text: str, skill: str) -> tuple[str | None, str]:
    """Return the skill and the tool of an address. `text` is `tool` or `skill/tool`; `skill` is the skill, or "".

    The returned skill is None if the caller names no skill. Raise InvalidName if it is not a name of a skill. Raise
    InvalidParams if `text` and `skill` name two skills, or if `text` contains a NUL.
    """
    before, slash, name = _text(text, "name").rpartition("/")
    named = parse_skill_name(before) if slash else None
    given_skill = parse_skill_name(skill) if skill else None
    if named and given_skill and named != given_skill:
        raise InvalidParams(
            f"'name' names the skill '{named}', but 'skill' is '{given_skill}'", hint="Name one skill.", param="skill"
        )
    return named or given_skill, name


def _is_true(text: str) -> bool:
    if text not in {"", "true", "false"}:
        raise InvalidParams(
            f"'persistent' is {text[:80]!r}", hint='Write "true" to keep the tool, or leave it out.', param="persistent"
        )
    return text == "true"


def _session(text: str) -> str:
    if text and not text.isprintable():
        raise InvalidParams("'session' contains a character that is not printable", param="session")
    return text


def _text(text: str, where: str) -> str:
    if "\0" in text:
        raise InvalidParams(f"'{where}' contains a NUL character", hint="Leave it out.", param=where)
    return text
