"""`skillery webhook`: manage webhooks, which get events as signed HTTP requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillery.cli.options import print_change
from skillery.cli.output import clean
from skillery.cli.verbs import Table, Verb, argument, changed, values_option


def _print_added(added: Mapping[str, Any]) -> None:
    click.echo(clean(added["secret"]))
    about = f" about {', '.join(added['skills'])}" if added["skills"] else ""
    click.echo(clean(f"{added['id']}: {', '.join(added['events'])}{about} to {added['url']}"), err=True)
    print_change("added", err=True)
    click.echo("Store the secret now: it is not shown again.", err=True)


def _print_tested(tested: Mapping[str, Any]) -> None:
    outcome = f"accepted with {tested['status']}" if tested["ok"] else tested["error"]
    click.echo(clean(f"{tested['id']}: {outcome}, {tested['duration_ms']} ms"))


webhook = click.Group(
    "webhook",
    help="Manage webhooks, which get events as signed HTTP requests.",
    commands=[
        Verb(
            "add",
            "add_webhook",
            _print_added,
            argument("url_", "URL"),
            values_option("--event", "events", "TYPE,…", "Types of events.  [default: all except run_failed]"),
            values_option("--skill", "skills", "NAME,…", "Skills or namespaces ('sales.*').  [default: all]"),
            help="Send events to URL, and print the secret of the webhook once.",
        ),
        Verb(
            "list",
            "list_webhooks",
            Table(
                "webhooks",
                "id url events skills state waiting dead=dead_letters delivered last_error",
                events=lambda row: ",".join(row["events"]),
                skills=lambda row: " ".join(row["skills"]) or "all",
            ),
            help="List all webhooks and the state of their deliveries.",
        ),
        Verb(
            "test",
            "test_webhook",
            _print_tested,
            fails=lambda tested: not tested["ok"],
            help="Send an event of the type test now. The exit code is 1 if the target does not accept it.",
        ),
        Verb("rm", "remove_webhook", changed("{id} ({url}) is removed, with {dropped} unsent events,")),
        Verb(
            "dead",
            "list_dead_letters",
            Table(
                "dead_letters",
                "event=event_id type time=at about attempts error",
                about=lambda letter: letter["data"].get("name"),
            ),
            pages="all",
        ),
    ],
)
