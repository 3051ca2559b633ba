"""Tool calls in the formats of model SDKs, and the messages that answer them. Also the pictures in such messages."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from skillery.client.generated import FOR_MODELS, TOOLS

Dialect = Literal["openai", "openai-responses", "anthropic", "mcp"]
INVALID_PARAMS = -32602
SEARCH = "search_skills"
"""The tool that models get in addition to the tools of the protocol."""


class ToolCall(NamedTuple):
    """A tool call of a model. `dialect` is the format of the call."""

    dialect: Dialect
    id: str
    name: str
    arguments: Any
    """The arguments: an object, or its JSON as the model has written it."""

    def params(self) -> dict[str, Any]:
        """Return the arguments as an object. Raise ModelMistake if they are not a JSON object."""
        arguments = "{}" if self.arguments in (None, "") else self.arguments
        try:
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments)
            return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise ModelMistake(
                f"the arguments of {self.name} are not a JSON object: {error}",
                "invalid_arguments",
                "Call the tool again with one JSON object that matches the schema of the tool.",
            ) from None

    def check_name(self, offered: Collection[str]) -> None:
        """Raise ModelMistake if the called tool is not one of `offered`."""
        if self.name in offered:
            return
        near = difflib.get_close_matches(self.name, offered, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ModelMistake(
            f"the tool {self.name[:80]!r} does not exist",
            "tool_not_found",
            f"{meant}Available: {', '.join(offered)}. A skill is not a tool: run skills with execute_skill.",
        )

    @property
    def shows_images(self) -> bool:
        """Whether a message of this format can contain images."""
        return self.dialect in ("anthropic", "mcp")

    def answered(self, result: Any, pictures: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """Return the message for the model with the result of the call.

        `pictures` are pairs of a media type and a content in base64.
        """
        # A failed run reports its error in the result.
        failed = isinstance(result, dict) and (result.get("status") == "failed" or result.get("is_error") is True)
        return self._with_pictures(self._message(result, is_error=failed), pictures)

    def refused(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """Return the message for the model with an error that the model may correct."""
        return self._message({"error": error}, is_error=True)

    def _with_pictures(self, message: dict[str, Any], pictures: Sequence[tuple[str, str]]) -> dict[str, Any]:
        if not pictures:
            return message
        if self.dialect == "mcp":
            images = [{"type": "image", "data": data, "mimeType": kind} for kind, data in pictures]
            return message | {"content": [*message["content"], *images]}
        text = {"type": "text", "text": message["content"]}
        sources = [{"type": "base64", "media_type": kind, "data": data} for kind, data in pictures]
        return message | {"content": [text, *({"type": "image", "source": source} for source in sources)]}

    def _message(self, content: Any, *, is_error: bool) -> dict[str, Any]:
        """Return the message for the model in the format of the call."""
        text = msgspec.json.encode(content).decode()
        match self.dialect:
            case "openai":
                return {"role": "tool", "tool_call_id": self.id, "content": text}
            case "openai-responses":
                return {"type": "function_call_output", "call_id": self.id, "output": text}
            case "anthropic":
                return {"type": "tool_result", "tool_use_id": self.id, "content": text, "is_error": is_error}
            case "mcp":
                message = {"content": [{"type": "text", "text": text}], "isError": is_error}
                return message | ({"structuredContent": content} if isinstance(content, dict) else {})


class ModelMistake(Exception):
    """Raised for a faulty tool call before a request is sent. `error` is the error object for the model."""

    def __init__(self, message: str, kind: str, hint: str) -> None:
        super().__init__(message)
        self.error = {"code": INVALID_PARAMS, "message": message, "data": {"type": kind, "hint": hint}}


def read_tool_call(call: Any) -> ToolCall:
    """Return the tool call in `call`, an object of a model SDK or a dict.

    The object is an entry of `message.tool_calls` (OpenAI chat completions), a `function_call` item (OpenAI responses),
    a `tool_use` block (Anthropic messages), or the params of `tools/call` (MCP). Raise TypeError for other objects,
    because they are a mistake of the program and not of the model.
    """
    function = _field(call, "function")
    if function is not None:
        return ToolCall("openai", _field(call, "id"), _text(function, "name"), _field(function, "arguments"))
    if _field(call, "type") == "function_call":
        return ToolCall("openai-responses", _field(call, "call_id"), _text(call, "name"), _field(call, "arguments"))
    if _field(call, "type") == "tool_use":
        return ToolCall("anthropic", _field(call, "id"), _text(call, "name"), _field(call, "input"))
    if isinstance(_field(call, "name"), str) and _field(call, "type") is None:
        return ToolCall("mcp", "", _text(call, "name"), _field(call, "arguments"))
    raise TypeError(
        f"{type(call).__name__} is not a tool call: pass an entry of message.tool_calls or a function_call item "
        "(OpenAI), a tool_use block (Anthropic), or a dict with name and arguments (MCP)"
    )


def _field(whole: Any, name: str) -> Any:
    return whole.get(name) if isinstance(whole, Mapping) else getattr(whole, name, None)


def _text(whole: Any, name: str) -> str:
    return str(_field(whole, name) or "")


def offered_names(tools: Collection[Any]) -> tuple[str, ...]:
    """Return the names of the tools in a list of schemas of any format."""
    return tuple(_text(_field(tool, "function") or tool, "name") for tool in tools)


__all__ = ["FOR_MODELS", "SEARCH", "TOOLS", "ModelMistake", "ToolCall", "offered_names", "read_tool_call"]


# -- Pictures for models: which files of a run are shown as images -----------------------------------------------------


SHOWN = frozenset({"image/png", "image/jpeg"})
MOST_PICTURES = 4
MOST_BYTES = 512 * 1024
"""The maximum size of all pictures in one answer together. Models read larger pictures with read_blob."""
MOST_PIXELS = 8000
"""The maximum width and height of a PNG."""


def is_picture(kind: str, content: str) -> bool:
    """Return whether a content in base64 is a complete picture that models accept.

    The kind of a file depends only on its name. A model refuses the whole conversation if one image is invalid.
    """
    data = base64.b64decode(content)
    if kind == "image/jpeg":
        return data.startswith(b"\xff\xd8\xff") and data.rstrip(b"\0").endswith(b"\xff\xd9")
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    is_whole = data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") and data.endswith(b"IEND\xaeB`\x82")
    return is_whole and 0 < width <= MOST_PIXELS and 0 < height <= MOST_PIXELS


class Pictures:
    """The pictures of one answer."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        """Pairs of a media type and a content in base64."""
        self._room = MOST_BYTES

    def candidates(self, result: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the files of a run that may be pictures and that fit into the answer."""
        if not isinstance(result, Mapping) or "run_id" not in result:
            return
        files = result.get("files")
        # `files` of a workspace is a number.
        for file in files if isinstance(files, list) else ():
            if file["kind"] in SHOWN and file["size_bytes"] <= self._room and len(self.found) < MOST_PICTURES:
                yield file

    def add(self, file: Mapping[str, Any], blob: Mapping[str, Any]) -> None:
        """Add a file. `blob` is the result of read_blob. Do nothing if it is not a complete picture."""
        is_complete = blob.get("encoding") == "base64" and not blob["truncated"]
        if is_complete and is_picture(file["kind"], blob["content"]):
            self._room -= file["size_bytes"]
            self.found.append((file["kind"], blob["content"]))
