"""`skillery token`: create, list, rotate and revoke tokens.

Without --url, these commands open the database directly, even while a server uses it. This is safe, because a user who
can write to the home can do everything that an admin can do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import Target, filled, json_option, print_change, target_options, user_of_this_machine
from skillery.cli.output import clean, is_terminal, print_json
from skillery.cli.verbs import Table, Verb, changed, option

if TYPE_CHECKING:
    from skillery.database import Database
    from skillery.settings.load import Settings


@click.group()
def token() -> None:
    """Manage the tokens of a server with auth = "tokens".

    Without --url, the commands manage the tokens of the home, even while a server is running. With --url, an admin
    token is required.
    """


@token.command("create")
@click.option(
    "--name", required=True, help="Name of the identity. Tokens with the same name share one identity and its blobs."
)
@click.option(
    "--scope",
    "scopes",
    required=True,
    multiple=True,
    metavar="SCOPE,…",
    help="read, run, publish, review, metrics, audit, accounts, admin.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAMESPACE.*,…",
    help="Namespaces for publishing; '*' means all.",
)
@click.option(
    "--expires",
    callback=filled,
    metavar="TIME",
    help="Lifetime: 90d, 12h or never.  [default: never, or tokens.max_days]",
)
@click.option("--agent", is_flag=True, help="The token belongs to an agent, not to a person.")
@target_options
@json_option
def create(
    name: str,
    scopes: tuple[str, ...],
    namespaces: tuple[str, ...],
    expires: str | None,
    agent: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Create a token and print it once.

    Without --namespace, a token with the scope publish cannot publish, unless it has the scope admin too. With the
    scope review and without --namespace, the token can review all skills.
    """
    params: dict[str, Any] = {
        "name": name,
        "scopes": [scope for scope in _split_values(scopes) if scope],
        "namespaces": _split_values(namespaces),
        "kind": "agent" if agent else "person",
        **({"expires": expires} if expires else {}),
    }
    if target.url:
        from skillery.cli.connection import with_client

        created = with_client(target, lambda client: client.call("create_token", params))
    else:
        created = _create_in_home(target, params)
        _warn_about_server(target)
    if as_json:
        print_json(created)
        return
    click.echo(clean(created["token"]))
    expiry = f", until {created['expires_at']}" if created["expires_at"] else ", without expiry"
    granted = " ".join(created["namespaces"])
    may = f"{', '.join(created['scopes'])}{f' in {granted}' if granted else ''}"
    click.echo(clean(f"{created['id']}: {created['name']} ({created['kind']}) may {may}{expiry}."), err=True)
    print_change("created", err=True)
    if "publish" in created["scopes"] and "admin" not in created["scopes"] and not granted:
        click.echo("The token cannot publish anything: add --namespace.", err=True)
    if "review" in created["scopes"] and "read" not in created["scopes"]:
        click.echo("The token cannot read the versions it reviews: add --scope read.", err=True)
    click.echo("Store the token now: it is not shown again.", err=True)


def _warn_about_server(target: Target) -> None:
    problem = problem_of_server(target.load().settings)
    if problem is not None:
        click.echo(f"warning: {problem}", err=True)


def _split_values(values: tuple[str, ...]) -> list[str]:
    """Return the values of a repeated option. A value with commas is split into several values."""
    return [part.strip() for text in values for part in text.split(",")]


def _create_in_home(target: Target, params: dict[str, Any]) -> dict[str, Any]:
    from skillery.audit import local_actor
    from skillery.identity.tokens import insert_token

    with open_home_database(target) as database:
        actor = local_actor(user_of_this_machine())
        work = partial(insert_token, actor=actor, **params, max_days=_max_days(target))
        return _plain(database.write_now(work))


def _rotate_in_home(target: Target, params: dict[str, Any]) -> dict[str, Any]:
    from skillery.audit import local_actor
    from skillery.identity.token_methods import replace_tokens

    options = {name: value for name, value in params.items() if value is not None}
    with open_home_database(target) as database:
        actor = local_actor(user_of_this_machine())
        work = partial(replace_tokens, actor=actor, **options, max_days=_max_days(target))
        return _plain(database.write_now(work))


def _max_days(target: Target) -> int:
    return target.load().settings.tokens.max_days


def _print_rotated(rotated: Mapping[str, Any]) -> None:
    click.echo(clean(rotated["token"]))
    expiry = f"until {rotated['expires_at']}" if rotated["expires_at"] else "without expiry"
    click.echo(clean(f"{rotated['id']}: the new token of {rotated['name']}, {expiry}."), err=True)
    click.echo(clean(f"{', '.join(rotated['replaced'])}: valid until {rotated['replaced_until']}."), err=True)
    print_change("rotated", err=True)


def _list_in_home(target: Target, _params: dict[str, Any]) -> dict[str, Any]:
    from skillery.identity.tokens import read_tokens

    with open_home_database(target) as database:
        return _plain(database.read_now(read_tokens))


def _revoke_in_home(target: Target, params: dict[str, Any]) -> dict[str, Any]:
    from skillery.audit import local_actor
    from skillery.formats.tokens import REMEMBERED_SECONDS
    from skillery.identity.tokens import end_token

    with open_home_database(target) as database:
        actor = local_actor(user_of_this_machine())
        revoked = database.write_now(lambda connection: end_token(connection, actor, params["id"]))
    # Servers cache valid tokens for REMEMBERED_SECONDS. Afterwards, no server accepts the token.
    time.sleep(REMEMBERED_SECONDS)
    return _plain(revoked)


token.add_command(
    Verb(
        "list",
        "list_tokens",
        Table(
            "tokens",
            "id name kind scopes namespaces status expires last_used remarks",
            scopes=lambda row: (", " if is_terminal() else ",").join(row["scopes"]),
            namespaces=lambda row: " ".join(row["namespaces"]) or "-",
            expires=lambda row: row["expires_at"] or "never",
            last_used=lambda row: row["last_used_at"] or "never",
            remarks=lambda row: " ".join(row["remarks"]) or "-",
        ),
        at_home=_list_in_home,
        help="List all tokens, including expired and revoked tokens. The secret parts of tokens are not shown.",
    )
)
token.add_command(
    Verb(
        "rotate",
        "rotate_token",
        _print_rotated,
        option("--overlap", metavar="TIME", help="How long the old tokens stay valid: 1h, 7d.  [default: 24h]"),
        option("--expires", metavar="TIME", help="Lifetime of the new token.  [default: that of the newest one]"),
        at_home=_rotate_in_home,
        help="Replace the tokens of the identity NAME by a new one with the same rights, and print it once.",
    )
)
token.add_command(
    Verb(
        "revoke",
        "revoke_token",
        changed("{id} ({name}) is revoked"),
        at_home=_revoke_in_home,
        help="Revoke a token permanently. The runs and blobs of the token's identity stay.",
    )
)


def _plain(answer: Any) -> dict[str, Any]:
    """Return a result as plain values, as a client decodes them from the answer of a server."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(answer)
    return plain


@contextlib.contextmanager
def open_home_database(target: Target) -> Iterator[Database]:
    """Context manager: yield the configured database, migrated to the revision of this release."""
    from skillery.cli.database import migrated, open_database
    from skillery.cli.output import show_log

    # Such a command needs access to the database, and no authenticator reads a token.
    target.check_token(())
    settings = target.load().settings
    show_log(settings)
    with open_database(settings) as database:
        yield migrated(database, settings)


# -- The check that the running server of a home uses the tokens that commands on this home create ---------------------


def problem_of_server(settings: Settings) -> str | None:
    """Return why the server that holds the home does not use the tokens in the database of `settings`. Return None if
    the server uses them, or if no server holds the home.
    """
    from skillery.app.home import holder_of
    from skillery.database import without_password

    server = holder_of(settings.home)
    if server is None or not server.url:
        return None
    if server.auth == "open":
        return (
            f'The server at {server.url} does not check tokens: its setting auth is "open". Restart it with '
            'auth = "tokens".'
        )
    if server.database not in {None, without_password(settings.database_url)}:
        return (
            f"The server at {server.url} does not accept this token: it uses a different database. Name the "
            "configuration of the server with --config or SKILLERY_CONFIG, and create the token again."
        )
    return None
