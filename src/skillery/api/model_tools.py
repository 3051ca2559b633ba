"""`GET /tools` and `GET /prompt`: the tool schemas and the system prompt for a model that uses the registry."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from skillery.api.code_contract import OPT_IN, explained
from skillery.api.prompt import prompt_for
from skillery.api.rpc.schemas import FORMATS, tool
from skillery.edge.gate import Gate
from skillery.edge.http import HttpRefusal, only, send_bytes
from skillery.edge.operations import Operation, Response, in_query
from skillery.environments.definitions import shown_properties
from skillery.environments.named import NamedEnvironments
from skillery.methods.core import Core
from skillery.methods.errors import INVALID_PARAMS, encode, plain_error
from skillery.methods.table import METHODS, TOOLS
from skillery.workspaces.methods import with_workspaces

Object = dict[str, Any]
TEXT = "text/plain"
TOOLS_OPERATIONS = (
    Operation(
        "GET",
        "/tools",
        "The tools that a model is shown",
        {200: Response("The schema of each tool.", list[Object])},
        (400,),
        parameters=(
            in_query("format", "The format of the schemas, openai by default.", enum=FORMATS),
            in_query(
                "include",
                "Further methods, separated by commas: search_skills, create_skill; code_contract explains run_code.",
            ),
        ),
    ),
)


PROMPT_OPERATIONS = (
    Operation(
        "GET",
        "/prompt",
        "The system prompt for a model with the tools",
        {200: Response("Text.", kinds=(TEXT,))},
        (400,),
        parameters=(in_query("include", "What `/tools` got: the prompt names only tools and params of the model."),),
    ),
)


class ToolsEndpoint:
    """Answers `GET /tools?format=openai|openai-responses|anthropic|mcp|jsonschema[&include=METHOD,…,code_contract]`."""

    def __init__(self, gate: Gate, named: NamedEnvironments) -> None:
        self._gate = gate
        self._named = named

    async def answer(self, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
        only(scope, "GET", "HEAD")
        await self._gate.authenticate(scope, headers)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        form = query.get("format", ["openai"])[-1]
        if form not in FORMATS:
            raise _refused(f"there is no format {form[:40]!r}", f"There are {', '.join(FORMATS)}.")
        included = _included(query)
        explain = explained if OPT_IN in included else None
        more = with_workspaces(shown_properties(self._named.defined), included)
        tools = [
            tool(name, one.params, form, more, explain)
            for name, one in METHODS.items()
            if name in TOOLS or name in included
        ]
        await send_bytes(send, 200, encode(tools))


class PromptEndpoint:
    """Answers `GET /prompt`."""

    def __init__(self, gate: Gate, core: Core) -> None:
        self._gate = gate
        self._core = core

    async def answer(self, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
        only(scope, "GET", "HEAD")
        identity = await self._gate.authenticate(scope, headers)
        included = _included(parse_qs(scope.get("query_string", b"").decode("latin-1")))
        text = await prompt_for(self._core, identity, included)
        await send_bytes(send, 200, text.encode(), "text/plain; charset=utf-8")


def _included(query: dict[str, list[str]]) -> set[str]:
    """Return the names in `include`. Raise HttpRefusal if one is neither a method nor `code_contract`."""
    included = {name for part in query.get("include", []) for name in part.split(",") if name}
    unknown = sorted(included - METHODS.keys() - {OPT_IN})
    if unknown:
        raise _refused(f"there is no method {unknown[0][:40]!r} to include")
    return included


def _refused(message: str, hint: str | None = None) -> HttpRefusal:
    return HttpRefusal(400, plain_error(INVALID_PARAMS, message, "invalid_params", hint))
