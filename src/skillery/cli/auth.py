"""`skillery auth`, `offboard` and `incident`: explained logins, the end of identities, and reports of incidents."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import (
    Target,
    home_options,
    json_option,
    print_change,
    target_options,
    user_of_this_machine,
)
from skillery.cli.output import clean, print_json, print_rows
from skillery.cli.tokens import open_home_database
from skillery.cli.verbs import MAX_PAGE, Verb, argument, print_cursor
from skillery.errors import InvalidParams

if TYPE_CHECKING:
    from skillery.backends import Authenticator, Credentials, Explanation, RevokesIdentities
    from skillery.database import Database

MOST_CHARACTERS = 65_536
MOST_NAMED = 1000
"""A server names at most so many remaining things of a kind."""
LEFT = {
    "published": "Published versions",
    "approved": "Approved versions",
    "in_review": "Versions in review",
    "skills": "Skills without versions of others",
    "workspaces": "Workspaces",
    "trust_rules": "Trust rules: CI jobs still publish by them",
    "webhooks": "Webhooks: they still get events",
    "tokens": "Live tokens that it created for others",
}
MARKS = {"ok": "ok", "failed": "FAILED", "skipped": "-"}


@click.group()
def auth() -> None:
    """Explain logins, and revoke identities.

    The commands use the authenticators of the setting `auth`, and work while a server is running.
    """


@auth.command("explain")
@home_options
@json_option
def explain(target: Target, as_json: bool) -> None:
    """Read a token from stdin, and print how the authenticators decide about it.

    The exit code is 1 if the token is refused.
    """
    import asyncio

    from skillery.backends import Credentials

    token = sys.stdin.read(MOST_CHARACTERS + 1).strip()
    if not token or len(token) > MOST_CHARACTERS:
        raise click.UsageError("stdin must contain one token: skillery auth explain < token.txt")
    credentials = Credentials({"authorization": f"Bearer {token.removeprefix('Bearer ')}"}, "127.0.0.1")
    with open_home_database(target) as database:
        name, explanation = asyncio.run(_explained(_opened(target, database), credentials))
    if as_json:
        print_json({"authenticator": name, "checks": explanation.checks, "identity": explanation.identity})
    else:
        _print_explanation(name, explanation)
    if explanation.identity is None:
        raise click.exceptions.Exit(CHECK_FAILED)


def _opened(target: Target, database: Database) -> dict[str, Authenticator]:
    """Load the plugins of the settings and open the authenticators of the settings."""
    from skillery.plugins import load_plugins

    settings = target.load().settings
    plugins = load_plugins(settings.plugins_folder)
    plugins.check_settings(settings)
    return plugins.open_authenticators(settings, database)


async def _explained(opened: dict[str, Authenticator], credentials: Credentials) -> tuple[str, Explanation]:
    """Return the name of the authenticator that decides about the credentials, and its explanation."""
    from skillery.backends import ExplainedCheck, Explanation
    from skillery.identity.authenticator_chain import responsible

    name = responsible(opened, credentials)
    decides = opened[name]
    earlier_checks = [
        ExplainedCheck(other, "skipped", "it does not recognize the token")
        for other in takewhile(lambda other: other != name, opened)
    ]
    try:
        await decides.start()
        explanation = await decides.explain(credentials)
    finally:
        await decides.close()
    return name, Explanation((*earlier_checks, *explanation.checks), explanation.identity)


def _print_explanation(name: str, explanation: Explanation) -> None:
    rows = [(MARKS[check.outcome], clean(check.subject), clean(check.detail)) for check in explanation.checks]
    print_rows(["", "check", "found"], rows, title=f"authenticator {name}")
    identity = explanation.identity
    if identity is None:
        click.echo("The token is refused.", err=True)
        return
    scopes = ", ".join(sorted(identity.scopes)) or "nothing"
    grants = f" in {' '.join(identity.namespaces)}" if identity.namespaces else ""
    click.echo(clean(f"{identity.name} ({identity.kind}) may {scopes}{grants}"))


@auth.command("revoke")
@click.argument("name", metavar="IDENTITY")
@home_options
@json_option
def revoke(name: str, target: Target, as_json: bool) -> None:
    """End an identity on all servers of this database: its tokens, sessions and runs, as `skillery offboard` does.

    If an authenticator of the setting `auth` keeps a list of revoked identities, valid credentials of the identity are
    refused too, until `skillery auth restore`.
    """
    report, changed = _offboard_in_home(target, name)
    _print_change(name, changed, "is revoked", "was already revoked", as_json)
    _print_ended(report)


@auth.command("restore")
@click.argument("name", metavar="IDENTITY")
@home_options
@json_option
def restore(name: str, target: Target, as_json: bool) -> None:
    """Remove an identity from the list of revoked identities. Its tokens of the registry stay revoked."""
    _print_change(name, _restore_in_home(target, name), "is restored", "was not revoked", as_json)


@auth.command("revoked")
@home_options
@json_option
def revoked(target: Target, as_json: bool) -> None:
    """List the revoked identities."""
    with open_home_database(target) as database:
        names = _keeper(_opened(target, database)).revoked()
    if as_json:
        print_json({"revoked": names})
    else:
        print_rows(["identity"], [(clean(name),) for name in names], none="No identity is revoked.")


def _print_offboarded(report: dict[str, Any]) -> None:
    print_change(f"{click.get_current_context().params['name']} is revoked")
    _print_ended(report)
    for subject, names in report["left"].items():
        if names:
            more = "+" if len(names) == MOST_NAMED else ""
            click.echo(clean(f"{LEFT[subject]} ({len(names)}{more}):"))
            click.echo(clean("".join(f"  {name}\n" for name in names)), nl=False)


def _print_ended(report: dict[str, Any]) -> None:
    ended = [(len(report["tokens"]), "token"), (report["sessions"], "session"), (len(report["runs"]), "run")]
    ended += [(len(report["keys"]), "key")] if report["keys"] else []
    counts = ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in ended)
    click.echo(f"Ended: {counts}.", err=True)


def _offboard_in_home(target: Target, name: str) -> tuple[dict[str, Any], bool]:
    """End the identity in the database. Return the report, and whether anything has changed."""
    import msgspec

    from skillery import audit
    from skillery.identity.authenticator_chain import revokers
    from skillery.identity.offboarding import SETTLED_SECONDS, end_identity, end_late

    actor = audit.local_actor(user_of_this_machine())
    with open_home_database(target) as database:
        lists = [revoker.revoke for revoker in revokers(_opened(target, database))]
        report, changed = database.write_now(lambda connection: end_identity(connection, actor, name, lists))
        time.sleep(SETTLED_SECONDS)
        report = database.write_now(lambda connection: end_late(connection, actor, report))
    return msgspec.to_builtins(report), changed


offboard = Verb(
    "offboard",
    "revoke_identity",
    _print_offboarded,
    argument("name", "IDENTITY"),
    at_home=lambda target, params: _offboard_in_home(target, params["name"])[0],
    help="""End an identity, and list its remaining data.

    Its tokens, sessions of browsers and running runs end within a second on every server of the database. Its versions,
    blobs, workspaces, trust rules and webhooks stay.
    """,
)


SECTIONS = {
    "callers": "identity kind runs last_at",
    "versions": "name version status publisher runs",
    "approvals": "name version step identity note at",
    "hosts": "host port runs refused bytes_out bytes_in",
    "copies": "name version identity client loads last_day",
    "runs": "run_id status skill identity client started_at hosts",
    "commands": "command effect",
}
"""The lists of an incident, and their columns."""


def _print_incident(report: Mapping[str, Any]) -> None:
    span = f", from {report['first_at']} to {report['last_at']}" if report["runs_total"] else ""
    counts = f"{report['runs_total']} runs, {report['active']} active"
    click.echo(clean(f"{report['subject']} {report['name']}: {counts}{span}"))
    if report["grants"]:
        click.echo(clean(f"Granted to: {', '.join(report['grants'])}"))
    for section, columns in SECTIONS.items():
        rows = [[_cell(row[column]) for column in columns.split()] for row in report[section]]
        if rows:
            click.echo(f"\n{section.capitalize()}{' (the first ones)' if section in report['cut'] else ''}:")
            print_rows([column.replace("_", " ") for column in columns.split()], rows)
    print_cursor(report, "runs")


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


@click.command("incident")
@click.option("--version", metavar="NAME@VERSION", help="A version that may be malicious.")
@click.option("--secret", metavar="NAME", help="A secret that may have leaked.")
@click.option("--identity", metavar="NAME", help="An identity that may be stolen.")
@click.option("--host", metavar="HOST", help="A host that got data: api.example.com or *.example.com.")
@click.option(
    "--since",
    metavar="TIME",
    default="90d",
    show_default=True,
    help="Only runs since then, such as 24h or 2026-11-22T10:00:00Z.",
)
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=50, show_default=True, help="Most rows of a list.")
@click.option("--cursor", default="", help="The next page of the runs.")
@target_options
@json_option
def incident(target: Target, as_json: bool, since: str, limit: int, cursor: str, **subjects: str | None) -> None:
    """Report what a version, a secret, an identity or a host has touched, and the commands that stop it.

    The report has runs, callers, versions with their approvals, hosts, programs that loaded a copy, and commands. It
    changes nothing. The command requires a token with the scope admin.
    """
    from skillery.cli.connection import with_client

    named = [(subject, name) for subject, name in subjects.items() if name is not None]
    if len(named) != 1:
        raise click.UsageError("name one of --version, --secret, --identity and --host")
    [(subject, name)] = named
    params: dict[str, Any] = {"subject": subject, "name": name, "since": since, "limit": limit, "cursor": cursor}
    report = with_client(target, lambda client: client.get_incident(**params))
    (print_json if as_json else _print_incident)(report)


def _restore_in_home(target: Target, name: str) -> bool:
    """Remove the identity from the list, with an audit entry. Return False if it was not there."""
    from skillery import audit
    from skillery.identity.web_session_rows import end_provider_sessions

    with open_home_database(target) as database:
        keeper = _keeper(_opened(target, database))
        actor = audit.local_actor(user_of_this_machine())

        def work(connection: Any) -> bool:
            if not keeper.restore(name, connection):
                return False
            # A server that did not yet know the revocation may have accepted a login within a second.
            end_provider_sessions(connection, name)
            audit.record(connection, actor, "restore_identity", name)
            return True

        return database.write_now(work)


def _keeper(opened: dict[str, Authenticator]) -> RevokesIdentities:
    from skillery.identity.authenticator_chain import revokers

    for revoker in revokers(opened):
        return revoker
    raise InvalidParams(
        f"no authenticator of the setting 'auth' ({', '.join(opened)}) keeps a list of revoked identities",
        hint="`skillery offboard NAME` ends an identity and its tokens.",
    )


def _print_change(name: str, changed: bool, done: str, not_changed: str, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "changed": changed})
    else:
        print_change(f"{name} {done if changed else not_changed}")
