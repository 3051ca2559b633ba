"""`skillery connect`, `mcp` and `credential`: commands for the clients of a server."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlencode

import click

from skillery.cli.client_settings import Change, changes_for
from skillery.cli.options import Target, json_option, server_options, target_options, work_dir_option
from skillery.cli.output import clean, print_json
from skillery.errors import Unavailable
from skillery.formats.agent_clients import CLIENTS, Plan, Server

if TYPE_CHECKING:
    from skillery.client.logins.login import Login


_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@click.command()
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.option("--namespace", metavar="NAME", default="", help="Only the skills of this namespace and below it.")
@click.option(
    "--tools", multiple=True, metavar="SKILL", help="MCP clients also get the tools of this skill. Repeatable."
)
@click.option("--write", is_flag=True, help="Merge the settings into the files of the client, and show the changes.")
@target_options
@json_option
def connect(client: str, namespace: str, tools: Sequence[str], write: bool, target: Target, as_json: bool) -> None:
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
    server = Server(url, _name(url, namespace, target.token), namespace, _program(), tools)
    plan, changes = CLIENTS[client].plan(server), changes_for(CLIENTS[client], server)
    if write:
        for change in changes:
            change.write()
    if as_json:
        print_json(_facts(plan, changes, written=write))
        return
    _print(plan, changes, written=write)


def _name(url: str, namespace: str, token: str | None) -> str:
    """Return the name of the server's marketplace. The request also shows whether the login works."""
    from skillery.cli.connection import json_answer
    from skillery.client.logins.tokens import kept_token

    login_token = kept_token(url)() if token is None else token
    headers = {"authorization": f"Bearer {login_token}"} if login_token else {}
    query = f"?{urlencode({'namespace': namespace})}" if namespace else ""
    name = json_answer("GET", f"{url}/marketplace.json{query}", headers=headers).get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        # The name becomes a part of commands that the user runs.
        raise Unavailable(
            f"the marketplace of {url} has no valid name", hint="Check that this is the address of a Skillery server."
        )
    return name


def _program() -> str:
    """Return the absolute path of the running program `skillery`, else of the first one in PATH."""
    running_program = Path(sys.argv[0]).absolute()
    if running_program.name.startswith("skillery") and os.access(running_program, os.X_OK):
        return str(running_program)
    return shutil.which("skillery") or "skillery"


def _facts(plan: Plan, changes: Sequence[Change], *, written: bool) -> dict[str, Any]:
    """Return the plan for a client as JSON values."""
    return {
        "files": [
            {
                "path": str(change.path),
                "addition": change.addition,
                "diff": change.diff(),
                "written": written and bool(change.diff()),
            }
            for change in changes
        ],
        "commands": plan.commands,
        "text": plan.text,
    }


def _print(plan: Plan, changes: Sequence[Change], *, written: bool) -> None:
    """Print the plan for a client: the changes of its settings, and the commands."""
    for change in changes:
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


# -- `skillery mcp`: MCP over stdin and stdout, for clients that start their MCP servers as processes ------------------


@click.command()
@click.option(
    "--tools",
    "tools",
    multiple=True,
    metavar="NAME",
    help="Also offer this as a tool: search_skills, create_skill, or a skill (its Skill Tools). Repeatable.",
)
@work_dir_option
@target_options
def mcp(tools: Sequence[str], work_dir: Path | None, target: Target) -> None:
    """Speak MCP over stdin and stdout, one JSON message per line.

    The answers come from POST /mcp of a server: the server at --url, or else the server that uses the home. If no
    server uses the home, this process answers, and releases the home after a few seconds without a request.
    """
    import asyncio

    from skillery.cli.mcp_bridge import McpBridge, RegistryAccess

    async def speak() -> None:
        access = RegistryAccess(target)
        try:
            # Connect before the first message, to report errors in the settings early and to make this message fast.
            async with access.client():
                pass
            await McpBridge(access.client, tools, work_dir=work_dir).run()
        finally:
            await access.close()

    asyncio.run(speak())


# -- `skillery credential`: hands the kept login to git, and to clients that ask a command for HTTP headers ------------


Operation = Literal["get", "store", "erase", "headers"]
MOST_CHARACTERS = 65_536
USER = "skillery"
"""The server takes any user name with a token."""


@click.command()
@click.argument("operation", type=click.Choice(["get", "store", "erase", "headers"]), default="get")
@server_options
def credential(operation: Operation, target: Target) -> None:
    """Print the login for a server, for git and other programs. `skillery connect` prints their settings.

    get: read the address of a server from stdin, as git does, and print a user and a password. With --url, only for
    this server.

    headers: print a JSON object with the header Authorization.

    store, erase: do nothing. git calls them, but only `skillery login` and `skillery logout` change logins.

    A login that ends soon is renewed first. SKILLERY_TOKEN is the login for the server of --url, or else for the
    current server.
    """
    from skillery.cli.login import server_of_home
    from skillery.client.logins.login import server_of

    if operation == "headers":
        _print_headers(server_of(target.url or server_of_home(target)))
        return
    request = _question()
    server = server_of(target.url) if target.url else None
    if server is not None and not _is_about(request, server):
        if target.origin == "--url":
            return  # git asks its other helpers
        server = None  # without --url, the command answers questions about all servers with a login
    if operation == "get":
        _print_credential(request, server)
    elif operation == "erase":
        refused = server or _server_asked(request)
        click.echo(clean(f"{refused} refused the login: skillery login --url {refused}"), err=True)


def _question() -> dict[str, str]:
    """Return what git writes to stdin: lines `name=value` up to an empty line."""
    fields = {}
    for line in sys.stdin.read(MOST_CHARACTERS).split("\n"):
        if not line:
            break
        name, _, value = line.partition("=")
        fields[name] = value
    return fields


def _server_asked(request: Mapping[str, str]) -> str:
    return f"{request.get('protocol', '')}://{request.get('host', '')}"


def _is_about(request: Mapping[str, str], server: str) -> bool:
    """Return whether git asks for a path of the server, or for its host without a path."""
    from skillery.client.logins.login import server_of

    address = server_of(_server_asked(request))
    path = request.get("path")
    if path is not None and {".", ".."}.intersection(unquote(path).split("/")):
        return False  # git resolves these parts before it sends the request, maybe to a path of another server
    if path is None:
        return server == address or server.startswith(f"{address}/")
    return f"{address}/{path}/".startswith(f"{server}/")


def _print_credential(request: Mapping[str, str], server: str | None) -> None:
    """Print the user and the token for the server in the lines of git's protocol. Print nothing without a token."""
    from skillery.client.logins.login import server_of

    token, login = _token_of(server or server_of(_server_asked(request)), has_url=server is not None)
    if token is None:
        return
    click.echo(f"username={USER}")
    click.echo(f"password={token}")
    if login is not None and login.expires_at is not None:
        # git from 2.40 asks again after this time. Earlier versions ignore the line.
        click.echo(f"password_expiry_utc={int(login.expires_at)}")


def _print_headers(server: str) -> None:
    from skillery.cli.output import print_json
    from skillery.errors import NotAuthenticated

    token, _ = _token_of(server, has_url=True)
    if token is None:
        raise NotAuthenticated(f"there is no login for {server}", hint=f"Log in: skillery login --url {server}")
    print_json({"Authorization": f"Bearer {token}"})


def _token_of(server: str, *, has_url: bool) -> tuple[str | None, Login | None]:
    """Return the token for a server and its login, or None for each.

    SKILLERY_TOKEN is only for the server of --url or the current server: otherwise a repository at any other host could
    ask for it.
    """
    from skillery.client.logins.tokens import current_login
    from skillery.client.wire import TOKEN_VARIABLE

    if has_url and (token := os.environ.get(TOKEN_VARIABLE)):
        return token, None
    login = current_login(server)
    return (None, None) if login is None else (login.token, login)
