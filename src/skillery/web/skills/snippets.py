"""Rail "Use it": how clients use a version. Each snippet works without JavaScript: `?client=` selects one."""

from __future__ import annotations

import json
import shlex
from typing import Any, NamedTuple
from urllib.parse import quote

from skillery.web.frame import PageRequest
from skillery.web.skills.opened import Opened

CLIENTS = {
    "shell": "Shell",
    "curl": "curl",
    "python": "Python",
    "mcp": "MCP",
    "npx": "npx skills",
    "lock": "Lock",
}
_MOST_ARGS = 2000
"""Characters of the arguments of an example. Larger arguments are left out of a snippet."""


class Snippet(NamedTuple):
    client: str
    text: str
    warning: str = ""
    """The reason why the client would not work."""
    note: str = ""
    entry: str = ""
    """The entry of the version in a lock file."""


class _Inputs(NamedTuple):
    """The inputs of the first example."""

    args: dict[str, Any]
    blobs: dict[str, str]
    """Names of files by argument."""


def snippet_of(request: PageRequest, opened: Opened) -> Snippet:
    """Return the snippet of the client in the query."""
    client = request.query.get("client", "")
    made = _snippet(request, opened, client if client in CLIENTS else "shell")
    return made if made.warning else made._replace(warning=_withheld(opened.skill["status"]))


def _snippet(request: PageRequest, opened: Opened, client: str) -> Snippet:
    name, version = opened.name, opened.version
    runtime = opened.skill["manifest"].get("runtime") or {}
    inputs = _inputs(opened.skill["manifest"]) if runtime.get("entrypoint") else None
    server = request.server
    if client == "curl":
        return Snippet(client, _curl(server, name, version, inputs))
    if client == "python":
        return Snippet(client, _python(server, name, version, inputs), note="pip install skillery-client")
    if client == "mcp":
        made = {
            "mcpServers": {"skillery": {"url": f"{server}/mcp", "headers": {"Authorization": "Bearer $SKILLERY_TOKEN"}}}
        }
        how = f"Then ask for the skill {name}, version {version}."
        return Snippet(client, json.dumps(made, indent=2), note=f"Put your token in place of $SKILLERY_TOKEN. {how}")
    if client == "npx":
        return Snippet(client, f"npx skills add {server}/n/{name}", *_npx(request, opened))
    if client == "lock":
        url = f" \\\n  --url {server}"
        text = f"skillery lock {shlex.quote(f'{name}@{version}')}{url}\nskillery install --locked skills/{url}"
        entry = {"name": name, "version": version, "digest": opened.digest, "status": opened.skill["status"]}
        return Snippet(client, text, entry=json.dumps(entry, indent=1))
    return Snippet(client, _shell(server, name, version, inputs))


def _withheld(status: str) -> str:
    """Return the reason why only few callers can use a version, or ""."""
    if status in {"draft", "in_review"}:
        return "Only its author and reviewers can use this version until a reviewer approves it."
    return "Only its author and reviewers can use a rejected version." if status == "rejected" else ""


def _npx(request: PageRequest, opened: Opened) -> tuple[str, str]:
    """Return the warning and the note of `npx skills`."""
    if not request.site.public_pages:
        return "npx skills sends no token, and this server needs one for downloads.", ""
    if opened.skill["visibility"] != "public":
        return "npx skills sends no token, so it sees only public skills. This skill is not public.", ""
    if opened.facts.latest != opened.version:
        latest = opened.facts.latest
        return f"npx skills installs the latest version{f', {latest}' if latest else ''}. This page shows another.", ""
    return "", "npx skills installs the latest version."


def _inputs(manifest: dict[str, Any]) -> _Inputs:
    example = next((one for one in manifest.get("examples") or () if isinstance(one, dict)), {})
    args, blobs = example.get("args") or {}, example.get("blobs") or {}
    if len(json.dumps(args)) > _MOST_ARGS:
        args = {}
    files = {key: path.rpartition("/")[2] for key, path in blobs.items() if isinstance(path, str)}
    return _Inputs(args, files)


def _shell(server: str, name: str, version: str, inputs: _Inputs | None) -> str:
    at = shlex.quote(f"{name}@{version}")
    if inputs is None:
        return f"skillery read {at} SKILL.md \\\n  --url {server}"
    parts = [f"skillery run {at}", f"--url {server}"]
    parts += [f"--blob {shlex.quote(f'{key}={file}')}" for key, file in inputs.blobs.items()]
    parts += [f"--arg {shlex.quote(f'{key}={_value(value)}')}" for key, value in inputs.args.items()]
    return " \\\n  ".join(parts)


def _value(value: object) -> str:
    """Return the value of `--arg`, which is read as JSON if possible."""
    if isinstance(value, str) and value.isascii() and value.isprintable():
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def _curl(server: str, name: str, version: str, inputs: _Inputs | None) -> str:
    header = '  -H "Authorization: Bearer $SKILLERY_TOKEN"'
    if inputs is None:
        file = f"{server}/skills/{name}/{quote(version, safe='')}.tar.gz"
        return f"curl {file} \\\n{header} -O"
    lines = []
    args = dict(inputs.args)
    for key, file in inputs.blobs.items():
        upload = f"curl {server}/blobs \\\n{header} \\\n  --data-binary {shlex.quote(f'@{file}')}\n"
        lines.append(f"# prints the blob_id of {key!a}\n{upload}")
        args[key] = "BLOB_ID"
    params = {"name": name, "version": version, "args": args}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "execute_skill", "params": params})
    lines.append(
        f"curl {server}/rpc \\\n{header} \\\n  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}"
    )
    return "\n".join(lines)


def _python(server: str, name: str, version: str, inputs: _Inputs | None) -> str:
    lines = ["from skillery.client import Client", "", f"client = Client({server!r})  # reads SKILLERY_TOKEN"]
    if inputs is None:
        lines.append(f"file = client.read_skill_file({name!r}, path='SKILL.md', version={version!r})")
        return "\n".join([*lines, "print(file['content'])"])
    args = [f"{key!a}: {value!a}" for key, value in inputs.args.items()]
    if inputs.blobs:
        lines.insert(0, "from pathlib import Path")
        lines.insert(1, "")
    for number, (key, file) in enumerate(inputs.blobs.items()):
        blob = f"blob_{number}" if number else "blob"
        lines.append(f"{blob} = client.create_blob(Path({file!a}).read_text(), 'text/plain')")
        args.append(f"{key!a}: {blob}['blob_id']")
    lines.append(f"run = client.execute_skill({name!r}, version={version!r}, args={{{', '.join(args)}}})")
    return "\n".join([*lines, "print(run['status'], run['output'])"])
