"""`skillery demo`: start a server and run the workflow of the Skills Protocol on it, with a real client and real
input.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CheckFailed
from skillery.cli.options import Target, home_options, json_option, token_option
from skillery.cli.output import clean, print_json

if TYPE_CHECKING:
    from skillery.cli.demo.background import Server
    from skillery.cli.demo.steps import Exchange, Step, Walk

WIDTH = 100


@click.command()
@home_options
@token_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="The port.  [default: a free port]"
)
@json_option
def demo(target: Target, token: str | None, port: int, as_json: bool) -> None:
    """Run the workflow of the Skills Protocol on a new server.

    The steps use a real CSV file. Afterwards, the server continues in the background. The first line gives the
    address of the pages, the last lines the command that stops the server.

    The home is a new temporary folder, and no other file is written. If a home is set, as with --home, the demo
    publishes its skill there. If a server already runs on the home, the demo uses that server.
    """
    import asyncio

    from skillery.cli.demo.background import find_or_start

    is_temporary = "home" not in target.load().sources
    if is_temporary:
        target = target._replace(home=tempfile.mkdtemp(prefix="skillery-demo-"))
    settings = target.load().settings
    token = token or _own_token(settings.authenticators, target)
    server = find_or_start(settings.home, port, target.config)
    if not as_json:
        _title(f"Open {server.url}/ in a browser", f"home {server.home}, log {server.log}")
    try:
        exchanges = asyncio.run(_walk(server, token, as_json))
    except BaseException:
        server.stop_if_ours()
        raise
    if as_json:
        steps = [
            {"step": step.title, "request": exchange.request, "answer": exchange.answer} for step, exchange in exchanges
        ]
        print_json({**_facts(server), "steps": steps})
        return
    _print_end(server)
    if is_temporary:
        click.echo(f"   Then delete its files: rm -r {shlex.quote(str(server.home))}")


def _own_token(authenticators: Sequence[str], target: Target) -> str | None:
    """Return a new token if the server will require one, else None. Raise StartupError if the home cannot be opened.

    The token is created before the server starts, because the first start of a server would write the bootstrap token
    to a log.
    """
    if "tokens" not in authenticators:
        return None
    from skillery.audit import local_actor
    from skillery.cli.tokens import open_home_database
    from skillery.identity.tokens import insert_token

    make = partial(
        insert_token,
        actor=local_actor("demo"),
        name="demo",
        scopes=["read", "run", "publish"],
        namespaces=["demo.*"],
        expires="1h",
    )
    with open_home_database(target) as database:
        return database.write_now(make).token


async def _walk(server: Server, token: str | None, quiet: bool) -> list[tuple[Step, Exchange]]:
    """Run all steps in order, and return each step with its exchange. Raise CheckFailed if an answer is wrong."""
    from skillery.cli.connection import client_of
    from skillery.cli.demo.steps import STEPS, Walk, sample_csv

    async with client_of(server.url, token) as client:
        await server.wait_until_ready(client)
        walk = Walk(client, sample_csv())
        done = []
        for number, step in enumerate(STEPS, start=1):
            if not quiet:
                _title(f"{number}. {step.title}")
            exchange = await _take(number, step, walk)
            if not quiet:
                _print_step(exchange)
            done.append((step, exchange))
        return done


async def _take(number: int, step: Step, walk: Walk) -> Exchange:
    try:
        return await step.take(walk)
    except CheckFailed as error:
        raise CheckFailed(f"step {number} of the demo ({step.title}): {error}") from None


def _facts(server: Server) -> dict[str, Any]:
    return {
        "url": server.url,
        "pid": server.pid,
        "home": str(server.home),
        "log": str(server.log),
        "stop": f"kill {server.pid}",
        "curl": _curl(server.url),
    }


def _title(text: str, detail: str = "") -> None:
    click.echo()
    click.echo(click.style(text, bold=True, fg="cyan"))
    if detail:
        click.echo(f"   {detail}")


def _print_step(exchange: Exchange) -> None:
    click.echo(f"   {click.style('→', fg='yellow')} {_short(exchange.request)}")
    for line in exchange.answer.splitlines():
        click.echo(f"   {click.style('←', fg='green')} {_short(line)}")


def _print_end(server: Server) -> None:
    _title("All steps succeeded.")
    click.echo(f"   The server continues at {server.url} (pid {server.pid}, log {server.log}).")
    click.echo("   Call it yourself:")
    click.echo(f"     {_curl(server.url)}")
    click.echo(f"   Stop it: kill {server.pid}")


def _curl(url: str) -> str:
    call = '{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{"detail":"summary"}}'
    return f"curl -s {url}/rpc -H 'Content-Type: application/json' -d '{call}'"


def _short(text: str) -> str:
    line = clean(text)
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


__all__ = ["demo"]
