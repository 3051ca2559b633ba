"""Results of tool calls: the answer of a method, or its error, as text and as structured content."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from skillery.backends import Identity
from skillery.client.tool_calls import Pictures
from skillery.errors import SkilleryError
from skillery.formats.hint_words import error_for_tools
from skillery.formats.json_pieces import is_exactly, string_pieces
from skillery.http.operations import ErrorAnswer
from skillery.mcp.large_messages import MOST_OF_SDK
from skillery.mcp.requests import Visit
from skillery.methods.errors import encode, error_object
from skillery.methods.execution import Caller, Parts, perform
from skillery.methods.table import TOOLS

"""The eight tools of the Skills Protocol, which every model has."""


class _WithStatus(msgspec.Struct):
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_with_status = msgspec.json.Decoder(_WithStatus)


def tool_result(answer: bytes) -> dict[str, Any]:
    structured = msgspec.json.decode(answer)
    return {
        "content": [{"type": "text", "text": answer.decode()}],
        "structuredContent": structured,
        # The failure of a run is part of its result.
        "isError": structured.get("status") == "failed",
    }


def result_of_method(visit: Visit, answer: Parts | None, error: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool call for the outcome of a method: its answer, or None and its error."""
    if answer is None:
        return error_result(visit, error)
    return large_result(visit, answer) if is_large(answer) else tool_result(b"".join(answer))


def is_large(answer: Parts) -> bool:
    return sum(map(len, answer)) > MOST_OF_SDK


def large_result(visit: Visit, answer: Parts) -> dict[str, Any]:
    """Return the result of a tool call like `tool_result`, but with placeholders for the large values.

    If the text does not fit into the memory budget, return an error result.
    """
    try:
        text = string_pieces((bytes(part).decode() for part in answer), visit.held.expect)
        visit.held.keep(text.size)
    except SkilleryError as error:
        return error_result(visit, error_object(error))
    return {
        "content": [{"type": "text", "text": visit.splices.text(text)}],
        "structuredContent": visit.splices.object(answer),
        "isError": _is_failed_run(answer),
    }


def _is_failed_run(answer: Parts) -> bool:
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
    """Return the result of a tool call with up to 4 small pictures of the run as image content.

    Return `result` unchanged if the caller may not read blobs, or if the run wrote no small picture.
    """
    pictures = Pictures()
    for file in pictures.candidates(result["structuredContent"]) if may_read(visit.identity) else ():
        raw = msgspec.Raw(encode({"blob_id": file["blob_id"], "mode": "full"}))
        answer, _ = await perform(visit.core, visit.identity, "read_blob", raw, None)
        pictures.add(file, msgspec.json.decode(b"".join(answer)) if answer is not None else {})
    shown = [{"type": "image", "data": data, "mimeType": kind} for kind, data in pictures.found]
    return result | {"content": [*result["content"], *shown]} if shown else result


def may_read(identity: Caller) -> bool:
    return isinstance(identity, Identity) and bool({"read", "admin"} & identity.scopes)


# -- Output schemas of the tools of MCP, made from the structs of results ----------------------------------------------


@cache
def output_schema(result: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's structured content: the struct `result`, or an error.

    MCP requires `type: object` at the top. Errors are part of the schema, because some clients check the content of
    errors too.
    """
    alternatives, parts = msgspec.json.schema_components([result, ErrorAnswer], ref_template="#/$defs/{name}")
    return {"type": "object", "anyOf": list(alternatives), "$defs": parts}
