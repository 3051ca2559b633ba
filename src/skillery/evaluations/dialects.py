"""Conversations with a model, as the HTTP interfaces of OpenAI (chat completions) and Anthropic (messages) write them.

An answer is foreign: its parsing has a limited cost, and only the members that are needed are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from skillery.evaluations.tools import ToolResult
from skillery.evaluations.trials import Tokens
from skillery.formats.json_values import MOST_SLOW_NUMBERS, slow_numbers

MOST_CALLS = 32
"""The maximum number of tool calls in an answer."""
_MOST_TOKENS = 100_000_000
_MOST_MARKS = 100_000
"""The maximum number of characters that can begin a JSON value, also in strings: answers are decoded on the event loop,
and stay in memory until their trial ends.
"""

Api = Literal["openai", "anthropic"]
T = TypeVar("T")


class Tool(NamedTuple):
    """A tool that a model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Call(NamedTuple):
    """A tool call of a model. `problem` says why the arguments cannot be read, or is ""."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""


class Message(NamedTuple):
    """The answer of a model. `parts` are sent back as they are: some models check them."""

    text: str
    calls: tuple[Call, ...]
    parts: tuple[msgspec.Raw, ...]


Turn = str | Message | Sequence[tuple[Call, ToolResult]]
"""A text of the user, an answer of the model, or the results of its calls."""


class Chat(NamedTuple):
    """A request to a model. `answer_tokens` limits what it may write."""

    system: str
    turns: Sequence[Turn]
    tools: Sequence[Tool]
    answer_tokens: int


def decoded(content: bytes | str, kind: type[T]) -> T:
    """Return the value of a JSON text of a model. Raise ValueError if it is not of this kind, or too slow to decode."""
    content = content.encode() if isinstance(content, str) else content
    if slow_numbers(content) > MOST_SLOW_NUMBERS or sum(map(content.count, b",:[{")) > _MOST_MARKS:
        raise ValueError("too many values, or numbers with huge exponents")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


# -- The two interfaces ------------------------------------------------------------------------------------------------
# Of an answer, only these members are read. An interface has some of them.


class _Function(msgspec.Struct):
    name: str
    arguments: Any = None
    """A text with JSON, or the object itself."""


class _Part(msgspec.Struct):
    """A tool call of `openai`, or a block of `anthropic`."""

    id: str = ""
    type: str = ""
    text: str = ""
    name: str = ""
    input: Any = None
    function: _Function | None = None


class _ChoiceMessage(msgspec.Struct):
    content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    message: _ChoiceMessage


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    cache_creation_input_tokens: int | None = 0
    cache_read_input_tokens: int | None = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> Tokens:
        """The counts of the endpoint, as far as they can be true."""
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        counts = self.prompt_tokens + self.input_tokens + cached, self.completion_tokens + self.output_tokens
        return Tokens(*(max(0, min(count, _MOST_TOKENS)) for count in counts))


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    content: list[msgspec.Raw] | None = None
    usage: _Usage | None = None


def _call(call_id: str, name: str, arguments: Any) -> Call:
    try:
        if isinstance(arguments, str):
            arguments = decoded(arguments or "{}", dict[str, Any])
        return Call(call_id, name, msgspec.convert(arguments or {}, dict[str, Any]))
    except ValueError as error:
        return Call(call_id, name, {}, f"the arguments are no JSON object: {error}")


class OpenAi:
    """The interface of OpenAI: https://platform.openai.com/docs/api-reference/chat"""

    path = "/chat/completions"

    def __init__(self) -> None:
        self._limit = "max_tokens"

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def has_learned(self, reason: str) -> bool:
        """Return whether another form of the request can succeed. Newer models of OpenAI have another limit."""
        is_new = self._limit == "max_tokens" and "max_completion_tokens" in reason
        self._limit = "max_completion_tokens" if is_new else self._limit
        return is_new

    def request(self, model: str, chat: Chat) -> dict[str, Any]:
        messages: list[Any] = [{"role": "system", "content": chat.system}]
        for turn in chat.turns:
            if isinstance(turn, str):
                messages.append({"role": "user", "content": turn})
            elif isinstance(turn, Message):
                calls = {"tool_calls": turn.parts} if turn.parts else {}
                messages.append({"role": "assistant", "content": turn.text or (None if calls else ""), **calls})
            else:
                messages += [{"role": "tool", "tool_call_id": call.id, "content": result.text} for call, result in turn]
        tools = [{"type": "function", "function": tool._asdict()} for tool in chat.tools]
        request = {"model": model, "messages": messages, self._limit: chat.answer_tokens}
        return request | ({"tools": tools} if tools else {})

    def reply(self, body: bytes) -> tuple[Message, Tokens]:
        """Return the message of the model and what it has used. Raise ValueError if the body is no answer."""
        answer = decoded(body, _Answer)
        if not answer.choices:
            raise ValueError("no choices")
        message = answer.choices[0].message
        parts = tuple(message.tool_calls or ())[:MOST_CALLS]
        calls = [(part.id, part.function) for part in (decoded(bytes(raw), _Part) for raw in parts)]
        called = tuple(_call(call_id, function.name, function.arguments) for call_id, function in calls if function)
        return Message(message.content or "", called, parts), (answer.usage or _Usage()).tokens


class Anthropic:
    """The interface of Anthropic: https://docs.anthropic.com/en/api/messages"""

    path = "/messages"

    def headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    def has_learned(self, reason: str) -> bool:
        return False

    def request(self, model: str, chat: Chat) -> dict[str, Any]:
        messages: list[Any] = []
        for turn in chat.turns:
            if isinstance(turn, str):
                messages.append({"role": "user", "content": turn})
            elif isinstance(turn, Message):
                messages.append({"role": "assistant", "content": turn.parts})
            else:
                messages.append({"role": "user", "content": [self._result(*pair) for pair in turn]})
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in chat.tools
        ]
        request = {"model": model, "system": chat.system, "messages": messages, "max_tokens": chat.answer_tokens}
        return request | ({"tools": tools} if tools else {})

    def _result(self, call: Call, result: ToolResult) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call.id, "content": result.text, "is_error": result.is_error}

    def reply(self, body: bytes) -> tuple[Message, Tokens]:
        """Return the message of the model and what it has used. Raise ValueError if the body is no answer."""
        answer = decoded(body, _Answer)
        if answer.content is None or len(answer.content) > MOST_CALLS:
            raise ValueError("no content, or too many blocks")
        blocks = [decoded(bytes(raw), _Part) for raw in answer.content]
        calls = tuple(_call(block.id, block.name, block.input) for block in blocks if block.type == "tool_use")
        text = "".join(block.text for block in blocks if block.type == "text")
        return Message(text, calls, tuple(answer.content)), (answer.usage or _Usage()).tokens


DIALECTS: Mapping[Api, type[OpenAi | Anthropic]] = {"openai": OpenAi, "anthropic": Anthropic}
