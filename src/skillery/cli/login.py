"""`skillery login`, `logout` and `use`: the logins and the current server that this computer keeps for its user."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import click

from skillery.cli.options import (
    HOME,
    URL_VARIABLE,
    Target,
    address_in,
    current_server,
    json_option,
    server_options,
    without_user,
)
from skillery.cli.output import clean, print_json
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.client.logins.browser import DeviceCode
    from skillery.client.logins.discovery import Provider
    from skillery.client.logins.login import Login

MOST_CHARACTERS = 65_536
Method = Literal["browser", "device", "token"]


class _Checked(NamedTuple):
    """A token that the server has accepted."""

    identity: str | None
    """The owner of the token, or None if its scopes do not permit `get_usage`."""


@click.command()
@server_options
@click.option("--browser", is_flag=True, help="Log in with a browser on this computer.")
@click.option("--device", is_flag=True, help="Log in with a browser on another device, with a code.")
@click.option("--token", is_flag=True, help="Read a token from the terminal or stdin, and keep it.")
@click.option("--client-id", metavar="ID", help="The client ID at the identity provider.  [default: the server's]")
@json_option
def login(
    target: Target,
    browser: bool,
    device: bool,
    token: bool,
    client_id: str | None,
    as_json: bool,
) -> None:
    """Log in to a server, and keep the login for later commands.

    The server of --url or SKILLERY_URL becomes the current server, as with `skillery use`: later commands without --url
    use this server. Without --url and SKILLERY_URL, the login is for the current server, or the server of the home.

    The login takes place at the identity provider of the server, with a browser on this computer or on another device.
    If the server has no identity provider, the command asks for a token. Logins are kept in the keyring if the package
    `keyring` is installed, else in a file that only you can read.
    """
    from skillery.client.logins.discovery import find_provider
    from skillery.client.logins.login import server_of

    method = _chosen_method(browser=browser, device=device, token=token)
    server = server_of(target.url or server_of_home(target))
    provider = None if method == "token" else find_provider(server, client_id)
    if provider is not None:
        new_login = _log_in_at_provider(provider, method)
    else:
        _check_method(server, method)
        if method is None and _accepts(server, ""):
            _print_login(server, as_json=as_json)
            _use(server, target)
            return
        new_login = _with_token(server)
    _keep(server, new_login, as_json)
    _use(server, target)


@click.command()
@server_options
@json_option
def logout(target: Target, as_json: bool) -> None:
    """Remove the kept login for a server. A login at an identity provider is also revoked there.

    If the server is the current server, later commands use the home.
    """
    from skillery.client import ClientError
    from skillery.client.logins.kept import changing, find_login, remove_login, set_current_server
    from skillery.client.logins.kept import current_server as kept_server
    from skillery.client.logins.login import server_of
    from skillery.client.logins.tokens import revoke

    server = server_of(target.url or server_of_home(target))
    login, revoked, problem = None, False, None
    with changing(server):
        try:
            login = find_login(server)
            revoked = login is not None and revoke(login)
        except ClientError as error:
            problem = str(error)
        remove_login(server)
    if problem is not None:
        click.echo(clean(f"warning: the login is removed here, but not revoked at its provider: {problem}"), err=True)
    if kept_server() == server:
        set_current_server(None)
    _print_logout(server, login, revoked, as_json)


@click.command()
@click.argument("server", metavar="[URL|home]", required=False)
@json_option
def use(server: str | None, as_json: bool) -> None:
    """Choose the server for commands without --url, or show it.

    `skillery use home` chooses the home again. SKILLERY_URL and --url override this choice. --home DIR and `--url home`
    select the home.
    """
    from skillery.client.logins.kept import set_current_server
    from skillery.client.logins.login import server_of

    if server is not None:
        try:
            address = address_in(server)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        set_current_server(None if address == HOME else server_of(address))
    url, origin = current_server()
    url = without_user(url) if url else None
    if as_json:
        print_json({"url": None if url == HOME else url, "from": origin or None})
    elif url in {None, HOME}:
        click.echo(clean(f"commands use the home {Target().load().settings.home}{_from(origin)}"))
    else:
        click.echo(clean(f"commands use {url}{_from(origin)}"))
    if server is not None and origin == URL_VARIABLE:
        click.echo(f"The choice is kept, but {URL_VARIABLE} wins over it: unset the variable.", err=True)


def _from(origin: str) -> str:
    return f" (from {origin})" if origin else ""


def _use(server: str, target: Target) -> None:
    """Make the server the current server, if the user has named it and it is not the current server yet."""
    from skillery.client.logins.kept import current_server as kept_server
    from skillery.client.logins.kept import set_current_server

    if target.url and kept_server() != server:
        set_current_server(server)
        click.echo(clean(f"Commands now use {server}. `skillery use home` goes back to the home."), err=True)


def _chosen_method(**flags: bool) -> Method | None:
    names = [name for name, is_given in flags.items() if is_given]
    if len(names) > 1:
        raise click.UsageError(f"--{names[0]} and --{names[1]} exclude each other")
    return cast(Method, names[0]) if names else None


def server_of_home(target: Target) -> str:
    """Return the address of the server that holds the home. Raise StartupError if no server holds it."""
    from skillery.app.home import holder_of

    settings = target.load().settings
    holder = holder_of(settings.home)
    if holder is None or not holder.url:
        raise StartupError(f"no server uses the home '{settings.home}': name a server with --url")
    return holder.url


def _check_method(server: str, method: Method | None) -> None:
    if method in {"browser", "device"}:
        raise StartupError(f"{server} names no identity provider, so --{method} does not work: use --token")


# -- login at a provider -------------------------------------------------------------------------------------------


def _log_in_at_provider(provider: Provider, method: Method | None) -> Login:
    """Log in with `method`. If it is None, choose a browser or a device, whichever suits this computer."""
    from skillery.client.logins.browser import log_in_with_browser, log_in_with_device

    metadata = provider.metadata
    if method is None:
        has_device = bool(metadata.device_authorization_endpoint)
        is_better = not metadata.authorization_endpoint or not _has_browser()
        method = "device" if has_device and is_better else "browser"
    if method == "device":
        return log_in_with_device(provider, _show_code)
    return log_in_with_browser(provider, _show_address)


def _has_browser() -> bool:
    """Return whether this process can open a browser on the screen of the user."""
    if os.environ.get("BROWSER"):
        return True
    if sys.platform in {"win32", "darwin"}:
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _show_address(address: str) -> None:
    import webbrowser

    click.echo(clean(f"Log in with your browser: {address}"), err=True)
    if _has_browser():
        webbrowser.open(address)


def _show_code(code: DeviceCode) -> None:
    click.echo(clean(f"Open {code.verification_uri} on any device, and enter the code {code.user_code}"), err=True)
    if code.verification_uri_complete:
        click.echo(clean(f"This address contains the code: {code.verification_uri_complete}"), err=True)


# -- login with a token --------------------------------------------------------------------------------------------


def _with_token(server: str) -> Login:
    from skillery.client.logins.discovery import is_header_text
    from skillery.client.logins.login import Login, is_safe

    if not is_safe(server):
        click.echo(clean(f"warning: {server} is not encrypted: others can read the token in the network"), err=True)
    token = _read_token(server)
    if not is_header_text(token):
        raise click.UsageError("a token is one line of visible characters: create one with `skillery token create`")
    return Login(token)


def _read_token(server: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(f"Token for {server}", hide_input=True, err=True)).strip()
    return sys.stdin.read(MOST_CHARACTERS + 1).strip()


# -- checking and keeping ------------------------------------------------------------------------------------------


def _accepts(server: str, token: str) -> _Checked | None:
    """Check the token with one call. Return None if the server refuses it."""
    from skillery.client import NotAuthenticated

    try:
        return _check(server, token)
    except NotAuthenticated:
        return None


def _check(server: str, token: str) -> _Checked:
    """Check the token with one call. Raise NotAuthenticated if the server refuses it."""
    from skillery.client import Client, NotAllowed, Retries

    with Client(server, token, retries=Retries(attempts=1)) as client:
        try:
            return _Checked(client.get_usage()["identity"])
        except NotAllowed:
            return _Checked(None)


def _keep(server: str, login: Login, as_json: bool) -> None:
    """Check the token with one call, and keep the login. If either fails, revoke the login at its provider."""
    from contextlib import suppress

    from skillery.client import ClientError
    from skillery.client.logins.kept import changing, keep_login
    from skillery.client.logins.tokens import revoke

    try:
        checked = _check(server, login.token)
        with changing(server):
            where = keep_login(server, login)
    except BaseException:
        with suppress(ClientError):
            revoke(login)
        raise
    _print_login(server, checked, login, where, as_json=as_json)


def _print_login(
    server: str,
    checked: _Checked | None = None,
    login: Login | None = None,
    where: str | None = None,
    *,
    as_json: bool,
) -> None:
    """Print where the login is kept and when it ends. `login` is None if the server needs no login."""
    from datetime import UTC, datetime

    ends = login.expires_at if login is not None else None
    expires_at = None if ends is None else datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    identity = checked.identity if checked is not None else None
    renewed = bool(login and login.provider and login.provider.refresh_token)
    if as_json:
        print_json(
            {"server": server, "identity": identity, "kept_in": where, "expires_at": expires_at, "renewed": renewed}
        )
        return
    if login is None:
        click.echo(clean(f"{server} does not ask for a login"))
        return
    click.echo(clean(f"logged in to {server}" + (f" as {identity}" if identity else "") + f" (kept in the {where})"))
    if expires_at and not renewed:
        click.echo(clean(f"The login ends at {expires_at}: the provider gave no refresh token."))
    if os.environ.get("SKILLERY_TOKEN"):
        click.echo("note: commands use SKILLERY_TOKEN instead of this login while it is set", err=True)


def _print_logout(server: str, kept: Login | None, revoked: bool, as_json: bool) -> None:
    if as_json:
        print_json({"server": server, "removed": kept is not None, "revoked": revoked})
        return
    if kept is None:
        click.echo(clean(f"there was no login for {server}"))
        return
    click.echo(clean(f"logged out of {server}" + (", and revoked the login at its provider" if revoked else "")))
    if kept.provider is None:
        click.echo("The token itself is still valid: an admin ends it with `skillery token revoke`.")
