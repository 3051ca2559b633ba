"""Requests of MCP: large messages and results, the tools that a connection asks for, and the cancellation of calls."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from skillery import __version__
from skillery.backends import Identity
from skillery.client_source.model_tools import OPT_IN
from skillery.errors import InvalidParams
from skillery.formats.json_pieces import is_exactly
from skillery.formats.names import parse_skill_name
from skillery.http.exchanges import ClientGone
from skillery.http.json_texts import TextRefusal, check_text
from skillery.http.requests import HttpRefusal, Part
from skillery.methods.core import Core
from skillery.methods.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, encode, plain_error
from skillery.workspaces.methods import WORKSPACE_METHODS

# -- The members of results --------------------------------------------------------------------------------------------


TTL_MS = 60_000
COMPLETE = {"resultType": "complete"}
FRESHNESS = {**COMPLETE, "ttlMs": TTL_MS, "cacheScope": "private"}
"""Members of results that a client may cache.

The cache is private, because each identity sees other skills, and lasts only a minute, because skills change.
"""


class Complete(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of results for resources and skills. A client must not cache a result, unless it is a `Fresh`."""

    result_type: str = COMPLETE["resultType"]


class Fresh(Complete, frozen=True, kw_only=True, rename="camel"):
    """The base of results that a client may cache."""

    ttl_ms: int = TTL_MS
    cache_scope: str = "private"


# -- Large messages of MCP: the arguments of a tool are removed before the SDK reads the message -----------------------
# The SDK decodes a message to Python objects and validates each value on the event loop, which takes a second for
# 10 MiB. The removed arguments are decoded once, by the method that gets them.


MOST_OF_SDK = 64 * 1024
"""The maximum size of a message that the SDK reads."""
NULL = b"null"
CALL = b'"tools/call"'
Raw = msgspec.Raw | msgspec.UnsetType


class _Message(msgspec.Struct, omit_defaults=True):
    """The members of a tool call that the SDK needs. Other members of a large message are dropped."""

    jsonrpc: Raw = msgspec.UNSET
    id: Raw = msgspec.UNSET
    method: Raw = msgspec.UNSET
    params: Raw = msgspec.UNSET


class _Params(msgspec.Struct, omit_defaults=True):
    name: Raw = msgspec.UNSET
    meta: Raw = msgspec.field(name="_meta", default=msgspec.UNSET)
    arguments: Raw = msgspec.UNSET


_message = msgspec.json.Decoder(_Message)
_params = msgspec.json.Decoder(_Params)


async def without_arguments(body: bytes) -> tuple[bytes, msgspec.Raw | None]:
    """Return the message for the SDK, and the arguments of the tool, which are removed from a large message.

    A small message is not changed, and the arguments are None. A large message is encoded again, so that the SDK and
    this module cannot interpret it differently. Raise HttpRefusal 400 if a large message is invalid, and 413 if it has
    too many values or is large without the arguments of a tool.
    """
    if len(body) <= MOST_OF_SDK:
        return body, None
    try:
        await check_text(body)
        message = _message.decode(body)
        is_call = is_exactly(message.method, CALL)
        params = _params.decode(message.params) if is_call and message.params is not msgspec.UNSET else _Params()
    except TextRefusal as refusal:
        raise HttpRefusal(413 if refusal.error["code"] != PARSE_ERROR else 400, refusal.error) from None
    except msgspec.ValidationError:
        refusal_of_shape = plain_error(
            INVALID_REQUEST, "a message is an object, and so are its params", "invalid_request"
        )
        raise HttpRefusal(400, refusal_of_shape) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise HttpRefusal(400, plain_error(PARSE_ERROR, f"the body is not JSON: {error}", "parse_error")) from None
    arguments = params.arguments
    if arguments is msgspec.UNSET:
        raise _too_large()
    if is_exactly(arguments, NULL):
        arguments = msgspec.Raw(b"{}")
    if bytes(memoryview(arguments)[:1]) != b"{":
        raise HttpRefusal(400, plain_error(INVALID_PARAMS, "'arguments' must be an object", "invalid_params"))
    params.arguments = msgspec.Raw(b"{}")
    message.params = msgspec.Raw(encode(params))
    small = encode(message)
    if len(small) > MOST_OF_SDK:
        raise _too_large()
    return small, arguments


def _too_large() -> HttpRefusal:
    message = f"a message of MCP has at most {MOST_OF_SDK} bytes apart from the arguments of a tool"
    return HttpRefusal(413, plain_error(-32005, message, "body_too_large", "Send large content to POST /blobs."))


# -- Large results of MCP: a placeholder stands for each large value in the response of the SDK ------------------------
# The SDK copies a result several times and validates each value, all on the event loop. A placeholder is a random word,
# so no content of a response can be equal to a placeholder.


Pieces = Sequence[Part]


class Splices:
    """The large values of one response."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, Pieces] = {}
        self._start: Any = None
        self._is_gone = False

    def text(self, pieces: Pieces) -> str:
        """Store a large JSON string, and return the placeholder for it. `pieces` is the JSON text with its quotes."""
        word = secrets.token_hex(16)
        self._pieces[b'"%s"' % word.encode()] = pieces
        return word

    def object(self, pieces: Pieces) -> dict[str, Any]:
        """Store a large JSON object, and return the placeholder for it. `pieces` is the JSON text."""
        word = secrets.token_hex(16)
        self._pieces[b'{"%s":0}' % word.encode()] = pieces
        return {word: 0}

    def into(self, send: Any) -> Any:
        """Return an ASGI `send` that replaces placeholders by the stored values, and passes messages on to `send`.

        After the client has disconnected, the returned function does nothing. It raises no ClientGone, because the SDK
        would log the exception. The SDK notices the disconnection from `receive`.
        """

        async def send_spliced(message: Any) -> None:
            if self._is_gone:
                return
            try:
                await self._send(send, message)
            except ClientGone:
                self._is_gone = True

        return send_spliced

    async def _send(self, send: Any, message: Any) -> None:
        """Send a message, or delay the start of a response until the length of its body is known."""
        if not self._pieces:
            await send(message)
        elif message["type"] == "http.response.start":
            # The Content-Length depends on the body.
            self._start = message
        else:
            await self._send_body(send, message)

    async def _send_body(self, send: Any, message: Any) -> None:
        parts = self._split(message.get("body", b""))
        if self._start is not None:
            await send(_with_length(self._start, sum(map(len, parts))))
            self._start = None
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)})

    def _split(self, body: bytes) -> list[Part]:
        """Return the parts of a body, with the stored values in place of placeholders."""
        placeholders = sorted((start, mark) for mark in self._pieces if (start := body.find(mark)) >= 0)
        parts: list[Part] = []
        end = 0
        for start, mark in placeholders:
            parts += [body[end:start], *self._pieces.pop(mark)]
            end = start + len(mark)
        return [*parts, body[end:]]


def _with_length(start: Any, size: int) -> Any:
    headers = [
        (name, str(size).encode() if name.lower() == b"content-length" else value) for name, value in start["headers"]
    ]
    return {**start, "headers": headers}


SCOPE_KEY = "skillery.visit"
EVENTS = "text/event-stream"
SERVER = {"name": "skillery", "title": "Skillery", "version": __version__}
ON_REQUEST = ("create_skill", "search_skills", *WORKSPACE_METHODS)
"""The methods that a connection can ask for as tools, in addition to the eight tools of the Skills Protocol."""
OUTPUTS = "output_schemas"
"""The name with which a client asks for the output schemas of tools, which are six times as long as the tools."""
FURTHER = (*ON_REQUEST, OPT_IN, OUTPUTS)
MOST_SKILLS = 32
CallKey = tuple[str, str, str | int]
"""The key of a tool call: the name of the identity, the session id, and the JSON-RPC id of the request."""


class TaskTerms(NamedTuple):
    """The settings for tasks from tool calls."""

    after_seconds: float
    """The seconds after which a run becomes a task."""
    ttl_ms: int | None
    """The lifetime of a task from its creation, in milliseconds. None means that tasks do not expire."""


class ActiveCalls:
    """The active tool calls, each with the ids of the runs that it has started.

    Only calls of clients with a session are listed, because these clients cancel a call by the id of its request.
    """

    def __init__(self) -> None:
        self._runs: dict[CallKey, list[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, key: CallKey, runs: list[str]) -> None:
        self._runs[key] = runs

    def end(self, key: CallKey) -> None:
        self._runs.pop(key, None)

    def runs_of(self, key: CallKey) -> list[str]:
        return self._runs.get(key, [])

    def take_back(self, core: Core, identity: Identity, run_ids: list[str]) -> None:
        """Start to cancel runs, each in a background task. Return at once."""
        for run_id in run_ids:
            task = asyncio.create_task(core.cancellation.cancel_abandoned_run(identity, run_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class Visit:
    """One request of MCP: the caller, and the tools that the connection asks for."""

    def __init__(
        self,
        core: Core,
        identity: Identity,
        calls: ActiveCalls,
        headers: Mapping[str, str],
        tools: tuple[str, ...],
        terms: TaskTerms,
    ) -> None:
        self.core = core
        self.identity = identity
        self.calls = calls
        self.idempotency_key = headers.get("idempotency-key")
        self.session = headers.get("mcp-session-id")
        self.methods = frozenset(tools) & frozenset(ON_REQUEST)
        """The methods that the connection gets as tools, in addition to the eight tools."""
        self.explains_code = OPT_IN in tools
        """Whether the schemas explain the code contract of run_code."""
        self.included = frozenset(tools) & frozenset((*ON_REQUEST, OPT_IN))
        """The optional methods and explanations that the connection gets. Tools of skills are not in it."""
        self.shows_outputs = OUTPUTS in tools
        """Whether the tools have output schemas."""
        self.skills = tuple(name for name in tools if name not in FURTHER)
        """The skills whose tools the connection gets."""
        self.arguments: msgspec.Raw | None = None
        """Arguments of the called tool, if they are too large for the SDK."""
        self.splices = Splices()
        self.terms = terms


def visit_of(context: Any) -> Visit:
    """Return the `Visit` of a request. `context` is the SDK's context of the request."""
    visit: Visit = context.request.scope[SCOPE_KEY]
    return visit


def asked_tools(query: bytes) -> tuple[str, ...]:
    """Return the names of methods and skills in `?tools=search_skills,create_skill,skill-a,skill-b`, without
    duplicates.

    Raise InvalidParams if there is another parameter or there are too many names. Raise InvalidName if a name is
    neither a method nor a skill name.
    """
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    unknown = sorted(values.keys() - {"tools"})
    if unknown:
        raise InvalidParams(
            f"there is no parameter {unknown[0][:40]!r}",
            hint=f"The only parameter is 'tools': {', '.join(FURTHER)}, and names of skills.",
        )
    texts = [text.strip() for part in values.get("tools", []) for text in part.split(",")]
    names = tuple(dict.fromkeys(filter(None, texts)))
    if len(names) > MOST_SKILLS:
        raise InvalidParams(f"'tools' names {len(names)} skills", hint=f"At most {MOST_SKILLS}.", param="tools")
    for name in names:
        if name not in FURTHER:
            parse_skill_name(name)
    return names
