"""`skillery serve`, `doctor` and `config show`: a server, its health, and the settings of this installation."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from skillery.backends import Probe
from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, home_options, json_option
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean, is_terminal, print_json, print_rows
from skillery.cli.plugin_facts import HIDDEN, is_secret
from skillery.errors import SkilleryError, StartupError

if TYPE_CHECKING:
    from skillery.backends import Sandbox
    from skillery.cli.doctor_probes import SeenProgram
    from skillery.plugins import Plugins
    from skillery.settings.load import Settings


@click.command()
@home_options
@json_option
def doctor(target: Target, as_json: bool) -> None:
    """Test everything that a server needs on this computer.

    Each line begins with ok, off, degraded or FAILED. The last column says how to turn on a part that is off, or how to
    fix a part that does not work.
    """
    from skillery.cli.doctor_probes import installation_probes, print_programs
    from skillery.plugins import load_plugins

    settings, sources = target.load()
    loaded = load_plugins(settings.plugins_folder)
    probes = installation_probes(loaded, settings, sources)
    capabilities, start_probe, programs = _capabilities(loaded, settings)
    probes.append(start_probe)
    healthy = all(probe.ok or not probe.required for probe in probes)
    if as_json:
        print_json(
            {
                "ok": healthy,
                "sandbox": settings.sandbox,
                "capabilities": capabilities,
                "probes": probes,
                "programs": programs,
            }
        )
    else:
        _print_probes(probes, settings)
        print_programs(programs)
    if not healthy:
        raise click.exceptions.Exit(CHECK_FAILED)


def _print_probes(probes: list[Probe], settings: Settings) -> None:
    """Print a row for each probe, and a sentence about the whole."""
    rows = [
        (_mark(probe), probe.name, probe.detail, "" if probe.ok and not probe.off else probe.fix) for probe in probes
    ]
    print_rows(["", "what", "found", "remedy"], rows, title=f"sandbox {settings.sandbox}, home {settings.home}")
    failed = [probe for probe in probes if not probe.ok]
    if any(probe.required for probe in failed):
        click.echo("Some required parts do not work here.", err=True)
    elif failed:
        click.echo("All required parts work. The rows with degraded say what is limited.", err=True)
    elif is_terminal():
        has_off_parts = any(probe.off for probe in probes)
        click.echo(
            "All required parts work. Parts that are off are optional." if has_off_parts else "Everything works."
        )


def _mark(probe: Probe) -> str:
    if probe.ok:
        return "off" if probe.off else "ok"
    return "FAILED" if probe.required else "degraded"


def _capabilities(plugins: Plugins, settings: Settings) -> tuple[list[str], Probe, list[SeenProgram]]:
    """Start the sandbox. Return its capabilities, the probe `capabilities` for `doctor`, and the programs of runs.

    The sandbox is started, because a sandbox knows its capabilities only after its start. If the start fails, the probe
    has the error, and both lists are empty.
    """
    import asyncio

    from skillery.cli.doctor_probes import seen_programs

    async def started() -> tuple[list[str], list[SeenProgram]]:
        sandbox: Sandbox = plugins.open("sandbox", settings)
        try:
            await sandbox.start()
            return sorted(map(str, sandbox.capabilities)), await seen_programs(sandbox)
        finally:
            await sandbox.close()

    try:
        capabilities, programs = asyncio.run(started())
    except (StartupError, SkilleryError) as error:
        return [], Probe("capabilities", False, str(error), "Fix the failures above."), []
    return capabilities, Probe("capabilities", True, ", ".join(capabilities)), programs


@click.group()
def config() -> None:
    """Show the settings."""


@config.command("show")
@home_options
@json_option
def show(target: Target, as_json: bool) -> None:
    """Print the name, the value and the origin of each setting."""
    values = [(value.name, _visible_value(value.name, value.value), value.source) for value in target.load().values()]
    if as_json:
        print_json({name: {"value": value, "source": source} for name, value, source in values})
        return
    print_rows(
        ["setting", "value", "from"],
        [
            (name, clean(value) if isinstance(value, str) else as_json_text(value, -1), source)
            for name, value, source in values
        ],
    )


def _visible_value(name: str, value: Any) -> Any:
    """Return the value of a setting with its credentials removed."""
    if name == "database" and isinstance(value, str):
        return hide_password(value)
    if name == "packages.index_urls":
        addresses = [re.sub(r"//.*@", f"//{HIDDEN}@", address, flags=re.DOTALL) for address in value]
        return [re.sub(r"\?.*", f"?{HIDDEN}", address, flags=re.DOTALL) for address in addresses]
    if name.startswith(("backends.", "plugins.")) and is_secret(name.rpartition(".")[2]):
        return HIDDEN
    return msgspec.to_builtins(value)


def hide_password(url: str) -> str:
    """Return the URL of a database with the password removed. The URL need not be valid."""
    scheme, separator, after_scheme = url.partition("://")
    user_info, at, host_and_path = after_scheme.rpartition("@")
    user, colon, _password = user_info.partition(":")
    if separator and at and colon:
        url = f"{scheme}://{user}:{HIDDEN}@{host_and_path}"
    return re.sub(r"(?<=[?&]password=)[^&]*", HIDDEN, url)


# -- `skillery serve`: start a server ----------------------------------------------------------------------------------


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
    Without, SIGHUP changes nothing, and the log says so.
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
        from skillery.app.worker import serve_with_workers

        serve_with_workers(
            settings, load, plugins, _loop_factory(), lambda url, token: _announce(url, token, settings, as_json)
        )
        return
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve_until_stopped(settings, plugins, lambda url, token: _announce(url, token, settings, as_json)))


def _announce(url: str, token: str | None, settings: Settings, as_json: bool) -> None:
    """Print the address of the server that is ready, and the bootstrap token if there is one."""
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
