"""The end of a run that a command has started: its result, its files, and Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from skillery.cli.files import download_files
from skillery.cli.options import target_of
from skillery.cli.output import clean

if TYPE_CHECKING:
    import asyncio

    from skillery.client import AsyncClient

RUNNING = frozenset({"queued", "started"})


class RunOptions(NamedTuple):
    """The options of a command that say how it waits for its run."""

    out: Path | None = None
    background: bool = False
    follow: bool = False
    detach_on_interrupt: bool = False

    def check(self, client: AsyncClient) -> None:
        """Raise UsageError if the options exclude each other, or if one of them needs a server and none is running."""
        from skillery.cli.connection import HomeClient

        if self.background and self.follow:
            raise click.UsageError("--background and --follow exclude each other: use only one of them")
        if self.background and self.out is not None:
            raise click.UsageError("--out and --background exclude each other: --out waits for the end of the run")
        for name, is_given in (("background", self.background), ("detach-on-interrupt", self.detach_on_interrupt)):
            if is_given and isinstance(client, HomeClient):
                raise click.UsageError(f"--{name} needs a server; start one with 'skillery serve', or leave it out")


detach_option = click.option(
    "--detach-on-interrupt",
    is_flag=True,
    help="Ctrl-C leaves the run running, and prints the commands to follow and to cancel it.",
)


follow_option = click.option("--follow", is_flag=True, help="Write the log to stderr while the run goes on.")


def background_options(command: Any) -> Any:
    for option in (
        detach_option,
        follow_option,
        click.option("--background", is_flag=True, help="Print the id of the run and do not wait for its end."),
    ):
        command = option(command)
    return command


async def end_of_run(
    client: AsyncClient, starting: Coroutine[Any, Any, Mapping[str, Any]], options: RunOptions
) -> Mapping[str, Any]:
    """Return the result of a run, and download its files. With --background, return its first answer.

    `starting` starts the run in the background, so that its id is known before its end. With --follow, write the log to
    stderr. At the first Ctrl-C, cancel the run, or leave it running with --detach-on-interrupt. The second Ctrl-C ends
    the command at once.
    """
    return (await _end(client, starting, options))[1]


async def end_of_call(
    client: AsyncClient, starting: Coroutine[Any, Any, Mapping[str, Any]], options: RunOptions
) -> Mapping[str, Any]:
    """Return the result of a call of a tool, as `end_of_run` does for a run. A failed run is also a result."""
    answer, run = await _end(client, starting, options)
    if run is answer:  # a tool without a handler has no run
        return answer
    error = run.get("error")
    kept = ("run_id", "logs_preview", "output_blobs", "files", "workspace", "environment", "warnings")
    return {
        "result": {"error": error["message"] or error["type"]} if error else run["output"],
        "is_error": error is not None,
        "skill": answer["skill"],
        **{name: run[name] for name in kept if name in run},
    }


async def _end(
    client: AsyncClient, starting: Coroutine[Any, Any, Mapping[str, Any]], options: RunOptions
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the first answer of a call, and the result of its run."""
    import asyncio

    from skillery.client import NotAllowed

    started = asyncio.ensure_future(starting)
    try:
        answer = await asyncio.shield(started)
        if answer.get("status") not in RUNNING or options.background:
            return answer, answer
        if options.follow:
            from skillery.cli.runs import write_log

            await write_log(client, answer["run_id"], sys.stderr)
        run = _result(answer, await client.wait_run(answer["run_id"]))
        await download_files(client, run, options.out)
        return answer, run
    except asyncio.CancelledError:
        await _interrupted(client, started, options)
        raise
    except NotAllowed:
        if started.done() and not started.exception():
            click.echo(clean(f"{started.result()['run_id']} goes on: its result needs the scope read"), err=True)
        raise


def _result(answer: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a run from its record, as the method returns it if it waits for the end."""
    from skillery.client.results import Run

    warnings = {"warnings": answer["warnings"]} if "warnings" in answer else {}
    # A run without network or log has [] or null in its record, and no such members in its result.
    return warnings | {
        name: value
        for name, value in record.items()
        if name in Run.__annotations__ and (value or name not in {"network", "logs_blob"})
    }


async def _interrupted(client: AsyncClient, started: asyncio.Future[Mapping[str, Any]], options: RunOptions) -> None:
    """Cancel the run, and print its end. With --detach-on-interrupt, print the commands to follow and to cancel it."""
    from skillery.client import ClientError

    try:
        run_id = (await started).get("run_id")
    except ClientError:  # the run was refused
        return
    if run_id is None:
        return
    if options.detach_on_interrupt:
        target = target_of(click.get_current_context())
        more = target.options if target is not None else ""
        for verb in ("follow", "cancel"):
            click.echo(clean(f"skillery runs {verb} {run_id}{more}"), err=True)
        return
    click.echo(clean(await _cancelled(client, run_id)), err=True)


async def _cancelled(client: AsyncClient, run_id: str) -> str:
    """Cancel a run. Return a sentence that says how the run has ended."""
    from skillery.cli.runs import end_of_cancelled
    from skillery.client import Conflict

    try:
        run = await client.cancel_run(run_id)
    except Conflict as ended:  # it has just ended
        return f"{run_id} has ended before: it is {ended.data.get('status', 'completed')}"
    return end_of_cancelled(run)
