"""`skillery webhook`: manage webhooks, which get events as signed HTTP requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, json_option, print_change, target_options
from skillery.cli.output import clean, print_json, print_rows

if TYPE_CHECKING:
    from skillery.client import AsyncClient

COLUMNS = ("id", "url", "events", "skills", "state", "waiting", "dead", "delivered", "last error")


@click.group()
def webhook() -> None:
    """Manage webhooks, which get events as signed HTTP requests."""


@webhook.command("add")
@click.argument("address", metavar="URL")
@click.option(
    "--event", "events", multiple=True, metavar="TYPE,…", help="Types of events.  [default: all except run_failed]"
)
@click.option(
    "--skill", "skills", multiple=True, metavar="NAME,…", help="Skills or namespaces ('sales.*').  [default: all]"
)
@target_options
@json_option
def add(address: str, events: tuple[str, ...], skills: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Send events to URL, and print the secret of the webhook once."""
    added = _call(target, "add_webhook", {"url": address, "events": _split(events), "skills": _split(skills)})
    if as_json:
        print_json(added)
        return
    click.echo(clean(added["secret"]))
    about = f" about {', '.join(added['skills'])}" if added["skills"] else ""
    click.echo(clean(f"{added['id']}: {', '.join(added['events'])}{about} to {added['url']}"), err=True)
    print_change("added", err=True)
    click.echo("Store the secret now: it is not shown again.", err=True)


def _split(values: tuple[str, ...]) -> list[str]:
    """Return the values of a repeated option. A value with commas is split into several values."""
    return [part.strip() for text in values for part in text.split(",") if part.strip()]


@webhook.command("list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List all webhooks and the state of their deliveries."""
    found = _call(target, "list_webhooks", {})
    if as_json:
        print_json(found)
        return
    print_rows(
        COLUMNS,
        [
            (
                one["id"],
                one["url"],
                ",".join(one["events"]),
                " ".join(one["skills"]) or "all",
                one["state"],
                one["waiting"],
                one["dead_letters"],
                one["delivered"],
                one["last_error"] or "-",
            )
            for one in found["webhooks"]
        ],
        none="No webhooks.",
    )


@webhook.command("test")
@click.argument("webhook_id", metavar="ID")
@target_options
@json_option
def test(webhook_id: str, target: Target, as_json: bool) -> None:
    """Send an event of the type test now. The exit code is 1 if the target does not accept it."""
    tested = _call(target, "test_webhook", {"id": webhook_id})
    if as_json:
        print_json(tested)
    else:
        outcome = f"accepted with {tested['status']}" if tested["ok"] else tested["error"]
        click.echo(clean(f"{tested['id']}: {outcome}, {tested['duration_ms']} ms"))
    if not tested["ok"]:
        raise click.exceptions.Exit(CHECK_FAILED)


@webhook.command("rm")
@click.argument("webhook_id", metavar="ID")
@target_options
@json_option
def rm(webhook_id: str, target: Target, as_json: bool) -> None:
    """Remove a webhook. Its waiting events and dead letters are lost."""
    removed = _call(target, "remove_webhook", {"id": webhook_id})
    if as_json:
        print_json(removed)
    else:
        print_change(f"{removed['id']} ({removed['url']}) is removed, with {removed['dropped']} unsent events,")


@webhook.command("dead")
@click.argument("webhook_id", metavar="ID")
@target_options
@json_option
def dead(webhook_id: str, target: Target, as_json: bool) -> None:
    """List the events that a webhook did not accept in time, oldest first."""
    from skillery.cli.connection import with_client

    async def pages(client: AsyncClient) -> list[Any]:
        found: list[Any] = []
        cursor = None
        while True:
            page = await client.list_dead_letters(id=webhook_id, limit=1000, cursor=cursor)
            found += page["dead_letters"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    letters = with_client(target, pages)
    if as_json:
        print_json({"dead_letters": letters})
        return
    print_rows(
        ("event", "type", "time", "about", "attempts", "error"),
        [
            (
                letter["event_id"],
                letter["type"],
                letter["at"],
                letter["data"].get("name") or "-",
                letter["attempts"],
                letter["error"],
            )
            for letter in letters
        ],
        none="No dead letters.",
    )


def _call(target: Target, method: str, params: dict[str, Any]) -> dict[str, Any]:
    from skillery.cli.connection import with_client

    answer: dict[str, Any] = with_client(target, lambda client: client.call(method, params))
    return answer
