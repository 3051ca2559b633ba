"""Answers to direct messages: the tools of a connection, and results of tools that only read."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from skillery.mcp.direct.forms import FALSE, TRUE, Form, encoded, form_of, new_sample
from skillery.mcp.direct.messages import DirectMessage, Kind, direct_message
from skillery.mcp.requests import SCOPE_KEY, Visit
from skillery.mcp.tool_results import result_of_method, tool_result
from skillery.methods.errors import encode
from skillery.methods.execution import perform
from skillery.methods.table import FOR_MODELS, METHODS, TOOLS

log = logging.getLogger(__name__)
Key = tuple[Kind, frozenset[str], bool]
MOST_FORMS = 64
MOST_VALUES, MOST_OF_VALUE = 64, 16 * 1024
"""Limits of the number of encoded answers that are kept for reuse, and of the bytes of such an answer."""
READS = frozenset(name for name, one in METHODS.items() if one.needs == "read" and one.audits == "" and not one.once)
"""Methods that change nothing and start no run. As tools, they need no notifications, no cancellation and no task."""


class DirectAnswers:
    """Answers messages directly, once the SDK has answered a message of the same kind."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self._manager = manager
        self._forms: OrderedDict[Key, Form | None] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        """Kinds of messages that arrived once. A kind that does not return needs no form."""
        self._values = lru_cache(MOST_VALUES)(_values_of)

    async def answer(self, visit: Visit, scope: Any, headers: Mapping[str, str], body: bytes, send: Any) -> bool:
        """Answer the message, and return whether this was possible. If not, the SDK must answer it."""
        if visit.skills or visit.arguments is not None:
            return False
        message = direct_message(scope, headers, body)
        if message is None or not _is_offered(visit, message):
            return False
        form = await self._form(visit, scope, message)
        if form is None:
            return False
        values = {"id": message.id}
        if message.tool:
            values |= await self._called(visit, message)
        await form.send(visit.splices.into(send), values)
        return True

    async def _called(self, visit: Visit, message: DirectMessage) -> dict[str, bytes]:
        """Call the tool. Return the values for the gaps of the form."""
        params = msgspec.Raw(encode(FOR_MODELS.get(message.tool, {}) | message.arguments))
        answer, error = await perform(visit.core, visit.identity, message.tool, params, visit.key)
        visit.body.give_back()
        is_modern = message.kind.is_modern
        if answer is not None and sum(map(len, answer)) <= MOST_OF_VALUE:
            # Many clients get the same answer, and encoding it takes longer than the call.
            return self._values(is_modern, b"".join(answer))
        return _encoded(is_modern, result_of_method(visit, answer, error))

    async def _form(self, visit: Visit, scope: Any, message: DirectMessage) -> Form | None:
        key = (message.kind, visit.included, visit.shows_outputs)
        if key in self._forms:
            self._forms.move_to_end(key)
            return self._forms[key]
        if key not in self._seen:
            _keep(self._seen, key, None)
            return None
        form = await self._ask(visit, scope, message)
        if form is None:
            log.info("the MCP SDK answers %s of version %s itself", message.kind.method, message.kind.version)
        _keep(self._forms, key, form)
        return form

    async def _ask(self, visit: Visit, scope: Any, message: DirectMessage) -> Form | None:
        """Return the form of the SDK's response to a sample with the headers and the `_meta` of the message."""
        sample = new_sample()
        asking = copy.copy(visit)
        asking.sample = sample.result
        messages: list[Any] = []

        async def keep(sent: Any) -> None:
            messages.append(sent)

        kept = [(name, value.strip()) for name, value in scope["headers"] if name != b"content-length"]
        inner = {**scope, "headers": kept, SCOPE_KEY: asking}
        await self._manager.handle_request(inner, _once(sample.message(message)), keep)
        return form_of(sample, message.kind, messages)


def _once(body: bytes) -> Any:
    """Return an ASGI `receive` that returns `body`, and after that waits until it is cancelled."""
    bodies = [body]

    async def receive() -> Any:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        return await asyncio.get_running_loop().create_future()

    return receive


def _is_offered(visit: Visit, message: DirectMessage) -> bool:
    """Return whether the message calls no tool, or a tool of this connection that only reads."""
    tool = message.tool
    return not tool or (tool in READS and (tool in TOOLS or tool in visit.methods))


def _values_of(is_modern: bool, answer: bytes) -> dict[str, bytes]:
    """Return the values for the gaps of a form, for the answer of a method."""
    return _encoded(is_modern, tool_result(answer))


def _encoded(is_modern: bool, result: dict[str, Any]) -> dict[str, bytes]:
    return {
        "text": encoded(result["content"][0]["text"], is_modern=is_modern),
        "structured": encoded(result["structuredContent"], is_modern=is_modern),
        "is_error": TRUE if result["isError"] else FALSE,
    }


def _keep(cache: OrderedDict[Key, Any], key: Key, value: Any) -> None:
    cache[key] = value
    if len(cache) > MOST_FORMS:
        cache.popitem(last=False)
