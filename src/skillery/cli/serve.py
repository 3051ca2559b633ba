"""`skillery serve`: start a server."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import Target, home_options, json_option
from skillery.cli.output import as_json as as_json_text

if TYPE_CHECKING:
    from skillery.settings.load import Settings


@click.command()
@home_options
@click.option("--host", metavar="HOST", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="0 chooses a free port.  [default: 8080]")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Processes that serve requests; needs Postgres.  [default: 1]",
)
@json_option
def serve(target: Target, host: str | None, port: int | None, workers: int | None, as_json: bool) -> None:
    """Serve the registry until Ctrl-C or SIGTERM.

    When the server is ready, it prints one line with its address to stdout. The log goes to stderr. With auth =
    "tokens" and no token yet, the first start creates an admin token and prints it to stdout. After SIGTERM, active
    runs have grace_seconds to finish, and the exit code is 0.

    With --workers, SIGHUP reads the settings again: new workers replace the present ones, which finish their requests.
    """
    # A start may be aborted at any point. An exception raised by a signal handler could be lost in a finaliser, so the
    # handler exits directly. Once the server is up, the event loop replaces this handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    import asyncio

    from skillery.app.logs import start_log
    from skillery.app.server import serve as serve_until_stopped
    from skillery.plugins import load_plugins

    def load() -> Settings:
        return target.load(host=host, port=port, workers=workers).settings

    settings = load()
    start_log(settings)
    plugins = load_plugins(settings.plugins_folder)
    if settings.workers > 1:
        from skillery.app.workers.serving import serve_with_workers

        serve_with_workers(
            settings, load, plugins, _loop_factory(), lambda url, token: _announce(url, token, settings, as_json)
        )
        return
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve_until_stopped(settings, plugins, lambda url, token: _announce(url, token, settings, as_json)))


def _announce(url: str, token: str | None, settings: Settings, as_json: bool) -> None:
    line = f"Skillery serves at {url} (home {settings.home})"
    if token:
        line += f"\nToken of the first admin, shown only once: {token}"
    if as_json:
        facts = {"url": url, "home": str(settings.home), "pid": os.getpid()}
        line = as_json_text(facts | ({"bootstrap_token": token} if token else {}), indent=-1)
    try:
        print(line, flush=True)  # noqa: T201 - click.echo would not distinguish a closed pipe from a failed start
    except BrokenPipeError:
        # The parent process closed the pipe; the server continues.
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - stays open until the process ends


def _loop_factory() -> Any:
    """Return the function that makes a uvloop event loop, or None if uvloop is not installed.

    With uvloop, a server answers about twice as many requests per second.
    """
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
