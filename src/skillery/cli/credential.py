"""`skillery credential`: hands the kept login to git, and to clients that ask a command for HTTP headers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

import click

from skillery.cli.options import Target, server_options
from skillery.cli.output import clean

if TYPE_CHECKING:
    from skillery.client.logins.login import Login

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

    found = server_of(_server_asked(request))
    path = request.get("path")
    if path is not None and {".", ".."}.intersection(unquote(path).split("/")):
        return False  # git resolves these parts before it sends the request, maybe to a path of another server
    if path is None:
        return server == found or server.startswith(f"{found}/")
    return f"{found}/{path}/".startswith(f"{server}/")


def _print_credential(request: Mapping[str, str], server: str | None) -> None:
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
    """Return the token for a server, and the login that it is from. SKILLERY_TOKEN is for the current server
    and that of --url only: otherwise a repository at any other host could ask for it.
    """
    from skillery.client.logins.tokens import current_login
    from skillery.client.wire import TOKEN_VARIABLE

    if has_url and (token := os.environ.get(TOKEN_VARIABLE)):
        return token, None
    login = current_login(server)
    return (None, None) if login is None else (login.token, login)
