"""`skillery plugins`, `doctor` and `config show`: the plugins, the health and the settings of this installation."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import msgspec

from skillery.backends import Probe
from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, home_options, json_option
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean, is_terminal, print_json, print_rows
from skillery.cli.programs import SeenProgram, print_programs, seen_programs
from skillery.errors import SkilleryError, StartupError

if TYPE_CHECKING:
    from skillery.backends import Sandbox
    from skillery.plugins import Plugins
    from skillery.settings import Settings

EVENTS = ("before_publish", "after_publish", "run_finished")
_SECRET = re.compile(r"(password|secret|token|key)(?!_file$)", re.IGNORECASE)
HIDDEN = "***"


@click.command()
@home_options
@json_option
def plugins(target: Target, as_json: bool) -> None:
    """List the plugins, with their backends and hooks.

    The list marks the backends that the settings choose.
    """
    from skillery.plugins import load_plugins

    settings = target.load().settings
    found = _plugins(load_plugins(settings.plugins_folder), settings)
    if as_json:
        print_json({"plugins": found})
        return
    print_rows(
        ["plugin", "offers", "chosen", "listens to"],
        [
            (
                one["name"],
                ", ".join(f"{offer['kind']} {offer['name']}" for offer in one["offers"]),
                ", ".join(f"{offer['kind']} {offer['name']}" for offer in one["offers"] if offer["chosen"]),
                ", ".join(one["moments"]),
            )
            for one in found
        ],
    )


def _plugins(plugins: Plugins, settings: Settings) -> list[dict[str, Any]]:
    chosen = {
        "sandbox": {settings.sandbox},
        "storage": {settings.storage},
        "authenticator": set(settings.authenticators),
        "secrets": {settings.secrets},
    }
    manager = plugins.manager
    found: dict[str, dict[str, Any]] = {
        name: {"name": name, "offers": [], "moments": []} for name, _ in manager.list_name_plugin()
    }
    for kind, names in chosen.items():
        for implementation in getattr(manager.hook, f"skillery_{kind}").get_hookimpls():
            offer = implementation.function()
            found[implementation.plugin_name]["offers"].append(
                {"kind": kind, "name": offer.name, "chosen": offer.name in names, "unsafe": offer.unsafe}
            )
    for event in EVENTS:
        for implementation in getattr(manager.hook, event).get_hookimpls():
            found[implementation.plugin_name]["moments"].append(event)
    return sorted(found.values(), key=lambda one: str(one["name"]))


@click.command()
@home_options
@json_option
def doctor(target: Target, as_json: bool) -> None:
    """Test everything that a server needs on this computer.

    For each failure, the output contains a remedy.
    """
    from skillery.plugins import load_plugins

    settings = target.load().settings
    loaded = load_plugins(settings.plugins_folder)
    probes = [_python(), _home(settings), _database(settings), _secrets(loaded, settings), _packages(settings)]
    probes += _sandbox(loaded, settings)
    capabilities, ready, programs = _capabilities(loaded, settings)
    probes.append(ready)
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
    rows = [(_mark(probe), probe.name, probe.detail, "" if probe.ok else probe.fix) for probe in probes]
    print_rows(["", "what", "found", "fix"], rows, title=f"sandbox {settings.sandbox}, home {settings.home}")
    failed = [probe for probe in probes if not probe.ok]
    if any(probe.required for probe in failed):
        click.echo("Some required parts do not work here.", err=True)
    elif failed:
        click.echo("All required parts work; runs are limited where a row says degraded.", err=True)
    elif is_terminal():
        click.echo("Everything works.")


def _mark(probe: Probe) -> str:
    if probe.ok:
        return "ok"
    return "FAILED" if probe.required else "degraded"


def _python() -> Probe:
    return Probe(
        "python", sys.version_info >= (3, 11), platform.python_version(), "Run Skillery on Python 3.11 or newer."
    )


def _home(settings: Settings) -> Probe:
    """Check that the home is writable. Create the home if it does not exist."""
    fix = "Choose a home that this user can write, with --home or SKILLERY_HOME."
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=settings.home):
            pass
    except OSError as error:
        return Probe("home", False, f"{settings.home}: {error.strerror}", fix)
    return Probe("home", True, f"{settings.home} is writable")


def _database(settings: Settings) -> Probe:
    from skillery.database import Database, migrate

    fix = "Check the setting 'database' and that the database is running."
    try:
        database = Database(settings.database_url)
        try:
            if database.is_sqlite and not Path(database.url.database or "").exists():
                return Probe("database", True, "will be created at the first start")
            revision = migrate.current(database)
        finally:
            database.close()
    except StartupError as error:
        return Probe("database", False, str(error), fix)
    behind = "" if revision == migrate.head() else ", will be migrated at the next start"
    return Probe("database", True, f"reachable, at revision {revision or 'none'}{behind}")


def _secrets(plugins: Plugins, settings: Settings) -> Probe:
    from skillery.database import Database

    fix = "Check the setting 'secrets' and its section [backends.secrets.<name>]."
    try:
        database = Database(settings.database_url)
        try:
            plugins.open("secrets", settings, database)
        finally:
            database.close()
    except (StartupError, SkilleryError) as error:
        return Probe("secrets", False, str(error), fix)
    return Probe("secrets", True, settings.secrets)


def _packages(settings: Settings) -> Probe:
    """Check the requirements for packages of skills and environments: an index or wheelhouse, and the program uv."""
    from skillery.app.named_environments import defined_in

    wanted = settings.packages
    try:
        named = len(defined_in(settings))
    except StartupError as error:
        return Probe("packages", False, str(error), "Check the settings [environments.<name>] and [packages].")
    if not (wanted.index_urls or wanted.wheelhouse):
        return Probe(
            "packages", True, "off: skills with packages need the setting packages.index_urls or packages.wheelhouse"
        )
    if wanted.wheelhouse and not Path(wanted.wheelhouse).expanduser().is_dir():
        fix = "Check the setting 'packages.wheelhouse'."
        return Probe("packages", False, f"the folder '{wanted.wheelhouse}' does not exist", fix)
    try:
        from uv import find_uv_bin

        program = find_uv_bin()
    except (ImportError, FileNotFoundError):
        return Probe(
            "packages", False, "uv is missing, so packages cannot be locked", "pip install 'skillery[packages]'"
        )
    hosts = ", ".join(urlsplit(address).hostname or "an index" for address in wanted.index_urls)
    source = f"the wheelhouse {wanted.wheelhouse}" if wanted.wheelhouse else f"from {hosts}"
    return Probe("packages", True, f"{source}, by {program}; named environments: {named}")


def _sandbox(plugins: Plugins, settings: Settings) -> list[Probe]:
    try:
        sandbox = plugins.open("sandbox", settings)
        probes: list[Probe] = sandbox.probe()
    except (StartupError, SkilleryError) as error:
        return [Probe("sandbox", False, str(error), "Choose a sandbox that works here, with the setting 'sandbox'.")]
    return probes


def _capabilities(plugins: Plugins, settings: Settings) -> tuple[list[str], Probe, list[SeenProgram]]:
    """Return the capabilities of the sandbox, the result of the check, and the programs that runs can use.

    The sandbox is started, because a sandbox knows its capabilities only after its start.
    """
    import asyncio

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
    if name.startswith("backends.") and _SECRET.search(name.rpartition(".")[2]):
        return HIDDEN
    return msgspec.to_builtins(value)


def hide_password(url: str) -> str:
    """Return the URL of a database with the password removed. The URL need not be valid."""
    scheme, separator, rest = url.partition("://")
    user_info, at, place = rest.rpartition("@")
    user, colon, _password = user_info.partition(":")
    if separator and at and colon:
        url = f"{scheme}://{user}:{HIDDEN}@{place}"
    return re.sub(r"(?<=[?&]password=)[^&]*", HIDDEN, url)
