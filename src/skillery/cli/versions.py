"""`skillery versions`: list the versions of skills, for example the versions that are in review."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import ListedVersion

COLUMNS = ("skill", "version", "status", "publisher", "created", "digest")
STATUSES = ["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"]


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    help="Only versions with this status; in_review lists those awaiting a reviewer.",
)
@click.option("--namespace", help="Only versions in this namespace and the namespaces below it.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of versions.  [default: all]")
@target_options
@json_option
def versions(
    name: str | None, status: str | None, namespace: str | None, limit: int | None, target: Target, as_json: bool
) -> None:
    """List the versions of a skill, or of all skills.

    The most recently created version comes first.
    """
    from skillery.cli.connection import with_client

    params: dict[str, Any] = {"name": name, "status": status, "namespace": namespace}

    async def pages(client: AsyncClient) -> list[ListedVersion]:
        found: list[ListedVersion] = []
        cursor = None
        while limit is None or len(found) < limit:
            rows = 1000 if limit is None else min(1000, limit - len(found))
            page = await client.list_versions(**params, limit=rows, cursor=cursor)
            found += page["versions"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return found

    found = with_client(target, pages)
    if as_json:
        print_json({"versions": found})
        return
    print_rows(
        COLUMNS,
        [
            (
                one["name"],
                one["version"],
                one["status"],
                one["publisher"]["name"],
                one["created_at"],
                one["digest"],
            )
            for one in found
        ],
        none="No versions.",
        headed=True,
    )
