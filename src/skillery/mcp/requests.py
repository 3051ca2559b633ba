"""Requests of MCP: the tools that a connection asks for, and the cancellation of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from skillery.backends import Identity
from skillery.client_source.model_tools import OPT_IN
from skillery.context.budget import HeldAnswer, HeldBody
from skillery.errors import InvalidParams
from skillery.formats.names import parse_skill_name
from skillery.mcp.large_messages import Splices
from skillery.methods.core import Core
from skillery.workspaces.methods import WORKSPACE_METHODS

SCOPE_KEY = "skillery.visit"
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
            task = asyncio.create_task(core.runner.cancel_abandoned_run(identity, run_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class Visit:
    """One request of MCP: the caller, the tools that the connection asks for, and the memory that the request holds."""

    def __init__(
        self,
        core: Core,
        identity: Identity,
        calls: ActiveCalls,
        headers: Mapping[str, str],
        tools: tuple[str, ...],
        held: HeldAnswer,
        body: HeldBody,
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
        self.sample: dict[str, Any] | None = None
        """The result of a tool call that only shows the form of the SDK's response. No tool is called."""
        self.held = held
        self.body = body
        self.splices = Splices(held.sent)
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
