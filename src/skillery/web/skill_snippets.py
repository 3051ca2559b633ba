"""The rail "Use it": code with which clients use a version. Each snippet works without JavaScript: `?client=` selects
it.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from skillery.skills.descriptions import Skill
from skillery.web.frame import PageRequest
from skillery.web.skill_opened import Input, Opened, Tool

CLIENTS = {
    "shell": "Shell",
    "curl": "curl",
    "python": "Python",
    "mcp": "MCP",
    "npx": "npx skills",
    "lock": "Lock",
}
_MOST_ARGS = 2000
"""Args of an example with more characters of JSON than this are left out of a snippet."""


class Snippet(NamedTuple):
    """Code or settings for one client."""

    client: str
    text: str
    warning: str = ""
    """The reason why the client does not work with this version, or ""."""
    note: str = ""
    entry: str = ""
    """The entry of the version in a lock file."""


class _Call(NamedTuple):
    """A call of the skill with the inputs of its first example, or a call of its first tool."""

    args: dict[str, Any]
    blobs: dict[str, str]
    """Names of local files, by the argument that takes a blob."""
    tool: str = ""


def snippet_of(request: PageRequest, opened: Opened, tools: Sequence[Tool]) -> Snippet:
    """Return the snippet of the client that `?client=` names, by default of the shell."""
    client = request.query.get("client", "")
    snippet = _snippet(request, opened, client if client in CLIENTS else "shell", tools)
    return snippet if snippet.warning else snippet._replace(warning=_withheld(opened.skill.status))


def _snippet(request: PageRequest, opened: Opened, client: str, tools: Sequence[Tool]) -> Snippet:
    """Return the snippet for one client."""
    name, version = opened.name, opened.version
    call = _call(opened.skill, tools)
    server = request.server
    if client == "curl":
        return Snippet(client, _curl(server, name, version, call))
    if client == "python":
        return Snippet(client, _python(server, name, version, call), note="pip install skillery-client")
    if client == "mcp":
        return _mcp(server, opened, tools)
    if client == "npx":
        return Snippet(client, f"npx skills add {server}/n/{name}", *_npx(request, opened))
    if client == "lock":
        url = f" \\\n  --url {server}"
        text = f"skillery lock {shlex.quote(f'{name}@{version}')}{url}\nskillery install --locked skills/{url}"
        entry = {"name": name, "version": version, "digest": opened.digest, "status": opened.skill.status}
        return Snippet(client, text, entry=json.dumps(entry, indent=1))
    return Snippet(client, _shell(server, name, version, call))


def _withheld(status: str) -> str:
    """Return the reason why only few callers can use a version of this status, or ""."""
    if status in {"draft", "in_review"}:
        return "Only its author and reviewers can use this version until a reviewer approves it."
    return "Only its author and reviewers can use a rejected version." if status == "rejected" else ""


def _mcp(server: str, opened: Opened, tools: Sequence[Tool]) -> Snippet:
    """Return the settings of an MCP client. If the skill has tools, the address names the skill, so that the client
    gets them.
    """
    address = f"{server}/mcp?tools=search_skills{f',{opened.name}' if tools else ''}"
    headers = {"Authorization": "Bearer $SKILLERY_TOKEN"}
    settings_text = json.dumps({"mcpServers": {"skillery": {"url": address, "headers": headers}}}, indent=2)
    login_note = "Put your token in place of $SKILLERY_TOKEN."
    if not tools:
        return Snippet(
            "mcp", settings_text, note=f"{login_note} Then ask for the skill {opened.name}, version {opened.version}."
        )
    shown = f"tool {tools[0].name}" if len(tools) == 1 else f"{len(tools)} tools of {opened.name}"
    warning = ""
    if opened.facts.latest is None:
        warning = "MCP offers the tools of the latest version, and no version of this skill is the latest yet."
    elif opened.facts.latest != opened.version:
        warning = f"MCP offers the tools of the latest version, {opened.facts.latest}. This page shows another."
    return Snippet("mcp", settings_text, warning, f"{login_note} The client then has the {shown}.")


def _npx(request: PageRequest, opened: Opened) -> tuple[str, str]:
    """Return the warning and the note about `npx skills` for this version."""
    if not request.site.public_pages:
        return "npx skills sends no token, and this server needs one for downloads.", ""
    if opened.skill.visibility != "public":
        return "npx skills sends no token, so it sees only public skills. This skill is not public.", ""
    if opened.facts.latest != opened.version:
        latest = opened.facts.latest
        return f"npx skills installs the latest version{f', {latest}' if latest else ''}. This page shows another.", ""
    return "", "npx skills installs the latest version."


def _call(skill: Skill, tools: Sequence[Tool]) -> _Call | None:
    """Return the call of a snippet, or None if the skill can only be read."""
    manifest = skill.manifest
    if skill.kind == "instruction" or not (manifest.get("runtime") or {}).get("entrypoint"):
        if not tools:
            return None
        args = {parameter.name: _sample(parameter) for parameter in tools[0].inputs if parameter.required}
        return _Call(args, {}, tools[0].name)
    example = next((candidate for candidate in manifest.get("examples") or () if isinstance(candidate, dict)), {})
    args, blobs = example.get("args") or {}, example.get("blobs") or {}
    if len(json.dumps(args)) > _MOST_ARGS:
        args = {}
    files = {key: path.rpartition("/")[2] for key, path in blobs.items() if isinstance(path, str)}
    return _Call(args, files)


def _sample(parameter: Input) -> Any:
    """Return a value for an input: its default, its first allowed value, or a placeholder of its type."""
    value = parameter.default or (parameter.choices[0] if parameter.choices else None)
    if value is not None:
        with contextlib.suppress(msgspec.DecodeError):  # a long value is cut
            return msgspec.json.decode(value)
    return {"number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}.get(
        parameter.type, parameter.name.upper()
    )


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


def _curl(server: str, name: str, version: str, call: _Call | None) -> str:
    """Return curl commands: an upload for each blob, then the call."""
    header = '  -H "Authorization: Bearer $SKILLERY_TOKEN"'
    if call is None:
        file = f"{server}/skills/{name}/{quote(version, safe='')}.tar.gz"
        return f"curl {file} \\\n{header} -O"
    lines = []
    args = dict(call.args)
    for key, file in call.blobs.items():
        upload = f"curl {server}/blobs \\\n{header} \\\n  --data-binary {shlex.quote(f'@{file}')}\n"
        lines.append(f"# prints the blob_id of {key!a}\n{upload}")
        args[key] = "BLOB_ID"
    target = {"name": call.tool, "skill": name} if call.tool else {"name": name}
    method = "call_tool" if call.tool else "execute_skill"
    params = {**target, "version": version, "args": args}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    lines.append(
        f"curl {server}/rpc \\\n{header} \\\n  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}"
    )
    return "\n".join(lines)


def _python(server: str, name: str, version: str, call: _Call | None) -> str:
    """Return code for the Python client."""
    lines = ["from skillery.client import Client", "", f"client = Client({server!r})  # reads SKILLERY_TOKEN"]
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
