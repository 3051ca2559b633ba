"""`skillery quota` and `skillery gc`: how much is used, and what goes again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from skillery.cli.options import Target, json_option, target_options
from skillery.cli.printing import clean, print_json, print_rows

OF_IDENTITY = ("blobs", "blob_bytes", "runs_per_minute", "concurrent_runs")


@click.command()
@click.option("--identity", metavar="NAME", help="Whose. Another's takes the scope admin.  [default: your own]")
@click.option("--namespace", metavar="NAMESPACE", help="Of which namespace.  [default: those of your grants]")
@target_options
@json_option
def quota(identity: str | None, namespace: str | None, target: Target, as_json: bool) -> None:
    """Say how much is used, and how much may be."""
    answer = _call(target, "get_usage", identity=identity, namespace=namespace)
    if as_json:
        print_json(answer)
        return
    print_rows(["of", "quota", "used", "limit"], _rows(answer))


def _rows(answer: dict[str, Any]) -> Iterator[tuple[str, str, int, object]]:
    for name in OF_IDENTITY:
        yield answer["identity"], name, answer[name]["used"], _limit(answer[name])
    for one in answer["namespaces"]:
        yield one["namespace"], "bundle_bytes", one["bundle_bytes"]["used"], _limit(one["bundle_bytes"])


def _limit(used: dict[str, Any]) -> object:
    return "none" if used["limit"] is None else used["limit"]


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@target_options
@json_option
def gc(dry_run: bool, target: Target, as_json: bool) -> None:
    """Remove what nothing refers to any more: blobs whose time is over, contents of nothing, unused copies.

    A server does so by itself every gc.interval_minutes.
    """
    print_sweep(_call(target, "collect_garbage", dry_run=dry_run), dry_run, as_json)


def print_sweep(answer: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    done = "would go" if dry_run else "removed"
    for step, one in answer["removed"].items():
        click.echo(clean(f"{step.replace('_', ' ')}: {one['count']} {done}, {one['bytes']} bytes"))


def _call(target: Target, method: str, **params: Any) -> dict[str, Any]:
    from skillery.cli.connecting import with_client

    answer: dict[str, Any] = with_client(target, lambda client: client.call(method, **params))
    return answer
