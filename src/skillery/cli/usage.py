"""`skillery usage` and `skillery quota`: how often skills were read and run, and the use of each quota."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import SkillUsage


COLUMNS = ("skill", "loads", "reads", "runs", "read by")


@click.command()
@click.option("--namespace", help="Only skills in this namespace and the namespaces below it.")
@click.option("--never-run", is_flag=True, help="Only skills that were read and not run.")
@target_options
@json_option
def usage(namespace: str | None, never_run: bool, target: Target, as_json: bool) -> None:
    """Show how often skills were read and run in the last 30 days.

    `loads` are reads of SKILL.md and of whole versions, `reads` are reads of other files. Only programs that name
    themselves are counted, not browsers. New counts appear after at most ten seconds.
    """
    from skillery.cli.connection import with_client

    async def pages(client: AsyncClient) -> list[SkillUsage]:
        usages: list[SkillUsage] = []
        cursor = None
        while True:
            page = await client.list_skill_usage(namespace=namespace, never_run=never_run, limit=1000, cursor=cursor)
            usages += page["skills"]
            cursor = page["next_cursor"]
            if cursor is None:
                return usages

    found = with_client(target, pages)
    if as_json:
        print_json({"skills": found})
        return
    rows = [(one["name"], one["loads"], one["reads"], one["runs"], _clients(one)) for one in found]
    print_rows(COLUMNS, rows, none="No skill was read or run in the last 30 days.", headed=True)


def _clients(one: SkillUsage) -> str:
    return ", ".join(f"{by['client']} {by['loads'] + by['reads']}" for by in one["clients"])


# -- `skillery quota`: used amount and limit of each quota -------------------------------------------------------------


OF_IDENTITY = (
    "blobs",
    "blob_bytes",
    "runs_per_minute",
    "concurrent_runs",
    "session_tools",
    "workspaces",
    "workspace_bytes",
)


@click.command()
@click.option(
    "--identity",
    metavar="NAME",
    help="The identity. Other identities than your own require the scope admin.  [default: your own]",
)
@click.option("--namespace", metavar="NAMESPACE", help="The namespace.  [default: the namespaces of your grants]")
@target_options
@json_option
def quota(identity: str | None, namespace: str | None, target: Target, as_json: bool) -> None:
    """Show the used amount and the limit of each quota."""
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.get_usage(identity=identity, namespace=namespace))
    if as_json:
        print_json(answer)
        return
    print_rows(["of", "quota", "used", "limit"], _rows(answer), headed=True)


def _rows(answer: Mapping[str, Any]) -> Iterator[tuple[str, str, int, object]]:
    for name in OF_IDENTITY:
        yield answer["identity"], name, answer[name]["used"], _limit(answer[name])
    for one in answer["namespaces"]:
        yield one["namespace"], "bundle_bytes", one["bundle_bytes"]["used"], _limit(one["bundle_bytes"])


def _limit(used: Mapping[str, Any]) -> object:
    return "none" if used["limit"] is None else used["limit"]
