"""The card "Add to my agent": the lines that each client needs to use a version, for this server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from skillery.formats.agent_clients import CLIENTS, Client, Server
from skillery.formats.inputs import inputs_in, sample_of
from skillery.skills.descriptions import Skill
from skillery.tools.tool_listings import ToolRow
from skillery.web.frame import PageRequest
from skillery.web.run_fields import inputs_of_schema
from skillery.web.skill_opened import Opened, describe, shown_tools
from skillery.web.visits import Header, cookie_of

OTHERS = {"shell": "Shell", "python": "Python", "curl": "curl", "lock": "Lock"}
CLIENT_COOKIE = "skillery-client"
_MOST_ARGS = 2000
"""Args of an example with more characters of JSON than this are left out of the lines."""


class Block(NamedTuple):
    """Lines to copy. `caption` says where they belong; "" for a shell or a program."""

    text: str
    caption: str = ""


class AgentCard(NamedTuple):
    """The clients that can use a version, and the lines for one of them."""

    titles: dict[str, str]
    key: str
    client: Client | None
    """The agent client with this key, or None for a shell, a program or a lock file."""
    server: Server
    opened: Opened
    """The version that the lines use."""
    tools: Sequence[ToolRow]
    blocks: list[Block]
    link: str
    """The address that opens the client, and adds the MCP server there. Else ""."""

    def kept_choice(self, request: PageRequest) -> tuple[Header, ...]:
        """Return the header that keeps the client that the address names."""
        if request.query.get("client") != self.key:
            return ()
        return (request.visit.cookies.setting(CLIENT_COOKIE, self.key),)


class _Call(NamedTuple):
    """A call of the skill with the inputs of its first example, or a call of its first tool."""

    args: dict[str, Any]
    blobs: dict[str, str]
    """Names of local files, by the argument that takes a blob."""
    tool: str = ""


async def read_agent_card(request: PageRequest, opened: Opened, tools: Sequence[ToolRow]) -> AgentCard:
    """Return the card for a version, or for the latest version if this one is yanked."""
    latest = opened.facts.latest
    if opened.skill.status != "yanked" or latest is None:
        return _card(request, opened, tools)
    current = opened._replace(skill=await describe(request, opened.name, latest))
    return _card(request, current, await shown_tools(request, current))


def _card(request: PageRequest, opened: Opened, tools: Sequence[ToolRow]) -> AgentCard:
    name, has_session = opened.name, request.visit.session is not None
    server = Server(
        request.server,
        request.site.core.marketplaces.owner,
        tools=[name] if tools else (),
        skill=name,
        needs_login=has_session or request.known is None,
    )
    agents = {key: client for key, client in CLIENTS.items() if client.reaches(server) and _gets(client, opened)}
    titles = {key: client.title for key, client in agents.items()} | OTHERS
    wanted = (request.query.get("client"), cookie_of(request.headers, CLIENT_COOKIE), "claude")
    key = next((client for client in wanted if client in titles), "shell")
    client = agents.get(key)
    blocks = _agent_blocks(key, client, server) if client else _other_blocks(key, server, opened, tools)
    return AgentCard(titles, key, client, server, opened, tools, blocks, client.plan(server).link if client else "")


def _gets(client: Client, opened: Opened) -> bool:
    """Return whether a client gets the skill: git has only published skills, and plugins only under their own name."""
    if client.skills_as and opened.facts.latest is None:
        return False
    is_second = any(warning.startswith("index name: ") for warning in opened.skill.warnings)
    return not (client.skills_as == "plugins" and is_second)


def _agent_blocks(key: str, client: Client, server: Server) -> list[Block]:
    """Return the commands and settings of `skillery connect` with the name of the skill."""
    plan = client.plan(server)
    lines = _login(server)
    if plan.settings or (client.skills_as and server.needs_login):
        tools = [word for name in server.tools for word in ("--tools", name) if plan.settings]
        lines.append(shlex.join(["skillery", "connect", key, "--url", server.url, *tools, "--write"]))
    if not plan.text:
        return [Block("\n".join([*lines, *plan.commands]))]
    blocks = [
        Block("\n".join(lines)),
        Block(plan.text, f"Add to {plan.place}:"),
        Block("\n".join(plan.commands), "Then:"),
    ]
    return [block for block in blocks if block.text]


def _login(server: Server) -> list[str]:
    return [f"skillery login --url {server.url}"] if server.needs_login else []


def _other_blocks(key: str, server: Server, opened: Opened, tools: Sequence[ToolRow]) -> list[Block]:
    """Return the lines for a shell, a program or a lock file."""
    name, version = opened.name, opened.version
    call = _call(opened.skill, tools)
    if key == "curl":
        return [Block(_curl(server, name, version, call))]
    if key == "python":
        return [Block(_python(server, name, version, call))]
    if key == "shell":
        return [Block("\n".join([*_login(server), _shell(server.url, name, version, call)]))]
    url = f" \\\n  --url {server.url}"
    lines = [f"skillery lock {shlex.quote(f'{name}@{version}')}{url}", f"skillery install --locked skills/{url}"]
    entry = {"name": name, "version": version, "digest": opened.digest, "status": opened.skill.status}
    return [
        Block("\n".join([*_login(server), *lines])),
        Block(json.dumps(entry, indent=1), "Its entry in skillery.lock:"),
    ]


def _call(skill: Skill, tools: Sequence[ToolRow]) -> _Call | None:
    """Return the call of a snippet, or None if the skill can only be read."""
    manifest = skill.manifest
    if skill.kind == "instruction" or not (manifest.get("runtime") or {}).get("entrypoint"):
        if not tools:
            return None
        parameters = inputs_in(inputs_of_schema(tools[0].parameters))
        args = {name: sample_of(parameter) for name, parameter in parameters.items() if parameter.required}
        return _Call(args, {}, tools[0].name)
    example = next((candidate for candidate in manifest.get("examples") or () if isinstance(candidate, dict)), {})
    args, blobs = example.get("args") or {}, example.get("blobs") or {}
    if len(json.dumps(args)) > _MOST_ARGS:
        args = {}
    files = {key: path.rpartition("/")[2] for key, path in blobs.items() if isinstance(path, str)}
    return _Call(args, files)


def _shell(server: str, name: str, version: str, call: _Call | None) -> str:
    """Return the command of `skillery`."""
    at = shlex.quote(f"{name}@{version}")
    if call is None:
        return f"skillery read {at} SKILL.md \\\n  --url {server}"
    command = (
        f"skillery tool call {shlex.quote(f'{name}@{version}/{call.tool}')}" if call.tool else f"skillery run {at}"
    )
    parts = [command, f"--url {server}"]
    parts += [f"--blob {shlex.quote(f'{key}={file}')}" for key, file in call.blobs.items()]
    parts += [f"--arg {shlex.quote(f'{key}={_value(value)}')}" for key, value in call.args.items()]
    return " \\\n  ".join(parts)


def _value(value: object) -> str:
    """Return the text of a value for `--arg`, which is read as JSON if possible."""
    if isinstance(value, str) and value.isascii() and value.isprintable():
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return json.dumps(value)


def lines_of_call(request: PageRequest, name: str, version: str, args: str, tool: str) -> dict[str, str]:
    """Return the curl command and the Python code that repeat a run. `args` is JSON."""
    needs_login = request.visit.session is not None or request.known is None
    server, call = Server(request.server, "", needs_login=needs_login), _Call(msgspec.json.decode(args), {}, tool)
    return {"curl": _curl(server, name, version, call), "Python": _python(server, name, version, call)}


def _curl(server: Server, name: str, version: str, call: _Call | None) -> str:
    """Return curl commands: an upload for each blob, then the call."""
    header = ' \\\n  -H "Authorization: Bearer $SKILLERY_TOKEN"' if server.needs_login else ""
    lines = ["# SKILLERY_TOKEN holds your token"] if server.needs_login else []
    if call is None:
        file = f"{server.url}/skills/{name}/{quote(version, safe='')}.tar.gz"
        return "\n".join([*lines, f"curl {file}{header} -O"])
    args = dict(call.args)
    for key, file in call.blobs.items():
        upload = f"curl {server.url}/blobs{header} \\\n  --data-binary {shlex.quote(f'@{file}')}\n"
        lines.append(f"# prints the blob_id of {key!a}\n{upload}")
        args[key] = "BLOB_ID"
    target = {"name": call.tool, "skill": name} if call.tool else {"name": name}
    method = "call_tool" if call.tool else "execute_skill"
    params = {**target, "version": version, "args": args}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    lines.append(
        f"curl {server.url}/rpc{header} \\\n  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}"
    )
    return "\n".join(lines)


def _python(server: Server, name: str, version: str, call: _Call | None) -> str:
    """Return code for the Python client."""
    token = "  # reads your token from SKILLERY_TOKEN" if server.needs_login else ""
    lines = ["from skillery.client import Client", "", f"client = Client({server.url!r}){token}"]
    if call is None:
        lines.append(f"file = client.read_skill_file({name!r}, path='SKILL.md', version={version!r})")
        return "\n".join([*lines, "print(file['content'])"])
    args = [f"{key!a}: {value!a}" for key, value in call.args.items()]
    if call.tool:
        values = f"skill={name!r}, version={version!r}, args={{{', '.join(args)}}}"
        lines.append(f"answer = client.call_tool({call.tool!r}, {values})")
        return "\n".join([*lines, "print(answer['result'])"])
    if call.blobs:
        lines.insert(0, "from pathlib import Path")
        lines.insert(1, "")
    for number, (key, file) in enumerate(call.blobs.items()):
        blob = f"blob_{number}" if number else "blob"
        lines.append(f"{blob} = client.create_blob(Path({file!a}).read_text(), 'text/plain')")
        args.append(f"{key!a}: {blob}['blob_id']")
    lines.append(f"run = client.execute_skill({name!r}, version={version!r}, args={{{', '.join(args)}}})")
    return "\n".join([*lines, "print(run['status'], run['output'])"])
