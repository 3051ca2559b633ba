"""The probes of `skillery doctor`: they open each part of an installation as a server does."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import msgspec

from skillery.backends import KINDS, Kind, Probe
from skillery.cli.database import open_database, service_problem
from skillery.cli.output import is_terminal, print_rows
from skillery.errors import PackagesNotOffered, SkilleryError, StartupError
from skillery.formats.import_names import USUAL
from skillery.settings.load import PIP

if TYPE_CHECKING:
    from skillery.backends import Sandbox
    from skillery.database import Database
    from skillery.plugins import Plugins
    from skillery.settings.load import Settings


# -- The row of `skillery doctor` about webhooks -----------------------------------------------------------------------


FIX = "skillery webhook list shows the errors, and skillery webhook dead ID the events that were not accepted in time."


def webhooks_probe(settings: Settings) -> Probe:
    """Return the number of webhooks, waiting events and dead letters. A failing webhook does not stop a server."""
    from skillery.app.builders import sender_of
    from skillery.webhooks.targets import count_webhooks

    try:
        sender_of(settings)
        with open_database(settings) as database:
            counts = _read(database, count_webhooks)
    except StartupError as error:
        return Probe("webhooks", False, str(error), "Correct the section [webhooks] of the settings.")
    except SkilleryError as error:
        return Probe("webhooks", False, error.message, "Check the setting 'database'.", required=False)
    if counts is None or not counts.webhooks:
        return Probe("webhooks", True, "none", "skillery webhook add URL sends the events to URL.", off=True)
    problem_count = counts.failing + counts.gone + counts.dead_letters
    detail = (
        f"{counts.webhooks}: {counts.failing} failing, {counts.gone} gone, {counts.waiting} events wait, "
        f"{counts.dead_letters} dead letters"
    )
    return Probe("webhooks", not problem_count, detail, FIX, required=False)


def _read(database: Database, read: Callable[[Any], Any]) -> Any:
    """Return the result of `read`, or None if the database has no tables of this release yet."""
    from skillery.database import migrate

    if database.is_sqlite and not Path(database.url.database or "").exists():
        return None
    return database.read_now(read) if migrate.current(database) == migrate.head() else None


# -- The row of `skillery doctor` about tokens -------------------------------------------------------------------------


def tokens_probe(settings: Settings) -> Probe:
    """Return the number of live tokens without an end, old and unused ones. They do not stop a server."""
    from skillery.identity.tokens import read_tokens, remarked

    fix = "skillery token list shows them. Rotate or revoke them. tokens.max_days limits new ones."
    try:
        with open_database(settings) as database:
            kept = _read(database, read_tokens)
    except (StartupError, SkilleryError) as error:
        return Probe("tokens", False, str(error), "Check the setting 'database'.", required=False)
    live = [token for token in kept.tokens if token.status == "live"] if kept else []
    words = remarked(live)
    detail = f"{len(live)} live{f', {words}' if words else ''}" if live else "none"
    return Probe("tokens", not words, detail, fix, required=False, off=not live)


OWN_PROBES = ("storage", "authenticator", "sandbox")
"""Kinds of backends with probes of their own."""
AUTH_ON = "Set auth to 'tokens' before users of other computers call this server."
PACKAGES_ON = (
    "Set packages.index_urls, for example to https://pypi.org/simple, or packages.wheelhouse. "
    "Skills with packages need one of them."
)


def installation_probes(plugins: Plugins, settings: Settings, sources: Mapping[str, str]) -> list[Probe]:
    """Return the results of all probes, except the capabilities of a started sandbox."""
    return [
        _python(),
        _home(settings),
        _database(settings),
        _storage(plugins, settings),
        _authenticator(plugins, settings),
        *(_service(plugins, settings, kind) for kind in KINDS.values() if _is_probed(plugins, settings, kind)),
        _packages(settings, sources),
        _runs(settings),
        webhooks_probe(settings),
        tokens_probe(settings),
        _vulnerabilities(settings),
        _fonts(),
        *_sandbox(plugins, settings),
    ]


def _python() -> Probe:
    return Probe(
        "python", sys.version_info >= (3, 11), platform.python_version(), "Run Skillery on Python 3.11 or newer."
    )


def _vulnerabilities(settings: Settings) -> Probe:
    """Return the result of the last reading of the OSV archive. A broken archive does not stop a server."""
    from skillery.publishing.vulnerabilities import Vulnerabilities

    name, vulnerabilities = "vulnerabilities", Vulnerabilities(settings.scan.osv_dir, settings.home)
    if vulnerabilities.archive is None:
        return Probe(name, True, "not checked", "Set scan.osv_dir to a folder with an OSV archive.", off=True)
    fix, report = f"Check the files in {vulnerabilities.archive}.", vulnerabilities.report
    if report is None:
        return Probe(name, False, "a server reads the archive after its start", fix, required=False)
    counts = ", ".join(f"{count} packages of {ecosystem}" for ecosystem, count in report.packages.items())
    detail = f"{counts or 'no packages'}, archive of {report.newest or 'unknown date'}"
    problem = report.failure or "; ".join(report.problems[:3])
    if problem:
        detail = f"{problem}; in use: {detail}"
    return Probe(name, not problem, detail, fix, required=False)


def _fonts() -> Probe:
    """Check that pictures and PDF files of runs can have Chinese characters. Runs see the fonts of the host."""
    fix = "Install fonts: apt-get install fontconfig fonts-noto-cjk"
    try:
        command = ["fc-list", ":lang=zh-cn", "family"]
        listed = subprocess.run(command, capture_output=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return Probe("fonts", False, "fc-list cannot be run, so the fonts are unknown", fix, required=False)
    families = sorted(listed.decode("utf-8", "replace").splitlines())
    detail = f"Chinese: {families[0]}" if families else "no font has Chinese characters; runs show boxes instead"
    return Probe("fonts", bool(families), detail, fix, required=False)


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
    """Check that the database can be opened."""
    from skillery.database import migrate

    fix = "Check the setting 'database' and that the database is running."
    try:
        with open_database(settings) as database:
            if database.is_sqlite and not Path(database.url.database or "").exists():
                return Probe("database", True, "will be created at the first start")
            revision = migrate.current(database)
    except StartupError as error:
        return Probe("database", False, str(error), fix)
    migration_note = ", will be migrated at the next start" if (revision or "") < migrate.head() else ""
    return Probe("database", True, f"reachable, at revision {revision or 'none'}{migration_note}")


def _storage(plugins: Plugins, settings: Settings) -> Probe:
    """Open the storage as a server does, and check it."""
    fix = "Check the setting 'storage' and its section [backends.storage.<name>]."
    try:
        plugins.open("storage", settings).check()
    except (StartupError, SkilleryError) as error:
        return Probe("storage", False, str(error), fix)
    except OSError as error:
        return Probe("storage", False, error.strerror or type(error).__name__, fix)
    return Probe("storage", True, settings.storage)


def _authenticator(plugins: Plugins, settings: Settings) -> Probe:
    """Check that the authenticators can be opened, and that their services answer."""
    fix = "Check the setting 'auth' and its section [backends.authenticator.<name>]."
    try:
        with open_database(settings) as database:
            problem = service_problem(plugins.open_authenticators(settings, database).values())
    except (StartupError, SkilleryError) as error:
        problem = str(error)
    if problem is not None:
        return Probe("authenticator", False, problem, fix)
    if settings.authenticators == ("open",):
        return Probe("authenticator", True, "open: callers need no token", AUTH_ON, off=True)
    return Probe("authenticator", True, ", ".join(settings.authenticators))


def _is_probed(plugins: Plugins, settings: Settings, kind: Kind) -> bool:
    return kind.setting != "" and kind.name not in OWN_PROBES and plugins.chosen(kind, settings) != ()


def _service(plugins: Plugins, settings: Settings, kind: Kind) -> Probe:
    fix = f"Check the setting '{kind.setting}' and its section [backends.{kind.name}.<name>]."
    try:
        with open_database(settings) as database:
            problem = service_problem([plugins.open(kind.name, settings, database)])
    except (StartupError, SkilleryError) as error:
        problem = str(error)
    if problem is not None:
        return Probe(kind.name, False, problem, fix)
    return Probe(kind.name, True, ", ".join(plugins.chosen(kind, settings)))


def _packages(settings: Settings, sources: Mapping[str, str]) -> Probe:
    """Check the requirements for packages of skills and environments: an index or wheelhouse, and the program uv."""
    from skillery.app.builders import defined_in
    from skillery.environments.jobs import find_uv

    packages = settings.packages
    origin = " (the index of pip)" if sources.get("packages.index_urls") == PIP else ""
    try:
        environment_count = len(defined_in(settings))
    except StartupError as error:
        return Probe("packages", False, str(error), "Check the settings [environments.<name>] and [packages].")
    if not (packages.index_urls or packages.wheelhouse):
        return Probe("packages", True, "no index and no wheelhouse", PACKAGES_ON, off=True)
    if packages.wheelhouse and not Path(packages.wheelhouse).expanduser().is_dir():
        fix = "Check the setting 'packages.wheelhouse'."
        return Probe("packages", False, f"the folder '{packages.wheelhouse}' does not exist", fix)
    try:
        program = find_uv()
    except PackagesNotOffered as error:
        # Only the settings of Skillery require packages. The configuration of pip is for other programs too.
        unused = bool(origin) and not environment_count
        return Probe("packages", unused, error.message, "pip install 'skillery[packages]'", off=unused)
    hosts = ", ".join(urlsplit(address).hostname or "an index" for address in packages.index_urls)
    source = f"the wheelhouse {packages.wheelhouse}" if packages.wheelhouse else f"from {hosts}"
    npm = f"npm: {urlsplit(packages.npm_url).hostname or 'none (the setting packages.npm_url)'}"
    return Probe("packages", True, f"{source}{origin}, by {program}; {npm}; named environments: {environment_count}")


def _runs(settings: Settings) -> Probe:
    """Check that runs are kept as long as `runs.keep_days` says."""
    from skillery.runs.records import span_of_count

    days, count = settings.runs.keep_days, settings.runs.keep_count
    span = None
    if count:
        try:
            with open_database(settings) as database:
                if not database.is_sqlite or Path(database.url.database or "").exists():
                    span = database.read_now(partial(span_of_count, days=days, count=count))
        except (StartupError, SkilleryError) as error:
            return Probe("runs", False, str(error), "Check the setting 'database'.", required=False)
    if span is not None:
        hours = max(1, round(span.total_seconds() / 3600))
        detail = f"kept for about {hours} hours: runs.keep_count = {count} shortens runs.keep_days = {days}"
        return Probe("runs", False, detail, "Set runs.keep_count to 0 or to a higher number.", required=False)
    return Probe("runs", True, f"kept for {days} days" if days else "kept without a time limit")


def _sandbox(plugins: Plugins, settings: Settings) -> list[Probe]:
    try:
        sandbox = plugins.open("sandbox", settings)
        probes: list[Probe] = sandbox.probe()
    except (StartupError, SkilleryError) as error:
        return [Probe("sandbox", False, str(error), "Choose a sandbox that works here, with the setting 'sandbox'.")]
    return probes


# The part of `skillery doctor` about system programs: it tests whether the programs that public skills use exist in
# runs.


HOST_PATH = "/usr/local/bin:/usr/bin:/bin"
WHICH = "import shutil\ndef main(args): return {name: shutil.which(name, path=args['path']) for name in args['names']}"


class SeenProgram(msgspec.Struct, frozen=True):
    """A program and its Debian package. `path` is the path in a run, or None if the program does not exist in runs."""

    program: str
    package: str
    path: str | None
    note: str = ""


async def seen_programs(sandbox: Sandbox) -> list[SeenProgram]:
    """Look up the usual programs in a run. The sandbox must be started. Return [] if the run fails."""
    from skillery.backends import CodeCall, Job, Limits
    from skillery.jobs import NoHost

    names = [program for programs in USUAL.values() for program in programs]
    args = msgspec.json.encode({"names": names, "path": HOST_PATH})
    limits = Limits(timeout_ms=20_000, memory_mb=256)
    outcome = await sandbox.run(Job("run_0", CodeCall(WHICH, "main"), args, limits=limits), NoHost())
    if outcome.result is None:
        return []
    paths = msgspec.json.decode(outcome.result, type=dict[str, str | None])
    return [
        SeenProgram(program, package, paths.get(program), "" if paths.get(program) else hidden_link(program))
        for package, programs in USUAL.items()
        for program in programs
    ]


def hidden_link(program: str) -> str:
    """Return why a program of this computer does not exist in runs, and the remedy.

    The reason is a link that leads outside the folders that runs see. Return "" if the computer has no such link.
    """
    path = shutil.which(program, path=HOST_PATH)
    if path is None or not Path(path).is_symlink():
        return ""
    return f"Runs cannot follow the link {path} to {os.path.realpath(path)}. Install {program} in /usr."


def print_programs(seen: Sequence[SeenProgram]) -> None:
    """Print which of the usual programs runs can call, by Debian package."""
    if not seen:
        return
    rows = [
        (
            package,
            ", ".join(entry.program for entry in seen if entry.package == package and entry.path),
            ", ".join(entry.program for entry in seen if entry.package == package and not entry.path),
        )
        for package in USUAL
    ]
    title = "System programs that public skills call. All of them are optional."
    columns = ["Debian package", "runs can call", "runs cannot call"]
    if not is_terminal():
        click.echo("\n" + title + "\n" + "\t".join(columns))
    print_rows(columns, rows, title=title)
    for entry in seen:
        if entry.note:
            click.echo(entry.note, err=True)
