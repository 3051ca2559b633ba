"""`skillery gc`: remove unreferenced and expired data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillery.cli.options import Target, json_option, print_change, target_options
from skillery.cli.output import clean, print_json


@click.command()
@click.option("--dry-run", is_flag=True, help="Print what would be removed; change nothing.")
@target_options
@json_option
def gc(dry_run: bool, target: Target, as_json: bool) -> None:
    """Remove expired and unreferenced data.

    The command removes expired blobs, unreferenced contents and unused local copies. A server does this automatically
    every gc.interval_minutes.
    """
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.collect_garbage(dry_run=dry_run))
    print_sweep(answer, dry_run, as_json)


def print_sweep(answer: Mapping[str, Any], dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    done = "would be removed" if dry_run else "removed"
    for step, one in answer["removed"].items():
        click.echo(clean(f"{step.replace('_', ' ')}: {one['count']} {done}, {one['bytes']} bytes"))
    if not dry_run:
        print_change("swept", err=True)
