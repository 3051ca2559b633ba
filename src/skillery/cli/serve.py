"""`skillery serve`."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import Target, home_options, json_option
from skillery.cli.output import as_json as as_json_text

if TYPE_CHECKING:
    from skillery.settings import Settings


@click.command()
@home_options
@click.option("--host", metavar="HOST", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="0 chooses a free port.  [default: 8080]")
@json_option
def serve(target: Target, host: str | None, port: int | None, as_json: bool) -> None:
    """Serve the registry until Ctrl-C or SIGTERM.

    One line on stdout says where, once requests are answered; the log goes to stderr. The first start with
    auth = "tokens" and no token yet makes one for an admin and shows it there. SIGTERM lets the runs under way
    finish up to the setting grace_seconds, and the exit code is then 0.
    """
    # While it starts there is nothing to let finish, and a start may be cut off anywhere. An exception would be lost
    # where the signal falls into a finaliser. Once it serves, the loop has handlers of its own.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    import asyncio

    from skillery.app.logs import start_log
    from skillery.app.server import serve as serve_until_stopped
    from skillery.plugins import load_plugins

    settings = target.load(host=host, port=port).settings
    start_log(settings)
    plugins = load_plugins(settings.plugins_folder)
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
        print(line, flush=True)  # noqa: T201 - click.echo would not tell a closed pipe from a failed start
    except BrokenPipeError:
        # Whoever started the server has stopped listening; that is no reason to stop serving.
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - stays open as long as the process


def _loop_factory() -> Any:
    """uvloop answers about twice as many requests a second; it is not there on every system."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
