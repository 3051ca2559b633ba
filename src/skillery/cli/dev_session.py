"""The session of `skillery dev`: it connects to a server, serves the folders, and prints each save."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from skillery.cli.failures import answered, object_of, print_error
from skillery.cli.options import Target
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean
from skillery.errors import SkilleryError

if TYPE_CHECKING:
    from skillery.authoring.development import Saved
    from skillery.client import AsyncClient
    from skillery.settings.load import Settings

WAIT_SECONDS = 30.0


class _Server(NamedTuple):
    client: AsyncClient
    url: str
    task: asyncio.Task[None] | None
    """The task of a server in this process, or None."""
    token: str | None = None
    """The token of the first admin, if this server has just created it."""


async def serve_folders(folders: Sequence[Path], target: Target, flags: dict[str, Any], as_json: bool) -> None:
    """Serve the folders until the process receives SIGTERM or SIGINT, or the server in this process ends."""
    from skillery.authoring.development import Development

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A server in this process replaces these handlers, and its task ends after a signal.
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with _connected(target, flags) as server:
        _announce(server, as_json)
        working = asyncio.create_task(Development(server.client, folders, partial(_print_saved, as_json)).run())
        ends: set[asyncio.Task[Any]] = {
            working,
            asyncio.create_task(stopped.wait()),
            *([server.task] if server.task else ()),
        }
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await working


@asynccontextmanager
async def _connected(target: Target, flags: dict[str, Any]) -> AsyncIterator[_Server]:
    """Context manager: connect to the server of the target. If no server holds the home, start one. Raise
    StartupError.
    """
    from skillery.cli.connection import client_of
    from skillery.cli.output import show_log

    url = target.url
    if not url:
        settings = target.load(**flags).settings
        show_log(settings)
        target.check_token(settings.authenticators)
        url = await _holder(settings)
    if url:
        async with client_of(url, target.token) as client:
            yield _Server(client, url, None)
        return
    task, url, token = await _start(settings)
    try:
        async with client_of(url, target.token or token) as client:
            yield _Server(client, url, task, token)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _holder(settings: Settings) -> str | None:
    """Return the address of the server that holds the home, or None.

    If another command holds the home, wait for its end, but at most WAIT_SECONDS.
    """
    from skillery.app.home import holder_of

    deadline = time.monotonic() + WAIT_SECONDS
    while (holder := holder_of(settings.home)) is not None and time.monotonic() < deadline:
        if holder.url:
            return holder.url
        await asyncio.sleep(0.05)
    return None


async def _start(settings: Settings) -> tuple[asyncio.Task[None], str, str | None]:
    """Start a server in this process. Return its task, its address, and the token of the first admin or None."""
    from skillery.app.server import serve
    from skillery.plugins import load_plugins

    is_ready: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
    plugins = load_plugins(settings.plugins_folder)
    task = asyncio.create_task(serve(settings, plugins, lambda url, token: is_ready.set_result((url, token))))
    futures: set[asyncio.Future[Any]] = {task, is_ready}
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
        raise asyncio.CancelledError  # stopped by a signal during the start
    return task, *is_ready.result()


def _announce(server: _Server, as_json: bool) -> None:
    if as_json:
        token_fields = {"bootstrap_token": server.token} if server.token else {}
        click.echo(as_json_text({"url": server.url, "mcp": f"{server.url}/mcp", **token_fields}, indent=-1))
        return
    click.echo(clean(f"serving at {server.url} (MCP: {server.url}/mcp); Ctrl-C ends"))
    if server.token:
        click.echo(clean(f"Token of the first admin, shown only once: {server.token}"))


def _print_saved(as_json: bool, saved: Saved) -> None:
    if as_json:
        click.echo(as_json_text(_object_of(saved), indent=-1))
    elif saved.answer is None:
        print_error({**_error_of(saved), "subject": str(saved.folder)})
    else:
        _print_answer(saved)


def _print_answer(saved: Saved) -> None:
    from skillery.cli.publish import finding_lines

    answer = saved.answer
    click.echo(clean(f"{answer['name']} {answer['version']} {answer['digest']}  {saved.took_ms:.0f} ms"))
    for line in finding_lines(answer):
        click.echo(clean(f"  {line}"), err=True)
    for warning in answer["warnings"]:
        click.echo(clean(f"  warning: {warning}"), err=True)


def _object_of(saved: Saved) -> dict[str, Any]:
    fields = {"error": _error_of(saved)} if saved.answer is None else dict(saved.answer)
    return {"folder": str(saved.folder), **fields, "took_ms": round(saved.took_ms, 3)}


def _error_of(saved: Saved) -> dict[str, Any]:
    """Return the error object for a save that failed."""
    from skillery.client import AnsweredError, StrangeAnswer

    match saved.error:
        case AnsweredError() | StrangeAnswer():
            return answered(saved.error)
        case SkilleryError():
            return object_of(saved.error)
        case None:
            return {"message": saved.refusal, "data": {"type": "same_name"}}
        case _:
            return {"message": str(saved.error), "data": {"type": "unreachable"}}
