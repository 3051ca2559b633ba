"""`skillery trust` and `skillery publish --trusted`: CI jobs publish without a stored token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

import click

from skillery.cli.options import Target, filled, json_option, print_change, target_options
from skillery.cli.output import clean, print_json
from skillery.cli.verbs import Table, Verb, changed
from skillery.errors import NotAuthenticated, Unavailable


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


# -- `skillery publish --trusted`: get a token of the registry for the CI job in which the command runs ----------------


ID_TOKEN = "SKILLERY_ID_TOKEN"  # noqa: S105 - the name of a variable
REQUEST_URL, REQUEST_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"


def trusted_target(target: Target, publishes: str) -> Target:
    """Return the target with a token for the skill `publishes`, or for the target of the trust rule if it is "".

    Raise UsageError if the options do not fit, NotAuthenticated if there is no token, and Unavailable.
    """
    from skillery.cli.connection import json_answer

    if not target.url:
        raise click.UsageError("--trusted needs --url: the public address of the server")
    if target.token:
        raise click.UsageError("--trusted gets a token for this job: leave out --token and SKILLERY_TOKEN")
    token = _token_of_job(target.url, os.environ)
    body = {"token": token, **({"target": publishes} if publishes else {})}
    answer = json_answer("POST", f"{target.url}/auth/exchange", json=body)
    return target._replace(token=str(answer.get("token", "")))


def _token_of_job(audience: str, environ: Mapping[str, str]) -> str:
    """Return the token of the CI service: GitLab sets a variable, GitHub answers a request of the job."""
    from skillery.cli.connection import json_answer

    if token := environ.get(ID_TOKEN):
        return token
    address, secret = environ.get(REQUEST_URL), environ.get(REQUEST_TOKEN)
    if not address or not secret:
        raise NotAuthenticated(
            "this command does not run in a CI job that can get a token",
            hint="GitHub Actions: give the job 'permissions: id-token: write'. GitLab: give it 'id_tokens' with "
            f"{ID_TOKEN} and 'aud: {audience}'.",
        )
    if not _is_safe(address):
        raise NotAuthenticated(f"{REQUEST_URL} is not an https address")
    joined = address + ("&" if urlsplit(address).query else "?") + urlencode({"audience": audience})
    answer = json_answer("GET", joined, headers={"authorization": f"Bearer {secret}"})
    value = answer.get("value")
    if not isinstance(value, str) or not value:
        raise Unavailable("the CI service answered without a token", hint="Try the job again.")
    return value


def _is_safe(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"})
