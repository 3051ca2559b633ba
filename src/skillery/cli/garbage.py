"""`skillery gc`: remove unreferenced and expired data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillery.cli.options import print_change
from skillery.cli.output import clean
from skillery.cli.verbs import Verb, option


def print_sweep(answer: Mapping[str, Any]) -> None:
    done = "would be removed" if answer["dry_run"] else "removed"
    for step, swept in answer["removed"].items():
        click.echo(clean(f"{step.replace('_', ' ')}: {swept['count']} {done}, {swept['bytes']} bytes"))
    if not answer["dry_run"]:
        print_change("swept", err=True)


def sweep_verb(steps: list[str] | None, help: str) -> Verb:
    """Return the command `gc` for these steps of a sweep, or for all."""
    dry_run = option("--dry-run", is_flag=True, help="Print what would be removed; change nothing.")
    return Verb("gc", "collect_garbage", print_sweep, dry_run, fixed={"steps": steps}, help=help)


gc = sweep_verb(
    None,
    """Remove expired and unreferenced data.

    The command removes expired blobs, unreferenced contents and unused local copies. A server does this automatically
    every gc.interval_minutes.
    """,
)
