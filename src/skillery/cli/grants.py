"""`skillery secret` and `skillery trust`: secrets for skills, and CI jobs that publish without a stored token.

The commands for secrets open the database directly, even while a server uses it. So the value of a secret is never sent
over HTTP.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import (
    Target,
    filled,
    home_options,
    json_option,
    print_change,
    target_options,
    user_of_this_machine,
)
from skillery.cli.output import clean, print_json, print_rows
from skillery.cli.verbs import Table, Verb, changed
from skillery.errors import InvalidParams, NotFound

if TYPE_CHECKING:
    from skillery.backends import Secrets
    from skillery.database import Database
    from skillery.settings.load import Settings


# -- `skillery secret`: set secrets, and grant them to skills ----------------------------------------------------------


@click.group()
def secret() -> None:
    """Manage secrets and their grants.

    A skill gets a secret if its manifest declares the secret and a secret grant permits it. Values are read from a
    prompt or from stdin, and are never shown.
    """


@secret.command("set")
@click.argument("name", metavar="NAME")
@click.option("--value-from-stdin", is_flag=True, help="Read the value from stdin; a final line break is removed.")
@home_options
@json_option
def set_(name: str, value_from_stdin: bool, target: Target, as_json: bool) -> None:
    """Set or replace the value of a secret. Without --value-from-stdin, a hidden prompt asks for the value."""
    from skillery.audit import local_actor
    from skillery.formats.names import parse_secret_name
    from skillery.identity.secret_grants import set_secret

    parse_secret_name(name)
    with _opened(target.load().settings) as (database, secrets):
        if secrets.read_only:
            secrets.set(name, "")  # before the prompt: raises an error with a hint about the other way to set values
        value = _value(name, value_from_stdin)
        set_secret(database, secrets, local_actor(user_of_this_machine()), name, value)
    _print(as_json, {"name": name}, f"{name} is set")


def _value(name: str, from_stdin: bool) -> str:
    """Read the value of a secret as text for an environment variable.

    Raise the errors of `check_value`, or InvalidParams if the value is no text. Raise UsageError if there is no
    terminal for the prompt.
    """
    if not from_stdin and not sys.stdin.isatty():
        raise click.UsageError("no terminal for a prompt: pass the value on stdin with --value-from-stdin")
    from skillery.identity.secret_grants import MOST_BYTES, check_value

    try:
        value = (
            _from_stdin(MOST_BYTES + 3) if from_stdin else click.prompt(f"Value of {name}", hide_input=True, err=True)
        )
        check_value(name, value)
    except UnicodeError:
        raise InvalidParams(
            f"the value of '{name}' is not UTF-8 text", hint="Encode binary values in base64."
        ) from None
    return value


def _from_stdin(most_bytes: int) -> str:
    text = sys.stdin.buffer.read(most_bytes).decode()
    return text.removesuffix("\n").removesuffix("\r")


@secret.command("list")
@home_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List the names of all secrets and their grants. Values are never shown."""
    from skillery.identity.secret_grants import list_grants

    settings = target.load().settings
    with _opened(settings) as (database, secrets):
        with_value = set(secrets.names())
        grants = database.read_now(list_grants)
    names = sorted(with_value | {grant.secret for grant in grants})
    if settings.secrets == "environment":
        click.echo("The column value refers to the environment of this command, not to that of a server.", err=True)
    if as_json:
        by_name = {name: [grant for grant in grants if grant.secret == name] for name in names}
        entries = [{"name": name, "has_value": name in with_value, "grants": by_name[name]} for name in names]
        print_json({"backend": settings.secrets, "secrets": entries})
        return
    grantees = {name: ", ".join(grant.grantee for grant in grants if grant.secret == name) for name in names}
    rows = [(name, "yes" if name in with_value else "no", grantees[name] or "-") for name in names]
    print_rows(["secret", "value", "granted to"], rows, none="No secrets.")


@secret.command("rm")
@click.argument("name", metavar="NAME")
@home_options
@json_option
def rm(name: str, target: Target, as_json: bool) -> None:
    """Delete a secret and all its grants."""
    from skillery.audit import local_actor
    from skillery.identity.secret_grants import remove_secret

    with _opened(target.load().settings) as (database, secrets):
        removed, revoked = remove_secret(database, secrets, local_actor(user_of_this_machine()), name)
    if not removed and not revoked:
        raise NotFound(f"secret '{name}' does not exist", hint="Run skillery secret list for all names.")
    _print(as_json, {"name": name, "removed": removed, "grants_revoked": revoked}, f"{name} is removed")


@secret.command("grant")
@click.argument("name", metavar="NAME")
@click.argument("grantee", metavar="SKILL|NAMESPACE.*")
@home_options
@json_option
def grant(name: str, grantee: str, target: Target, as_json: bool) -> None:
    """Grant a secret to a skill, or to every skill of a namespace ('acme.*').

    The grant covers all present and future versions. A skill gets the secret only if it declares the secret.
    """
    from skillery.audit import local_actor
    from skillery.formats.names import parse_grantee, parse_secret_name
    from skillery.identity.secret_grants import covers_a_skill, grant

    parse_secret_name(name)
    parse_grantee(grantee)
    with _opened(target.load().settings) as (database, secrets):
        user = user_of_this_machine()
        new = database.write_now(lambda connection: grant(connection, local_actor(user), name, grantee, user))
        has_value = name in secrets.names()
        has_skill = database.read_now(lambda connection: covers_a_skill(connection, grantee))
    if not has_value:
        click.echo(clean(f"warning: secret '{name}' has no value yet: run skillery secret set {name}"), err=True)
    if not has_skill:
        click.echo(
            clean(f"warning: no skill matches '{grantee}' yet; the grant applies once one is published"), err=True
        )
    _print(
        as_json,
        {"name": name, "grantee": grantee, "new": new},
        f"{name} is granted to {grantee}" + ("" if new else " (unchanged)"),
    )


@secret.command("revoke")
@click.argument("name", metavar="NAME")
@click.argument("grantee", metavar="SKILL|NAMESPACE.*")
@home_options
@json_option
def revoke(name: str, grantee: str, target: Target, as_json: bool) -> None:
    """Revoke a secret grant. Runs that start later do not get the secret through this grant."""
    from skillery.audit import local_actor
    from skillery.identity.secret_grants import revoke

    actor = local_actor(user_of_this_machine())
    with _opened(target.load().settings) as (database, _):
        database.write_now(lambda connection: revoke(connection, actor, name, grantee))
    _print(as_json, {"name": name, "grantee": grantee}, f"{name} is no longer granted to {grantee}")


@secret.command("rekey")
@click.option("--new-key", is_flag=True, help="Make a new key before, and remove the old keys from the key file after.")
@home_options
@json_option
def rekey(new_key: bool, target: Target, as_json: bool) -> None:
    """Encrypt all secrets of the database again, with the first key of the key file.

    A running server uses the new key at once. If several servers have a copy of the key file, leave --new-key out, and
    follow the steps in the documentation. Do not set secrets at the same time.
    """
    from skillery.audit import local_actor, record

    with _opened(target.load().settings) as (database, secrets):
        encrypt = getattr(secrets, "rekey", None)
        if encrypt is None:
            raise click.UsageError("the secrets backend of the settings has no key of this server")
        count = encrypt(new_key)
        actor, after = local_actor(user_of_this_machine()), {"secrets": count, "new_key": new_key}
        database.write_now(lambda connection: record(connection, actor, "rekey_secrets", "secrets", after=after))
    _print(as_json, {"secrets": count, "new_key": new_key}, f"{count} secrets are encrypted with the first key")


def _print(as_json: bool, answer: dict[str, Any], line: str) -> None:
    if as_json:
        print_json(answer)
    else:
        print_change(line, "on")


@contextlib.contextmanager
def _opened(settings: Settings) -> Iterator[tuple[Database, Secrets]]:
    """Context manager: yield the database, migrated to the revision of this release, and the secrets backend of the
    settings.
    """
    from skillery.cli.database import closing_service, migrated
    from skillery.cli.output import show_log
    from skillery.database import Database
    from skillery.plugins import load_plugins

    show_log(settings)
    plugins = load_plugins(settings.plugins_folder)
    plugins.check_settings(settings)
    database = migrated(Database(settings.database_url), settings)
    try:
        with closing_service(plugins.open("secrets", settings, database)) as secrets:
            yield database, secrets
    finally:
        database.close()


# -- `skillery trust`: manage the rules that let CI jobs publish without a stored token --------------------------------


@click.group()
def trust() -> None:
    """Let CI jobs publish skills without a stored token.

    A job runs skillery publish --trusted. The server checks the signed token of the CI service, and gives the job a
    token for 15 minutes.
    """


@trust.command("add")
@click.argument("publishes", metavar="SKILL|NAMESPACE.*")
@click.option("--github", callback=filled, metavar="OWNER/REPO", help="Jobs of this repository on GitHub.")
@click.option("--gitlab", callback=filled, metavar="GROUP/PROJECT", help="Jobs of this project on GitLab.")
@click.option("--repository-id", callback=filled, metavar="ID", help="Number of the repository or project.")
@click.option("--owner-id", callback=filled, metavar="ID", help="Number of the owner (GitHub) or group (GitLab).")
@click.option(
    "--workflow", callback=filled, metavar="FILE", help="File of the workflow.  [default for GitLab: .gitlab-ci.yml]"
)
@click.option(
    "--ref", callback=filled, metavar="REF", help="Branch or tag: refs/heads/main, refs/tags/*.  [default: all]"
)
@click.option("--environment", callback=filled, metavar="NAME", help="Environment of the job.  [default: all]")
@click.option(
    "--issuer", callback=filled, metavar="URL", help="Issuer of the tokens.  [default: github.com or gitlab.com]"
)
@click.option("--claim", "claims", multiple=True, metavar="NAME=VALUE", help="A further claim that a token must have.")
@click.option(
    "--person", is_flag=True, help="Apply the publishing rules for people to the jobs, instead of those for agents."
)
@target_options
@json_option
def add(
    publishes: str,
    github: str | None,
    gitlab: str | None,
    claims: tuple[str, ...],
    person: bool,
    target: Target,
    as_json: bool,
    **named: str | None,
) -> None:
    """Let CI jobs publish a skill ('sales.report') or a namespace ('sales.*')."""
    from skillery.cli.connection import with_client

    if github and gitlab:
        raise click.UsageError("--github and --gitlab exclude each other: add two rules")
    params = {
        "target": publishes,
        "provider": "github" if github else "gitlab" if gitlab else "oidc",
        "repository": github or gitlab,
        "claims": dict(_claim(text) for text in claims),
        "kind": "person" if person else "agent",
        **named,
    }
    added = with_client(target, lambda client: client.call("add_trust_rule", params))
    if as_json:
        print_json(added)
        return
    click.echo(clean(added["id"]))
    click.echo(clean(f"jobs of {added['issuer']} may publish {added['target']} if their tokens have:"), err=True)
    for name, value in added["claims"].items():
        click.echo(clean(f"  {name} = {value}"), err=True)
    print_change("added", err=True)


def _claim(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--claim")
    return name, value


trust.add_command(
    Verb(
        "list",
        "list_trust_rules",
        Table(
            "rules",
            "id publishes=target issuer claims kind by=created_by last_used=last_used_at",
            noun="trust rules",
            claims=lambda rule: " ".join(f"{name}={value}" for name, value in rule["claims"].items()),
        ),
        help="List the rules for your namespaces. Admins get all rules.",
    )
)
trust.add_command(
    Verb(
        "rm",
        "remove_trust_rule",
        changed("{id} ({target}) is removed, and {ended} tokens ended,"),
        help="Remove a rule. Tokens that jobs got with this rule end at once.",
    )
)
