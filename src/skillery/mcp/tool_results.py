"""Results of tool calls: the answer of a method, or its error, as text and as structured content."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from skillery.backends import Identity
from skillery.client.tool_calls import Pictures
from skillery.context.budget import answer_room
from skillery.errors import SkilleryError
from skillery.formats.json_pieces import is_exactly, string_pieces
from skillery.formats.words import error_for_tools
from skillery.http.operations import ErrorAnswer
from skillery.mcp.requests import MOST_OF_SDK, Visit
from skillery.methods.errors import encode, error_object
from skillery.methods.execution import Caller, Parts, perform
from skillery.methods.table import METHODS, TOOLS


class _WithStatus(msgspec.Struct):
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_with_status = msgspec.json.Decoder(_WithStatus)


def tool_result(answer: bytes) -> dict[str, Any]:
    """Return the result of a tool call from the JSON result of a method."""
    structured = msgspec.json.decode(answer)
    return {
        "content": [{"type": "text", "text": answer.decode()}],
        "structuredContent": structured,
        # The failure of a run is part of its result.
        "isError": structured.get("status") == "failed",
    }


def is_large(answer: Parts) -> bool:
    return sum(map(len, answer)) > MOST_OF_SDK


def large_result(visit: Visit, answer: Parts) -> dict[str, Any]:
    """Return the result of a tool call like `tool_result`, with placeholders for the large values.

    If the text does not fit into the memory budget, return an error result.
    """
    try:
        text = string_pieces(bytes(part).decode() for part in answer)
        answer_room.get().keep(text.size)
    except SkilleryError as error:
        return error_result(visit, error_object(error))
    return {
        "content": [{"type": "text", "text": visit.splices.text(text)}],
        "structuredContent": visit.splices.object(answer),
        "isError": is_failed_run(answer),
    }


def is_failed_run(answer: Parts) -> bool:
    """Return whether the JSON result is the one of a failed run."""
    # The result of a run has one part. Answers with several parts are contents, and joining them would copy them.
    return len(answer) == 1 and is_exactly(_with_status.decode(answer[0]).status, b'"failed"')


def error_result(visit: Visit, error: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool call that failed. Its hint names only tools that the model has."""
    message = {"error": error_for_tools(error, {*TOOLS, *visit.methods})}
    return {
        "content": [{"type": "text", "text": encode(message).decode()}],
        "structuredContent": message,
        "isError": True,
    }


# -- Pictures for models: small pictures among the files of a run become image content of MCP --------------------------


async def with_pictures(visit: Visit, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool call, with at most 4 small pictures of the run added as image content.

    Return `result` unchanged if the caller may not read blobs, or if the run has written no small picture.
    """
    pictures = Pictures()
    for file in pictures.candidates(result["structuredContent"]) if may_read(visit.identity) else ():
        raw = msgspec.Raw(encode({"blob_id": file["blob_id"], "mode": "full"}))
        answer, _ = await perform(visit.core, visit.identity, "read_blob", raw, None)
        pictures.add(file, msgspec.json.decode(b"".join(answer)) if answer is not None else {})
    images = [{"type": "image", "data": data, "mimeType": kind} for kind, data in pictures.found]
    return result | {"content": [*result["content"], *images]} if images else result


def may_read(identity: Caller) -> bool:
    return isinstance(identity, Identity) and bool({"read", "admin"} & identity.scopes)


# -- Output schemas of the tools of MCP, made from the structs of results ----------------------------------------------


@cache
def output_schema(result: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema for the structured content of a tool: the struct `result`, or an error.

    MCP requires `type: object` at the top. Some clients check the content of errors too, so the schema includes errors.
    """
    alternatives, parts = msgspec.json.schema_components([result, ErrorAnswer], ref_template="#/$defs/{name}")
    return {"type": "object", "anyOf": list(alternatives), "$defs": parts}


# -- The tools of skills as tools of MCP, for connections that name the skills in the query: `?tools=text.words` -------


MOST_TOOLS = 1000
"""The maximum number of tools of one skill."""
MOST_BYTES = 1024 * 1024
"""The maximum size of the JSON of all skill tools of a connection. The SDK validates each value on the event loop."""
MOST_OF_NAME, MOST_OF_TOOL = 120, 90
"""The maximum number of characters of a tool name `skill__tool`, and of its part `tool`.

MCP allows 128 characters, and a number may be appended.
"""
_PROPERTY = ("type", "description", "enum")


class SkillTool(NamedTuple):
    """A tool of a skill in a connection that names the skill."""

    name: str
    """The name of the tool in this connection."""
    skill: str
    tool: str
    description: str
    schema: dict[str, Any]

    def shown(self) -> dict[str, Any]:
        """Return the tool as tools/list shows it."""
        return {"name": self.name, "description": self.description, "inputSchema": self.schema}


async def skill_tools(visit: Visit) -> dict[str, SkillTool]:
    """Return the tools of the skills that the connection names, by their MCP names.

    The MCP name of a tool is its own name. If two skills have a tool of that name, or a method has that name, the skill
    precedes it: `text_words__count`. So no tool can replace another one. Raise MCPError if a skill does not exist or
    the tools are too large.
    """
    declared: list[tuple[str, dict[str, Any]]] = []
    size = 0
    for skill in visit.skills:
        text = await _tools_of(visit, skill)
        size += len(text)
        if size > MOST_BYTES:
            raise _too_many(visit, size)
        declared += [(skill, tool) for tool in msgspec.json.decode(text)["tools"]]
    often = Counter(tool["name"] for _, tool in declared)
    separate = {_with_skill(skill, tool["name"]) for skill, tool in declared}
    tools: dict[str, SkillTool] = {}
    for skill, tool in declared:
        bare = tool["name"]
        is_taken = often[bare] > 1 or bare in METHODS or bare in separate
        name = _free(_with_skill(skill, bare) if is_taken else bare, tools)
        tools[name] = SkillTool(name, skill, bare, tool["description"], _schema(tool["parameters"]))
    return tools


def _with_skill(skill: str, bare: str) -> str:
    """Return the MCP name of a tool with its skill: `text_words__count`."""
    above, tool = re.sub(r"[.-]", "_", skill), bare[:MOST_OF_TOOL]
    return f"{above[-(MOST_OF_NAME - len(tool)) :]}__{tool}"


def _free(name: str, taken: Container[str]) -> str:
    """Return `name`, or `name` with a number if it is in `taken`. The skills `a.b` and `a-b` have the same prefix."""
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([name], numbered) if candidate not in taken)


def arguments_of(tool: SkillTool, arguments: msgspec.Raw, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params with which the method call_tool calls `tool`. `more` are params for the run."""
    return {"name": f"{tool.skill}/{tool.tool}", "args": arguments, **more}


def result_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the MCP result for a result of the method call_tool.

    The text content is the value that the handler has returned, and the ids of output blobs, if there are any. The
    structured content is the whole result of call_tool.
    """
    value = answer["result"]
    texts = [value if isinstance(value, str) else encode(value).decode()]
    if answer["output_blobs"]:
        texts.append(encode({"output_blobs": answer["output_blobs"]}).decode())
    content = [{"type": "text", "text": text} for text in texts]
    return {"content": content, "structuredContent": answer, "isError": bool(answer["is_error"])}


def _too_many(visit: Visit, size: int) -> MCPError:
    message = f"the tools of the {len(visit.skills)} skills of this connection have {size} bytes or more"
    hint = f"At most {MOST_BYTES} are offered. Name fewer skills in ?tools=, or call their tools with call_tool."
    return MCPError(INVALID_PARAMS, message, {"type": "answer_too_large", "hint": hint})


async def _tools_of(visit: Visit, skill: str) -> bytes:
    """Return the JSON result of the method list_tools for a skill. Raise MCPError if list_tools fails."""
    raw = msgspec.Raw(encode({"skill": skill, "limit": MOST_TOOLS}))
    answer, error = await perform(visit.core, visit.identity, "list_tools", raw, None)
    if answer is None:
        message = f"the tools of '{skill}', which this connection asks for, cannot be listed: {error['message']}"
        raise MCPError(INVALID_PARAMS, message, error["data"])
    text = b"".join(answer)
    answer_room.get().release(len(text))
    return text


def _schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema for the parameters of a tool.

    Skill Tools marks optional parameters, but JSON Schema lists required ones.
    """
    properties = {name: _property(parameter) for name, parameter in parameters.items()}
    required = [name for name, parameter in parameters.items() if parameter.get("optional") is not True]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _property(declared: dict[str, Any]) -> dict[str, Any]:
    schema = {key: declared[key] for key in _PROPERTY if key in declared}
    if declared.get("type") == "array":
        # Skill Tools does not define `items`, but some clients refuse arrays without it.
        items = declared.get("items")
        schema["items"] = items if isinstance(items, dict) else {}
    return schema
