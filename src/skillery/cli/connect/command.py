"""The command `skillery connect`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from skillery.cli.connect.clients import CLIENTS, Plan, Server
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import clean, print_json
from skillery.errors import Unavailable

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@click.command()
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.option("--namespace", metavar="NAME", default="", help="Only the skills of this namespace and below it.")
@click.option("--write", is_flag=True, help="Merge the settings into the files of the client, and show the changes.")
@target_options
@json_option
def connect(client: str, namespace: str, write: bool, target: Target, as_json: bool) -> None:
    """Print the settings that connect a client to a server.

    The client gets the skills as plugins or folders with git, and calls the server over MCP. The settings contain no
    token: git asks `skillery credential` for the login, and MCP clients start `skillery mcp`. So log in first, with
    `skillery login`. The MCP settings of `vscode` are those of the current folder. `mcp` is any other MCP client.
    """
    from skillery.cli.login import server_of_home
    from skillery.client.logins.login import is_safe, server_of

    if write and client == "mcp":
        raise click.UsageError("--write does not know the files of the clients of 'mcp': copy the printed settings")
    url = server_of(target.url or server_of_home(target))
    if not is_safe(url):
        click.echo(clean(f"warning: {url} is not encrypted: others can read the token in the network"), err=True)
    plan = CLIENTS[client](Server(url, _name(url, namespace, target.token), namespace, _program()))
    if write:
        for change in plan.changes:
            change.write()
    if as_json:
        print_json(_facts(plan, written=write))
        return
    _print(plan, written=write)


def _name(url: str, namespace: str, token: str | None) -> str:
    """Return the name of the server's marketplace. The request also shows whether the login works."""
    from skillery.cli.connection import json_answer
    from skillery.client.logins.tokens import kept_token

    known = kept_token(url)() if token is None else token
    headers = {"authorization": f"Bearer {known}"} if known else {}
    query = f"?{urlencode({'namespace': namespace})}" if namespace else ""
    name = json_answer("GET", f"{url}/marketplace.json{query}", headers=headers).get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        # The name becomes a part of commands that the user runs.
        raise Unavailable(
            f"the marketplace of {url} has no valid name", hint="Check that this is the address of a Skillery server."
        )
    return name


def _program() -> str:
    """Return the absolute path of the program `skillery` that runs now, else of the first one in PATH."""
    own = Path(sys.argv[0]).absolute()
    if own.name.startswith("skillery") and os.access(own, os.X_OK):
        return str(own)
    return shutil.which("skillery") or "skillery"


def _facts(plan: Plan, *, written: bool) -> dict[str, Any]:
    return {
        "files": [
            {
                "path": str(change.path),
                "addition": change.addition,
                "diff": change.diff(),
                "written": written and bool(change.diff()),
            }
            for change in plan.changes
        ],
        "commands": plan.commands,
        "text": plan.text,
    }


def _print(plan: Plan, *, written: bool) -> None:
    for change in plan.changes:
        diff = change.diff()
        if not diff:
            click.echo(clean(f"# {change.path} has these settings already"))
        elif written:
            click.echo(clean(diff), nl=False)
        else:
            click.echo(clean(f"# Add to {change.path}, or run this command with --write:\n{change.addition}"))
        click.echo()
    if plan.text:
        click.echo(clean(f"# Add to {plan.place}:\n{plan.text}\n"))
    if plan.commands:
        click.echo("# Then run:")
        for command in plan.commands:
            click.echo(clean(command))
