"""Requests of MCP: the tools that a connection asks for, and the cancellation of calls."""

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
from skillery.context.budget import answer_room
from skillery.errors import InvalidParams
from skillery.formats.json_pieces import is_exactly
from skillery.formats.names import parse_skill_name
from skillery.http.exchanges import ClientGone
from skillery.http.json_texts import TextRefusal, check_text
from skillery.http.requests import HttpRefusal, Part
from skillery.methods.core import Core
from skillery.methods.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, encode, plain_error
from skillery.workspaces.methods import WORKSPACE_METHODS

# -- Large messages of MCP: the arguments of a tool are removed before the SDK reads the message -----------------------
# The SDK decodes a message to Python objects and validates each value on the event loop, which takes a second for
# 10 MiB. The removed arguments are decoded once, by the method that gets them.


MOST_OF_SDK = 64 * 1024
"""Limit of the bytes of a message that the SDK gets."""
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
    """Return the message for the SDK, and the removed arguments of the tool. The arguments are None for a small
    message.

    A large message is encoded again, so that the SDK and this module cannot interpret it differently. Raise HttpRefusal
    400 if a large message is not valid, and 413 if it has too many values or is large even without the arguments of a
    tool.
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
        no_message = plain_error(INVALID_REQUEST, "a message is an object, and so are its params", "invalid_request")
        raise HttpRefusal(400, no_message) from None
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


# Large results of MCP: the SDK gets a placeholder for each large value. In the response of the SDK, each placeholder
# is replaced by the JSON of the value.
#
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
        """Store a large JSON string, and return its placeholder. `pieces` is the JSON text with the quotes."""
        word = secrets.token_hex(16)
        self._pieces[b'"%s"' % word.encode()] = pieces
        return word

    def object(self, pieces: Pieces) -> dict[str, Any]:
        """Store a large JSON object, and return its placeholder. `pieces` is the JSON text."""
        word = secrets.token_hex(16)
        self._pieces[b'{"%s":0}' % word.encode()] = pieces
        return {word: 0}

    def into(self, send: Any) -> Any:
        """Return an ASGI `send` that replaces the placeholders by the stored values, and passes the messages to `send`.

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
            await send(_with_length(self._start, sum(len(part) for part, _ in parts)))
            self._start = None
        for part, is_value in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if is_value:
                answer_room.get().release(len(part))
        await send({"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)})

    def _split(self, body: bytes) -> list[tuple[Part, bool]]:
        """Return the parts of a body with the stored values in place of placeholders. The second element says
        whether a part is a stored value.
        """
        places = sorted((place, mark) for mark in self._pieces if (place := body.find(mark)) >= 0)
        parts: list[tuple[Part, bool]] = []
        end = 0
        for place, mark in places:
            parts.append((body[end:place], False))
            parts += [(piece, True) for piece in self._pieces.pop(mark)]
            end = place + len(mark)
        return [*parts, (body[end:], False)]


def _with_length(start: Any, size: int) -> Any:
    headers = [
        (name, str(size).encode() if name.lower() == b"content-length" else value) for name, value in start["headers"]
    ]
    return {**start, "headers": headers}


SCOPE_KEY = "skillery.visit"
EVENTS = "text/event-stream"
SERVER = {"name": "skillery", "title": "Skillery", "version": __version__}
ON_REQUEST = ("create_skill", "search_skills", *WORKSPACE_METHODS)
"""Methods that a connection can ask for as tools, in addition to the eight tools of the Skills Protocol."""
OUTPUTS = "output_schemas"
"""The name by which a client asks for the output schemas of tools. They are six times as long as the tools."""
FURTHER = (*ON_REQUEST, OPT_IN, OUTPUTS)
MOST_SKILLS = 32
CallKey = tuple[str, str, str | int]
"""Key of a tool call: name of the identity, id of the session, and JSON-RPC id of the request."""


class TaskTerms(NamedTuple):
    """The terms on which the server makes tasks of tool calls."""

    after_seconds: float
    """A run that takes longer than this becomes a task."""
    ttl_ms: int | None
    """How long a task is kept after its creation, in milliseconds. None means without end."""


class ActiveCalls:
    """The tool calls in progress, each with the runs that it started.

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
        """Start to cancel the runs, and return at once. A background task cancels each run."""
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
        self.key = headers.get("idempotency-key")
        self.session = headers.get("mcp-session-id")
        self.methods = frozenset(tools) & frozenset(ON_REQUEST)
        """Methods that the connection gets as tools, in addition to the eight tools."""
        self.explains_code = OPT_IN in tools
        """Whether the schemas explain the code contract."""
        self.included = frozenset(tools) & frozenset((*ON_REQUEST, OPT_IN))
        """What the connection gets in addition to the eight tools, apart from tools of skills."""
        self.shows_outputs = OUTPUTS in tools
        """Whether the tools have output schemas."""
        self.skills = tuple(name for name in tools if name not in FURTHER)
        """Skills that the connection names, to get their tools."""
        self.arguments: msgspec.Raw | None = None
        """Arguments of the called tool, if they are too large for the SDK."""
        self.splices = Splices()
        self.terms = terms


def visit_of(context: Any) -> Visit:
    """Return the `Visit` that the endpoint stored in the scope of a request. `context` is a request context of the
    SDK.
    """
    visit: Visit = context.request.scope[SCOPE_KEY]
    return visit


def asked_tools(query: bytes) -> tuple[str, ...]:
    """Return the names of methods and skills in `?tools=search_skills,create_skill,skill-a,skill-b`, each once.

    Raise InvalidParams if there is another parameter or there are too many names. Raise InvalidName if a name is not a
    skill name.
    """
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    unknown = sorted(values.keys() - {"tools"})
    if unknown:
        raise InvalidParams(
            f"there is no parameter {unknown[0][:40]!r}",
            hint=f"The only parameter is 'tools': {', '.join(FURTHER)}, and names of skills.",
        )
    names = [name.strip() for part in values.get("tools", []) for name in part.split(",")]
    skills = tuple(dict.fromkeys(name for name in names if name))
    if len(skills) > MOST_SKILLS:
        raise InvalidParams(f"'tools' names {len(skills)} skills", hint=f"At most {MOST_SKILLS}.", param="tools")
    for name in skills:
        if name not in FURTHER:
            parse_skill_name(name)
    return skills
