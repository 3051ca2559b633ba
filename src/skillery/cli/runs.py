"""`skillery runs`: the methods list_runs, get_run and cancel_run, and the logs of runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

from skillery.cli import seals
from skillery.cli.options import Target, json_option, print_change, target_options
from skillery.cli.output import clean, print_fields
from skillery.cli.verbs import Table, Verb, argument, option

if TYPE_CHECKING:
    from skillery.client import AsyncClient

LOG_BYTES = 1 << 20


def _print_run(run: Mapping[str, Any]) -> None:
    print_fields([(name, value) for name, value in run.items() if value not in (None, [], "")])


def _print_cancelled(run: Mapping[str, Any]) -> None:
    if run["finished_at"] and run["status"] == "failed":
        print_change(end_of_cancelled(run))
    else:
        click.echo(clean(end_of_cancelled(run)))


def end_of_cancelled(run: Mapping[str, Any]) -> str:
    """Return how a run has ended that the caller has cancelled."""
    if run["finished_at"] is None:
        return f"cancelling {run['run_id']}: it has not ended yet"
    if run["status"] == "completed":
        return f"{run['run_id']} has completed before it was cancelled"
    return f"cancelled {run['run_id']}"


def _ran(row: Mapping[str, Any]) -> str:
    return f"{row['skill']['name']}@{row['skill']['version']}" if row["skill"] else str(row["method"])


runs = click.Group(
    "runs",
    help="List, show and cancel runs.",
    commands=[
        Verb(
            "list",
            "list_runs",
            Table(
                "runs",
                "run=run_id status what started=started_at ms summary",
                what=_ran,
                ms=lambda row: None if row["duration_ms"] is None else f"{row['duration_ms']:.0f}",
                summary=lambda row: row["summary"],
            ),
            option("--skill", metavar="NAME"),
            option(
                "--since",
                metavar="WHEN",
                help="Only runs since this time: 2026-11-22T10:00:00Z, 2026-11-22, or 90m, 24h, 7d.",
            ),
            option("--identity", metavar="NAME"),
        ),
        Verb(
            "show",
            "get_run",
            _print_run,
            argument("run_id", "ID"),
            fixed={"wait_ms": None},
            help="Show the stored record of a run and its result.",
        ),
        Verb(
            "cancel",
            "cancel_run",
            _print_cancelled,
            argument("run_id", "ID"),
            help="Cancel a queued or started run.",
        ),
    ],
)


runs.add_command(seals.statement)
runs.add_command(seals.statements)


@runs.command()
@click.argument("run_id", metavar="ID")
@click.option("--after", type=click.IntRange(0), default=0, help="Begin at this offset in bytes.  [default: 0]")
@target_options
def logs(run_id: str, after: int, target: Target) -> None:
    """Write the present log of a run to stdout. On a terminal, control characters are escaped."""
    from skillery.cli.connection import with_client

    async def fetch(client: AsyncClient) -> bytes:
        run = await client.get_run(run_id=run_id)
        if run["logs_blob"] and not after:
            return b"".join([piece async for piece in client.stream_blob(run["logs_blob"])])
        texts, part = [], await client.read_run_log(run_id, after=after, max_bytes=LOG_BYTES)
        while part["text"]:
            texts.append(part["text"])
            part = await client.read_run_log(run_id, after=part["next"], max_bytes=LOG_BYTES)
        return "".join(texts).encode()

    content = with_client(target, fetch)
    if sys.stdout.isatty():
        click.echo(clean(content.decode("utf-8", "replace")), nl=False)
    else:
        sys.stdout.buffer.write(content)


@runs.command()
@click.argument("run_id", metavar="ID")
@click.option("--after", type=click.IntRange(0), default=0, help="Begin at this offset in bytes.  [default: 0]")
@target_options
def follow(run_id: str, after: int, target: Target) -> None:
    """Write the log of a run to stdout until the run has ended. Ctrl-C ends only this command, not the run."""
    from skillery.cli.connection import with_client

    with_client(target, lambda client: write_log(client, run_id, sys.stdout, after))


@runs.command()
@click.argument("run_id", metavar="ID")
@target_options
@json_option
def wait(run_id: str, target: Target, as_json: bool) -> None:
    """Wait for the end of a run and print its result. If the run failed, the exit code is 1.

    A script that ends with an exit code other than 0 does not fail the run: the result has its `exit_code`.
    """
    from skillery.cli.connection import with_client
    from skillery.cli.run_output import UsedCommand, report

    run: Any = with_client(target, lambda client: client.wait_run(run_id))
    is_skill = run["method"] == "execute_skill" and run["skill"]
    command = UsedCommand(["skillery", "run", run["skill"]["name"]], target.options) if is_skill else None
    report(run, as_json, used=command)


async def write_log(client: AsyncClient, run_id: str, out: TextIO, after: int = 0) -> None:
    """Write the log of a run to `out` until the run has ended. `after` is the first offset in bytes."""
    async for part in client.follow_run(run_id, after):
        if part["dropped_bytes"]:
            out.write(f"… {part['dropped_bytes']} bytes were not kept …\n")
        out.write(clean(part["text"]))
        out.flush()
