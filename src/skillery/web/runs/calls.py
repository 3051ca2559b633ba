"""The call of a run for other programs: "Call it yourself"."""

from __future__ import annotations

import json
import shlex
from typing import Any

from skillery.method import or_none
from skillery.runs.results import RunRecord


def call_of(run: RunRecord, args: str | None) -> dict[str, Any] | None:
    """Return the params of the call that made a run, or None if its args are unknown."""
    skill = or_none(run.skill)
    if args is None or not skill:
        return None
    name = {"name": run.tool, "skill": skill.name} if run.tool else {"name": skill.name}
    return {**name, "version": skill.version, "args": json.loads(args)}


def curl_of(server: str, run: RunRecord, args: str | None) -> str:
    """Return the call of a run for a shell, or "" if its args are unknown."""
    params = call_of(run, args)
    if params is None:
        return ""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": run.method, "params": params}, ensure_ascii=True)
    header = "-H 'Content-Type: application/json' -H \"Authorization: Bearer $SKILLERY_TOKEN\""
    return f"curl {shlex.quote(server + '/rpc')} {header} \\\n  -d {shlex.quote(body)}"


def python_of(server: str, run: RunRecord, args: str | None) -> str:
    """Return the call of a run for the Python client, or ""."""
    params = call_of(run, args)
    if params is None:
        return ""
    given = ", ".join(f"{key}={value!a}" for key, value in params.items() if key != "name")
    return (
        f"from skillery.client import Client\n\nclient = Client({server!r})  # reads SKILLERY_TOKEN\n"
        f"run = client.{run.method}({params['name']!r}, {given})"
    )
