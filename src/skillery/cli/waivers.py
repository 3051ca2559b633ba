"""`skillery waiver`: manage waivers, which allow versions to be published in spite of a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import Target, filled, json_option, print_change, target_options
from skillery.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Waiver

COLUMNS = ("id", "skill", "rule", "file", "version", "status", "until", "by", "reason")


@click.group()
def waiver() -> None:
    """Manage waivers of findings.

    A waiver allows versions to be published in spite of a finding of a before_publish plugin.
    """


@waiver.command("add")
@click.argument("name", metavar="NAME")
@click.argument("rule", metavar="RULE")
@click.option("--reason", required=True, help="The reason, visible to all readers of the skill.")
@click.option(
    "--until",
    callback=filled,
    metavar="TIME",
    help="Expiry: 2027-01-31, a time, or a duration such as 90d.  [default: none]",
)
@click.option("--file", callback=filled, metavar="PATH", help="Only findings in this file of the skill.")
@click.option("--version", callback=filled, help="Only this exact version.")
@target_options
@json_option
def add(
    name: str,
    rule: str,
    reason: str,
    until: str | None,
    file: str | None,
    version: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Allow versions of the skill NAME to be published in spite of findings of RULE."""
    params = {"name": name, "rule": rule, "reason": reason, "until": until, "file": file, "version": version}
    made = _call(target, "waive_finding", params)
    if as_json:
        print_json(made)
    else:
        until_when = f"until {made['until']}" if made["until"] else "without expiry"
        print_change(f"{made['id']}: {made['rule']} is waived for {made['name']} {until_when}")


@waiver.command("list")
@click.argument("name", metavar="[NAME]", required=False)
@target_options
@json_option
def list_(name: str | None, target: Target, as_json: bool) -> None:
    """List the waivers of the skill NAME, or of all skills that you review, including expired ones."""
    from skillery.cli.connection import with_client

    async def pages(client: AsyncClient) -> list[Waiver]:
        found: list[Waiver] = []
        cursor = None
        while True:
            page = await client.list_waivers(name=name, limit=1000, cursor=cursor)
            found += page["waivers"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    waivers = with_client(target, pages)
    if as_json:
        print_json({"waivers": waivers})
        return
    print_rows(
        COLUMNS,
        [
            (
                one["id"],
                one["name"],
                one["rule"],
                one["file"] or "-",
                one["version"] or "-",
                one["status"],
                one["until"] or "never",
                one["by"],
                one["reason"],
            )
            for one in waivers
        ],
        none="No waivers.",
    )


@waiver.command("rm")
@click.argument("waiver_id", metavar="ID")
@target_options
@json_option
def rm(waiver_id: str, target: Target, as_json: bool) -> None:
    """Revoke a waiver. Versions published under it stay."""
    revoked = _call(target, "revoke_waiver", {"id": waiver_id})
    if as_json:
        print_json(revoked)
    else:
        print_change(f"{revoked['id']} ({revoked['rule']} of {revoked['name']}) is revoked")


def _call(target: Target, method: str, params: dict[str, Any]) -> dict[str, Any]:
    from skillery.cli.connection import with_client

    answer: dict[str, Any] = with_client(target, lambda client: client.call(method, params))
    return answer
