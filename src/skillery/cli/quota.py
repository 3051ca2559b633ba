"""`skillery quota`: used amount and limit of each quota."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import print_json, print_rows

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
