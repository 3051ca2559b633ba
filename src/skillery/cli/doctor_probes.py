"""The probes of `skillery doctor`: they open each part of an installation as a server does."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from skillery.backends import Probe
from skillery.cli.database import open_database
from skillery.cli.doctor_webhooks import webhooks_probe
from skillery.cli.services import service_problem
from skillery.errors import PackagesNotOffered, SkilleryError, StartupError
from skillery.settings import PIP

if TYPE_CHECKING:
    from skillery.plugins import Plugins
    from skillery.settings import Settings


AUTH_ON = "Set auth to 'tokens' before users of other computers call this server."
PACKAGES_ON = (
    "Set packages.index_urls, for example to https://pypi.org/simple, or packages.wheelhouse. "
    "Skills with packages need one of them."
)


def installation_probes(plugins: Plugins, settings: Settings, sources: Mapping[str, str]) -> list[Probe]:
    """Return the results of all probes, except that of the capabilities of a started sandbox."""
    return [
        _python(),
        _home(settings),
        _database(settings),
        _storage(plugins, settings),
        _authenticator(plugins, settings),
        _secrets(plugins, settings),
        _packages(settings, sources),
        _runs(settings),
        webhooks_probe(settings),
        *_sandbox(plugins, settings),
    ]


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
    from skillery.database import migrate

    fix = "Check the setting 'database' and that the database is running."
    try:
        with open_database(settings) as database:
            if database.is_sqlite and not Path(database.url.database or "").exists():
                return Probe("database", True, "will be created at the first start")
            revision = migrate.current(database)
    except StartupError as error:
        return Probe("database", False, str(error), fix)
    behind = "" if revision == migrate.head() else ", will be migrated at the next start"
    return Probe("database", True, f"reachable, at revision {revision or 'none'}{behind}")


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


def _secrets(plugins: Plugins, settings: Settings) -> Probe:
    fix = "Check the setting 'secrets' and its section [backends.secrets.<name>]."
    try:
        with open_database(settings) as database:
            problem = service_problem([plugins.open("secrets", settings, database)])
    except (StartupError, SkilleryError) as error:
        problem = str(error)
    if problem is not None:
        return Probe("secrets", False, problem, fix)
    return Probe("secrets", True, settings.secrets)


def _packages(settings: Settings, sources: Mapping[str, str]) -> Probe:
    """Check the requirements for packages of skills and environments: an index or wheelhouse, and the program uv."""
    from skillery.app.builders import defined_in
    from skillery.environments.jobs import find_uv

    wanted = settings.packages
    is_from_pip = sources.get("packages.index_urls") == PIP
    try:
        named = len(defined_in(settings))
    except StartupError as error:
        return Probe("packages", False, str(error), "Check the settings [environments.<name>] and [packages].")
    if not (wanted.index_urls or wanted.wheelhouse):
        return Probe("packages", True, "no index and no wheelhouse", PACKAGES_ON, off=True)
    if wanted.wheelhouse and not Path(wanted.wheelhouse).expanduser().is_dir():
        fix = "Check the setting 'packages.wheelhouse'."
        return Probe("packages", False, f"the folder '{wanted.wheelhouse}' does not exist", fix)
    try:
        program = find_uv()
    except PackagesNotOffered as error:
        # Only the settings of Skillery require packages. The configuration of pip is for other programs too.
        unused = is_from_pip and not named
        return Probe("packages", unused, error.message, "pip install 'skillery[packages]'", off=unused)
    hosts = ", ".join(urlsplit(address).hostname or "an index" for address in wanted.index_urls)
    source = f"the wheelhouse {wanted.wheelhouse}" if wanted.wheelhouse else f"from {hosts}"
    origin = " (the index of pip)" if is_from_pip else ""
    return Probe("packages", True, f"{source}{origin}, by {program}; named environments: {named}")


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
